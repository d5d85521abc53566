//! Attention.

use ndarray::{ArrayView2, s};

use super::misfit;
use super::movement::contiguous;
use super::product::multiply;
use crate::Result;
use crate::eval::tensor::shaped;
use crate::eval::{Array, Tensor};

/// `softmax(q kT / sqrt(d)) v` for `q [1, heads, n, d]`, `k` and `v [1, groups, keys, d]`; with `causal`, query `i`
/// sees the keys up to `keys - n + i`.
pub(super) fn attention(q: Array<f32>, [k, v]: [Array<f32>; 2], causal: bool) -> Result<Tensor> {
    let (&[1, heads, n, d], &[1, groups, keys, d2]) = (q.shape(), k.shape()) else {
        return Err(misfit("q [1, heads, n, d], k and v [1, groups, keys, d]"));
    };
    let fits = d == d2 && k.shape() == v.shape() && groups > 0 && heads % groups == 0 && (!causal || n <= keys);
    if !fits {
        let found = format!("{:?}, {:?} and {:?}", q.shape(), k.shape(), v.shape());
        return Err(misfit("q [1, heads, n, d], k and v [1, groups, keys, d]").found(found));
    }
    let (q, k, v) = (contiguous(q), contiguous(k), contiguous(v));
    let mut out = vec![0.0; heads * n * d];
    let mut scores = vec![0.0; n * keys];
    let scale = 1.0 / (d as f32).sqrt();
    for (head, out) in out.chunks_mut((n * d).max(1)).enumerate() {
        let group = head / (heads / groups);
        let of = |x: &'_ Array<f32>, head: usize| x.slice(s![0, head, .., ..]).to_owned();
        let (q, k, v) = (of(&q, head), of(&k, group), of(&v, group));
        multiply(q.view(), k.view().reversed_axes(), &mut scores);
        for (i, row) in scores.chunks_mut(keys.max(1)).enumerate() {
            let seen = if causal { keys - n + i + 1 } else { keys };
            weigh(row, seen, scale);
        }
        let scores = ArrayView2::from_shape((n, keys), &scores).map_err(|_| misfit("a matrix"))?;
        multiply(scores, v.view(), out);
    }
    shaped(&[1, heads, n, d], out).map(Tensor::F32)
}

/// The first `seen` scores times `scale` become weights that sum to one, the others zero.
fn weigh(scores: &mut [f32], seen: usize, scale: f32) {
    let (seen, unseen) = scores.split_at_mut(seen);
    unseen.fill(0.0);
    let largest = seen.iter().fold(f32::NEG_INFINITY, |largest, score| largest.max(*score));
    let mut sum = 0.0;
    for score in seen.iter_mut() {
        *score = libm::expf((*score - largest) * scale);
        sum += *score;
    }
    seen.iter_mut().for_each(|score| *score /= sum);
}
