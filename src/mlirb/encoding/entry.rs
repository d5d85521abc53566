//! One entry of the attribute or type table: a kind, then fields.
//!
//! [`Encoder`] and [`Decoder`] have the same methods in the same order, one for each kind of field.

use std::sync::Arc;

use super::cursor::Cursor;
use super::tables::{Interner, Tables};
use super::varint::{put_count, put_signed, put_unsigned};
use super::{attributes, types};
use crate::mlirb::attributes::{Attribute, RawEntry};
use crate::mlirb::types::Type;
use crate::{Error, Result};

/// The bytes of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::mlirb) struct Entry {
    pub(in crate::mlirb) bytes: Vec<u8>,
    /// Whether the bytes are a kind and fields, not assembly text.
    pub(in crate::mlirb) custom: bool,
}

/// Writes the fields of an entry.
#[derive(Debug)]
pub(in crate::mlirb) struct Encoder<'i> {
    bytes: Vec<u8>,
    interner: &'i mut Interner,
}

impl Encoder<'_> {
    pub(super) fn unsigned(&mut self, value: u64) {
        put_unsigned(&mut self.bytes, value);
    }

    pub(super) fn signed(&mut self, value: i64) {
        put_signed(&mut self.bytes, value);
    }

    pub(super) fn bool(&mut self, value: bool) {
        self.bytes.push(u8::from(value));
    }

    pub(super) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    pub(super) fn string(&mut self, text: &Arc<str>) {
        let index = self.interner.string(text);
        put_count(&mut self.bytes, index);
    }

    pub(super) fn attribute(&mut self, attribute: &Attribute) -> Result<()> {
        let index = self.interner.attribute(attribute)?;
        put_count(&mut self.bytes, index);
        Ok(())
    }

    pub(super) fn ty(&mut self, ty: &Type) -> Result<()> {
        let index = self.interner.ty(ty)?;
        put_count(&mut self.bytes, index);
        Ok(())
    }

    pub(super) fn list<T>(&mut self, items: &[T], mut item: impl FnMut(&mut Self, &T) -> Result<()>) -> Result<()> {
        put_count(&mut self.bytes, items.len());
        items.iter().try_for_each(|value| item(self, value))
    }
}

/// Reads the fields of an entry.
#[derive(Debug)]
pub(in crate::mlirb) struct Decoder<'t, 'a> {
    pub(super) cursor: Cursor<'a>,
    tables: &'t mut Tables<'a>,
}

impl<'a> Decoder<'_, 'a> {
    pub(super) fn unsigned(&mut self) -> Result<u64> {
        self.cursor.unsigned()
    }

    pub(super) fn signed(&mut self) -> Result<i64> {
        self.cursor.signed()
    }

    pub(super) fn bool(&mut self) -> Result<bool> {
        self.cursor.bool()
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8]> {
        let count = self.cursor.count()?;
        self.cursor.take(count)
    }

    pub(super) fn string(&mut self) -> Result<Arc<str>> {
        self.tables.string(&mut self.cursor)
    }

    pub(super) fn attribute(&mut self) -> Result<Attribute> {
        self.tables.attribute(&mut self.cursor)
    }

    pub(super) fn ty(&mut self) -> Result<Type> {
        self.tables.ty(&mut self.cursor)
    }

    pub(super) fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let count = self.cursor.count()?;
        (0..count).map(|_| item(self)).collect()
    }
}

/// The entry of an attribute; what it refers to is interned first.
pub(super) fn attribute_entry(attribute: &Attribute, interner: &mut Interner) -> Result<Entry> {
    match attribute {
        Attribute::Text(text) => Ok(text_entry(text)),
        Attribute::Raw(raw) => Err(not_writable("an attribute", raw)),
        _ => custom_entry(interner, |encoder| attributes::encode(attribute, encoder)),
    }
}

/// The entry of a type; what it refers to is interned first.
pub(super) fn type_entry(ty: &Type, interner: &mut Interner) -> Result<Entry> {
    match ty {
        Type::Text(text) => Ok(text_entry(text)),
        Type::Raw(raw) => Err(not_writable("a type", raw)),
        _ => custom_entry(interner, |encoder| types::encode(ty, encoder)),
    }
}

/// Decodes an attribute and what it refers to.
pub(super) fn decode_attribute<'a>(tables: &mut Tables<'a>, cursor: Cursor<'a>, custom: bool) -> Result<Attribute> {
    if !custom {
        return Ok(Attribute::Text(text(cursor)?));
    }
    let decoded = decode(tables, cursor.clone(), attributes::decode)?;
    decoded.map_or_else(|| Ok(Attribute::Raw(Arc::new(raw(cursor)?))), Ok)
}

/// Decodes a type and what it refers to.
pub(super) fn decode_type<'a>(tables: &mut Tables<'a>, cursor: Cursor<'a>, custom: bool) -> Result<Type> {
    if !custom {
        return Ok(Type::Text(text(cursor)?));
    }
    let decoded = decode(tables, cursor.clone(), types::decode)?;
    decoded.map_or_else(|| Ok(Type::Raw(Arc::new(raw(cursor)?))), Ok)
}

fn custom_entry(interner: &mut Interner, encode: impl FnOnce(&mut Encoder<'_>) -> Result<()>) -> Result<Entry> {
    let mut encoder = Encoder { bytes: Vec::new(), interner };
    encode(&mut encoder)?;
    Ok(Entry { bytes: encoder.bytes, custom: true })
}

fn text_entry(text: &str) -> Entry {
    let bytes = text.bytes().chain([0]).collect();
    Entry { bytes, custom: false }
}

fn text(mut cursor: Cursor<'_>) -> Result<Arc<str>> {
    let at = cursor.clone();
    let text = str::from_utf8(cursor.until_nul()?).map_err(|_| at.error("an entry's text is not UTF-8"))?;
    cursor.finish("an entry's text")?;
    Ok(text.into())
}

fn decode<'a, T>(
    tables: &mut Tables<'a>,
    cursor: Cursor<'a>,
    fields: fn(&mut Decoder<'_, 'a>) -> Result<Option<T>>,
) -> Result<Option<T>> {
    let mut decoder = Decoder { cursor, tables };
    let value = fields(&mut decoder)?;
    if value.is_some() {
        decoder.cursor.finish("an attribute or type")?;
    }
    Ok(value)
}

fn raw(mut cursor: Cursor<'_>) -> Result<RawEntry> {
    let bytes = cursor.rest().to_vec();
    Ok(RawEntry { kind: cursor.unsigned()?, bytes })
}

#[cold]
fn not_writable(what: &str, raw: &RawEntry) -> Error {
    Error::input(format!("{what} of kind {} cannot be written", raw.kind))
        .hint("its bytes point into the tables of the file it was read from")
}
