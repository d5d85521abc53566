//! `aimodel plan`.

use std::collections::BTreeMap;
use std::fmt;

use clap::Args;
use indicatif::HumanBytes;
use serde::Serialize;

use super::failure::Failure;
use super::help;
use super::options::{ModelOptions, OutputOptions};
use super::output::Output;
use crate::export::{Blueprint, DroppedReport, PassReport, Plan, WeightReport};

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
  aimodel plan --model glm-ocr --quant int8hu --grid 22x31,32x24
  aimodel plan --model glm-ocr --functions dynamic --json
  aimodel plan --model unlimited-ocr --target macos27-beta --json";

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
        writeln!(f, "key/value cache: {}", plan.kv)?;
        for asset in &plan.assets {
            writeln!(f, "\n{}: {} bytes, {} weights", asset.name, asset.bytes, asset.weights.len())?;
            asset.functions.iter().try_for_each(|function| writeln!(f, "  function {function}"))?;
            write_weights(f, &asset.weights)?;
            if self.explain {
                write_passes(f, &asset.passes)?;
            }
        }
        writeln!(f, "\nhost tensors")?;
        write_weights(f, &plan.host_tensors)?;
        write_dropped(f, &plan.dropped)?;
        plan.notes.iter().try_for_each(|note| writeln!(f, "\nnote: {note}"))
    }
}

fn write_weights(f: &mut fmt::Formatter<'_>, weights: &[WeightReport]) -> fmt::Result {
    let width = weights.iter().map(|weight| weight.stored_as.len()).fold(12, usize::max);
    for weight in weights {
        let WeightReport { name, stored_as, shape, bytes, functions, .. } = weight;
        write!(f, "  {bytes:>12}  {stored_as:<width$}  {:<18}  {name}", format!("{shape:?}"))?;
        match (&weight.remark, &weight.padded_from) {
            (Some(remark), _) => write!(f, "  {remark}")?,
            (None, Some(from)) => write!(f, "  padded from {from:?}")?,
            (None, None) => {}
        }
        if functions.len() > 1 {
            write!(f, "  shared by {}", functions.join(", "))?;
        }
        writeln!(f)?;
    }
    Ok(())
}

/// Tensors that one pass drops for one reason stand together.
fn write_dropped(f: &mut fmt::Formatter<'_>, dropped: &[DroppedReport]) -> fmt::Result {
    let mut groups: BTreeMap<(&str, &str), Vec<&DroppedReport>> = BTreeMap::new();
    for tensor in dropped {
        groups.entry((&tensor.pass, &tensor.reason)).or_default().push(tensor);
    }
    for ((pass, reason), tensors) in groups {
        let bytes: u64 = tensors.iter().map(|tensor| tensor.bytes).sum();
        writeln!(f, "\ndropped by `{pass}`: {bytes} bytes, {} tensors\n  {reason}", tensors.len())?;
        tensors.iter().try_for_each(|tensor| writeln!(f, "  {:>12}  {}", tensor.bytes, tensor.tensor))?;
    }
    Ok(())
}

fn write_passes(f: &mut fmt::Formatter<'_>, passes: &[PassReport]) -> fmt::Result {
    passes.iter().try_for_each(|pass| writeln!(f, "  pass {pass}"))
}
