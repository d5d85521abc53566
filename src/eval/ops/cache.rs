//! The key/value cache `[layers, 1, heads, length, d]`.

use super::{misfit, movement};
use crate::eval::{Array, Tensor};
use crate::{Error, Result};

/// The cache with `columns [1, heads, q, d]` of a layer written from position `start` on; in place if nothing else
/// holds the cache.
pub(super) fn append(cache: Tensor, columns: Tensor, start: Array<i32>, layer: usize) -> Result<Tensor> {
    let ([layers, 1, heads, length, d], [1, _, q, _]) = (cache.shape(), columns.shape()) else {
        return Err(misfit("a cache [l, 1, heads, length, d] and columns [1, heads, q, d]"));
    };
    let [start] = *start.iter().collect::<Vec<_>>() else {
        return Err(misfit("one start"));
    };
    let fits = |start: &usize| layer < *layers && start.checked_add(*q).is_some_and(|end| end <= *length);
    let Some(begin) = usize::try_from(*start).ok().filter(fits) else {
        return Err(Error::input("columns do not fit the cache")
            .found(format!("{q} from position {start} on in layer {layer}"))
            .expected(format!("{length} positions, {layers} layers")));
    };
    let end = [layer + 1, 1, *heads, begin + q, *d];
    let shape: Vec<usize> = std::iter::once(&1).chain(columns.shape()).copied().collect();
    movement::write_box(cache, &[layer, 0, 0, begin, 0], &end, movement::reshape(columns, &shape)?)
}

/// The columns `[1, heads, length, d]` of a layer; a view.
pub(super) fn layer(cache: Tensor, layer: usize) -> Result<Tensor> {
    movement::row(cache, layer)
}
