use super::{Outcome, Pass, rewrite_entries};
use crate::Result;
use crate::graph::{Builder, Module, Op, ValueId};

/// `bake-conv`: a convolution whose stride is its kernel, in two or three dimensions, reads each input once, so it
/// becomes a linear layer over flattened patches.
///
/// ```text
/// %2 = conv2d stride=[16, 16] %x [1,3,640,640], %w [768,3,16,16]
///
/// %2 = patches of %x : [1600, 768]            (reshape, transpose, reshape)
/// %3 = linear %2, reshape(%w) : [1600, 768]
/// %4 = back to [1,768,40,40]                  (reshape, transpose)
/// ```
///
/// Where the kernel is as large as the input, each input is one patch already and nothing is transposed:
///
/// ```text
/// %2 = conv3d stride=[2, 14, 14] %x [1024,3,2,14,14], %w [768,3,2,14,14]
///
/// %2 = linear reshape(%x), reshape(%w) : [1024, 768]
/// %3 = reshape %2 : [1024,768,1,1,1]
/// ```
#[derive(Debug, Clone, Copy)]
pub struct BakeConv;

impl Pass for BakeConv {
    fn name(&self) -> &'static str {
        "bake-conv"
    }

    fn run(&self, module: &mut Module) -> Result<Outcome> {
        let sites = rewrite_entries(module, |rewriter, node| {
            let stride: &[usize] = match &node.op {
                Op::Conv2d { stride, groups: 1 } => stride,
                Op::Conv3d { stride } => stride,
                _ => return Ok(None),
            };
            let inputs = rewriter.inputs(node);
            let b = &mut rewriter.builder;
            Ok(Patches::read(b, inputs[0], inputs[1], stride).map(|patches| patches.linear(b, inputs[0], inputs[1])))
        })?;
        Ok(Outcome::of(sites, "no convolution's stride is its kernel"))
    }
}

/// The input of such a convolution as a grid of patches.
struct Patches {
    /// Inputs, each with its own grid.
    batch: usize,
    channels: usize,
    /// Patches along each axis of an input.
    grid: Vec<usize>,
    /// Extents of a patch.
    kernel: Vec<usize>,
    /// Channels of the result.
    out: usize,
}

impl Patches {
    /// `x [n, c, extents..]` and `weight [out, c, kernel..]`; `None` where patches overlap or leave a rest.
    fn read(b: &Builder<'_>, x: ValueId, weight: ValueId, stride: &[usize]) -> Option<Self> {
        let (x, weight) = (b.ty(x).fixed_shape()?, b.ty(weight).fixed_shape()?);
        let (&[batch, channels, ref extents @ ..], &[out, _, ref kernel @ ..]) = (x.as_slice(), weight.as_slice())
        else {
            return None;
        };
        let whole = extents.iter().zip(kernel).all(|(extent, taps)| extent.is_multiple_of(*taps));
        let grid = extents.iter().zip(kernel).map(|(extent, taps)| extent / taps).collect();
        (stride == kernel && whole).then(|| Self { batch, channels, grid, kernel: kernel.to_vec(), out })
    }

    fn linear(&self, b: &mut Builder<'_>, x: ValueId, weight: ValueId) -> ValueId {
        let x = self.flatten(b, x);
        let weight = b.reshape(weight, &[self.out, self.elements()]);
        let y = b.linear(x, weight, None);
        self.unflatten(b, y)
    }

    /// `[n, c, extents..]` to `[patches, elements]`.
    fn flatten(&self, b: &mut Builder<'_>, mut x: ValueId) -> ValueId {
        if !self.is_one_each() {
            let axes = self.grid.len();
            let cut = self.grid.iter().zip(&self.kernel).flat_map(|(patches, taps)| [*patches, *taps]);
            let shape: Vec<usize> = [self.batch, self.channels].into_iter().chain(cut).collect();
            x = b.reshape(x, &shape);
            let (patches, taps) = ((0..axes).map(|axis| 2 + 2 * axis), (0..axes).map(|axis| 3 + 2 * axis));
            let perm: Vec<usize> = std::iter::once(0).chain(patches).chain([1]).chain(taps).collect();
            x = b.transpose(x, &perm);
        }
        b.reshape(x, &[self.count(), self.elements()])
    }

    /// `[patches, out]` to `[n, out, grid..]`.
    fn unflatten(&self, b: &mut Builder<'_>, y: ValueId) -> ValueId {
        if self.is_one_each() {
            let shape: Vec<usize> = [self.batch, self.out].into_iter().chain(self.grid.iter().copied()).collect();
            return b.reshape(y, &shape);
        }
        let shape: Vec<usize> =
            std::iter::once(self.batch).chain(self.grid.iter().copied()).chain([self.out]).collect();
        let y = b.reshape(y, &shape);
        let last = shape.len() - 1;
        let perm: Vec<usize> = [0, last].into_iter().chain(1..last).collect();
        b.transpose(y, &perm)
    }

    /// Whether each input is a single patch.
    fn is_one_each(&self) -> bool {
        self.grid.iter().all(|&patches| patches == 1)
    }

    fn count(&self) -> usize {
        self.batch * self.grid.iter().product::<usize>()
    }

    fn elements(&self) -> usize {
        self.channels * self.kernel.iter().product::<usize>()
    }
}
