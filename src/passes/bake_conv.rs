use super::{Outcome, Pass, rewrite_entries};
use crate::Result;
use crate::graph::{Module, Node, Op, Rewriter, ValueId};

/// `bake-conv`: a convolution whose stride is its kernel reads each input once, so it becomes a linear layer over
/// flattened patches.
///
/// ```text
/// %2 = conv2d stride=[16, 16] %x [1,3,640,640], %w [768,3,16,16]
///
/// %2 = patches of %x : [1600, 768]            (reshape, transpose, reshape)
/// %3 = linear %2, reshape(%w) : [1600, 768]
/// %4 = back to [1,768,40,40]                  (reshape, transpose)
/// ```
#[derive(Debug, Clone, Copy)]
pub struct BakeConv;

impl Pass for BakeConv {
    fn name(&self) -> &'static str {
        "bake-conv"
    }

    fn run(&self, module: &mut Module) -> Result<Outcome> {
        let sites = rewrite_entries(module, |rewriter, node| match node.op {
            Op::Conv2d { stride, groups: 1 } => bake(rewriter, node, stride),
            _ => Ok(None),
        })?;
        Ok(Outcome::of(sites, "no convolution's stride is its kernel"))
    }
}

fn bake(rewriter: &mut Rewriter<'_, '_>, node: &Node, stride: [usize; 2]) -> Result<Option<ValueId>> {
    let inputs = rewriter.inputs(node);
    let (x, weight) = (inputs[0], inputs[1]);
    let b = &mut rewriter.builder;
    let ([n, c, h, w], [out, _, kh, kw]) = match (b.shape(x).as_slice(), b.shape(weight).as_slice()) {
        (&[n, c, h, w], &[o, i, kh, kw]) => ([n, c, h, w], [o, i, kh, kw]),
        _ => return Ok(None),
    };
    if stride != [kh, kw] || h % kh != 0 || w % kw != 0 {
        return Ok(None);
    }
    let (rows, columns) = (h / kh, w / kw);
    let x = b.reshape(x, &[n, c, rows, kh, columns, kw]);
    let x = b.transpose(x, &[0, 2, 4, 1, 3, 5]);
    let x = b.reshape(x, &[n * rows * columns, c * kh * kw]);
    let weight = b.reshape(weight, &[out, c * kh * kw]);
    let y = b.linear(x, weight, None);
    let y = b.reshape(y, &[n, rows, columns, out]);
    Ok(Some(b.transpose(y, &[0, 3, 1, 2])))
}
