//! Writes a program, its resources streamed through.
//!
//! Sections are in the order of Apple's serializer. All but the resources are built in memory, so that the size of
//! the file and the place of every resource are known before the first byte is written.

use std::io::Write;

use super::check::check;
use super::encoding::container::{SectionId, put_aligned_head, put_preamble, put_section};
use super::encoding::operations::ir_section;
use super::encoding::resources::{offsets_section, resource_head};
use super::encoding::tables::Interner;
use super::ir::{Program, Resource, ResourceId};
use crate::{Error, Result};

/// The file must not be a multiple of this many bytes: Apple's loader does not map such a file but reads it whole.
/// A file that is no multiple of 4096 is none of 16384, the page size of Apple's own machines, either.
const PAGE_BYTES: u64 = 4096;

/// Where things will lie in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Length of the file.
    pub total_bytes: u64,
    /// Offset of the first byte of each resource.
    pub resource_offsets: Vec<u64>,
}

/// The layout of `program` as [`Writer`] writes it, exact to the byte.
///
/// # Errors
/// When the program cannot be written: see [`check`](super::check()).
pub fn layout(program: &Program) -> Result<Layout> {
    Ok(Encoded::new(program)?.layout)
}

/// Writes a program: first everything before the resources, then each resource in order, then the rest.
///
/// ```
/// use aimodel::mlirb::build::ProgramBuilder;
/// use aimodel::mlirb::{ResourceId, Writer, layout};
///
/// let mut program = ProgramBuilder::new("example");
/// let weight = program.resource("w", 4)?;
/// let program = program.finish();
///
/// let mut writer = Writer::new(&program, Vec::new())?;
/// writer.resource(weight)?;
/// writer.chunk(&[0, 0x3c])?;
/// writer.chunk(&[0, 0x40])?;
/// let bytes = writer.finish()?;
/// assert_eq!(bytes.len() as u64, layout(&program)?.total_bytes);
/// # Ok::<(), aimodel::Error>(())
/// ```
#[derive(Debug)]
pub struct Writer<W> {
    sink: W,
    encoded: Encoded,
    /// Number of resources that have been begun.
    begun: usize,
    /// Bytes of the last of them that are still to come.
    missing: u64,
}

impl<W: Write> Writer<W> {
    /// Writes everything before the resources to `sink`.
    ///
    /// # Errors
    /// When the program cannot be written, or the sink fails.
    pub fn new(program: &Program, sink: W) -> Result<Self> {
        let encoded = Encoded::new(program)?;
        let mut writer = Self { sink, encoded, begun: 0, missing: 0 };
        writer.sink.write_all(&writer.encoded.head).map_err(sink_error)?;
        Ok(writer)
    }

    /// Where things will lie in the file.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.encoded.layout
    }

    /// Begins the next resource. They come in the order of the program.
    ///
    /// # Errors
    /// When it is not the next one, the one before it is not complete, or the sink fails.
    pub fn resource(&mut self, id: ResourceId) -> Result<()> {
        self.expect_complete()?;
        let next = self.encoded.resources.get(self.begun).filter(|_| id.index() == self.begun);
        let (resource, head) = next
            .ok_or_else(|| Error::input("resources are written out of order").found(id.index()).expected(self.begun))?;
        self.sink.write_all(head).map_err(sink_error)?;
        self.missing = resource.bytes;
        self.begun += 1;
        Ok(())
    }

    /// Writes the next bytes of the resource that was begun last.
    ///
    /// # Errors
    /// When they are more than its length allows, or the sink fails.
    pub fn chunk(&mut self, bytes: &[u8]) -> Result<()> {
        let missing = self.missing.checked_sub(bytes.len() as u64).ok_or_else(|| {
            self.resource_error("a resource has too many bytes")
                .found(format!("{} more bytes", bytes.len()))
                .expected(format!("at most {} more", self.missing))
        })?;
        self.sink.write_all(bytes).map_err(sink_error)?;
        self.missing = missing;
        Ok(())
    }

    /// Writes everything after the resources and gives the sink back.
    ///
    /// # Errors
    /// When a resource is missing or not complete, or the sink fails.
    pub fn finish(mut self) -> Result<W> {
        self.expect_complete()?;
        if self.begun < self.encoded.resources.len() {
            return Err(Error::input("not all resources were written")
                .found(self.begun)
                .expected(self.encoded.resources.len()));
        }
        self.sink.write_all(&self.encoded.tail).map_err(sink_error)?;
        self.sink.flush().map_err(sink_error)?;
        Ok(self.sink)
    }

    fn expect_complete(&self) -> Result<()> {
        if self.missing == 0 {
            return Ok(());
        }
        Err(self.resource_error("a resource has too few bytes").expected(format!("{} more bytes", self.missing)))
    }

    #[cold]
    fn resource_error(&self, problem: &str) -> Error {
        let current = self.begun.checked_sub(1).and_then(|index| self.encoded.resources.get(index));
        let error = Error::input(problem);
        match current {
            Some((resource, _)) => error.at(format!("resource `{}`", resource.key)),
            None => error,
        }
    }
}

#[cold]
#[expect(clippy::needless_pass_by_value, reason = "made for `map_err`")]
fn sink_error(error: std::io::Error) -> Error {
    Error::environment(error.to_string())
}

/// A program as bytes, but for those of its resources.
#[derive(Debug)]
struct Encoded {
    head: Vec<u8>,
    resources: Vec<(Resource, Vec<u8>)>,
    tail: Vec<u8>,
    layout: Layout,
}

impl Encoded {
    fn new(program: &Program) -> Result<Self> {
        check(program)?;
        let mut interner = Interner::new();
        let ir = ir_section(&program.asset, &mut interner)?;
        let dialects = interner.dialects_section();
        let mut head = Vec::new();
        put_preamble(&mut head, &program.producer);
        put_section(&mut head, SectionId::Dialects, &dialects);
        put_section(&mut head, SectionId::AttrTypeOffsets, &interner.attr_type_offsets_section());
        put_section(&mut head, SectionId::AttrType, &interner.attr_type_section());
        put_section(&mut head, SectionId::Ir, &ir);
        let entries = Entries::new(&program.resources)?;
        if !program.resources.is_empty() {
            let offsets = offsets_section(&program.resources, &entries.lengths, &mut interner);
            put_section(&mut head, SectionId::ResourceOffsets, &offsets);
            put_aligned_head(&mut head, SectionId::Resources, entries.total, entries.alignment);
        }
        let start = head.len() as u64;
        let end = start.checked_add(entries.total).ok_or_else(too_long)?;
        let tail = tail(&interner, end);
        let layout = Layout {
            total_bytes: end.checked_add(tail.len() as u64).ok_or_else(too_long)?,
            resource_offsets: entries.offsets.iter().map(|offset| start.saturating_add(*offset)).collect(),
        };
        let resources = program.resources.iter().cloned().zip(entries.heads).collect();
        Ok(Self { head, resources, tail, layout })
    }
}

/// Places of resources in their section.
#[derive(Debug)]
struct Entries {
    heads: Vec<Vec<u8>>,
    /// Lengths of heads and bytes together.
    lengths: Vec<u64>,
    /// Offsets of the first bytes from the start of the section.
    offsets: Vec<u64>,
    total: u64,
    alignment: u64,
}

impl Entries {
    fn new(resources: &[Resource]) -> Result<Self> {
        let alignment = resources.iter().map(|resource| resource.alignment).max().unwrap_or(1);
        let mut entries = Self { heads: Vec::new(), lengths: Vec::new(), offsets: Vec::new(), total: 0, alignment };
        for resource in resources {
            let head = resource_head(resource, entries.total);
            let length = resource.bytes.checked_add(head.len() as u64).ok_or_else(too_long)?;
            entries.offsets.push(entries.total.saturating_add(head.len() as u64));
            entries.total = entries.total.checked_add(length).ok_or_else(too_long)?;
            entries.lengths.push(length);
            entries.heads.push(head);
        }
        Ok(entries)
    }
}

/// The sections after the resources, which begin at byte `start`, with as many unused strings as it takes for the
/// file not to end at the end of a page.
fn tail(interner: &Interner, start: u64) -> Vec<u8> {
    let mut unused = 0;
    loop {
        let mut tail = Vec::new();
        put_section(&mut tail, SectionId::Strings, &interner.strings_section(unused));
        put_section(&mut tail, SectionId::Properties, &interner.properties_section());
        if !start.wrapping_add(tail.len() as u64).is_multiple_of(PAGE_BYTES) {
            return tail;
        }
        unused += 1;
    }
}

#[cold]
fn too_long() -> Error {
    Error::input("the program exceeds 64 bits of length")
}
