use super::{Outcome, Pass, rewrite_entries};
use crate::Result;
use crate::graph::{Dim, Module, Op, Rewriter, ValueId};

/// `ane-norm`: the root-mean-square norm of `x` becomes the layer norm of `[x, -x]`, whose mean is zero and whose
/// variance is the mean square of `x`, and of which the first half is kept. The Neural Engine has a layer norm of its
/// own; where the mean square is put together from single operations, squares overflow half precision from 256 on.
///
/// ```text
/// %2 = rms_norm epsilon=1e-6 %x, %gamma : f16[1,1,1280]
///
/// %n = mul %x, -1 : f16[1,1,1280]
/// %b = concat axis=2 %x, %n : f16[1,1,2560]
/// %l = layer_norm epsilon=1e-6 %b, constant concat(gamma, gamma), zeros : f16[1,1,2560]
/// %2 = slice begin=[0, 0, 0] end=[1, 1, 1280] %l : f16[1,1,1280]
/// ```
///
/// Runs before `externalize`, which makes composites of layer norms, too. Extents chosen at run time may stay.
#[derive(Debug, Clone, Copy)]
pub struct AneNorm;

impl Pass for AneNorm {
    fn name(&self) -> &'static str {
        "ane-norm"
    }

    fn run(&self, module: &mut Module) -> Result<Outcome> {
        let sites = rewrite_entries(module, |rewriter, node| {
            let Op::RmsNorm { epsilon } = node.op else { return Ok(None) };
            let Some(width) = node.ty.shape.last().and_then(Dim::fixed) else { return Ok(None) };
            let (inputs, last) = (rewriter.inputs(node), node.ty.rank() - 1);
            let (x, gamma) = (inputs[0], twice(rewriter, inputs[1])?);
            let b = &mut rewriter.builder;
            let negative = b.scale(x, -1.0);
            let both = b.concat(&[x, negative], last);
            let zeros = b.weights().literal(node.ty.element, &[2 * width], vec![0; 2 * width * node.ty.element.size()]);
            let beta = b.weight(zeros);
            let normed = b.layer_norm(both, gamma, beta, epsilon);
            Ok(Some(b.slice_axis(normed, last, 0, width)))
        })?;
        Ok(Outcome::of(sites, "there are no root-mean-square norms"))
    }
}

/// `[gamma, gamma]`: a weight where `gamma` is one.
fn twice(rewriter: &mut Rewriter<'_, '_>, gamma: ValueId) -> Result<ValueId> {
    let stored = rewriter.constant(gamma);
    let b = &mut rewriter.builder;
    Ok(match stored {
        Some(weight) => {
            let both = b.weights().concat(vec![weight, weight])?;
            b.constant(both)
        }
        None => b.concat(&[gamma, gamma], 0),
    })
}
