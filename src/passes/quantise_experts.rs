use super::{Outcome, Pass, rewrite_entries};
use crate::graph::{Module, Op, Rewriter, ValueId};
use crate::quant::BlockCode;
use crate::{Error, Result};

/// `quantise-experts`: stacked experts are stored as codes with a scale for each block along the last axis, which is
/// padded with zeros to a multiple of what the kernel walks in.
///
/// ```text
/// stacked_experts .., %gate f16[64,896,1280], ..
///
/// %c = constant codes(pad(%gate)) : si8[64,896,1280]
/// %s = constant scales(pad(%gate)) : f16[64,896,40]
/// %g = block_scale %c, %s : f16[64,896,1280]
/// stacked_experts .., %g, ..
/// ```
#[derive(Debug, Clone, Copy)]
pub struct QuantiseExperts {
    /// How a block is stored.
    pub code: BlockCode,
    /// The last axis is padded to a multiple of this.
    pub step: usize,
}

impl QuantiseExperts {
    /// The `gather_qmm` kernel has 32 lanes of 8 values, so it walks an axis in steps of 256.
    pub const KERNEL_STEP: usize = 256;
}

impl Pass for QuantiseExperts {
    fn name(&self) -> &'static str {
        "quantise-experts"
    }

    fn run(&self, module: &mut Module) -> Result<Outcome> {
        let sites = rewrite_entries(module, |rewriter, node| {
            if node.op != Op::StackedExperts {
                return Ok(None);
            }
            let mut inputs = rewriter.inputs(node);
            for stack in &mut inputs[3..] {
                *stack = self.quantise(rewriter, *stack)?;
            }
            Ok(Some(rewriter.builder.node(Op::StackedExperts, &inputs)))
        })?;
        Ok(Outcome::of(sites, "the model has no stacked experts"))
    }

    fn keeps_numbers(&self) -> bool {
        false
    }
}

impl QuantiseExperts {
    fn quantise(&self, rewriter: &mut Rewriter<'_, '_>, stack: ValueId) -> Result<ValueId> {
        let element = rewriter.builder.element(stack);
        let weight = rewriter.constant(stack).ok_or_else(|| Error::input("experts are quantised only once"))?;
        let weights = rewriter.builder.weights();
        let axis = weights.shape(weight).len() - 1;
        let padded = weights.pad(weight, axis, weights.shape(weight)[axis].next_multiple_of(self.step))?;
        let (codes, scales) = weights.quantise(padded, self.code)?;
        let (codes, scales) = (rewriter.builder.constant(codes), rewriter.builder.constant(scales));
        let scales = rewriter.builder.cast(scales, element);
        Ok(rewriter.builder.node(Op::BlockScale, &[codes, scales]))
    }
}
