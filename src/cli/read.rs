//! `aimodel read`.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::failure::Failure;
use super::help;
use super::options::{Form, OutputOptions, RuntimeOptions};
use super::output::Output;
use super::progress::Bar;
use super::runtime::{assets_of, with_runtime};
use crate::Result;
use crate::bundle::Bundle;
use crate::error::At;
use crate::host::image;
use crate::host::reader::{HostAssets, read_page};
use crate::progress::Progress;
use crate::runtime::Runtime;

/// Read a page: image in, text out, with an exported bundle
#[derive(Debug, Args)]
#[command(after_help = help::with_exit_status(EXAMPLES))]
pub(super) struct Options {
    /// The bundle's folder
    #[arg(short, long, value_name = "FOLDER")]
    bundle: PathBuf,
    /// The page, a PNG or JPEG image
    #[arg(short, long, value_name = "FILE")]
    image: PathBuf,
    /// Stop after so many tokens [default: as many as the cache holds]
    #[arg(long, value_name = "N")]
    max_tokens: Option<NonZeroUsize>,
    /// The functions that read the prompt, where a bundle has several [default: the quickest there are]
    #[arg(long, value_name = "FORM")]
    functions: Option<Form>,
    #[command(flatten)]
    runtime: RuntimeOptions,
    #[command(flatten)]
    pub output: OutputOptions,
}

const EXAMPLES: &str = "\
Examples:
  aimodel read --bundle unlimited-ocr-sym8 --image page.png
  aimodel read -b unlimited-ocr-sym8 -i page.png --runtime coreai --python .venv/bin/python
  aimodel read --bundle unlimited-ocr-sym8 --image page.png --max-tokens 100 --json";

/// What was read on the page.
#[derive(Debug, Serialize)]
struct Page {
    text: String,
    tokens: Vec<u32>,
    /// Why it ended there.
    stop: String,
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

pub(super) fn run(options: &Options, output: &mut Output) -> Result<(), Failure> {
    let bundle = Bundle::open(&options.bundle)?;
    let page = read(&bundle, options, &Bar::new(output))?;
    Ok(output.answer(&page)?)
}

/// Reads the page.
fn read(bundle: &Bundle, options: &Options, progress: &dyn Progress) -> Result<Page> {
    let image = image::open(&options.image)?;
    let mut host = HostAssets::open(bundle.path())?;
    options.functions.map_or(Ok(()), |form| host.choose(form.into())).at(|| "--functions")?;
    let limit = options.max_tokens.map(NonZeroUsize::get);
    progress.begin("read", 0);
    let read = |runtime: &mut dyn Runtime| read_page(runtime, &host, &image, limit, &|_| Ok(()));
    let reading = with_runtime(&options.runtime, assets_of(bundle, &host), read)?;
    progress.end();
    Ok(Page { text: reading.text, tokens: reading.ids, stop: reading.stop.to_string() })
}
