//! Operations against plain loops on random shapes and numbers.

use proptest::prelude::*;

use super::{apply, assert_close, f32s, i32s};
use crate::eval::Tensor;
use crate::graph::{Binary, Op};

/// A shape of `rank` axes of extent 1 to 4.
fn shape(rank: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(1..=4usize, rank)
}

/// Small whole numbers, whose sums and products are exact in any order.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % 17) as f32 - 8.0
    };
    (0..count).map(|_| next()).collect()
}

/// The multi-index of row-major place `flat`.
fn unravel(mut flat: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for axis in (0..shape.len()).rev() {
        index[axis] = flat % shape[axis];
        flat /= shape[axis];
    }
    index
}

/// The row-major place of a multi-index; axes of extent 1 repeat, missing outer axes too.
fn ravel(index: &[usize], shape: &[usize]) -> usize {
    let index = &index[index.len() - shape.len()..];
    index.iter().zip(shape).fold(0, |flat, (&i, &extent)| flat * extent + if extent == 1 { 0 } else { i })
}

/// `shape` with some axes set to 1 and some outer axes dropped.
fn shrunk(shape: &[usize], ones: u8, dropped: usize) -> Vec<usize> {
    let dropped = dropped.min(shape.len());
    let kept = shape.iter().enumerate().skip(dropped);
    kept.map(|(axis, &extent)| if ones >> axis & 1 == 1 { 1 } else { extent }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn broadcasting_equals_loops(full in shape(0..=4), ones: (u8, u8), dropped in (0..3usize, 0..3usize), seed: u64) {
        let (a_shape, b_shape) = (shrunk(&full, ones.0, dropped.0), shrunk(&full, ones.1, dropped.1));
        let (a, b) = (numbers(a_shape.iter().product(), seed), numbers(b_shape.iter().product(), !seed));
        let made = apply(&Op::Binary(Binary::Sub), &[f32s(&a_shape, &a), f32s(&b_shape, &b)])?;
        let shape = made.shape().to_vec();
        let expected: Vec<f32> = (0..shape.iter().product()).map(|flat| {
            let index = unravel(flat, &shape);
            a[ravel(&index, &a_shape)] - b[ravel(&index, &b_shape)]
        }).collect();
        assert_close(&made, &shape, &expected, 0.0);
    }

    #[test]
    fn transposed_slices_equal_loops(full in shape(1..=4), seed: u64, cut in 0..4usize) {
        let x = numbers(full.iter().product(), seed);
        let begin: Vec<usize> = full.iter().map(|&extent| (seed as usize % extent).min(cut)).collect();
        let slice = apply(&Op::Slice { begin: begin.clone(), end: full.clone() }, &[f32s(&full, &x)])?;
        let perm: Vec<usize> = (0..full.len()).map(|axis| (axis + cut) % full.len()).collect();
        let made = apply(&Op::Transpose(perm.clone()), &[(crate::ElementType::F32, slice)])?;
        let shape = made.shape().to_vec();
        let expected: Vec<f32> = (0..shape.iter().product()).map(|flat| {
            let place = unravel(flat, &shape);
            let mut index = vec![0; full.len()];
            for (axis, &from) in perm.iter().enumerate() {
                index[from] = place[axis] + begin[from];
            }
            x[ravel(&index, &full)]
        }).collect();
        assert_close(&made, &shape, &expected, 0.0);
    }

    #[test]
    fn matrix_products_equal_loops(
        batch in shape(0..=2), (m, k, n) in (1..6usize, 0..20usize, 1..6usize), ones: (u8, u8), dropped in 0..3usize, seed: u64,
    ) {
        let join = |batch: &[usize], rest: [usize; 2]| [batch, rest.as_slice()].concat();
        let (batch_a, batch_b) = (shrunk(&batch, ones.0, 0), shrunk(&batch, ones.1, dropped));
        let (a_shape, b_shape) = (join(&batch_a, [m, k]), join(&batch_b, [k, n]));
        let (a, b) = (numbers(a_shape.iter().product(), seed), numbers(b_shape.iter().product(), !seed));
        let made = apply(&Op::MatMul, &[f32s(&a_shape, &a), f32s(&b_shape, &b)])?;
        let shape = made.shape().to_vec();
        let expected: Vec<f32> = (0..shape.iter().product()).map(|flat| {
            let index = unravel(flat, &shape);
            let (places, last) = index.split_at(index.len() - 2);
            let (row, column) = (last[0], last[1]);
            let (a0, b0) = (ravel(places, &batch_a) * m * k, ravel(places, &batch_b) * k * n);
            (0..k).map(|i| a[a0 + row * k + i] * b[b0 + i * n + column]).sum()
        }).collect();
        assert_close(&made, &shape, &expected, 0.0);
    }

    #[test]
    fn linear_equals_the_product_with_the_transpose(m in 1..300usize, k in 1..40usize, n in 1..40usize, seed: u64) {
        let (x, w) = (f32s(&[m, k], &numbers(m * k, seed)), f32s(&[n, k], &numbers(n * k, !seed)));
        let transposed = apply(&Op::Transpose(vec![1, 0]), std::slice::from_ref(&w))?;
        let product = apply(&Op::MatMul, &[x.clone(), (crate::ElementType::F32, transposed)])?;
        prop_assert_eq!(apply(&Op::Linear, &[x, w])?, product);
    }

    #[test]
    fn convolution_equals_loops(
        (images, groups, c, o) in (1..3usize, 1..3usize, 1..3usize, 1..3usize),
        kernel in (1..4usize, 1..4usize), stride in (1..4usize, 1..4usize), extra in (0..5usize, 0..5usize), seed: u64,
    ) {
        let (h, w) = (kernel.0 + extra.0, kernel.1 + extra.1);
        let (x_shape, w_shape) = ([images, c * groups, h, w], [o * groups, c, kernel.0, kernel.1]);
        let (x, weight) = (numbers(x_shape.iter().product(), seed), numbers(w_shape.iter().product(), !seed));
        let op = Op::Conv2d { stride: [stride.0, stride.1], groups };
        let made = apply(&op, &[f32s(&x_shape, &x), f32s(&w_shape, &weight)])?;
        let shape = [images, o * groups, extra.0 / stride.0 + 1, extra.1 / stride.1 + 1];
        let expected: Vec<f32> = (0..shape.iter().product()).map(|flat| {
            let index = unravel(flat, &shape);
            let mut sum = 0.0;
            for tap in 0..c * kernel.0 * kernel.1 {
                let t = unravel(tap, &[c, kernel.0, kernel.1]);
                let channel = index[1] / o * c + t[0];
                let pixel = [index[0], channel, index[2] * stride.0 + t[1], index[3] * stride.1 + t[2]];
                sum += x[ravel(&pixel, &x_shape)] * weight[index[1] * c * kernel.0 * kernel.1 + tap];
            }
            sum
        }).collect();
        assert_close(&made, &shape, &expected, 0.0);
    }

    #[test]
    fn convolution_over_depth_equals_loops(
        (images, c, o) in (1..3usize, 1..3usize, 1..3usize), kernel in [1..4usize, 1..3usize, 1..3usize],
        stride in [1..4usize, 1..3usize, 1..3usize], extra in [0..5usize, 0..3usize, 0..3usize], seed: u64,
    ) {
        let image = [0, 1, 2].map(|axis| kernel[axis] + extra[axis]);
        let x_shape = [images, c, image[0], image[1], image[2]];
        let w_shape = [o, c, kernel[0], kernel[1], kernel[2]];
        let (x, weight) = (numbers(x_shape.iter().product(), seed), numbers(w_shape.iter().product(), !seed));
        let made = apply(&Op::Conv3d { stride }, &[f32s(&x_shape, &x), f32s(&w_shape, &weight)])?;
        let out = [0, 1, 2].map(|axis| extra[axis] / stride[axis] + 1);
        let shape = [images, o, out[0], out[1], out[2]];
        let taps: usize = w_shape[1..].iter().product();
        let expected: Vec<f32> = (0..shape.iter().product()).map(|flat| {
            let index = unravel(flat, &shape);
            (0..taps).map(|tap| {
                let t = unravel(tap, &w_shape[1..]);
                let voxel = [0, 1, 2].map(|axis| index[axis + 2] * stride[axis] + t[axis + 1]);
                x[ravel(&[index[0], t[0], voxel[0], voxel[1], voxel[2]], &x_shape)] * weight[index[1] * taps + tap]
            }).sum()
        }).collect();
        assert_close(&made, &shape, &expected, 0.0);
    }

    #[test]
    fn gather_equals_loops(full in shape(1..=4), depth in 1..4usize, count in 1..5usize, seed: u64) {
        let depth = depth.min(full.len());
        let x = numbers(full.iter().product(), seed);
        let indices: Vec<i32> = (0..count * depth).map(|i| ((seed >> (i % 32)) as usize % full[i % depth]) as i32).collect();
        let made = apply(&Op::Gather, &[f32s(&full, &x), i32s(&[count, depth], &indices)])?;
        let shape = made.shape().to_vec();
        let expected: Vec<f32> = (0..shape.iter().product()).map(|flat| {
            let place = unravel(flat, &shape);
            let picked = indices[place[0] * depth..(place[0] + 1) * depth].iter().map(|&i| i as usize);
            x[ravel(&picked.chain(place[1..].iter().copied()).collect::<Vec<_>>(), &full)]
        }).collect();
        assert_close(&made, &shape, &expected, 0.0);
    }

    #[test]
    fn sorting_orders_and_keeps_pairs(full in shape(1..=3), axis in 0..3usize, descending: bool, seed: u64) {
        let axis = axis.min(full.len() - 1);
        let x = f32s(&full, &numbers(full.iter().product(), seed));
        let sorted = apply(&Op::Sort { axis, descending }, std::slice::from_ref(&x))?;
        let order = apply(&Op::ArgSort { axis, descending }, std::slice::from_ref(&x))?;
        let gathered = apply(&Op::GatherAlongAxis { axis }, &[x, (crate::ElementType::I32, order.clone())])?;
        prop_assert_eq!(&gathered, &sorted);
        let Tensor::F32(values) = &sorted else { unreachable!() };
        let Tensor::I32(places) = &order else { unreachable!() };
        for (row, places) in values.lanes(ndarray::Axis(axis)).into_iter().zip(places.lanes(ndarray::Axis(axis))) {
            for i in 1..row.len() {
                let in_order = if descending { row[i - 1] > row[i] } else { row[i - 1] < row[i] };
                prop_assert!(in_order || row[i - 1] == row[i] && places[i - 1] < places[i]);
            }
        }
    }
}
