mod attention;
mod norm;

use std::collections::BTreeMap;

use self::attention::Attention;
use self::norm::Norm;
use super::{Outcome, Pass, rewrite_entries};
use crate::Result;
use crate::graph::{Dim, Function, Module, Node, Op, TensorType};
use crate::weights::Weights;

/// `externalize`: norms, and attention without a mask of its own, become private composites that are invoked, one for
/// each type, so that a runtime can put its own kernel in their place. The body is the complete arithmetic, which is
/// what runs elsewhere.
///
/// ```text
/// rms_norm epsilon=1e-6 %x, %gamma
/// attention causal=true %q, %k, %v
///
/// invoke @rms_norm_1x122x192_1e-6 %x, %gamma
/// invoke @sdpa_causal_1x4x64x64_1x2xtotalx64 %q, %k, %v
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Externalize;

impl Pass for Externalize {
    fn name(&self) -> &'static str {
        "externalize"
    }

    fn run(&self, module: &mut Module) -> Result<Outcome> {
        let mut called: BTreeMap<String, External> = BTreeMap::new();
        let sites = rewrite_entries(module, |rewriter, node| {
            let Some(external) = External::of(rewriter.old(), node) else {
                return Ok(None);
            };
            let name = external.name();
            let inputs = rewriter.inputs(node);
            called.insert(name.clone(), external);
            Ok(Some(rewriter.builder.declared(Op::Invoke(name), &inputs, node.ty.clone())))
        })?;
        let functions = called.values().map(|external| external.function(&mut module.weights));
        let functions = functions.collect::<Result<Vec<_>>>()?;
        module.functions.splice(0..0, functions);
        Ok(Outcome::of(sites, "there are no norms and no plain attention"))
    }
}

/// What has a composite.
#[derive(Debug, Clone, PartialEq)]
enum External {
    Norm(Norm),
    Attention(Attention),
}

impl External {
    fn of(function: &Function, node: &Node) -> Option<Self> {
        let norm = Norm::of(&node.op, &node.ty).map(Self::Norm);
        norm.or_else(|| Attention::of(function, node).map(Self::Attention))
    }

    fn name(&self) -> String {
        match self {
            Self::Norm(norm) => norm.name(),
            Self::Attention(attention) => attention.name(),
        }
    }

    fn function(&self, weights: &mut Weights) -> Result<Function> {
        match self {
            Self::Norm(norm) => norm.function(weights),
            Self::Attention(attention) => attention.function(weights),
        }
    }
}

/// The extents as part of a function's name; symbols by theirs.
fn shape_name(ty: &TensorType) -> String {
    let extent = |dim: &Dim| match dim {
        Dim::Fixed(n) => n.to_string(),
        Dim::Symbol(symbol) => symbol.name.to_string(),
    };
    ty.shape.iter().map(extent).collect::<Vec<_>>().join("x")
}
