//! `shift`: columns are appended at the end of the cache, and what is there moves towards the front.

use super::Cached;
use super::form::{Append, Form, Keys, Seen};
use super::indexed::{replace_layer, whole_layer};
use super::visibility::{all_positions, filled};
use crate::Result;
use crate::graph::{Binary, Builder, ValueId};

/// The form.
#[derive(Debug)]
pub(super) struct Shift;

impl Form for Shift {
    fn start(&mut self, b: &mut Builder<'_>, name: &str, cached: &Cached) -> Result<ValueId> {
        cached.fixed_start(b, name)
    }

    fn append(&mut self, b: &mut Builder<'_>, append: Append, cached: &Cached) -> ValueId {
        let fed = cached.queries.fixed().unwrap_or(1);
        let columns = b.reshape_to(append.columns, &cached.box_of_columns());
        let slot = b.slice_axis(append.cache, 0, append.layer, append.layer + 1);
        let rest = b.slice_axis(slot, 3, fed, cached.length());
        let slot = b.concat(&[rest, columns], 3);
        replace_layer(b, append.cache, append.layer, slot)
    }

    fn seen(&mut self, b: &mut Builder<'_>, seen: Seen, _cached: &Cached) -> ValueId {
        whole_layer(b, seen.cache, seen.layer)
    }

    /// The last place holds the last token fed; places before the first token hold nothing.
    fn keys(&mut self, b: &mut Builder<'_>, start: ValueId, cached: &Cached) -> Keys {
        let fed = cached.queries.fixed().unwrap_or(1);
        let before = b.integers(&[1], &[cached.length() as i32 - fed as i32]);
        let first = b.sub(start, before);
        let places = all_positions(b, cached.length());
        let positions = b.add(places, first);
        let empty = b.integers(&[1], &[-1]);
        let is_filled = b.binary(Binary::Greater, positions, empty);
        Keys::At(filled(b, is_filled, positions))
    }
}
