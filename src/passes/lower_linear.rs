use super::{Outcome, Pass, rewrite_entries};
use crate::Result;
use crate::graph::{Module, Op};

/// `lower-linear`: a linear layer becomes a product with the transposed weight, and an addition; weights stay stored
/// as `[out, in]`.
#[derive(Debug, Clone, Copy)]
pub struct LowerLinear;

impl Pass for LowerLinear {
    fn name(&self) -> &'static str {
        "lower-linear"
    }

    fn run(&self, module: &mut Module) -> Result<Outcome> {
        let sites = rewrite_entries(module, |rewriter, node| {
            if node.op != Op::Linear {
                return Ok(None);
            }
            let inputs = rewriter.inputs(node);
            let b = &mut rewriter.builder;
            let weight = b.transpose(inputs[1], &[1, 0]);
            let product = b.matmul(inputs[0], weight);
            Ok(Some(match inputs.get(2) {
                Some(&bias) => b.add(product, bias),
                None => product,
            }))
        })?;
        Ok(Outcome::of(sites, "there are no linear layers"))
    }
}
