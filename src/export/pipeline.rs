//! The passes of an export: the manifest's list, each run or skipped as the request decides.

use super::{Deployment, MoeForm, fixed_shapes};
use crate::error::At;
use crate::graph::Module;
use crate::passes::{self, Entry, Outcome, Pass, PassLog};
use crate::quant::{BlockCode, IndivisiblePolicy, Part, Scheme};
use crate::{Error, Result};

/// What of a request the passes depend on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choices<'r> {
    pub(super) scheme: Scheme,
    pub(super) moe: MoeForm,
    pub(super) deployment: &'r Deployment,
    /// What the manifest says of linear layers that blocks do not fit.
    pub(super) indivisible: Option<&'r IndivisiblePolicy>,
    /// Run the functions before and after each pass.
    pub(super) prove: bool,
    /// Stop after this pass of whichever asset has it.
    pub(super) stop_after: Option<&'r str>,
}

enum Selected {
    Run(Box<dyn Pass>),
    Skip(&'static str, &'static str),
}

/// Runs the passes named, in order, and checks that no shape changes from step to step where the form of the cache has
/// none that do. The log has every name, skipped passes too.
pub(super) fn run(module: &mut Module, names: &[String], choices: Choices<'_>) -> Result<PassLog> {
    let mut log = PassLog::new();
    for name in names {
        match select(name, choices).at(|| "manifest")? {
            Selected::Run(pass) if choices.prove => log.push(passes::run_proved(module, pass.as_ref())?),
            Selected::Run(pass) => log.push(passes::run(module, pass.as_ref())?),
            Selected::Skip(pass, reason) => {
                log.push(Entry { pass, outcome: Outcome::Nothing(reason), difference: None });
            }
        }
        if choices.stop_after == Some(name.as_str()) {
            break;
        }
    }
    fixed_shapes::check(module, choices.deployment.kv)?;
    Ok(log)
}

fn select(name: &str, choices: Choices<'_>) -> Result<Selected> {
    let run = |pass: Box<dyn Pass>| Ok(Selected::Run(pass));
    match name {
        "fold-position-embeddings" => run(Box::new(passes::FoldPositionEmbeddings)),
        "fold-constants" => run(Box::new(passes::FoldConstants)),
        "bake-conv" => run(Box::new(passes::BakeConv)),
        "cancel-transposes" => run(Box::new(passes::CancelTransposes)),
        "split-gate-up" => run(Box::new(passes::SplitGateUp)),
        "quantise-linears" => match choices.indivisible {
            Some(policy) => {
                run(Box::new(passes::QuantiseLinears { scheme: choices.scheme, indivisible: policy.clone() }))
            }
            None => Err(Error::input("a table is missing").at("[quant]").hint("`quantise-linears` goes by it")),
        },
        "stack-experts" => run(Box::new(passes::StackExperts)),
        "quantise-experts" => match choices.scheme.code_for(Part::RoutedExpert) {
            Some(code) => run(Box::new(quantise_experts(code))),
            None => Ok(Selected::Skip("quantise-experts", "the scheme keeps experts as floats")),
        },
        "metalize-moe" if choices.moe == MoeForm::Metal => run(Box::new(passes::MetalizeMoe)),
        "metalize-moe" => Ok(Selected::Skip("metalize-moe", "the native form was asked for")),
        "gather-moe" if choices.moe == MoeForm::Native => run(Box::new(passes::GatherMoe)),
        "gather-moe" => Ok(Selected::Skip("gather-moe", "the Metal form was asked for")),
        "chunk-layers" => match choices.deployment.chunking {
            Some(chunking) => run(Box::new(chunking)),
            None => Ok(Selected::Skip("chunk-layers", "functions of fewer layers were not asked for")),
        },
        "static-kv" => run(Box::new(passes::StaticKv { form: choices.deployment.kv })),
        "ane-norm" if choices.deployment.on_neural_engine() => run(Box::new(passes::AneNorm)),
        "ane-norm" => Ok(Selected::Skip("ane-norm", NOT_ANE)),
        "ane-conv" if choices.deployment.on_neural_engine() => run(Box::new(passes::AneConv)),
        "ane-conv" => Ok(Selected::Skip("ane-conv", NOT_ANE)),
        "externalize" => run(Box::new(passes::Externalize)),
        "lower-linear" => run(Box::new(passes::LowerLinear)),
        "dead-code" => run(Box::new(passes::DeadCode)),
        _ => Err(Error::input("no such pass").found(format!("`{name}`"))),
    }
}

const NOT_ANE: &str = "it is for the Neural Engine, `--compute ane`";

fn quantise_experts(code: BlockCode) -> passes::QuantiseExperts {
    passes::QuantiseExperts { code, step: passes::QuantiseExperts::KERNEL_STEP }
}
