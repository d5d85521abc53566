use super::experts::{Stacked, codes_and_scales};
use super::{Outcome, Pass, rewrite_entries};
use crate::Result;
use crate::graph::{Builder, Module, Op, Unary, ValueId};

/// `gather-moe`: routed experts from operations of the dialect, which run everywhere. The chosen experts' slabs are
/// gathered as they are stored, codes and scales apart, and only those are scaled.
///
/// ```text
/// stacked_experts %x [t,h], %p, %i [t,k], %gate, %up, %down
///
/// %g = block_scale (gather %gate_codes, %i), (gather %gate_scales, %i)     : [t*k, f, h]
/// %y = matmul %x [t,1,1,h], transpose %g [t,k,h,f]                         : [t,k,1,f]
/// ..
/// ```
#[derive(Debug, Clone, Copy)]
pub struct GatherMoe;

impl Pass for GatherMoe {
    fn name(&self) -> &'static str {
        "gather-moe"
    }

    fn run(&self, module: &mut Module) -> Result<Outcome> {
        let sites = rewrite_entries(module, |rewriter, node| {
            if node.op != Op::StackedExperts {
                return Ok(None);
            }
            let inputs = rewriter.inputs(node);
            let b = &mut rewriter.builder;
            let stacked = Stacked::read(b, &inputs)?;
            Ok(Some(gather(b, &stacked)))
        })?;
        Ok(Outcome::of(sites, "the model has no stacked experts"))
    }
}

fn gather(b: &mut Builder<'_>, s: &Stacked) -> ValueId {
    let slots = [s.tokens * s.chosen];
    let expert = b.reshape(s.expert, &slots);
    let x = b.reshape(s.x, &[s.tokens, 1, 1, s.hidden]);
    let x = b.pad_axis(x, 3, row_length(b, s.gate));
    let gate = project(b, x, s.gate, expert, s);
    let gate = b.unary(Unary::Silu, gate);
    let up = project(b, x, s.up, expert, s);
    let inner = b.mul(gate, up);
    let inner = b.pad_axis(inner, 3, row_length(b, s.down));
    let outputs = project(b, inner, s.down, expert, s);
    s.join(b, outputs)
}

/// Elements of a row of a stack, padding included.
fn row_length(b: &Builder<'_>, stack: ValueId) -> usize {
    b.shape(stack).last().copied().unwrap_or(1)
}

/// `x [t, 1 or k, 1, in]` times the chosen slabs of `stack [experts, out, in]`: `[t, k, 1, out]`.
fn project(b: &mut Builder<'_>, x: ValueId, stack: ValueId, expert: ValueId, s: &Stacked) -> ValueId {
    let slab = match codes_and_scales(b, stack) {
        Some((codes, scales)) => {
            let (codes, scales) = (b.take_rows(codes, expert), b.take_rows(scales, expert));
            b.node(Op::BlockScale, &[codes, scales])
        }
        None => b.take_rows(stack, expert),
    };
    let shape = b.shape(slab);
    let (out, input) = (shape.get(1).copied().unwrap_or(1), shape.get(2).copied().unwrap_or(1));
    let slab = b.reshape(slab, &[s.tokens, s.chosen, out, input]);
    let slab = b.transpose_last(slab);
    b.matmul(x, slab)
}
