use super::experts::{Stacked, codes_and_scales};
use super::{Outcome, Pass, rewrite_entries};
use crate::graph::{Binary, Module, Op, Rewriter, Unary, ValueId};
use crate::{ElementType, Error, Result};

/// `metalize-moe`: routed experts through the `gather_qmm` Metal kernel, which reads only the chosen experts' rows.
/// One token takes its `k` slots as they are; a prompt's `t * k` slots are sorted by expert, so that neighbours read
/// the same rows, and put back in order afterwards. Both use one set of weights.
///
/// ```text
/// stacked_experts %x [t,h], %p, %i [t,k], block_scale(%codes, %scales), ..
///
/// %g = gather_qmm %slots [t*k,h], view(ui32, %codes), %scales, %i_sorted
/// ..
/// ```
#[derive(Debug, Clone, Copy)]
pub struct MetalizeMoe;

impl MetalizeMoe {
    /// A threadgroup of the kernel makes 8 x 4 rows.
    const ROWS: usize = 32;
}

impl Pass for MetalizeMoe {
    fn name(&self) -> &'static str {
        "metalize-moe"
    }

    fn run(&self, module: &mut Module) -> Result<Outcome> {
        let sites = rewrite_entries(module, |rewriter, node| {
            if node.op != Op::StackedExperts {
                return Ok(None);
            }
            let inputs = rewriter.inputs(node);
            let stacked = Stacked::read(&rewriter.builder, &inputs)?;
            metalize(rewriter, &stacked).map(Some)
        })?;
        Ok(Outcome::of(sites, "the model has no stacked experts"))
    }
}

/// The slots in the order the kernel takes them.
struct Slots {
    /// `[slots, hidden]`: the token row of each slot.
    rows: ValueId,
    /// `si32 [slots]`: its expert.
    expert: ValueId,
    /// `si32 [slots]`: where each slot of the original order is, unless the order is the same.
    back: Option<ValueId>,
}

fn metalize(rewriter: &mut Rewriter<'_, '_>, s: &Stacked) -> Result<ValueId> {
    let mut slots = if s.tokens == 1 { repeat(rewriter, s) } else { sort(rewriter, s) };
    slots.rows = pad_to(rewriter, slots.rows, s.gate);
    let gate = project(rewriter, slots.rows, s.gate, slots.expert)?;
    let gate = rewriter.builder.unary(Unary::Silu, gate);
    let up = project(rewriter, slots.rows, s.up, slots.expert)?;
    let inner = rewriter.builder.mul(gate, up);
    let inner = pad_to(rewriter, inner, s.down);
    let outputs = project(rewriter, inner, s.down, slots.expert)?;
    let b = &mut rewriter.builder;
    let outputs = match slots.back {
        Some(back) => b.take_rows(outputs, back),
        None => outputs,
    };
    Ok(s.join(b, outputs))
}

fn repeat(rewriter: &mut Rewriter<'_, '_>, s: &Stacked) -> Slots {
    let b = &mut rewriter.builder;
    let rows = b.broadcast_to(s.x, &[s.chosen, s.hidden]);
    Slots { rows, expert: b.reshape(s.expert, &[s.chosen]), back: None }
}

fn sort(rewriter: &mut Rewriter<'_, '_>, s: &Stacked) -> Slots {
    let b = &mut rewriter.builder;
    let expert = b.reshape(s.expert, &[s.tokens * s.chosen]);
    let order = b.node(Op::ArgSort { axis: 0, descending: false }, &[expert]);
    let back = b.node(Op::ArgSort { axis: 0, descending: false }, &[order]);
    let chosen = b.integers(&[], &[s.chosen as i32]);
    let token = b.binary(Binary::Div, order, chosen);
    Slots { rows: b.take_rows(s.x, token), expert: b.take_rows(expert, order), back: Some(back) }
}

/// Activations `[slots, k]` padded to the rows of a stack.
fn pad_to(rewriter: &mut Rewriter<'_, '_>, x: ValueId, stack: ValueId) -> ValueId {
    let length = rewriter.builder.shape(stack).last().copied().unwrap_or(1);
    rewriter.builder.pad_axis(x, 1, length)
}

fn project(rewriter: &mut Rewriter<'_, '_>, x: ValueId, stack: ValueId, expert: ValueId) -> Result<ValueId> {
    let needs = |what: &str| Error::input(format!("the Metal kernel needs {what}"));
    let stored = codes_and_scales(&rewriter.builder, stack);
    let hint = "use `--quant sym8`, or `--moe native`";
    let (codes, scales) = stored.ok_or_else(|| needs("quantised experts").hint(hint))?;
    if rewriter.builder.element(x) != ElementType::F16 {
        return Err(needs("half precision").hint("use `--precision f16`, or `--moe native`"));
    }
    let codes = rewriter.constant(codes).ok_or_else(|| needs("stored codes"))?;
    let words = rewriter.builder.weights().view(codes, ElementType::U32)?;
    let b = &mut rewriter.builder;
    let words = b.constant(words);
    let [_, rows, _] = b.shape(words)[..] else {
        return Err(needs("codes of three axes").found(b.ty(words)));
    };
    if rows % MetalizeMoe::ROWS != 0 {
        let hint = "use `--moe native`";
        return Err(needs("expert widths that are multiples of 32").found(rows).hint(hint));
    }
    Ok(b.node(Op::GatherQmm, &[x, words, scales, expert]))
}
