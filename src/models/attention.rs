//! Attention: heads, rotary angles, masks, the weighted sum.

use crate::graph::{Builder, Dim, TensorType, Unary, ValueId};
use crate::{ElementType, Error};

/// `[1, n, heads * d]` (or `[w, n, heads * d]`) to `[.., heads, n, d]`.
pub(super) fn split_heads(b: &mut Builder<'_>, x: ValueId, heads: usize) -> ValueId {
    let [batch, n, Dim::Fixed(width)] = &b.dims(x)[..] else {
        b.fail(Error::input("heads are split from three axes").found(b.ty(x)));
        return x;
    };
    let x = b.reshape_to(x, &[batch.clone(), n.clone(), heads.into(), (width / heads).into()]);
    b.transpose(x, &[0, 2, 1, 3])
}

/// `[w, heads, n, d]` to `[w, n, heads * d]`.
pub(super) fn merge_heads(b: &mut Builder<'_>, x: ValueId) -> ValueId {
    let x = b.transpose(x, &[0, 2, 1, 3]);
    let [batch, n, heads, Dim::Fixed(d)] = &b.dims(x)[..] else {
        b.fail(Error::input("heads are merged from four axes").found(b.ty(x)));
        return x;
    };
    b.reshape_to(x, &[batch.clone(), n.clone(), heads.multiple(*d)])
}

/// `softmax(q kT / sqrt(d) + mask) v` for `q, k, v [.., heads, n, d]`; the mask is f32 and broadcasts to the scores.
/// Attention without a mask of its own is [`Builder::attention`].
pub(super) fn attend(b: &mut Builder<'_>, [q, k, v]: [ValueId; 3], mask: ValueId) -> ValueId {
    let element = b.element(q);
    let d = b.shape(q).last().copied().unwrap_or(1);
    let q = b.scale(q, 1.0 / (d as f32).sqrt());
    let keys = b.transpose_last(k);
    let scores = b.matmul(q, keys);
    let scores = b.cast(scores, ElementType::F32);
    let scores = b.add(scores, mask);
    let weights = b.softmax_f32(scores);
    let weights = b.cast(weights, element);
    b.matmul(weights, v)
}

/// Cosines and sines of the rotary angles, each `[1, 1, n, d]`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rotary {
    cos: ValueId,
    sin: ValueId,
}

impl Rotary {
    /// Angles `position x theta^(-2i/d)` of each position (`si32 [n]`) for the pairs `(i, i + d/2)`; computed in f32
    /// and cast to the activation type.
    pub(super) fn split_half(b: &mut Builder<'_>, positions: ValueId, d: usize, theta: f64, to: ElementType) -> Self {
        let angles = angles(b, positions, &frequencies(d, theta));
        Self::of_halves(b, angles, to)
    }

    /// One angle (`f32 [n, d/2]`) for each pair `(i, i + d/2)`.
    pub(super) fn of_halves(b: &mut Builder<'_>, angles: ValueId, to: ElementType) -> Self {
        let repeated = b.concat(&[angles, angles], 1);
        Self::of(b, repeated, to)
    }

    /// One angle (`f32 [n, d/2]`) for each pair `(2i, 2i + 1)`.
    pub(super) fn of_neighbours(b: &mut Builder<'_>, angles: ValueId, to: ElementType) -> Self {
        let shape = b.dims(angles);
        let single: Vec<Dim> = shape.iter().cloned().chain([Dim::Fixed(1)]).collect();
        let angles = b.reshape_to(angles, &single);
        let repeated = b.concat(&[angles, angles], 2);
        let repeated = b.reshape_to(repeated, &[shape[0].clone(), shape[1].multiple(2)]);
        Self::of(b, repeated, to)
    }

    /// Angles `f32 [n, d]`, one for each element.
    fn of(b: &mut Builder<'_>, angles: ValueId, to: ElementType) -> Self {
        let shape: Vec<Dim> = [Dim::Fixed(1), Dim::Fixed(1)].into_iter().chain(b.dims(angles)).collect();
        let angles = b.reshape_to(angles, &shape);
        let (cos, sin) = (b.unary(Unary::Cos, angles), b.unary(Unary::Sin, angles));
        Self { cos: b.cast(cos, to), sin: b.cast(sin, to) }
    }

    /// Names the cosines and sines for people and probes.
    pub(super) fn label(self, b: &mut Builder<'_>) {
        b.label(self.cos, "rope_cos");
        b.label(self.sin, "rope_sin");
    }

    /// `x [1, heads, n, d]` rotated by its pairs `(i, i + d/2)`.
    pub(super) fn rotate_half(self, b: &mut Builder<'_>, x: ValueId) -> ValueId {
        let d = b.shape(x).last().copied().unwrap_or(0);
        let (low, high) = (b.slice_axis(x, 3, 0, d / 2), b.slice_axis(x, 3, d / 2, d));
        let high = b.scale(high, -1.0);
        let turned = b.concat(&[high, low], 3);
        let (kept, turned) = (b.mul(x, self.cos), b.mul(turned, self.sin));
        b.add(kept, turned)
    }

    /// `x [1, heads, n, d]` rotated by its pairs `(2i, 2i + 1)`.
    pub(super) fn rotate_neighbours(self, b: &mut Builder<'_>, x: ValueId) -> ValueId {
        let shape = b.dims(x);
        let [batch, heads, n, Dim::Fixed(d)] = shape.as_slice() else {
            b.fail(Error::input("heads are rotated on four axes").found(b.ty(x)));
            return x;
        };
        let pairs = [batch.clone(), heads.clone(), n.clone(), (d / 2).into(), 2.into()];
        let pairs = b.reshape_to(x, &pairs);
        let (even, odd) = (b.slice_axis(pairs, 4, 0, 1), b.slice_axis(pairs, 4, 1, 2));
        let odd = b.scale(odd, -1.0);
        let turned = b.concat(&[odd, even], 4);
        let turned = b.reshape_to(turned, &shape);
        let (kept, turned) = (b.mul(x, self.cos), b.mul(turned, self.sin));
        b.add(kept, turned)
    }
}

/// Rotary frequencies `theta^(-2i/d)` for `i < d/2`.
pub(super) fn frequencies(d: usize, theta: f64) -> Vec<f32> {
    (0..d / 2).map(|i| libm::pow(theta, -2.0 * i as f64 / d as f64) as f32).collect()
}

/// `position x frequency` for positions `si32 [n]` (or `[n, 1]`): `f32 [n, frequencies]`.
pub(super) fn angles(b: &mut Builder<'_>, positions: ValueId, frequencies: &[f32]) -> ValueId {
    let n = b.dims(positions).into_iter().next().unwrap_or(Dim::Fixed(1));
    let frequencies = b.floats(&[1, frequencies.len()], frequencies);
    let positions = b.cast(positions, ElementType::F32);
    let positions = b.reshape_to(positions, &[n, Dim::Fixed(1)]);
    b.mul(positions, frequencies)
}

/// The type of a key or value cache: `[layers, 1, heads, length, d]`.
pub(super) fn cache_type(element: ElementType, layers: usize, heads: usize, length: usize, d: usize) -> TensorType {
    TensorType::new(element, &[layers, 1, heads, length, d])
}
