//! Matrix products and convolution.

use ndarray::linalg::general_mat_mul;
use ndarray::{ArrayView1, ArrayView2, ArrayViewD, ArrayViewMut2, Axis, Ix2, s};
use rayon::prelude::*;

use super::movement::{contiguous, reshaped};
use super::parallel::each_row;
use super::{elementwise, misfit, movement};
use crate::Result;
use crate::eval::tensor::shaped;
use crate::eval::{Array, Tensor};

/// Rows of a product computed by one task.
const ROWS: usize = 128;

/// `a [.., m, k] x b [.., k, n]`, batch axes broadcast.
pub(super) fn matmul(a: Array<f32>, b: Array<f32>) -> Result<Tensor> {
    let ([batch_a @ .., m, k], [batch_b @ .., k2, n]) = (a.shape(), b.shape()) else {
        return Err(misfit("[.., m, k] and [.., k, n]"));
    };
    if k != k2 {
        return Err(misfit("[.., m, k] and [.., k, n]").found(format!("{:?} and {:?}", a.shape(), b.shape())));
    }
    let batch = elementwise::broadcast_shape(batch_a, batch_b)?;
    let shape: Vec<usize> = batch.iter().copied().chain([*m, *n]).collect();
    let mut out = vec![0.0; shape.iter().product()];
    if batch_b.iter().all(|&extent| extent == 1) && batch == batch_a {
        // One matrix for all batches: the batches are more rows.
        let rows = [batch.iter().product::<usize>() * m, *k];
        let a = reshaped(a.clone(), &rows)?;
        multiply(matrix(a.view())?, batch_entry(&b, &[], 0)?, &mut out);
        return shaped(&shape, out).map(Tensor::F32);
    }
    let multiply_entry = |(index, out): (usize, &mut [f32])| {
        multiply(batch_entry(&a, &batch, index)?, batch_entry(&b, &batch, index)?, out);
        Ok(())
    };
    let products: Vec<Result<()>> = out.par_chunks_mut((m * n).max(1)).enumerate().map(multiply_entry).collect();
    products.into_iter().collect::<Result<()>>()?;
    shaped(&shape, out).map(Tensor::F32)
}

/// `x [.., in] x weight [out, in]^T + bias [out]`.
pub(super) fn linear(x: Array<f32>, weight: Array<f32>, bias: Option<Array<f32>>) -> Result<Tensor> {
    let ([rest @ .., k], [n, k2]) = (x.shape(), weight.shape()) else {
        return Err(misfit("[.., in] and [out, in]"));
    };
    if k != k2 || bias.as_ref().is_some_and(|bias| bias.shape() != [*n]) {
        return Err(misfit("[.., in] and [out, in]").found(format!("{:?} and {:?}", x.shape(), weight.shape())));
    }
    let n = *n;
    let shape: Vec<usize> = rest.iter().copied().chain([n]).collect();
    let rows = [rest.iter().product(), *k];
    let mut out = vec![0.0; shape.iter().product()];
    let x = reshaped(x, &rows)?;
    multiply(matrix(x.view())?, matrix(weight.view())?.reversed_axes(), &mut out);
    if let Some(bias) = bias.map(contiguous) {
        let bias = bias.as_slice().unwrap_or_default();
        each_row(&mut out, n, |_, row| row.iter_mut().zip(bias).for_each(|(value, b)| *value += b));
    }
    shaped(&shape, out).map(Tensor::F32)
}

/// `out = a x b`, row-major. The way it is divided depends on the shapes only.
pub(super) fn multiply(a: ArrayView2<'_, f32>, b: ArrayView2<'_, f32>, out: &mut [f32]) {
    let n = b.ncols();
    if a.nrows() == 1 && b.strides()[0] == 1 {
        return multiply_row(a.row(0), b, out);
    }
    out.par_chunks_mut((ROWS * n).max(1)).enumerate().for_each(|(block, out)| {
        let rows = out.len() / n.max(1);
        let a = a.slice(s![block * ROWS..block * ROWS + rows, ..]);
        if let Ok(mut out) = ArrayViewMut2::from_shape((rows, n), out) {
            general_mat_mul(1.0, &a, &b, 0.0, &mut out);
        }
    });
}

/// One row times a matrix whose columns are contiguous, as those of the weight of a linear layer are: a dot product
/// for each column, without packing the matrix.
fn multiply_row(a: ArrayView1<'_, f32>, b: ArrayView2<'_, f32>, out: &mut [f32]) {
    let a = a.to_vec();
    each_row(out, 1, |column, out| {
        out[0] = match b.column(column).to_slice() {
            Some(column) => dot(&a, column),
            None => b.column(column).iter().zip(&a).map(|(x, y)| x * y).sum(),
        };
    });
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 8;
    let mut sums = [0.0; LANES];
    let (chunks_a, chunks_b) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let tail: f32 = chunks_a.remainder().iter().zip(chunks_b.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in chunks_a.zip(chunks_b) {
        for lane in 0..LANES {
            sums[lane] += x[lane] * y[lane];
        }
    }
    sums.iter().sum::<f32>() + tail
}

/// An array of two axes as a matrix.
pub(super) fn matrix(x: ArrayViewD<'_, f32>) -> Result<ArrayView2<'_, f32>> {
    x.into_dimensionality::<Ix2>().map_err(|_| misfit("a matrix"))
}

/// The last two axes of `x` at place `index` of `batch`, which the other axes of `x` broadcast to.
fn batch_entry<'x>(x: &'x Array<f32>, batch: &[usize], mut index: usize) -> Result<ArrayView2<'x, f32>> {
    let own = x.ndim() - 2;
    let mut view = x.view();
    for axis in (0..own.max(batch.len())).rev().take(own) {
        let extent = batch.get(axis).copied().unwrap_or(1);
        let place = index % extent;
        index /= extent;
        let last_batch_axis = Axis(view.ndim() - 3);
        let clamped = place.min(view.len_of(last_batch_axis).saturating_sub(1));
        view = view.index_axis_move(last_batch_axis, clamped);
    }
    matrix(view)
}

/// Convolution without padding: `x [n, c, h, w]`, `w [o, c/groups, kh, kw]`.
pub(super) fn conv2d(x: Array<f32>, w: Array<f32>, stride: [usize; 2], groups: usize) -> Result<Tensor> {
    let window = Window::new(x.shape(), w.shape(), stride, groups)?;
    let ([images, outputs], taps) = ([x.shape()[0], w.shape()[0]], window.taps());
    let [height, width] = window.out;
    let (x, w) = (contiguous(x), reshaped(w, &[outputs, taps])?);
    let pixels = x.as_slice().unwrap_or_default();
    let per_group = outputs / groups;
    let mut out = vec![0.0; images * outputs * height * width];
    let blocks = out.chunks_mut((per_group * height * width).max(1)).enumerate();
    for (block, out) in blocks {
        let group = block % groups;
        let size = window.channels * window.image[0] * window.image[1];
        let columns = window.columns(&pixels[block * size..(block + 1) * size]);
        let columns = ArrayView2::from_shape((taps, height * width), &columns).map_err(|_| misfit("a matrix"))?;
        let weights = w.slice(s![group * per_group..(group + 1) * per_group, ..]);
        multiply(matrix(weights.into_dyn())?, columns, out);
    }
    shaped(&[images, outputs, height, width], out).map(Tensor::F32)
}

/// Convolution over depth too, without padding: `x [n, c, d, h, w]`, `w [o, c, kd, kh, kw]`.
///
/// The planes under the kernel at one depth are channels of a convolution in two dimensions.
pub(super) fn conv3d(x: Array<f32>, w: Array<f32>, stride: [usize; 3]) -> Result<Tensor> {
    let (&[n, c, depth, height, width], &[o, c2, kd, kh, kw]) = (x.shape(), w.shape()) else {
        return Err(misfit("[n, c, d, h, w] and [o, c, kd, kh, kw]"));
    };
    if c != c2 || stride[0] == 0 || !(1..=depth).contains(&kd) {
        let found = format!("{:?} and {:?}", x.shape(), w.shape());
        return Err(misfit("[n, c, d, h, w] and [o, c, kd, kh, kw]").found(found));
    }
    let w = reshaped(w, &[o, c * kd, kh, kw])?;
    let at_depth = |z: usize| {
        let planes = x.slice(s![.., .., z..z + kd, .., ..]).into_dyn().to_owned().into_shared();
        let made = conv2d(reshaped(planes, &[n, c * kd, height, width])?, w.clone(), [stride[1], stride[2]], 1)?;
        let [_, _, rows, columns] = *made.shape() else {
            return Err(misfit("a plane of pixels"));
        };
        movement::reshape(made, &[n, o, 1, rows, columns])
    };
    let planes = (0..=depth - kd).step_by(stride[0]).map(at_depth).collect::<Result<Vec<_>>>()?;
    movement::concat(planes, 2)
}

/// The window of a convolution over the channels of one group.
#[derive(Debug, Clone, Copy)]
struct Window {
    channels: usize,
    image: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    out: [usize; 2],
}

impl Window {
    fn new(x: &[usize], w: &[usize], stride: [usize; 2], groups: usize) -> Result<Self> {
        match (x, w, stride) {
            (&[_, c, h, w], &[o, channels, kh, kw], [sy, sx])
                if groups > 0
                    && sy > 0
                    && sx > 0
                    && c == channels * groups
                    && o % groups == 0
                    && (1..=h).contains(&kh)
                    && (1..=w).contains(&kw) =>
            {
                let out = [(h - kh) / sy + 1, (w - kw) / sx + 1];
                Ok(Self { channels, image: [h, w], kernel: [kh, kw], stride, out })
            }
            _ => Err(misfit("[n, c, h, w] and [o, c/groups, kh, kw]").found(format!("{x:?} and {w:?}"))),
        }
    }

    fn taps(&self) -> usize {
        self.channels * self.kernel[0] * self.kernel[1]
    }

    /// The pixels under each tap of the kernel, `[taps, out y * out x]`.
    fn columns(&self, pixels: &[f32]) -> Vec<f32> {
        let [height, width] = self.image;
        let mut columns = Vec::with_capacity(self.taps() * self.out[0] * self.out[1]);
        for plane in pixels.chunks_exact(height * width) {
            for (ky, kx) in (0..self.kernel[0]).flat_map(|ky| (0..self.kernel[1]).map(move |kx| (ky, kx))) {
                for y in 0..self.out[0] {
                    let row = &plane[(y * self.stride[0] + ky) * width + kx..];
                    columns.extend(row.iter().step_by(self.stride[1]).take(self.out[1]));
                }
            }
        }
        columns
    }
}
