//! Attention.

use ndarray::{ArrayView2, s};

use super::misfit;
use super::movement::contiguous;
use super::product::multiply;
use crate::eval::tensor::shaped;
use crate::eval::{Array, Tensor};
use crate::graph::Window;
use crate::{Error, Result};

/// `softmax(q kT / sqrt(d)) v` for `q [1, heads, n, d]`, `k` and `v [1, groups, keys, d]`; with `causal`, query `i`
/// sees the keys up to `keys - n + i`.
pub(super) fn plain(q: Array<f32>, kv: [Array<f32>; 2], causal: bool) -> Result<Tensor> {
    let (n, keys) = (extent(&q)?, extent(&kv[0])?);
    match keys.checked_sub(n) {
        None if causal => Err(misfit("at least as many keys as queries").found(format!("{n} queries, {keys} keys"))),
        first => attend(q, kv, |i, j| !causal || first.is_some_and(|first| j <= first + i)),
    }
}

/// As [`plain`] for the columns of a cache: query `i` is at position `start + i`, key `j` at position `j`.
pub(super) fn cached(
    q: Array<f32>,
    columns: [Array<f32>; 2],
    start: Array<i32>,
    window: Option<Window>,
) -> Result<Tensor> {
    let start = match start.iter().map(|&start| usize::try_from(start)).collect::<Vec<_>>().as_slice() {
        [Ok(start)] => *start,
        _ => return Err(misfit("one position").found(start)),
    };
    let (n, length) = (extent(&q)?, extent(&columns[0])?);
    if start.checked_add(n).is_none_or(|end| end > length) {
        let found = format!("{n} queries from position {start} on");
        return Err(Error::input("the queries are not in the cache")
            .found(found)
            .expected(format!("at most {length}")));
    }
    let in_window =
        |position: usize, j: usize| window.is_none_or(|window| j < window.prefix || j + window.span > position);
    attend(q, columns, |i, j| j <= start + i && in_window(start + i, j))
}

/// The extent of the third of four axes.
fn extent(x: &Array<f32>) -> Result<usize> {
    match x.shape() {
        &[1, _, n, _] => Ok(n),
        shape => Err(misfit("four axes, the first of 1").found(format!("{shape:?}"))),
    }
}

/// Attention of each query `i` to the keys `j` that it sees.
fn attend(q: Array<f32>, [k, v]: [Array<f32>; 2], sees: impl Fn(usize, usize) -> bool) -> Result<Tensor> {
    let (&[1, heads, n, d], &[1, groups, keys, d2]) = (q.shape(), k.shape()) else {
        return Err(misfit("q [1, heads, n, d], k and v [1, groups, keys, d]"));
    };
    if d != d2 || k.shape() != v.shape() || groups == 0 || heads % groups != 0 {
        let found = format!("{:?}, {:?} and {:?}", q.shape(), k.shape(), v.shape());
        return Err(misfit("q [1, heads, n, d], k and v [1, groups, keys, d]").found(found));
    }
    let (q, k, v) = (contiguous(q), contiguous(k), contiguous(v));
    let mut out = vec![0.0; heads * n * d];
    let mut scores = vec![0.0; n * keys];
    let scale = 1.0 / (d as f32).sqrt();
    for (head, out) in out.chunks_mut((n * d).max(1)).enumerate() {
        let group = head / (heads / groups);
        let (q, k, v) = (q.slice(s![0, head, .., ..]), k.slice(s![0, group, .., ..]), v.slice(s![0, group, .., ..]));
        multiply(q, k.reversed_axes(), &mut scores);
        for (i, row) in scores.chunks_mut(keys.max(1)).enumerate() {
            weigh(row, scale, |j| sees(i, j));
        }
        let scores = ArrayView2::from_shape((n, keys), &scores).map_err(|_| misfit("a matrix"))?;
        multiply(scores, v, out);
    }
    shaped(&[1, heads, n, d], out).map(Tensor::F32)
}

/// Scores times `scale` become weights that sum to one over what is seen, and zero elsewhere.
fn weigh(scores: &mut [f32], scale: f32, sees: impl Fn(usize) -> bool) {
    let seen = scores.iter().enumerate().filter(|(j, _)| sees(*j));
    let largest = seen.fold(f32::NEG_INFINITY, |largest, (_, score)| largest.max(*score));
    let mut sum = 0.0;
    for (j, score) in scores.iter_mut().enumerate() {
        *score = if sees(j) { libm::expf((*score - largest) * scale) } else { 0.0 };
        sum += *score;
    }
    scores.iter_mut().for_each(|score| *score /= sum);
}
