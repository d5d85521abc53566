//! Rewrites of a module, one file each, and the ordered list that a model runs.
//!
//! A pass has a stable name (used in manifests, the log, `--stop-after` and `--explain`), says how many sites it
//! rewrote or why there was nothing to do, and leaves a module that [`Module::verify`] accepts.

mod ane_conv;
mod ane_norm;
mod attention;
mod bake_conv;
mod cancel_transposes;
mod chunk_layers;
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
mod quantise_linears;
mod split_gate_up;
mod stack_experts;
mod static_kv;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;

pub use ane_conv::AneConv;
pub use ane_norm::AneNorm;
pub use bake_conv::BakeConv;
pub use cancel_transposes::CancelTransposes;
pub use chunk_layers::ChunkLayers;
pub use dead_code::DeadCode;
pub use externalize::Externalize;
pub use fold_constants::FoldConstants;
pub use fold_position_embeddings::FoldPositionEmbeddings;
pub use gather_moe::GatherMoe;
pub use lower_linear::LowerLinear;
pub use metalize_moe::MetalizeMoe;
pub use proof::{Arguments, Call, Numbers};
pub use quantise_experts::QuantiseExperts;
pub use quantise_linears::QuantiseLinears;
pub use split_gate_up::SplitGateUp;
pub use stack_experts::StackExperts;
pub use static_kv::{KvForm, StaticKv, names as kv_names};

use crate::graph::{Function, FunctionRole, Module, Node, Rewriter, ValueId, rewrite};
use crate::weights::Weights;
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

    /// The calls that do after the pass, one after the other, what `before` did with `arguments`: a pass may change what
    /// a function takes, or make several functions of it. A call takes those results of the one before that it has
    /// inputs for.
    ///
    /// # Errors
    /// When there are none.
    fn calls_after(&self, before: &Function, arguments: Arguments) -> Result<Vec<Call>> {
        Ok(vec![Call::of(before, arguments)])
    }

    /// Whether states hold on return what they held before the pass.
    fn keeps_states(&self) -> bool {
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
    let calls = proof::calls(module)?;
    let (before, calls_after) = (Numbers::on(module, calls.clone())?, calls_after(module, pass, calls)?);
    let states = names_of_states(module);
    let before = before.only(|name| pass.keeps_states() || !states.contains(name));
    let entry = run(module, pass)?;
    let difference = Numbers::on(module, calls_after)?.difference(&before)?;
    let kept = difference <= ROUNDING;
    if pass.keeps_numbers() && !kept {
        let error = Error::check("the pass changed the numbers").at(format!("pass `{}`", pass.name()));
        return Err(error.found(format!("{difference:e}")).expected(format!("at most {ROUNDING:e}")));
    }
    Ok(Entry { difference: Some(difference), ..entry })
}

/// The calls that do after the pass what the calls of whole functions do before it.
fn calls_after(module: &Module, pass: &dyn Pass, calls: proof::Calls) -> Result<proof::Calls> {
    let mut after = proof::Calls::new();
    for (name, calls) in calls {
        let mut replaced = Vec::new();
        for Call { function, arguments } in calls {
            let before = module.function(&function);
            let before = before.ok_or_else(|| Error::input("no such function").found(function.clone()))?;
            replaced.extend(pass.calls_after(before, arguments)?);
        }
        after.insert(name, replaced);
    }
    Ok(after)
}

/// The states of every entry function, as [`Numbers`] names them.
fn names_of_states(module: &Module) -> BTreeSet<String> {
    let of = |function: &Function| {
        let name = function.name.clone();
        function.states.iter().map(|state| format!("{name}.{}", state.name)).collect::<Vec<_>>()
    };
    module.entries().flat_map(of).collect()
}

/// Applies a rule to every node of every entry function; returns how many nodes were replaced.
fn rewrite_entries(
    module: &mut Module,
    mut rule: impl FnMut(&mut Rewriter<'_, '_>, &Node) -> Result<Option<ValueId>>,
) -> Result<usize> {
    rewrite_entries_with(module, |_| (), |rewriter, node, ()| rule(rewriter, node))
}

/// As [`rewrite_entries`], with a rule that is also told what `learn` found in the function as it was.
fn rewrite_entries_with<T>(
    module: &mut Module,
    learn: impl Fn(&Function) -> T,
    mut rule: impl FnMut(&mut Rewriter<'_, '_>, &Node, &T) -> Result<Option<ValueId>>,
) -> Result<usize> {
    rewrite_entries_by(module, &mut |function, weights| {
        let learnt = learn(function);
        rewrite(function, weights, |rewriter, node| rule(rewriter, node, &learnt))
    })
}

/// Makes the new function of an old one, and says how many nodes were replaced.
type Rebuild<'r> = dyn FnMut(&Function, &mut Weights) -> Result<(Function, usize)> + 'r;

/// Rebuilds every entry function; returns how many nodes were replaced.
fn rewrite_entries_by(module: &mut Module, rebuild: &mut Rebuild<'_>) -> Result<usize> {
    let mut sites = 0;
    for index in 0..module.functions.len() {
        let function = &module.functions[index];
        if function.role != FunctionRole::Entry {
            continue;
        }
        let (function, replaced) = rebuild(function, &mut module.weights)?;
        module.functions[index] = function;
        sites += replaced;
    }
    Ok(sites)
}
