//! A head that is the embedding table (`tie_word_embeddings`).

use super::{Loader, Unused};
use crate::storage::StoredTensor;
use crate::{Error, Result};

/// Bytes compared at a time.
const CHUNK: usize = 1 << 20;

/// Drops the stored copy of a head that config.json says is the embedding table; there may be none.
///
/// # Errors
/// When there is one and it differs: one of the two would silently be lost.
pub(super) fn tied_head(loader: &mut Loader<'_>, head: &str, embeddings: &str) -> Result<()> {
    let (Some(stored), Some(table)) = (loader.get(head), loader.get(embeddings)) else {
        return Ok(());
    };
    if !equal(stored, table)? {
        return Err(Error::input(format!("tensor `{head}` is not the embedding table that config.json says it is"))
            .at(stored.source.name())
            .found(format!("bytes other than those of `{embeddings}`"))
            .hint("set tie_word_embeddings to false if the head was trained on its own"));
    }
    loader.unused(Unused {
        tensor: head.to_owned(),
        pass: "tie-head",
        reason: "the head is the embedding table (tie_word_embeddings); the stored copy is equal to it",
    });
    Ok(())
}

fn equal(one: &StoredTensor, other: &StoredTensor) -> Result<bool> {
    if one.element != other.element || one.shape != other.shape {
        return Ok(false);
    }
    let (mut left, mut right) = (vec![0; CHUNK], vec![0; CHUNK]);
    let mut offset = 0;
    while offset < one.bytes() {
        let length = usize::try_from(one.bytes() - offset).map_or(CHUNK, |rest| rest.min(CHUNK));
        one.read_at(&mut left[..length], offset)?;
        other.read_at(&mut right[..length], offset)?;
        if left[..length] != right[..length] {
            return Ok(false);
        }
        offset += length as u64;
    }
    Ok(true)
}
