//! `blend`: what is kept and what is written are weighted by a mask that the host hands in, so that no position is
//! computed in the graph.

use super::Cached;
use super::form::{Append, Form, Keys, Seen, names};
use super::indexed::{append_at, replace_layer, whole_layer};
use super::visibility::all_positions;
use crate::graph::{Builder, Dim, Op, Reduction, Returned, TensorType, ValueId};

/// The form.
#[derive(Debug)]
pub(super) struct Blend {
    extent: Extent,
    mask: Option<Mask>,
    /// For [`Extent::Whole`]: the columns of each layer of a cache, with the cache.
    columns: Vec<(ValueId, ValueId)>,
}

/// What is blended at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// One layer, which is put back into the state.
    Layer,
    /// The state, once, when all columns are known.
    Whole,
}

/// What the host hands in.
#[derive(Debug, Clone, Copy)]
struct Mask {
    /// `[length, n]`: 1 where column `i` goes.
    write: ValueId,
    /// `[length, 1]`: 1 where what is there stays.
    keep: ValueId,
}

impl Blend {
    pub(super) const fn new(extent: Extent) -> Self {
        Self { extent, mask: None, columns: Vec::new() }
    }

    fn mask(&mut self, b: &mut Builder<'_>, cached: &Cached) -> Mask {
        if let Some(mask) = self.mask {
            return mask;
        }
        let shape = vec![Dim::Fixed(cached.length()), cached.queries.clone()];
        let write = b.input(names::WRITE_MASK, TensorType { element: cached.ty.element, shape });
        let written = b.reduce(Reduction::Sum, write, 1);
        let one = b.scalar(1.0, cached.ty.element);
        let mask = Mask { write, keep: b.sub(one, written) };
        *self.mask.insert(mask)
    }

    /// `old [.., length, d]` with `columns [.., n, d]` in their places.
    fn blended(&mut self, b: &mut Builder<'_>, old: ValueId, columns: ValueId, cached: &Cached) -> ValueId {
        let Mask { write, keep } = self.mask(b, cached);
        let placed = if cached.queries == Dim::Fixed(1) { b.mul(write, columns) } else { b.matmul(write, columns) };
        let kept = b.mul(old, keep);
        b.add(kept, placed)
    }
}

impl Form for Blend {
    fn append(&mut self, b: &mut Builder<'_>, append: Append, cached: &Cached) -> ValueId {
        let columns = b.reshape_to(append.columns, &cached.box_of_columns());
        if self.extent == Extent::Whole {
            self.columns.push((append.cache, columns));
            return append.cache;
        }
        if cached.from_zero {
            return append_at(b, append, cached);
        }
        let slot = b.slice_axis(append.cache, 0, append.layer, append.layer + 1);
        let slot = self.blended(b, slot, columns, cached);
        replace_layer(b, append.cache, append.layer, slot)
    }

    fn seen(&mut self, b: &mut Builder<'_>, seen: Seen, cached: &Cached) -> ValueId {
        let layer = whole_layer(b, seen.cache, seen.layer);
        match self.extent {
            Extent::Layer => layer,
            Extent::Whole => self.blended(b, layer, seen.columns, cached),
        }
    }

    fn keys(&mut self, b: &mut Builder<'_>, _start: ValueId, cached: &Cached) -> Keys {
        Keys::At(all_positions(b, cached.length()))
    }

    fn returned(&mut self, b: &mut Builder<'_>, returned: &mut Returned, cached: &Cached) {
        if self.extent == Extent::Layer {
            return;
        }
        for state in &mut returned.states {
            let of_state = self.columns.iter().filter(|(cache, _)| *cache == state.value);
            let columns: Vec<ValueId> = of_state.map(|(_, columns)| *columns).collect();
            let columns = b.concat(&columns, 0);
            state.value = if cached.from_zero {
                at_front(b, state.value, columns)
            } else {
                self.blended(b, state.value, columns, cached)
            };
        }
    }
}

/// The cache with the columns of all layers at its first positions; the bounds are constants.
fn at_front(b: &mut Builder<'_>, cache: ValueId, columns: ValueId) -> ValueId {
    let begin = b.integers(&[5], &[0; 5]);
    let end: Vec<i32> = b.shape(columns).into_iter().map(|extent| extent as i32).collect();
    let end = b.integers(&[5], &end);
    b.node(Op::SliceUpdate, &[cache, begin, end, columns])
}
