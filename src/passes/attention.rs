//! The arithmetic of attention, as passes write it out.

use crate::ElementType;
use crate::graph::{Binary, Builder, Dim, Unary, ValueId};

/// `softmax(q kT / sqrt(d) + mask) v` for `q [1, heads, n, d]`, `k` and `v [1, groups, keys, d]`; the mask is that of
/// [`for_groups`]. Statistics are in f32.
///
/// The heads that read one group are more rows of one product, so that keys and values are not repeated.
pub(super) fn attend(b: &mut Builder<'_>, [q, k, v]: [ValueId; 3], mask: Option<ValueId>) -> ValueId {
    let (query, keys, element) = (b.dims(q), b.dims(k), b.element(q));
    let together = heads_of_a_group(b, [q, k]);
    let width = query[3].fixed().unwrap_or(1);
    let q = b.scale(q, 1.0 / (width as f32).sqrt());
    let rows = [Dim::Fixed(1), keys[1].clone(), query[2].multiple(together), query[3].clone()];
    let q = b.reshape_to(q, &rows);
    let keys = b.transpose_last(k);
    let scores = b.matmul(q, keys);
    let mut scores = b.cast(scores, ElementType::F32);
    if let Some(mask) = mask {
        scores = b.add(scores, mask);
    }
    let weights = b.softmax_f32(scores);
    let weights = b.cast(weights, element);
    let y = b.matmul(weights, v);
    b.reshape_to(y, &query)
}

/// A mask `f32 [n, keys]` for the rows of all heads that read one group.
pub(super) fn for_groups(b: &mut Builder<'_>, mask: ValueId, queries_and_keys: [ValueId; 2]) -> ValueId {
    match heads_of_a_group(b, queries_and_keys) {
        1 => mask,
        together => b.concat(&vec![mask; together], 0),
    }
}

fn heads_of_a_group(b: &Builder<'_>, [q, k]: [ValueId; 2]) -> usize {
    let heads = |x: ValueId| b.ty(x).shape[1].fixed().unwrap_or(1);
    heads(q) / heads(k)
}

/// Where key `j` is not later than query `i`: `i1 [n, keys]` for positions `si32 [n, 1]` and `si32 [1, keys]`.
pub(super) fn not_later(b: &mut Builder<'_>, queries: ValueId, keys: ValueId) -> ValueId {
    let later = b.binary(Binary::Greater, keys, queries);
    b.unary(Unary::Not, later)
}
