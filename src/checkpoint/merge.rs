//! Makes one set of tensors out of those of several shards.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use crate::storage::StoredTensor;
use crate::{Error, Result};

/// Bytes compared at a time.
const CHUNK_BYTES: u64 = 1 << 20;

/// The tensors of all shards by name. A tensor that two shards hold alike is taken from the first, with a warning.
pub(super) fn merge(
    shards: Vec<Vec<StoredTensor>>,
    warnings: &mut Vec<String>,
) -> Result<BTreeMap<Arc<str>, StoredTensor>> {
    let mut tensors = BTreeMap::new();
    for tensor in shards.into_iter().flatten() {
        match tensors.entry(Arc::clone(&tensor.name)) {
            Entry::Vacant(place) => {
                place.insert(tensor);
            }
            Entry::Occupied(first) => warnings.push(compare(first.get(), &tensor)?),
        }
    }
    Ok(tensors)
}

/// A warning about two equal tensors of one name; an error when they differ.
fn compare(first: &StoredTensor, second: &StoredTensor) -> Result<String> {
    let (a, b) = (first.source.name(), second.source.name());
    let like = |tensor: &StoredTensor| format!("{} {:?}", tensor.element, tensor.shape);
    let error = Error::input(format!("it is also in {a}, with another value")).hint("remove the stale shard");
    if like(first) != like(second) {
        return Err(error.found(like(second)).expected(like(first)).at(place(second)).at(b));
    }
    if !equal_bytes(first, second)? {
        return Err(error.at(place(second)).at(b));
    }
    Ok(format!("{} is in {a} and in {b}, with the same bytes", place(first)))
}

fn place(tensor: &StoredTensor) -> String {
    format!("tensor `{}`", tensor.name)
}

fn equal_bytes(first: &StoredTensor, second: &StoredTensor) -> Result<bool> {
    let size = first.bytes();
    let (mut a, mut b) = (Vec::new(), Vec::new());
    let mut offset = 0;
    while offset < size {
        let length = CHUNK_BYTES.min(size - offset);
        a.resize(length as usize, 0);
        b.resize(length as usize, 0);
        first.read_at(&mut a, offset)?;
        second.read_at(&mut b, offset)?;
        if a != b {
            return Ok(false);
        }
        offset += length;
    }
    Ok(true)
}
