//! Rewrites of a module, one file each, and the ordered list that a model runs.
//!
//! A pass has a stable name (used in manifests, the log, `--stop-after` and `--explain`), says how many sites it
//! rewrote or why there was nothing to do, and leaves a module that [`Module::verify`] accepts.

mod bake_conv;
mod cancel_transposes;
mod dead_code;
mod experts;
mod externalize;
mod fold_constants;
mod fold_position_embeddings;
mod gather_moe;
mod lower_linear;
mod metalize_moe;
mod proof;
mod quantise_experts;
mod stack_experts;
mod static_kv;
#[cfg(test)]
mod tests;

use std::fmt;

pub use bake_conv::BakeConv;
pub use cancel_transposes::CancelTransposes;
pub use dead_code::DeadCode;
pub use externalize::Externalize;
pub use fold_constants::FoldConstants;
pub use fold_position_embeddings::FoldPositionEmbeddings;
pub use gather_moe::GatherMoe;
pub use lower_linear::LowerLinear;
pub use metalize_moe::MetalizeMoe;
pub use proof::Numbers;
pub use quantise_experts::QuantiseExperts;
pub use stack_experts::StackExperts;
pub use static_kv::StaticKv;

use crate::graph::{FunctionRole, Module, Node, Rewriter, ValueId, rewrite};
use crate::{Error, Result};

/// One rewrite of a module.
pub trait Pass: fmt::Debug {
    /// The stable kebab-case name.
    fn name(&self) -> &'static str;

    /// Rewrites `module`.
    ///
    /// # Errors
    /// When the module asks for something the pass cannot give it.
    fn run(&self, module: &mut Module) -> Result<Outcome>;

    /// Whether the results before and after are equal but for rounding. Only quantising changes them.
    fn keeps_numbers(&self) -> bool {
        true
    }
}

/// What a pass did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// So many sites were rewritten.
    Rewrote(usize),
    /// There was nothing to do, and why.
    Nothing(&'static str),
}

impl Outcome {
    fn of(sites: usize, otherwise: &'static str) -> Self {
        if sites == 0 { Self::Nothing(otherwise) } else { Self::Rewrote(sites) }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rewrote(1) => f.write_str("rewrote 1 site"),
            Self::Rewrote(sites) => write!(f, "rewrote {sites} sites"),
            Self::Nothing(reason) => write!(f, "nothing to do: {reason}"),
        }
    }
}

/// What one pass of a run did.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Its name.
    pub pass: &'static str,
    /// What it did, or why it did nothing.
    pub outcome: Outcome,
    /// How far the results moved, where that was asked for; see [`Numbers::difference`].
    pub difference: Option<f32>,
}

/// What each pass of a run did, in order.
pub type PassLog = Vec<Entry>;

/// Rounding of single precision that rewrites of long sums may cause.
pub const ROUNDING: f32 = 1e-3;

/// Runs one pass and checks the module's invariants after it.
///
/// # Errors
/// When the pass fails or breaks an invariant; the error names the pass.
pub fn run(module: &mut Module, pass: &dyn Pass) -> Result<Entry> {
    let named = |e: Error| e.at(format!("pass `{}`", pass.name()));
    let outcome = pass.run(module).map_err(named)?;
    module.verify().map_err(named)?;
    Ok(Entry { pass: pass.name(), outcome, difference: None })
}

/// As [`run`], and runs the functions before and after: a rewrite that [keeps the numbers](Pass::keeps_numbers) has to.
///
/// # Errors
/// As [`run`], and when the numbers move by more than [`ROUNDING`].
pub fn run_proved(module: &mut Module, pass: &dyn Pass) -> Result<Entry> {
    let before = Numbers::of(module)?;
    let entry = run(module, pass)?;
    let difference = Numbers::of(module)?.difference(&before)?;
    let kept = difference <= ROUNDING;
    if pass.keeps_numbers() && !kept {
        let error = Error::check("the pass changed the numbers").at(format!("pass `{}`", pass.name()));
        return Err(error.found(format!("{difference:e}")).expected(format!("at most {ROUNDING:e}")));
    }
    Ok(Entry { difference: Some(difference), ..entry })
}

/// Applies a rule to every node of every entry function; returns how many nodes were replaced.
fn rewrite_entries(
    module: &mut Module,
    mut rule: impl FnMut(&mut Rewriter<'_, '_>, &Node) -> Result<Option<ValueId>>,
) -> Result<usize> {
    let mut sites = 0;
    for index in 0..module.functions.len() {
        if module.functions[index].role != FunctionRole::Entry {
            continue;
        }
        let (function, replaced) = rewrite(&module.functions[index], &mut module.weights, &mut rule)?;
        module.functions[index] = function;
        sites += replaced;
    }
    Ok(sites)
}
