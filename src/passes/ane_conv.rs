use std::collections::BTreeMap;

use super::{Outcome, Pass, rewrite_entries_by};
use crate::Result;
use crate::graph::{Dim, Module, Node, Op, Rewriter, ValueId, rewrite};

/// `ane-conv`: a linear layer becomes a convolution of one tap over `[1, in, 1, rows]`, the layout that the Neural
/// Engine computes in. Layers over one value share it in that layout.
///
/// ```text
/// %3 = linear %x, constant "q_proj.weight", constant "q_proj.bias" : f16[1,4,2048]
///
/// %p = transpose perm=[0, 3, 1, 2] reshape(%x) : f16[1,1536,1,4]
/// %c = conv2d stride=[1, 1] groups=1 %p, constant reshape("q_proj.weight") : f16[1,2048,1,4]
/// %d = add %c, constant reshape("q_proj.bias") : f16[1,2048,1,4]
/// %3 = reshape transpose perm=[0, 2, 3, 1] %d : f16[1,4,2048]
/// ```
///
/// The weight `[out, in]` is `[out, in, 1, 1]`, the same bytes; one that is quantised is scaled first and reshaped then.
///
/// Sums: a convolution of the dialect has one element type for operands and result (the runtime refuses others), so its
/// precision within is the runtime's; the CPU runtime sums half precision in single precision. Operands are not cast:
/// single precision would take the layer off the Neural Engine and double what it reads.
///
/// Layers over a number of rows that is chosen at run time stay: the Neural Engine takes fixed shapes only, as a
/// convolution does here.
///
/// Runs after `bake-conv`, which would turn it back, `split-gate-up` and `quantise-linears`, and before `lower-linear`.
#[derive(Debug, Clone, Copy)]
pub struct AneConv;

impl Pass for AneConv {
    fn name(&self) -> &'static str {
        "ane-conv"
    }

    fn run(&self, module: &mut Module) -> Result<Outcome> {
        let sites = rewrite_entries_by(module, &mut |function, weights| {
            let mut layers = Layers::default();
            rewrite(function, weights, |rewriter, node| layers.convolution(rewriter, node))
        })?;
        Ok(Outcome::of(sites, "there are no linear layers over a fixed number of rows"))
    }
}

/// The linear layers of a function.
#[derive(Debug, Default)]
struct Layers {
    /// What they read, as channels of pixels: `[1, in, 1, rows]`, by what it was.
    pixels: BTreeMap<ValueId, ValueId>,
}

impl Layers {
    fn convolution(&mut self, rewriter: &mut Rewriter<'_, '_>, node: &Node) -> Result<Option<ValueId>> {
        let (Op::Linear, Some(shape)) = (&node.op, node.ty.fixed_shape()) else { return Ok(None) };
        let inputs = rewriter.inputs(node);
        let [Dim::Fixed(out), Dim::Fixed(columns)] = rewriter.builder.dims(inputs[1])[..] else { return Ok(None) };
        let rows = shape.iter().rev().skip(1).product();
        let weight = reshaped(rewriter, inputs[1], &[out, columns, 1, 1])?;
        let bias = inputs.get(2).map(|&bias| reshaped(rewriter, bias, &[1, out, 1, 1])).transpose()?;

        let b = &mut rewriter.builder;
        let pixels = *self.pixels.entry(inputs[0]).or_insert_with(|| {
            let x = b.reshape(inputs[0], &[1, 1, rows, columns]);
            b.transpose(x, &[0, 3, 1, 2])
        });
        let mut y = b.node(Op::Conv2d { stride: [1, 1], groups: 1 }, &[pixels, weight]);
        if let Some(bias) = bias {
            y = b.add(y, bias);
        }
        let y = b.transpose(y, &[0, 2, 3, 1]);
        Ok(Some(b.reshape(y, &shape)))
    }
}

/// A value in another shape: a weight where it is one.
fn reshaped(rewriter: &mut Rewriter<'_, '_>, value: ValueId, shape: &[usize]) -> Result<ValueId> {
    let stored = rewriter.constant(value);
    let b = &mut rewriter.builder;
    Ok(match stored {
        Some(weight) => {
            let weight = b.weights().reshape(weight, shape)?;
            b.constant(weight)
        }
        None => b.reshape(value, shape),
    })
}
