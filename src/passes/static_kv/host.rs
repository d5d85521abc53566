//! `host`: the past is an input and the columns of the call are an output; the host puts them in their place.

use super::Cached;
use super::form::{Append, Form, Keys, Seen, names};
use super::indexed::whole_layer;
use super::visibility::{all_positions, filled};
use crate::Result;
use crate::graph::{Binary, Builder, Dim, FunctionResult, Returned, ValueId};

/// The form.
#[derive(Debug, Default)]
pub(super) struct Host {
    /// The caches by their names.
    caches: Vec<(String, ValueId)>,
    /// The columns of each layer of a cache, with the cache.
    columns: Vec<(ValueId, ValueId)>,
}

impl Form for Host {
    fn start(&mut self, b: &mut Builder<'_>, name: &str, cached: &Cached) -> Result<ValueId> {
        cached.fixed_start(b, name)
    }

    /// A call from position 0 has no past: the value stands for the cache and is not used.
    fn cache(&mut self, b: &mut Builder<'_>, name: &str, cached: &Cached) -> ValueId {
        let past = format!("{}{name}", names::PAST);
        let cache = if cached.from_zero {
            b.integers(&[1], &[-1 - self.caches.len() as i32])
        } else {
            b.input(&past, cached.ty.clone())
        };
        self.caches.push((name.to_owned(), cache));
        cache
    }

    fn append(&mut self, b: &mut Builder<'_>, append: Append, cached: &Cached) -> ValueId {
        let columns = b.reshape_to(append.columns, &cached.box_of_columns());
        self.columns.push((append.cache, columns));
        append.cache
    }

    fn seen(&mut self, b: &mut Builder<'_>, seen: Seen, _cached: &Cached) -> ValueId {
        let past = whole_layer(b, seen.cache, seen.layer);
        b.concat(&[past, seen.columns], 2)
    }

    /// Places of the past from the first token fed on are to be filled, or hold what was there before.
    fn keys(&mut self, b: &mut Builder<'_>, start: ValueId, cached: &Cached) -> Keys {
        let places = all_positions(b, cached.length());
        let is_filled = b.binary(Binary::Greater, start, places);
        let past = filled(b, is_filled, places);
        let own = b.counted_from(start, &cached.queries);
        let own = b.reshape_to(own, &[Dim::Fixed(1), cached.queries.clone()]);
        Keys::At(b.concat(&[past, own], 1))
    }

    fn returned(&mut self, b: &mut Builder<'_>, returned: &mut Returned, _cached: &Cached) {
        returned.states.clear();
        for (name, cache) in &self.caches {
            let of_cache = self.columns.iter().filter(|(of, _)| of == cache);
            let columns: Vec<ValueId> = of_cache.map(|(_, columns)| *columns).collect();
            let value = b.concat(&columns, 0);
            returned.results.push(FunctionResult { name: format!("{}{name}", names::NEW), value });
        }
    }
}
