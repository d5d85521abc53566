use super::{Outcome, Pass, rewrite_entries};
use crate::graph::{Module, Op};
use crate::{Error, Result};

/// `stack-experts`: the projections of a layer's experts become one `[experts, out, in]` weight for each of gate, up
/// and down.
///
/// ```text
/// routed_experts experts=64 %x, %p, %i, %gate0, .., %gate63, %up0, .., %down63
///
/// stacked_experts %x, %p, %i, %gate [64,896,1280], %up [64,896,1280], %down [64,1280,896]
/// ```
#[derive(Debug, Clone, Copy)]
pub struct StackExperts;

impl Pass for StackExperts {
    fn name(&self) -> &'static str {
        "stack-experts"
    }

    fn run(&self, module: &mut Module) -> Result<Outcome> {
        let sites = rewrite_entries(module, |rewriter, node| {
            let Op::RoutedExperts { experts } = node.op else {
                return Ok(None);
            };
            let inputs = rewriter.inputs(node);
            let (tokens, parts) = inputs.split_at(3);
            let mut stacked = tokens.to_vec();
            for part in parts.chunks(experts) {
                let weights: Option<Vec<_>> = part.iter().map(|&value| rewriter.constant(value)).collect();
                let weights = weights.ok_or_else(|| Error::input("experts are stacked only where they are weights"))?;
                let stack = rewriter.builder.weights().stack(&weights)?;
                stacked.push(rewriter.builder.constant(stack));
            }
            Ok(Some(rewriter.builder.node(Op::StackedExperts, &stacked)))
        })?;
        Ok(Outcome::of(sites, "the model routes no experts one by one"))
    }
}
