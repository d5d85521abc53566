//! `aimodel export`.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::HumanBytes;
use serde::Serialize;

use super::failure::Failure;
use super::options::{ModelOptions, OutputOptions};
use super::output::Output;
use super::progress::Bar;
use super::{help, interrupt};
use crate::Result;
use crate::bundle::{Cancel, SourceDate};
use crate::export::{
    Blueprint, Destination, ExportReport, ExportRequest, Manifest, Surroundings, export_explained, graphs_after,
    pass_reports,
};
use crate::quant::Scheme;

/// Write a bundle: the model, its tokenizer, and what a host needs to run it
#[derive(Debug, Args)]
#[command(after_help = help::with_exit_status(EXAMPLES))]
pub(super) struct Options {
    #[command(flatten)]
    model: ModelOptions,
    /// The folder or archive to write [default: ./MODEL-SCHEME]
    #[arg(short = 'o', long = "output", value_name = "PATH", help_heading = "Destination options")]
    destination: Option<PathBuf>,
    /// Write one `.zip` archive instead of a folder
    #[arg(long, help_heading = "Destination options")]
    zip: bool,
    /// Replace an older bundle at the same place; never anything else
    #[arg(long, help_heading = "Destination options")]
    force: bool,
    /// Stop after this pass and print the graph instead of writing a bundle
    #[arg(long, value_name = "PASS", help_heading = "Pass options")]
    stop_after: Option<String>,
    /// Print what each pass has done, or why it did nothing
    #[arg(long, help_heading = "Pass options")]
    explain: bool,
    #[command(flatten)]
    pub output: OutputOptions,
}

const EXAMPLES: &str = "\
Examples:
  aimodel export --model unlimited-ocr --quant sym8
      writes ./unlimited-ocr-sym8 from the downloaded model
  aimodel export --model unlimited-ocr --checkpoint ./Unlimited-OCR -o /data/ocr --force
      from a folder, over an older bundle
  aimodel export --model unlimited-ocr --checkpoint built-in --moe native --zip
      a tiny one that runs everywhere, as ./unlimited-ocr-sym8.zip
  aimodel export --model glm-ocr --quant int8hu --grid 22x31,32x24
      one set of weights for landscape and portrait pages, as ./glm-ocr-int8hu
  aimodel export --model glm-ocr --functions dynamic,pf64 --max-context 2048
      a decoder that takes any number of tokens, beside the one that takes one or 64
  aimodel export --model unlimited-ocr --target macos27-beta
      with the form of the key/value cache that runs there
  aimodel export --model glm-ocr --target ios27-beta --compute ane --chunk-layers 8
      for the Neural Engine, the decoder in functions of 8 layers

Equal input gives equal bytes. The bundle is dated by SOURCE_DATE_EPOCH, or not at all.";

/// One export with everything that surrounds it.
#[derive(Debug)]
struct Job {
    request: ExportRequest,
    destination: Destination,
    date: Option<SourceDate>,
    stop_after: Option<String>,
    explain: bool,
    cancel: Cancel,
}

/// What was written, as people read it.
#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Exported(ExportReport);

impl fmt::Display for Exported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "wrote {}", self.0.output.display())?;
        let assets = &self.0.assets;
        assets.iter().try_for_each(|(name, bytes)| writeln!(f, "  {name}: {} ({bytes} bytes)", HumanBytes(*bytes)))
    }
}

pub(super) fn run(options: &Options, output: &mut Output) -> Result<(), Failure> {
    let job = options.job(interrupt::cancel_on_signals()?)?;
    if let Some(pass) = &job.stop_after {
        return Ok(output.text(&graphs_after(&job.request, pass)?)?);
    }
    let bar = Bar::new(output);
    let surroundings = Surroundings { progress: &bar, cancel: &job.cancel, date: job.date };
    let mut told = |blueprint: &Blueprint| {
        if job.explain {
            explain(blueprint, output);
        }
    };
    let exported = export_explained(&job.request, &job.destination, surroundings, &mut told)?;
    exported.warnings.iter().for_each(|warning| output.warning(warning));
    Ok(output.done(&Exported(exported))?)
}

/// Tells what each pass does.
fn explain(blueprint: &Blueprint, output: &mut Output) {
    for asset in &blueprint.assets {
        for pass in pass_reports(&asset.log) {
            output.note(format_args!("{}: {pass}", asset.name));
        }
    }
}

impl Options {
    fn job(&self, cancel: Cancel) -> Result<Job> {
        Ok(Job {
            request: self.model.request(),
            destination: self.destination(),
            date: source_date()?,
            stop_after: self.stop_after.clone(),
            explain: self.explain,
            cancel,
        })
    }

    fn destination(&self) -> Destination {
        let path = self.destination.clone().unwrap_or_else(|| self.default_output());
        Destination { path, zip: self.zip, force: self.force }
    }

    fn default_output(&self) -> PathBuf {
        let asked = self.model.quant.map(Scheme::from);
        let scheme = asked.or_else(|| Manifest::find(&self.model.model).ok()?.default_scheme().ok());
        let scheme = scheme.map(|scheme| format!("-{scheme}")).unwrap_or_default();
        let extension = if self.zip { ".zip" } else { "" };
        Path::new(".").join(format!("{}{scheme}{extension}", self.model.model))
    }
}

/// The date that the bundle carries, from the environment.
fn source_date() -> Result<Option<SourceDate>> {
    match std::env::var_os("SOURCE_DATE_EPOCH") {
        Some(text) if !text.is_empty() => SourceDate::from_epoch(&text.to_string_lossy()).map(Some),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::export::{CheckpointChoice, Compute, MoeForm, Precision};
    use crate::host::recipe::Variant;
    use crate::passes::KvForm;
    use crate::quant::Scheme;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn job(line: &str) -> Job {
        Line::try_parse_from(line.split(' ')).unwrap().options.job(Cancel::default()).unwrap()
    }

    #[test]
    fn the_output_is_named_for_the_model_and_the_scheme() {
        for (line, expected) in [
            ("export --model unlimited-ocr --quant sym8", "./unlimited-ocr-sym8"),
            ("export --model unlimited-ocr --quant fp16 --zip", "./unlimited-ocr-fp16.zip"),
            ("export --model unlimited-ocr", "./unlimited-ocr-sym8"),
            ("export --model unlimited-ocr -o /data/x", "/data/x"),
        ] {
            assert_eq!(job(line).destination.path, Path::new(expected), "{line}");
        }
    }

    #[test]
    fn what_is_not_asked_for_is_left_to_the_model() {
        let request = job("export -m unlimited-ocr").request;
        assert_eq!(request.checkpoint, CheckpointChoice::Default);
        assert_eq!((request.scheme, request.moe, request.precision), (None, None, Precision::F16));
        assert_eq!((request.image_size, request.max_context, request.prompt), (None, None, None));
        assert_eq!((request.grids.len(), request.functions.len(), request.prefill_chunk), (0, 0, None));
        assert_eq!((request.threads, request.ignore_index, request.probes.len()), (0, false, 0));
        assert_eq!((request.kv, request.target, request.compute), (None, None, None));
        assert_eq!((request.chunk_layers, request.allow_known_crash), (None, false));
    }

    #[test]
    fn what_is_asked_for_reaches_the_request() {
        let line = "export -m m -c built-in --quant sym8 --moe native --precision f32 --image-size 320 \
                    --max-context 512 --prompt read --threads 2 --ignore-index --probe a --probe b \
                    --stop-after static-kv --explain --zip --force";
        let words: Vec<&str> = line.split_whitespace().collect();
        let job = Line::try_parse_from(words).unwrap().options.job(Cancel::default()).unwrap();
        let request = job.request;
        assert_eq!(request.checkpoint, CheckpointChoice::BuiltIn);
        assert_eq!((request.scheme, request.moe), (Some(Scheme::Sym8), Some(MoeForm::Native)));
        assert_eq!(request.precision, Precision::F32);
        assert_eq!((request.image_size, request.max_context), (Some(320), Some(512)));
        assert_eq!((request.prompt.as_deref(), request.threads, request.ignore_index), (Some("read"), 2, true));
        assert_eq!(request.probes, ["a", "b"]);
        assert_eq!((job.stop_after.as_deref(), job.explain), (Some("static-kv"), true));
        assert!(job.destination.zip && job.destination.force);
    }

    #[test]
    fn where_it_is_to_run_reaches_the_request() {
        let line = "export -m glm-ocr --kv host --target ios27-beta --compute ane --chunk-layers 8 --allow-known-crash";
        let request = job(line).request;
        assert_eq!((request.kv, request.compute), (Some(KvForm::Host), Some(Compute::Ane)));
        assert_eq!((request.target.as_deref(), request.chunk_layers), (Some("ios27-beta"), Some(8)));
        assert!(request.allow_known_crash);
    }

    #[test]
    fn lists_are_repeated_or_have_commas() {
        let request =
            job("export -m glm-ocr --grid 22x31,32x24 --grid 8x16 --functions s1,dynamic --functions pf64").request;
        let grids: Vec<String> = request.grids.iter().map(ToString::to_string).collect();
        assert_eq!(grids, ["22x31", "32x24", "8x16"]);
        assert_eq!(request.functions, [Variant::Step, Variant::Dynamic, Variant::Prefill]);
        let request = job("export -m glm-ocr --cache-length 512 --prefill-chunk 32").request;
        assert_eq!((request.max_context, request.prefill_chunk), (Some(512), Some(32)));
    }
}
