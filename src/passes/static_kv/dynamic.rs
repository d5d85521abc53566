//! `dynamic`: the position follows from the length of `position_ids`.

use super::Cached;
use super::form::{Append, Form, Keys, Seen, names};
use super::indexed::append_at;
use crate::graph::{Builder, Dim, Symbol, TensorType, ValueId};
use crate::{ElementType, Result};

/// The form.
#[derive(Debug)]
pub(super) struct Dynamic;

impl Form for Dynamic {
    fn start(&mut self, b: &mut Builder<'_>, _name: &str, cached: &Cached) -> Result<ValueId> {
        let total = total(cached);
        let row = TensorType { element: ElementType::I32, shape: vec![Dim::Fixed(1), total.clone()] };
        b.input(names::POSITION_IDS, row);
        let (end, count) = (b.extents(&[total]), b.extents(std::slice::from_ref(&cached.queries)));
        Ok(b.sub(end, count))
    }

    fn append(&mut self, b: &mut Builder<'_>, append: Append, cached: &Cached) -> ValueId {
        append_at(b, append, cached)
    }

    fn seen(&mut self, b: &mut Builder<'_>, seen: Seen, cached: &Cached) -> ValueId {
        let total = total(cached);
        let [groups, _, d] = [2, 3, 4].map(|axis| cached.ty.shape[axis].clone());
        let extent = |dim: &Dim| dim.fixed().unwrap_or(0) as i32;
        let begin = b.integers(&[5], &[seen.layer as i32, 0, 0, 0, 0]);
        let before = b.integers(&[3], &[seen.layer as i32 + 1, 1, extent(&groups)]);
        let after = b.integers(&[1], &[extent(&d)]);
        let length = b.extents(std::slice::from_ref(&total));
        let end = b.concat(&[before, length, after], 0);
        let columns = [Dim::Fixed(1), groups, total, d];
        let slot = std::iter::once(Dim::Fixed(1)).chain(columns.clone()).collect();
        let slot = b.slice_at(seen.cache, [begin, end], slot);
        b.reshape_to(slot, &columns)
    }

    fn keys(&mut self, _b: &mut Builder<'_>, _start: ValueId, _cached: &Cached) -> Keys {
        Keys::Sequence
    }
}

/// Tokens of the sequence, those fed included.
fn total(cached: &Cached) -> Dim {
    let least = cached.queries.fixed().unwrap_or(1);
    Dim::Symbol(Symbol::new(names::TOTAL, least, cached.length()))
}
