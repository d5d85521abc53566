//! `aimodel inspect`.

mod asset;
mod bundle;
mod checkpoint;
mod usage;

use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::HumanBytes;

use super::failure::Failure;
use super::help;
use super::options::OutputOptions;
use super::output::Output;
use crate::asset::Asset;
use crate::bundle::METADATA;
use crate::{Error, Result};

/// Show what is in a bundle, an `.aimodel` asset or a checkpoint
///
/// Of weights only the headers are read.
#[derive(Debug, Args)]
#[command(after_help = help::with_exit_status(EXAMPLES))]
pub(super) struct Options {
    /// The bundle, asset or checkpoint; a checkpoint may be a single `.safetensors` file
    path: PathBuf,
    /// Print the program of an asset, one operation a line
    #[arg(long, conflicts_with = "json")]
    text: bool,
    #[command(flatten)]
    pub output: OutputOptions,
}

const EXAMPLES: &str = "\
Examples:
  aimodel inspect unlimited-ocr-sym8
  aimodel inspect unlimited-ocr-sym8/decoder.aimodel
  aimodel inspect unlimited-ocr-sym8/decoder.aimodel --text
  aimodel inspect ./Unlimited-OCR --json";

/// What a path turns out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    Asset,
    Bundle,
    Checkpoint,
}

pub(super) fn run(options: &Options, output: &mut Output) -> Result<(), Failure> {
    let path = &options.path;
    let subject = subject(path)?;
    if options.text {
        return Ok(output.text(&text(path, subject)?)?);
    }
    match subject {
        Subject::Bundle => output.answer(&bundle::View::open(path)?)?,
        Subject::Asset => output.answer(&asset::View::open(path)?)?,
        Subject::Checkpoint => output.answer(&checkpoint::View::open(path)?)?,
    }
    Ok(())
}

fn subject(path: &Path) -> Result<Subject> {
    path.metadata().map_err(|e| Error::io(path, &e))?;
    let has = |name: &str| path.join(name).is_file();
    Ok(if has("main.mlirb") {
        Subject::Asset
    } else if has(METADATA) && !has("config.json") {
        Subject::Bundle
    } else {
        Subject::Checkpoint
    })
}

/// The program of an asset as text.
fn text(path: &Path, subject: Subject) -> Result<String> {
    match subject {
        Subject::Asset => Ok(Asset::open(path)?.program().to_string()),
        Subject::Bundle | Subject::Checkpoint => Err(Error::input("only an asset has a program to print")
            .at(path.display().to_string())
            .hint("name a folder that holds main.mlirb")),
    }
}

/// A size as people read it, and to the byte.
fn size(bytes: u64) -> String {
    format!("{} ({bytes} bytes)", HumanBytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_path_is_shows_in_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str| std::fs::write(folder.path().join(name), "{}").unwrap();
        assert_eq!(subject(folder.path()).unwrap(), Subject::Checkpoint);
        write(METADATA);
        assert_eq!(subject(folder.path()).unwrap(), Subject::Bundle);
        write("config.json");
        assert_eq!(subject(folder.path()).unwrap(), Subject::Checkpoint);
        write("main.mlirb");
        assert_eq!(subject(folder.path()).unwrap(), Subject::Asset);
        assert!(subject(&folder.path().join("missing")).is_err());
    }

    #[test]
    fn only_an_asset_is_printed() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/apple/sample.aimodel");
        assert!(text(&golden, Subject::Asset).unwrap().starts_with("asset version "));
        let error = text(Path::new("b"), Subject::Bundle).unwrap_err();
        assert_eq!(error.to_string(), "b: only an asset has a program to print");
    }
}
