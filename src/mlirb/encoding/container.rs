//! The container: magic, version, producer, sections.

use super::cursor::{Cursor, error_at};
use super::varint::{put_count, put_unsigned};
use crate::Result;

/// The first four bytes of every file.
pub(in crate::mlirb) const MAGIC: [u8; 4] = *b"ML\xefR";
/// The version of the container that is written.
pub(in crate::mlirb) const VERSION: u64 = 6;
/// Versions that are read.
const READABLE_VERSIONS: std::ops::RangeInclusive<u64> = 5..=VERSION;
/// What fills the space before aligned data.
pub(in crate::mlirb) const PADDING: u8 = 0xcb;
/// The bit of a section's first byte that says it is aligned.
const ALIGNED: u8 = 0x80;
/// Greatest alignment that is read, in bytes.
pub(in crate::mlirb) const MAX_ALIGNMENT: u64 = 1 << 20;

/// What a section holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(in crate::mlirb) enum SectionId {
    Strings = 0,
    Dialects = 1,
    AttrType = 2,
    AttrTypeOffsets = 3,
    Ir = 4,
    Resources = 5,
    ResourceOffsets = 6,
    DialectVersion = 7,
    Properties = 8,
}

impl SectionId {
    const ALL: [Self; 9] = [
        Self::Strings,
        Self::Dialects,
        Self::AttrType,
        Self::AttrTypeOffsets,
        Self::Ir,
        Self::Resources,
        Self::ResourceOffsets,
        Self::DialectVersion,
        Self::Properties,
    ];

    pub(in crate::mlirb) const fn name(self) -> &'static str {
        match self {
            Self::Strings => "strings",
            Self::Dialects => "dialects",
            Self::AttrType => "attributes and types",
            Self::AttrTypeOffsets => "attribute and type offsets",
            Self::Ir => "operations",
            Self::Resources => "resources",
            Self::ResourceOffsets => "resource offsets",
            Self::DialectVersion => "dialect version",
            Self::Properties => "properties",
        }
    }
}

/// Appends what comes before the sections.
pub(in crate::mlirb) fn put_preamble(out: &mut Vec<u8>, producer: &str) {
    out.extend(MAGIC);
    put_unsigned(out, VERSION);
    out.extend(producer.as_bytes());
    out.push(0);
}

/// Appends a section without alignment.
pub(in crate::mlirb) fn put_section(out: &mut Vec<u8>, id: SectionId, data: &[u8]) {
    out.push(id as u8);
    put_count(out, data.len());
    out.extend(data);
}

/// Appends the head of an aligned section of `length` bytes; `out` is the file from its beginning.
pub(in crate::mlirb) fn put_aligned_head(out: &mut Vec<u8>, id: SectionId, length: u64, alignment: u64) {
    out.push(id as u8 | ALIGNED);
    put_unsigned(out, length);
    put_unsigned(out, alignment);
    while !(out.len() as u64).is_multiple_of(alignment) {
        out.push(PADDING);
    }
}

/// Reads what [`put_preamble`] wrote; gives the producer.
pub(in crate::mlirb) fn preamble(cursor: &mut Cursor<'_>) -> Result<String> {
    let offset = cursor.offset();
    let magic = cursor.take(MAGIC.len())?;
    if magic != MAGIC {
        return Err(error_at(offset, "not MLIR bytecode")
            .found(format!("{magic:02x?}"))
            .expected(format!("{MAGIC:02x?}"))
            .hint("the program of an asset is its file `main.mlirb`"));
    }
    let offset = cursor.offset();
    let version = cursor.unsigned()?;
    if !READABLE_VERSIONS.contains(&version) {
        return Err(error_at(offset, "a version of MLIR bytecode that is not supported")
            .found(version)
            .expected(format!("{} or {}", READABLE_VERSIONS.start(), READABLE_VERSIONS.end())));
    }
    Ok(String::from_utf8_lossy(cursor.until_nul()?).into_owned())
}

/// The head of a section.
#[derive(Debug, Clone, Copy)]
pub(in crate::mlirb) struct SectionHead {
    pub(in crate::mlirb) id: SectionId,
    /// Offset in the file of its first byte.
    pub(in crate::mlirb) start: u64,
    /// Length in bytes.
    pub(in crate::mlirb) length: u64,
}

/// Reads the head of a section; its padding and its data are not consumed.
pub(in crate::mlirb) fn section_head(cursor: &mut Cursor<'_>) -> Result<SectionHead> {
    let offset = cursor.offset();
    let tag = cursor.byte()?;
    let id = SectionId::ALL.into_iter().find(|id| *id as u8 == tag & !ALIGNED);
    let id = id.ok_or_else(|| error_at(offset, "an unknown section").found(tag & !ALIGNED).expected("0 to 8"))?;
    let length = cursor.unsigned()?;
    let alignment = if tag & ALIGNED == 0 { 1 } else { alignment(cursor)? };
    Ok(SectionHead { id, start: align_up(cursor.offset(), alignment), length })
}

/// Reads a section that is nested in another one and not aligned.
pub(in crate::mlirb) fn nested_section<'a>(cursor: &mut Cursor<'a>, expected: SectionId) -> Result<Cursor<'a>> {
    let offset = cursor.offset();
    let head = section_head(cursor)?;
    if head.id != expected {
        return Err(error_at(offset, "the wrong section").found(head.id.name()).expected(expected.name()));
    }
    let padding = usize::try_from(head.start.saturating_sub(cursor.offset())).unwrap_or(usize::MAX);
    cursor.take(padding)?;
    cursor.window(usize::try_from(head.length).unwrap_or(usize::MAX))
}

/// Reads an alignment: a power of two.
pub(in crate::mlirb) fn alignment(cursor: &mut Cursor<'_>) -> Result<u64> {
    let offset = cursor.offset();
    let alignment = cursor.unsigned()?;
    if alignment.is_power_of_two() && alignment <= MAX_ALIGNMENT {
        Ok(alignment)
    } else {
        Err(error_at(offset, "not an alignment")
            .found(alignment)
            .expected(format!("a power of two up to {MAX_ALIGNMENT}")))
    }
}

/// The first multiple of `alignment`, a power of two, that is not below `offset`.
pub(in crate::mlirb) const fn align_up(offset: u64, alignment: u64) -> u64 {
    offset.saturating_add(alignment - 1) & !(alignment - 1)
}
