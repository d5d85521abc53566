//! `aimodel verify`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;

use super::failure::Failure;
use super::help;
use super::options::{Form, OutputOptions, RuntimeChoice, RuntimeOptions};
use super::output::Output;
use super::progress::Bar;
use crate::bundle::Bundle;
use crate::runtime::coreai::interpreter;
use crate::verify::{self, Judge, verify};

/// Check a bundle: whole, as it was written, and giving the answers it should
///
/// Reads every file, checks the programs against the recipe and against rules that Apple's runtimes are known to need,
/// and runs a drawn page and a blank one side by side with the reference executor in single precision. Stops at the
/// first finding.
#[derive(Debug, Args)]
#[command(after_help = help::with_exit_status(EXAMPLES))]
pub(super) struct Options {
    /// The bundle's folder
    #[arg(short, long, value_name = "FOLDER")]
    bundle: PathBuf,
    /// Tokens to decode after the prompt
    #[arg(long, value_name = "N", default_value_t = verify::Options::STEPS)]
    steps: NonZeroUsize,
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
  aimodel verify --bundle unlimited-ocr-sym8
  aimodel verify --bundle unlimited-ocr-sym8 --steps 32 --json
  aimodel verify --bundle unlimited-ocr-sym8 --runtime coreai --python .venv/bin/python";

pub(super) fn run(options: &Options, output: &mut Output) -> Result<(), Failure> {
    let bundle = Bundle::open(&options.bundle)?;
    let verdict = verify(&bundle, &options.checks(), &Bar::new(output));
    output.done(&verdict.report)?;
    verdict.failure.map_or(Ok(()), |error| Err(error.into()))
}

impl Options {
    fn checks(&self) -> verify::Options {
        let judge = match self.runtime.runtime {
            RuntimeChoice::Eval => Judge::Reference,
            RuntimeChoice::Coreai => Judge::CoreAi(interpreter(self.runtime.python.as_deref())),
        };
        verify::Options { steps: self.steps, functions: self.functions.map(Into::into), ..verify::Options::new(judge) }
    }
}
