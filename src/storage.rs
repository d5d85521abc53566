//! Bytes that lie somewhere and are read on demand, and tensors that lie in them.
//!
//! Positional reads, never memory maps: a mapped file that shrinks is a fatal signal, a failed read is an error,
//! and mapped pages would count towards the peak of resident memory.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{ElementType, Error, Result};

/// Something with a length that can be read at any offset, by several threads at once.
pub trait ReadAt: Debug + Send + Sync {
    /// Fills `buffer` from `offset` on.
    ///
    /// # Errors
    /// When the bytes are not there or cannot be read; the error names the source.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()>;

    /// Bytes in all.
    fn size(&self) -> u64;

    /// The name shown in errors: a path or the name of a built-in file.
    fn name(&self) -> &str;
}

/// A file read by position.
#[derive(Debug)]
pub struct FileSource {
    file: std::fs::File,
    path: PathBuf,
    name: String,
    size: u64,
}

impl FileSource {
    /// Opens `path` for reading.
    ///
    /// # Errors
    /// When it cannot be opened or is not a regular file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file = std::fs::File::open(path).map_err(|e| Error::io(path, &e))?;
        let metadata = file.metadata().map_err(|e| Error::io(path, &e))?;
        let name = path.display().to_string();
        if !metadata.is_file() {
            return Err(Error::input("not a regular file").at(name));
        }
        Ok(Self { file, path: path.to_owned(), name, size: metadata.len() })
    }

    /// Where the file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl ReadAt for FileSource {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        read_file_at(&self.file, buffer, offset).map_err(|e| match e.kind() {
            std::io::ErrorKind::UnexpectedEof => Error::environment("the file became shorter while it was read")
                .at(self.name.clone())
                .found(format!("no {} bytes at offset {offset}", buffer.len())),
            _ => Error::io(&self.path, &e),
        })
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn name(&self) -> &str {
        &self.name
    }
}

#[cfg(unix)]
fn read_file_at(file: &std::fs::File, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buffer, offset)
}

#[cfg(windows)]
fn read_file_at(file: &std::fs::File, mut buffer: &mut [u8], mut offset: u64) -> std::io::Result<()> {
    while !buffer.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, buffer, offset)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            n => {
                buffer = &mut buffer[n..];
                offset += n as u64;
            }
        }
    }
    Ok(())
}

/// Bytes in memory: a built-in file, or a tensor made by hand.
#[derive(Debug, Clone)]
pub struct MemorySource {
    name: String,
    bytes: Bytes,
}

#[derive(Clone)]
enum Bytes {
    Static(&'static [u8]),
    Shared(Arc<[u8]>),
}

impl Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.get().len())
    }
}

impl Bytes {
    fn get(&self) -> &[u8] {
        match self {
            Self::Static(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

impl MemorySource {
    /// Bytes that are part of the program.
    #[must_use]
    pub fn from_static(name: impl Into<String>, bytes: &'static [u8]) -> Self {
        Self { name: name.into(), bytes: Bytes::Static(bytes) }
    }

    /// Bytes made at run time.
    #[must_use]
    pub fn new(name: impl Into<String>, bytes: impl Into<Arc<[u8]>>) -> Self {
        Self { name: name.into(), bytes: Bytes::Shared(bytes.into()) }
    }

    /// All bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get()
    }
}

impl ReadAt for MemorySource {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let start = usize::try_from(offset).ok();
        let range = start.and_then(|start| self.bytes().get(start..start.checked_add(buffer.len())?));
        match range {
            Some(bytes) => {
                buffer.copy_from_slice(bytes);
                Ok(())
            }
            None => Err(Error::input("read past the end")
                .at(self.name.clone())
                .found(format!("{} bytes at offset {offset}", buffer.len()))
                .expected(format!("at most {} bytes", self.bytes().len()))),
        }
    }

    fn size(&self) -> u64 {
        self.bytes().len() as u64
    }

    fn name(&self) -> &str {
        &self.name
    }
}

/// A tensor as it lies in a source: row-major, little-endian, without gaps.
#[derive(Debug, Clone)]
pub struct StoredTensor {
    /// Its name in the checkpoint or asset.
    pub name: Arc<str>,
    /// Where the bytes are.
    pub source: Arc<dyn ReadAt>,
    /// Offset of the first byte in the source.
    pub offset: u64,
    /// Type of one element.
    pub element: ElementType,
    /// Extent of each axis, outermost first.
    pub shape: Vec<usize>,
}

impl StoredTensor {
    /// Number of elements. Readers have checked that the product does not overflow.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes in the source.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.elements() as u64 * self.element.size() as u64
    }

    /// Fills `buffer` from byte `offset` of the tensor on.
    ///
    /// # Errors
    /// When the source cannot be read; the error names the source and the tensor.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.source.read_exact_at(buffer, self.offset + offset).map_err(|e| e.at(format!("tensor `{}`", self.name)))
    }
}
