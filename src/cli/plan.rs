//! `aimodel plan`.

use std::fmt;

use clap::Args;
use indicatif::HumanBytes;
use serde::Serialize;

use super::failure::Failure;
use super::help;
use super::options::{ModelOptions, OutputOptions};
use super::output::Output;
use crate::export::{Blueprint, PassReport, Plan, WeightReport};

/// Say what an export will take and make, without doing it
///
/// Reads the checkpoint's headers only. The sizes are those of the real run, to the byte.
#[derive(Debug, Args)]
#[command(after_help = help::with_exit_status(EXAMPLES))]
pub(super) struct Options {
    #[command(flatten)]
    model: ModelOptions,
    /// Print what each pass will do, or why it does nothing
    #[arg(long, help_heading = "Pass options")]
    explain: bool,
    #[command(flatten)]
    pub output: OutputOptions,
}

const EXAMPLES: &str = "\
Examples:
  aimodel plan --model unlimited-ocr --quant sym8
  aimodel plan --model unlimited-ocr --checkpoint ./Unlimited-OCR --explain
  aimodel plan --model unlimited-ocr --json";

pub(super) fn run(options: &Options, output: &mut Output) -> Result<(), Failure> {
    let blueprint = Blueprint::new(&options.model.request())?;
    let report = Report { plan: Plan::of(&blueprint), explain: options.explain };
    Ok(output.answer(&report)?)
}

/// A plan as people read it.
#[derive(Serialize)]
#[serde(transparent)]
struct Report {
    plan: Plan,
    #[serde(skip)]
    explain: bool,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan = &self.plan;
        writeln!(
            f,
            "{} with {}: {} bytes ({})",
            plan.model,
            plan.scheme,
            plan.total_bytes,
            HumanBytes(plan.total_bytes)
        )?;
        for asset in &plan.assets {
            let functions = asset.functions.join(", ");
            writeln!(f, "\n{} ({functions}): {} bytes, {} weights", asset.name, asset.bytes, asset.weights.len())?;
            write_weights(f, &asset.weights)?;
            if self.explain {
                write_passes(f, &asset.passes)?;
            }
        }
        writeln!(f, "\nhost tensors")?;
        write_weights(f, &plan.host_tensors)?;
        for dropped in &plan.dropped {
            writeln!(f, "\ndropped by `{}`: {}\n  {}", dropped.pass, dropped.tensor, dropped.reason)?;
        }
        plan.notes.iter().try_for_each(|note| writeln!(f, "\nnote: {note}"))
    }
}

fn write_weights(f: &mut fmt::Formatter<'_>, weights: &[WeightReport]) -> fmt::Result {
    for weight in weights {
        let WeightReport { name, stored_as, shape, bytes, functions, .. } = weight;
        write!(f, "  {bytes:>12}  {stored_as:<12}  {:<18}  {name}", format!("{shape:?}"))?;
        if let Some(from) = &weight.padded_from {
            write!(f, "  padded from {from:?}")?;
        }
        if functions.len() > 1 {
            write!(f, "  shared by {}", functions.join(", "))?;
        }
        writeln!(f)?;
    }
    Ok(())
}

fn write_passes(f: &mut fmt::Formatter<'_>, passes: &[PassReport]) -> fmt::Result {
    passes.iter().try_for_each(|pass| writeln!(f, "  pass {pass}"))
}
