//! Reads a program, leaving the bytes of its resources where they are.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::check::check;
use super::encoding::container::{SectionHead, SectionId, preamble, section_head};
use super::encoding::cursor::{Cursor, error_at};
use super::encoding::operations::top_operation;
use super::encoding::resources::{self, EntryHead, MAX_HEAD};
use super::encoding::tables::{Tables, operation_names, strings};
use super::ir::{Program, Resource, ResourceId};
use crate::error::At;
use crate::storage::{ReadAt, StoredTensor};
use crate::{ElementType, Error, Result};

/// Most bytes of a file, resources excepted, that are read into memory.
const MAX_PROGRAM_BYTES: u64 = 256 << 20;
/// Most bytes before the first section: magic, version and the name of the producer.
const MAX_PREAMBLE_BYTES: u64 = 4096;
/// Longest head of a section before its padding: id, length, alignment.
const MAX_SECTION_HEAD: u64 = 19;

/// A program in a file, with its resources read on demand.
#[derive(Debug, Clone)]
pub struct ProgramFile {
    source: Arc<dyn ReadAt>,
    program: Program,
    offsets: Vec<u64>,
}

impl ProgramFile {
    /// Reads everything but the bytes of the resources.
    ///
    /// # Errors
    /// When the source cannot be read or is not a program of this format; the error names the source and the offset
    /// of the byte that is wrong.
    pub fn open(source: Arc<dyn ReadAt>) -> Result<Self> {
        let name = source.name().to_owned();
        read(source).at(|| name)
    }

    /// The program.
    #[must_use]
    pub const fn program(&self) -> &Program {
        &self.program
    }

    /// Where the program was read from.
    #[must_use]
    pub const fn source(&self) -> &Arc<dyn ReadAt> {
        &self.source
    }

    /// A resource and the offset in the source of its first byte, if there is one with this id.
    #[must_use]
    pub fn resource(&self, id: ResourceId) -> Option<(&Resource, u64)> {
        Some((self.program.resources.get(id.index())?, *self.offsets.get(id.index())?))
    }

    /// A resource as a tensor of the type of a constant that uses it.
    ///
    /// # Errors
    /// When there is no such resource or its length is not that of the tensor.
    pub fn tensor(&self, id: ResourceId, element: ElementType, shape: &[usize]) -> Result<StoredTensor> {
        let (resource, offset) = self
            .resource(id)
            .ok_or_else(|| Error::input("no such resource").at(self.source.name()).found(id.index()))?;
        let elements = shape.iter().try_fold(1usize, |product, extent| product.checked_mul(*extent));
        let bytes = elements.and_then(|elements| elements.checked_mul(element.size()));
        if bytes.map(|bytes| bytes as u64) != Some(resource.bytes) {
            return Err(Error::input("a resource is not as long as its tensor")
                .at(format!("resource `{}`", resource.key))
                .at(self.source.name())
                .found(format!("{} bytes", resource.bytes))
                .expected(format!("{shape:?} of {element}")));
        }
        Ok(StoredTensor {
            name: resource.key.clone(),
            source: self.source.clone(),
            offset,
            element,
            shape: shape.to_vec(),
        })
    }

    /// Checks what decoding alone does not: see [`check`](super::check()).
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<()> {
        check(&self.program).at(|| self.source.name())
    }
}

/// The sections of a file: of the resources only the place, of all others the bytes.
#[derive(Debug)]
struct Sections {
    bytes: BTreeMap<SectionId, (u64, Vec<u8>)>,
    resources: Option<SectionHead>,
}

impl Sections {
    fn get(&self, id: SectionId) -> Option<Cursor<'_>> {
        self.bytes.get(&id).map(|(start, bytes)| Cursor::new(bytes, *start))
    }

    fn required(&self, id: SectionId) -> Result<Cursor<'_>> {
        self.get(id).ok_or_else(|| Error::input(format!("the section of {} is missing", id.name())))
    }
}

fn read(source: Arc<dyn ReadAt>) -> Result<ProgramFile> {
    let start = read_part(&*source, 0, MAX_PREAMBLE_BYTES)?;
    let mut cursor = Cursor::new(&start, 0);
    let producer = preamble(&mut cursor)?;
    let sections = read_sections(&*source, cursor.offset())?;
    let strings = strings(sections.required(SectionId::Strings)?)?;
    let operations = operation_names(sections.required(SectionId::Dialects)?, &strings)?;
    let mut tables = Tables::new(strings, operations);
    tables.read_entries(sections.required(SectionId::AttrTypeOffsets)?, sections.required(SectionId::AttrType)?)?;
    if let Some(properties) = sections.get(SectionId::Properties) {
        tables.read_properties(properties)?;
    }
    let asset = top_operation(sections.required(SectionId::Ir)?, &mut tables)?;
    let (resources, offsets) = read_resources(&*source, &sections, &tables)?.into_iter().unzip();
    Ok(ProgramFile { source, program: Program { producer, asset, resources }, offsets })
}

fn read_sections(source: &dyn ReadAt, first: u64) -> Result<Sections> {
    let mut sections = Sections { bytes: BTreeMap::new(), resources: None };
    let mut budget = MAX_PROGRAM_BYTES;
    let mut offset = first;
    while offset < source.size() {
        let part = read_part(source, offset, MAX_SECTION_HEAD)?;
        let head = section_head(&mut Cursor::new(&part, offset))?;
        let end = head.start.checked_add(head.length).filter(|end| *end <= source.size());
        let end = end.ok_or_else(|| section_too_long(source, offset, head))?;
        let repeated = if head.id == SectionId::Resources {
            sections.resources.replace(head).is_some()
        } else {
            budget = budget.checked_sub(head.length).ok_or_else(|| program_too_long(offset))?;
            let bytes = read_part(source, head.start, head.length)?;
            sections.bytes.insert(head.id, (head.start, bytes)).is_some()
        };
        if repeated {
            return Err(error_at(offset, format!("a second section of {}", head.id.name())));
        }
        offset = end;
    }
    Ok(sections)
}

#[cold]
fn section_too_long(source: &dyn ReadAt, offset: u64, head: SectionHead) -> Error {
    error_at(offset, format!("the section of {} is longer than the file", head.id.name()))
        .found(format!("{} bytes from byte {}", head.length, head.start))
        .expected(format!("at most {} bytes in all", source.size()))
        .hint("the file is truncated or corrupt")
}

#[cold]
fn program_too_long(offset: u64) -> Error {
    error_at(offset, "the program without its resources is too long")
        .expected(format!("at most {MAX_PROGRAM_BYTES} bytes"))
}

/// Reads `length` bytes from `offset` on, or as many as there are.
fn read_part(source: &dyn ReadAt, offset: u64, length: u64) -> Result<Vec<u8>> {
    let length = length.min(source.size().saturating_sub(offset)).min(MAX_PROGRAM_BYTES);
    let length = usize::try_from(length).map_err(|_| program_too_long(offset))?;
    let mut bytes = vec![0; length];
    source.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

fn read_resources(source: &dyn ReadAt, sections: &Sections, tables: &Tables<'_>) -> Result<Vec<(Resource, u64)>> {
    let Some(offsets) = sections.get(SectionId::ResourceOffsets) else { return Ok(Vec::new()) };
    let range = sections.resources.map_or((0, 0), |head| (head.start, head.start.saturating_add(head.length)));
    let entries = resources::entries(offsets, |cursor| tables.string(cursor), range)?;
    entries.iter().map(|entry| read_resource(source, entry)).collect()
}

fn read_resource(source: &dyn ReadAt, entry: &EntryHead) -> Result<(Resource, u64)> {
    let head = read_part(source, entry.offset, entry.bytes.min(MAX_HEAD as u64))?;
    resources::resource(Cursor::new(&head, entry.offset), entry)
}
