//! `indexed`: a slice update at a position that is an input.

use super::Cached;
use super::form::{Append, Form, Keys, Seen};
use super::visibility::all_positions;
use crate::graph::{Builder, Op, ValueId};

/// The form.
#[derive(Debug)]
pub(super) struct Indexed;

impl Form for Indexed {
    fn append(&mut self, b: &mut Builder<'_>, append: Append, cached: &Cached) -> ValueId {
        append_at(b, append, cached)
    }

    fn seen(&mut self, b: &mut Builder<'_>, seen: Seen, _cached: &Cached) -> ValueId {
        whole_layer(b, seen.cache, seen.layer)
    }

    fn keys(&mut self, b: &mut Builder<'_>, _start: ValueId, cached: &Cached) -> Keys {
        Keys::At(all_positions(b, cached.length()))
    }
}

/// The cache with the box of the columns replaced, from a run-time position on.
pub(super) fn append_at(b: &mut Builder<'_>, append: Append, cached: &Cached) -> ValueId {
    let shape = cached.box_of_columns();
    let columns = b.reshape_to(append.columns, &shape);
    let before = b.integers(&[3], &[append.layer as i32, 0, 0]);
    let zero = b.integers(&[1], &[0]);
    let begin = b.concat(&[before, append.start, zero], 0);
    let extents = b.extents(&shape);
    let end = b.add(begin, extents);
    b.node(Op::SliceUpdate, &[append.cache, begin, end, columns])
}

/// The columns of a layer, all of them: `[1, groups, length, d]`.
pub(super) fn whole_layer(b: &mut Builder<'_>, cache: ValueId, layer: usize) -> ValueId {
    let columns = b.dims(cache)[1..].to_vec();
    let slot = b.slice_axis(cache, 0, layer, layer + 1);
    b.reshape_to(slot, &columns)
}

/// The cache with one layer (`[1, 1, groups, length, d]`) replaced; the bounds are constants.
pub(super) fn replace_layer(b: &mut Builder<'_>, cache: ValueId, layer: usize, slot: ValueId) -> ValueId {
    let shape = b.shape(cache);
    let begin = b.integers(&[5], &[layer as i32, 0, 0, 0, 0]);
    let end = [layer + 1, 1, shape[2], shape[3], shape[4]].map(|extent| extent as i32);
    let end = b.integers(&[5], &end);
    b.node(Op::SliceUpdate, &[cache, begin, end, slot])
}
