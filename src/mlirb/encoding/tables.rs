//! Tables that the rest of a file points into: strings, operation names, attributes, types, properties.
//!
//! [`Interner`] fills them while a program is written, children first, in the order of first use, so that equal
//! programs have equal tables. [`Tables`] resolves indices while one is read.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use super::container::{SectionId, nested_section, put_section};
use super::cursor::{Cursor, error_at};
use super::entry::{Entry, attribute_entry, decode_attribute, decode_type, type_entry};
use super::varint::{put_count, put_unsigned};
use crate::Result;
use crate::mlirb::attributes::Attribute;
use crate::mlirb::types::Type;

/// The one dialect of an asset.
const DIALECT: &str = "aicode";
/// The only version of the dialect that Apple's loader takes.
const DIALECT_VERSION: u64 = 2;
/// Place of the dialect in the table of dialects.
pub(in crate::mlirb) const DIALECT_INDEX: u64 = 0;

/// Most levels an attribute or type may nest; bounds recursion on outside data.
const MAX_DEPTH: usize = 128;
/// Most nodes an attribute or type may have when shared parts are counted each time; bounds the work of walking it.
const MAX_NODES: u64 = 1 << 18;

/// Items in the order of first use, each once. Lookups are by hash; nothing iterates the map.
#[derive(Debug)]
struct Interned<T> {
    index: HashMap<T, usize>,
    items: Vec<T>,
}

impl<T: Hash + Eq + Clone> Interned<T> {
    fn new() -> Self {
        Self { index: HashMap::new(), items: Vec::new() }
    }

    fn intern(&mut self, item: T) -> usize {
        let next = self.items.len();
        let index = *self.index.entry(item.clone()).or_insert(next);
        if index == next {
            self.items.push(item);
        }
        index
    }
}

/// Tables under construction.
#[derive(Debug)]
pub(in crate::mlirb) struct Interner {
    strings: Interned<Arc<str>>,
    operations: Interned<Arc<str>>,
    attributes: Interned<Entry>,
    types: Interned<Entry>,
    properties: Interned<Vec<u8>>,
}

impl Interner {
    pub(in crate::mlirb) fn new() -> Self {
        Self {
            strings: Interned::new(),
            operations: Interned::new(),
            attributes: Interned::new(),
            types: Interned::new(),
            properties: Interned::new(),
        }
    }

    pub(in crate::mlirb) fn string(&mut self, text: &Arc<str>) -> usize {
        self.strings.intern(text.clone())
    }

    pub(in crate::mlirb) fn operation(&mut self, name: &Arc<str>) -> usize {
        self.operations.intern(name.clone())
    }

    pub(in crate::mlirb) fn attribute(&mut self, attribute: &Attribute) -> Result<usize> {
        let entry = attribute_entry(attribute, self)?;
        Ok(self.attributes.intern(entry))
    }

    pub(in crate::mlirb) fn ty(&mut self, ty: &Type) -> Result<usize> {
        let entry = type_entry(ty, self)?;
        Ok(self.types.intern(entry))
    }

    pub(in crate::mlirb) fn property(&mut self, bytes: Vec<u8>) -> usize {
        self.properties.intern(bytes)
    }

    /// The dialects section; it interns the names of the operations.
    pub(in crate::mlirb) fn dialects_section(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        put_count(&mut out, 1);
        put_count(&mut out, self.string(&DIALECT.into()) << 1 | 1);
        let mut version = Vec::new();
        put_unsigned(&mut version, DIALECT_VERSION);
        put_section(&mut out, SectionId::DialectVersion, &version);
        let operations = self.operations.items.clone();
        put_count(&mut out, operations.len());
        put_unsigned(&mut out, DIALECT_INDEX);
        put_count(&mut out, operations.len());
        for name in &operations {
            put_count(&mut out, self.string(name) << 1 | 1);
        }
        out
    }

    pub(in crate::mlirb) fn attr_type_section(&self) -> Vec<u8> {
        let entries = self.attributes.items.iter().chain(&self.types.items);
        entries.flat_map(|entry| entry.bytes.iter().copied()).collect()
    }

    pub(in crate::mlirb) fn attr_type_offsets_section(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_count(&mut out, self.attributes.items.len());
        put_count(&mut out, self.types.items.len());
        let tables = [&self.attributes.items, &self.types.items];
        for entries in tables.into_iter().filter(|entries| !entries.is_empty()) {
            put_unsigned(&mut out, DIALECT_INDEX);
            put_count(&mut out, entries.len());
            for entry in entries {
                put_count(&mut out, entry.bytes.len() << 1 | usize::from(entry.custom));
            }
        }
        out
    }

    pub(in crate::mlirb) fn properties_section(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_count(&mut out, self.properties.items.len());
        for bytes in &self.properties.items {
            put_count(&mut out, bytes.len());
            out.extend(bytes);
        }
        out
    }

    /// The strings section, with `unused` empty strings at the end.
    pub(in crate::mlirb) fn strings_section(&self, unused: usize) -> Vec<u8> {
        let empty: Arc<str> = "".into();
        let strings: Vec<&str> =
            self.strings.items.iter().chain(std::iter::repeat_n(&empty, unused)).map(|text| &**text).collect();
        let mut out = Vec::new();
        put_count(&mut out, strings.len());
        for text in strings.iter().rev() {
            put_count(&mut out, text.len() + 1);
        }
        for text in strings {
            out.extend(text.as_bytes());
            out.push(0);
        }
        out
    }
}

/// Reads the strings section.
pub(in crate::mlirb) fn strings(mut cursor: Cursor<'_>) -> Result<Vec<Arc<str>>> {
    let count = cursor.count()?;
    let mut lengths = Vec::with_capacity(count);
    for _ in 0..count {
        lengths.push(cursor.index()?);
    }
    let mut strings = Vec::with_capacity(count);
    for length in lengths.into_iter().rev() {
        let offset = cursor.offset();
        let (last, text) =
            cursor.take(length)?.split_last().ok_or_else(|| error_at(offset, "a string has no final NUL"))?;
        if *last != 0 {
            return Err(error_at(offset, "a string has no final NUL"));
        }
        let text = str::from_utf8(text).map_err(|_| error_at(offset, "a string is not UTF-8"))?;
        strings.push(text.into());
    }
    cursor.finish("the section of strings")?;
    Ok(strings)
}

/// Reads the dialects section; gives the names of the operations.
pub(in crate::mlirb) fn operation_names(mut cursor: Cursor<'_>, strings: &[Arc<str>]) -> Result<Vec<Arc<str>>> {
    let dialects = cursor.count()?;
    for _ in 0..dialects {
        dialect(&mut cursor, strings)?;
    }
    let count = cursor.count()?;
    let mut names = Vec::with_capacity(count);
    while names.len() < count {
        for _ in 0..group(&mut cursor, dialects)? {
            let at = cursor.clone();
            let tag = cursor.index()?;
            names.push(string(&at, strings, tag >> 1)?);
        }
    }
    cursor.finish("the section of dialects")?;
    Ok(names)
}

fn dialect(cursor: &mut Cursor<'_>, strings: &[Arc<str>]) -> Result<()> {
    let offset = cursor.offset();
    let tag = cursor.index()?;
    let name = string(cursor, strings, tag >> 1)?;
    if &*name != DIALECT {
        return Err(error_at(offset, "a dialect that is not supported").found(name).expected(DIALECT));
    }
    let version =
        if tag & 1 == 1 { Some(nested_section(cursor, SectionId::DialectVersion)?.unsigned()?) } else { None };
    if version != Some(DIALECT_VERSION) {
        return Err(error_at(offset, format!("a version of dialect `{DIALECT}` that is not supported"))
            .found(version.map_or("none".to_owned(), |version| version.to_string()))
            .expected(DIALECT_VERSION));
    }
    Ok(())
}

/// Reads the head of a group of entries of one dialect; gives their number.
fn group(cursor: &mut Cursor<'_>, dialects: usize) -> Result<usize> {
    let offset = cursor.offset();
    let dialect = cursor.index()?;
    if dialect >= dialects {
        return Err(error_at(offset, "no such dialect").found(dialect).expected(format!("less than {dialects}")));
    }
    let offset = cursor.offset();
    let count = cursor.count()?;
    if count == 0 {
        return Err(error_at(offset, "a group without entries"));
    }
    Ok(count)
}

fn string(at: &Cursor<'_>, strings: &[Arc<str>], index: usize) -> Result<Arc<str>> {
    let text = strings.get(index).cloned();
    text.ok_or_else(|| at.error("no such string").found(index).expected(format!("less than {}", strings.len())))
}

/// An entry of the attribute or type table: still bytes, being decoded, or decoded with its number of nodes.
#[derive(Debug)]
enum Slot<'a, T> {
    Bytes { cursor: Cursor<'a>, custom: bool },
    Open,
    Done(T, u64),
}

/// Tables of a file that is being read.
#[derive(Debug)]
pub(in crate::mlirb) struct Tables<'a> {
    strings: Vec<Arc<str>>,
    operations: Vec<Arc<str>>,
    attributes: Vec<Slot<'a, Attribute>>,
    types: Vec<Slot<'a, Type>>,
    properties: Vec<Cursor<'a>>,
    depth: usize,
    nodes: u64,
}

impl<'a> Tables<'a> {
    pub(in crate::mlirb) fn new(strings: Vec<Arc<str>>, operations: Vec<Arc<str>>) -> Self {
        Self {
            strings,
            operations,
            attributes: Vec::new(),
            types: Vec::new(),
            properties: Vec::new(),
            depth: 0,
            nodes: 0,
        }
    }

    /// Reads where attributes and types lie in their section.
    pub(in crate::mlirb) fn read_entries(&mut self, mut offsets: Cursor<'_>, mut data: Cursor<'a>) -> Result<()> {
        let attributes = offsets.count()?;
        let types = offsets.count()?;
        self.attributes = slots(&mut offsets, &mut data, attributes)?;
        self.types = slots(&mut offsets, &mut data, types)?;
        offsets.finish("the section of attribute and type offsets")?;
        data.finish("the section of attributes and types")
    }

    /// Reads where properties lie in their section.
    pub(in crate::mlirb) fn read_properties(&mut self, mut data: Cursor<'a>) -> Result<()> {
        for _ in 0..data.count()? {
            let length = data.index()?;
            self.properties.push(data.window(length)?);
        }
        data.finish("the section of properties")
    }

    pub(in crate::mlirb) fn string(&self, cursor: &mut Cursor<'_>) -> Result<Arc<str>> {
        let at = cursor.clone();
        let index = cursor.index()?;
        string(&at, &self.strings, index)
    }

    pub(in crate::mlirb) fn operation(&self, cursor: &mut Cursor<'_>) -> Result<Arc<str>> {
        let at = cursor.clone();
        let index = cursor.index()?;
        self.operations.get(index).cloned().ok_or_else(|| at.error("no such operation").found(index))
    }

    pub(in crate::mlirb) fn property(&self, cursor: &mut Cursor<'_>) -> Result<Cursor<'a>> {
        let at = cursor.clone();
        let index = cursor.index()?;
        self.properties.get(index).cloned().ok_or_else(|| at.error("no such properties").found(index))
    }

    pub(in crate::mlirb) fn attribute(&mut self, cursor: &mut Cursor<'_>) -> Result<Attribute> {
        let at = cursor.clone();
        let index = cursor.index()?;
        self.attribute_at(index, &at)
    }

    pub(in crate::mlirb) fn attribute_at(&mut self, index: usize, at: &Cursor<'_>) -> Result<Attribute> {
        self.resolve(index, at, |tables| &mut tables.attributes, decode_attribute)
    }

    pub(in crate::mlirb) fn ty(&mut self, cursor: &mut Cursor<'_>) -> Result<Type> {
        let at = cursor.clone();
        let index = cursor.index()?;
        self.type_at(index, &at)
    }

    pub(in crate::mlirb) fn type_at(&mut self, index: usize, at: &Cursor<'_>) -> Result<Type> {
        self.resolve(index, at, |tables| &mut tables.types, decode_type)
    }

    /// Gives the entry at `index`, decoding it and what it refers to if that has not been done.
    fn resolve<T: Clone>(
        &mut self,
        index: usize,
        at: &Cursor<'_>,
        table: fn(&mut Self) -> &mut Vec<Slot<'a, T>>,
        decode: fn(&mut Self, Cursor<'a>, bool) -> Result<T>,
    ) -> Result<T> {
        let slot = table(self).get_mut(index).ok_or_else(|| at.error("no such attribute or type").found(index))?;
        let (cursor, custom) = match std::mem::replace(slot, Slot::Open) {
            Slot::Bytes { cursor, custom } => (cursor, custom),
            Slot::Open => return Err(at.error("an attribute or type that contains itself").found(index)),
            Slot::Done(value, nodes) => {
                *slot = Slot::Done(value.clone(), nodes);
                self.count_nodes(nodes, at)?;
                return Ok(value);
            }
        };
        if self.depth >= MAX_DEPTH {
            return Err(at.error("attributes or types are nested too deeply").expected(format!("at most {MAX_DEPTH}")));
        }
        self.depth += 1;
        let outer = std::mem::replace(&mut self.nodes, 1);
        let value = decode(self, cursor, custom)?;
        self.depth -= 1;
        let nodes = std::mem::replace(&mut self.nodes, outer);
        if let Some(slot) = table(self).get_mut(index) {
            *slot = Slot::Done(value.clone(), nodes);
        }
        self.count_nodes(nodes, at)?;
        Ok(value)
    }

    /// Counts nodes towards the entry that is being decoded; at the top there is none.
    fn count_nodes(&mut self, nodes: u64, at: &Cursor<'_>) -> Result<()> {
        if self.depth == 0 {
            return Ok(());
        }
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes <= MAX_NODES {
            Ok(())
        } else {
            Err(at.error("an attribute or type has too many parts").expected(format!("at most {MAX_NODES}")))
        }
    }
}

/// Reads the groups of `count` entries, whose bytes follow each other in `data`.
fn slots<'a, T>(offsets: &mut Cursor<'_>, data: &mut Cursor<'a>, count: usize) -> Result<Vec<Slot<'a, T>>> {
    let mut slots = Vec::with_capacity(count);
    while slots.len() < count {
        for _ in 0..group(offsets, 1)? {
            let tag = offsets.index()?;
            slots.push(Slot::Bytes { cursor: data.window(tag >> 1)?, custom: tag & 1 == 1 });
        }
    }
    if slots.len() > count {
        return Err(offsets.error("groups have more entries than announced").found(slots.len()).expected(count));
    }
    Ok(slots)
}
