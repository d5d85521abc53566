//! Which keys a query sees.

use super::Cached;
use crate::graph::{Binary, Builder, Dim, Op, ValueId, Window};
use crate::passes::attention::not_later;

/// What is added to the scores, `f32 [n, keys]`, for queries from position `start` on and keys at `keys`
/// (`si32 [1, keys]`).
pub(super) fn mask(
    b: &mut Builder<'_>,
    keys: ValueId,
    start: ValueId,
    (cached, window): (&Cached, Option<Window>),
) -> ValueId {
    let queries = b.counted_from(start, &cached.queries);
    let queries = b.reshape_to(queries, &[cached.queries.clone(), Dim::Fixed(1)]);
    let mut seen = not_later(b, queries, keys);
    if let Some(window) = window {
        let near = in_window(b, queries, keys, window);
        seen = b.binary(Binary::And, seen, near);
    }
    b.additive_mask(seen)
}

fn in_window(b: &mut Builder<'_>, queries: ValueId, keys: ValueId, window: Window) -> ValueId {
    let (prefix, span) = (b.integers(&[1], &[window.prefix as i32]), b.integers(&[1], &[window.span as i32]));
    let in_prefix = b.binary(Binary::Greater, prefix, keys);
    let forgotten = b.sub(queries, span);
    let recent = b.binary(Binary::Greater, keys, forgotten);
    b.binary(Binary::Or, in_prefix, recent)
}

/// The positions `0..length` of a cache, `si32 [1, length]`.
pub(super) fn all_positions(b: &mut Builder<'_>, length: usize) -> ValueId {
    let positions: Vec<i32> = (0..length as i32).collect();
    b.integers(&[1, length], &positions)
}

/// `positions` (`si32 [1, keys]`) where `is_filled` (`i1 [1, keys]`), elsewhere one that is later than every query.
pub(super) fn filled(b: &mut Builder<'_>, is_filled: ValueId, positions: ValueId) -> ValueId {
    let never = b.integers(&[1], &[i32::MAX]);
    b.node(Op::Select, &[is_filled, positions, never])
}
