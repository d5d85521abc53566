use std::collections::{BTreeMap, BTreeSet};

use super::dead_code::sweep;
use super::{Outcome, Pass, rewrite_entries_with};
use crate::graph::{Function, FunctionRole, Module, Node, Op, Rewriter, ValueId};
use crate::weights::{WeightId, Weights};
use crate::{Error, Result};

/// `split-gate-up`: a linear layer of which nothing but the two halves of the last axis is used becomes two layers, so
/// that each projection is a weight of its own.
///
/// ```text
/// %3 = linear %x, constant "mlp.gate_up_proj.weight" : f16[1,1,9216]
/// %4 = slice begin=[0, 0, 0] end=[1, 1, 4608] %3
/// %5 = slice begin=[0, 0, 4608] end=[1, 1, 9216] %3
///
/// %4 = linear %x, constant rows(0..4608, "mlp.gate_up_proj.weight") : f16[1,1,4608]
/// %5 = linear %x, constant rows(4608..9216, "mlp.gate_up_proj.weight") : f16[1,1,4608]
/// ```
///
/// Runs before `quantise-linears` and `lower-linear`, and after what makes the operands constants.
#[derive(Debug, Clone, Copy)]
pub struct SplitGateUp;

/// The packed projection of a gated layer, and the names of its halves where they are stored apart.
const PACKED: (&str, [&str; 2]) = ("gate_up_proj", ["gate_proj", "up_proj"]);

impl Pass for SplitGateUp {
    fn name(&self) -> &'static str {
        "split-gate-up"
    }

    fn run(&self, module: &mut Module) -> Result<Outcome> {
        let halves =
            rewrite_entries_with(module, packed_layers, |rewriter, node, packed| match node.inputs.as_slice() {
                [layer] if packed.contains(layer) => split(rewriter, *layer, node).map(Some),
                _ => Ok(None),
            })?;
        if halves > 0 {
            // The packed layers, which nothing uses now.
            module.functions.iter_mut().filter(|f| f.role == FunctionRole::Entry).for_each(sweep);
        }
        Ok(Outcome::of(halves / 2, "no linear layer is used by its halves alone"))
    }
}

/// The linear layers over stored weights that are used by both their halves and by nothing else.
fn packed_layers(function: &Function) -> BTreeSet<ValueId> {
    let stored = |value: &ValueId| matches!(function.node(*value).op, Op::Constant(_));
    let is_layer = |node: &Node| node.op == Op::Linear && node.inputs.iter().skip(1).all(stored);
    let mut used: BTreeMap<ValueId, [bool; 2]> =
        function.iter().filter(|(_, node)| is_layer(node)).map(|(layer, _)| (layer, [false; 2])).collect();
    for (_, node) in function.iter() {
        for input in &node.inputs {
            match (used.get_mut(input), half(function, *input, node)) {
                (Some(halves), Some(half)) => halves[half] = true,
                _ => drop(used.remove(input)),
            }
        }
    }
    for result in function.results.iter().chain(&function.states) {
        used.remove(&result.value);
    }
    used.into_iter().filter(|(_, halves)| *halves == [true; 2]).map(|(layer, _)| layer).collect()
}

/// Which half of the last axis of `layer` the node takes, if it does nothing else.
fn half(function: &Function, layer: ValueId, node: &Node) -> Option<usize> {
    let Op::Slice { begin, end } = &node.op else {
        return None;
    };
    let ([rest @ .., width], [kept @ .., _]) = (function.ty(layer).shape.as_slice(), node.ty.shape.as_slice()) else {
        return None;
    };
    let width = width.fixed().filter(|width| width.is_multiple_of(2) && rest == kept)?;
    let halves = [(0, width / 2), (width / 2, width)];
    let taken = (*begin.last()?, *end.last()?);
    halves.iter().position(|half| *half == taken)
}

/// The layer over the rows that `slice` takes of the result of `layer`.
fn split(rewriter: &mut Rewriter<'_, '_>, layer: ValueId, slice: &Node) -> Result<ValueId> {
    let (Op::Slice { begin, end }, packed) = (&slice.op, rewriter.inputs(rewriter.old().node(layer))) else {
        return Err(Error::input("a half is a slice"));
    };
    let (begin, end) = (begin.last().copied().unwrap_or(0), end.last().copied().unwrap_or(0));
    let mut inputs = vec![packed[0]];
    for &operand in &packed[1..] {
        let weight = rewriter.constant(operand).ok_or_else(|| Error::input("only stored weights are split"))?;
        let rows = rows(rewriter.builder.weights(), weight, begin, end)?;
        inputs.push(rewriter.builder.constant(rows));
    }
    Ok(rewriter.builder.node(Op::Linear, &inputs))
}

/// Rows of a packed weight or bias, under the name they have where they are stored apart.
fn rows(weights: &mut Weights, packed: WeightId, begin: usize, end: usize) -> Result<WeightId> {
    let rows = weights.rows(packed, begin, end)?;
    let half = PACKED.1[usize::from(begin > 0)];
    let name = weights.parameter_name(packed).filter(|name| name.contains(PACKED.0));
    if let Some(name) = name.map(|name| name.replace(PACKED.0, half)) {
        weights.set_name(rows, name);
    }
    Ok(rows)
}
