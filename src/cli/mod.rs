//! The command line: one file a subcommand, options they share, output, progress, signals, exit codes.
//!
//! Nothing outside this module prints. Results go to stdout, everything else to stderr.

mod completions;
mod export;
mod failure;
mod help;
mod inspect;
mod interrupt;
mod models;
mod options;
mod output;
mod plan;
mod progress;
mod read;
mod runtime;
mod verify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use failure::Failure;
use output::Output;

/// Turns Hugging Face checkpoints into Apple Core AI bundles, and checks and runs the result.
#[derive(Debug, Parser)]
#[command(name = "aimodel", version, max_term_width = 100, after_help = help::with_exit_status(EXAMPLES))]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  aimodel models                                         what can be exported
  aimodel plan --model unlimited-ocr --quant sym8        what it will take, before it is done
  aimodel export --model unlimited-ocr --quant sym8      writes ./unlimited-ocr-sym8
  aimodel export --model glm-ocr --grid 22x31,32x24      writes ./glm-ocr-int8hu
  aimodel read --bundle unlimited-ocr-sym8 --image page.png";

#[derive(Debug, Subcommand)]
enum Command {
    Export(export::Options),
    Plan(plan::Options),
    Inspect(inspect::Options),
    Read(read::Options),
    Verify(verify::Options),
    Models(models::Options),
    Completions(completions::Options),
}

/// Runs the command on the arguments of the process.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(message) => {
            // Help is a result and goes to stdout; there is nobody to tell if that is closed.
            let _ = message.print();
            return ExitCode::from(u8::try_from(message.exit_code()).unwrap_or(failure::USAGE));
        }
    };
    let mut output = Output::to_stdio(cli.command.output());
    match cli.command.run(&mut output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(&mut output),
    }
}

impl Command {
    fn output(&self) -> options::OutputOptions {
        match self {
            Self::Export(options) => options.output,
            Self::Plan(options) => options.output,
            Self::Inspect(options) => options.output,
            Self::Read(options) => options.output,
            Self::Verify(options) => options.output,
            Self::Models(options) => options.output,
            Self::Completions(_) => options::OutputOptions::default(),
        }
    }

    fn run(&self, output: &mut Output) -> Result<(), Failure> {
        match self {
            Self::Export(options) => export::run(options, output),
            Self::Plan(options) => plan::run(options, output),
            Self::Inspect(options) => inspect::run(options, output),
            Self::Read(options) => read::run(options, output),
            Self::Verify(options) => verify::run(options, output),
            Self::Models(options) => models::run(options, output),
            Self::Completions(options) => completions::run(options, output),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_options_do_not_contradict_each_other() {
        Cli::command().debug_assert();
    }
}
