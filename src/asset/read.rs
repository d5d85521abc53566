//! Reads an asset; its weights stay on disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::{AssetMetadata, HASH_FILE, METADATA_FILE, PROGRAM_FILE, Sha256Hash};
use crate::error::At;
use crate::mlirb::{Program, ProgramFile, ResourceId};
use crate::storage::{FileSource, ReadAt, StoredTensor};
use crate::{ElementType, Error, Result};

/// Bytes read at once while a program is hashed.
const HASH_CHUNK: usize = 1 << 20;
/// Most bytes of `metadata.json`.
const MAX_METADATA_BYTES: u64 = 1 << 20;

/// An asset on disk.
#[derive(Debug, Clone)]
pub struct Asset {
    folder: PathBuf,
    metadata: AssetMetadata,
    program: ProgramFile,
}

impl Asset {
    /// Reads metadata and program; the hash is checked by [`verify_hash`](Self::verify_hash) only, as that reads
    /// all weights.
    ///
    /// # Errors
    /// When a file is missing or is not what it should be.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        let folder = folder.as_ref().to_owned();
        let path = folder.join(METADATA_FILE);
        let metadata = read_small_file(&path, MAX_METADATA_BYTES)
            .and_then(|text| AssetMetadata::from_json(&text).at(|| path.display().to_string()))?;
        let program = ProgramFile::open(Arc::new(FileSource::open(folder.join(PROGRAM_FILE))?))?;
        Ok(Self { folder, metadata, program })
    }

    /// What `metadata.json` says.
    #[must_use]
    pub const fn metadata(&self) -> &AssetMetadata {
        &self.metadata
    }

    /// The program.
    #[must_use]
    pub const fn program(&self) -> &Program {
        self.program.program()
    }

    /// The program's file.
    #[must_use]
    pub const fn file(&self) -> &ProgramFile {
        &self.program
    }

    /// Length of the program's file in bytes.
    #[must_use]
    pub fn program_bytes(&self) -> u64 {
        self.program.source().size()
    }

    /// A resource as a tensor of the type of a constant that uses it.
    ///
    /// # Errors
    /// As [`ProgramFile::tensor`].
    pub fn tensor(&self, id: ResourceId, element: ElementType, shape: &[usize]) -> Result<StoredTensor> {
        self.program.tensor(id, element, shape)
    }

    /// The SHA-256 of the program, computed.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn hash(&self) -> Result<Sha256Hash> {
        hash_of(&**self.program.source())
    }

    /// Checks that `main.hash` is the hash of the program.
    ///
    /// # Errors
    /// When it is not (a check), or a file cannot be read.
    pub fn verify_hash(&self) -> Result<()> {
        check_hash(&self.folder, &**self.program.source())
    }

    /// Checks that `main.hash` in `folder` is the hash of the program, whatever the program holds: bytes that are
    /// not those written are best not read any further.
    ///
    /// # Errors
    /// As [`verify_hash`](Self::verify_hash).
    pub fn verify_hash_in(folder: impl AsRef<Path>) -> Result<()> {
        let folder = folder.as_ref();
        check_hash(folder, &FileSource::open(folder.join(PROGRAM_FILE))?)
    }
}

fn check_hash(folder: &Path, program: &dyn ReadAt) -> Result<()> {
    let path = folder.join(HASH_FILE);
    let stored = read_small_file(&path, 32)?;
    let computed = hash_of(program)?;
    if stored == computed {
        return Ok(());
    }
    Err(Error::check("it is not the hash of the program")
        .at(path.display().to_string())
        .found(hex(&stored))
        .expected(hex(&computed))
        .hint("the program was changed or damaged after it was written"))
}

fn hash_of(source: &dyn ReadAt) -> Result<Sha256Hash> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; HASH_CHUNK];
    let mut offset = 0;
    while offset < source.size() {
        let left = usize::try_from(source.size() - offset).unwrap_or(usize::MAX).min(HASH_CHUNK);
        let chunk = buffer.get_mut(..left).unwrap_or_default();
        source.read_exact_at(chunk, offset)?;
        hash.update(&*chunk);
        offset += left as u64;
    }
    Ok(hash.finalize().into())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn read_small_file(path: &Path, most: u64) -> Result<Vec<u8>> {
    let source = FileSource::open(path)?;
    let length = usize::try_from(source.size()).ok().filter(|_| source.size() <= most).ok_or_else(|| {
        Error::input("the file is too long")
            .at(source.name())
            .found(format!("{} bytes", source.size()))
            .expected(format!("at most {most} bytes"))
    })?;
    let mut bytes = vec![0; length];
    source.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}
