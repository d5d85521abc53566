//! What the two forms of routed experts share: reading a stack, and joining the chosen experts' outputs.

use crate::graph::{Builder, Op, Reduction, ValueId};
use crate::{ElementType, Error, Result};

/// The inputs of a [`Op::StackedExperts`] node, with its sizes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stacked {
    /// `[tokens, hidden]`.
    pub(super) x: ValueId,
    /// `f32 [tokens, chosen]`.
    pub(super) probability: ValueId,
    /// `si32 [tokens, chosen]`.
    pub(super) expert: ValueId,
    /// `[experts, width, hidden]`, possibly padded, possibly scaled codes.
    pub(super) gate: ValueId,
    /// As `gate`.
    pub(super) up: ValueId,
    /// `[experts, hidden, width]`, likewise.
    pub(super) down: ValueId,
    pub(super) tokens: usize,
    pub(super) chosen: usize,
    pub(super) hidden: usize,
}

impl Stacked {
    pub(super) fn read(b: &Builder<'_>, inputs: &[ValueId]) -> Result<Self> {
        let &[x, probability, expert, gate, up, down] = inputs else {
            return Err(Error::input("stacked experts have six inputs").found(inputs.len()));
        };
        let (rows, choice, stack) = (b.shape(x), b.shape(expert), b.shape(gate));
        let (&[tokens, hidden], &[_, chosen], &[_, _, _]) = (&rows[..], &choice[..], &stack[..]) else {
            return Err(Error::input("stacked experts are of the wrong rank").found(b.ty(gate)));
        };
        Ok(Self { x, probability, expert, gate, up, down, tokens, chosen, hidden })
    }

    /// The sum over the chosen experts, weighted by probability in f32: outputs `[tokens * chosen, hidden]` to
    /// `f32 [tokens, hidden]`.
    pub(super) fn join(&self, b: &mut Builder<'_>, outputs: ValueId) -> ValueId {
        let (tokens, chosen, hidden) = (self.tokens, self.chosen, self.hidden);
        let outputs = b.reshape(outputs, &[tokens, chosen, hidden]);
        let outputs = b.cast(outputs, ElementType::F32);
        let probability = b.reshape(self.probability, &[tokens, chosen, 1]);
        let weighted = b.mul(outputs, probability);
        let sum = b.reduce(Reduction::Sum, weighted, 1);
        b.reshape(sum, &[tokens, hidden])
    }
}

/// Codes and scales of a stack, if it is stored as such.
pub(super) fn codes_and_scales(b: &Builder<'_>, stack: ValueId) -> Option<(ValueId, ValueId)> {
    let node = b.function().node(stack);
    match (&node.op, node.inputs.as_slice()) {
        (Op::BlockScale, &[codes, scales]) => Some((codes, scales)),
        _ => None,
    }
}
