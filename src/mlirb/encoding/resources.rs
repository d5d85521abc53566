//! The two resource sections: where each resource lies, and the head of each.

use std::sync::Arc;

use super::container::{PADDING, align_up, alignment};
use super::cursor::{Cursor, error_at};
use super::tables::{DIALECT_INDEX, Interner};
use super::varint::{MAX_BYTES, put_count, put_unsigned};
use crate::mlirb::ir::Resource;
use crate::{Error, Result};

/// The kind of a resource that is a blob.
const BLOB: u8 = 0;

/// Longest head of a resource before its padding: alignment and length.
pub(in crate::mlirb) const MAX_HEAD: usize = 2 * MAX_BYTES;

/// What comes before the bytes of a resource: alignment, length, padding.
///
/// `section_offset` is where the resource's entry begins in its section, which itself begins at a multiple of the
/// greatest alignment in it, so that alignment in the section is alignment in the file.
pub(in crate::mlirb) fn resource_head(resource: &Resource, section_offset: u64) -> Vec<u8> {
    let mut head = Vec::new();
    put_unsigned(&mut head, resource.alignment);
    put_unsigned(&mut head, resource.bytes);
    while !section_offset.wrapping_add(head.len() as u64).is_multiple_of(resource.alignment) {
        head.push(PADDING);
    }
    head
}

/// The section of resource offsets; `entry_bytes` are the lengths of heads and bytes together.
pub(in crate::mlirb) fn offsets_section(
    resources: &[Resource],
    entry_bytes: &[u64],
    interner: &mut Interner,
) -> Vec<u8> {
    let mut out = Vec::new();
    put_count(&mut out, 0);
    put_unsigned(&mut out, DIALECT_INDEX);
    put_count(&mut out, resources.len());
    for (resource, bytes) in resources.iter().zip(entry_bytes) {
        put_count(&mut out, interner.string(&resource.key));
        put_unsigned(&mut out, *bytes);
        out.push(BLOB);
    }
    out
}

/// A resource's entry as the section of offsets has it.
#[derive(Debug, Clone)]
pub(in crate::mlirb) struct EntryHead {
    pub(in crate::mlirb) key: Arc<str>,
    /// Offset in the file of its head.
    pub(in crate::mlirb) offset: u64,
    /// Length of head and bytes together.
    pub(in crate::mlirb) bytes: u64,
}

/// Reads what [`offsets_section`] wrote; entries follow each other from `start` to `end` in the file.
pub(in crate::mlirb) fn entries(
    mut cursor: Cursor<'_>,
    mut string: impl FnMut(&mut Cursor<'_>) -> Result<Arc<str>>,
    (start, end): (u64, u64),
) -> Result<Vec<EntryHead>> {
    let at = cursor.clone();
    if cursor.unsigned()? != 0 {
        return Err(at.error("resources outside the dialect are not supported"));
    }
    let mut entries = Vec::new();
    let mut offset = start;
    while !cursor.is_empty() {
        cursor.index()?;
        for _ in 0..cursor.count()? {
            let entry = entry(&mut cursor, &mut string, offset)?;
            offset = offset.checked_add(entry.bytes).filter(|next| *next <= end).ok_or_else(|| {
                error_at(offset, format!("resource `{}` exceeds its section", entry.key))
                    .found(format!("{} bytes", entry.bytes))
                    .expected(format!("at most {} bytes", end.saturating_sub(offset)))
            })?;
            entries.push(entry);
        }
    }
    if offset == end {
        Ok(entries)
    } else {
        Err(error_at(offset, "the section of resources has bytes left over").found(end.saturating_sub(offset)))
    }
}

fn entry(
    cursor: &mut Cursor<'_>,
    string: &mut impl FnMut(&mut Cursor<'_>) -> Result<Arc<str>>,
    offset: u64,
) -> Result<EntryHead> {
    let key = string(cursor)?;
    let bytes = cursor.unsigned()?;
    let at = cursor.clone();
    match cursor.byte()? {
        BLOB => Ok(EntryHead { key, offset, bytes }),
        kind => Err(at.error(format!("resource `{key}` is not a blob")).found(kind).expected(BLOB)),
    }
}

/// Reads what [`resource_head`] wrote, padding excepted; gives the resource and the offset of its bytes in the file.
pub(in crate::mlirb) fn resource(mut head: Cursor<'_>, entry: &EntryHead) -> Result<(Resource, u64)> {
    let alignment = alignment(&mut head)?;
    let bytes = head.unsigned()?;
    let offset = align_up(head.offset(), alignment);
    if offset.checked_add(bytes) != entry.offset.checked_add(entry.bytes) {
        return Err(length_error(entry, offset, bytes));
    }
    Ok((Resource { key: entry.key.clone(), bytes, alignment }, offset))
}

#[cold]
fn length_error(entry: &EntryHead, offset: u64, bytes: u64) -> Error {
    let left = entry.offset.saturating_add(entry.bytes).saturating_sub(offset);
    error_at(entry.offset, format!("resource `{}` does not fill its entry", entry.key))
        .found(format!("{bytes} bytes"))
        .expected(format!("{left} bytes"))
}
