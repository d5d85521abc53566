//! Writes an asset, its weights streamed through.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::{AssetMetadata, HASH_FILE, METADATA_FILE, PROGRAM_FILE, Sha256Hash};
use crate::error::At;
use crate::mlirb::{Layout, Program, ResourceId, Writer};
use crate::{Error, Result};

/// Writes an asset into a folder of its own: the program while it is streamed through, the hash and the metadata when
/// it is complete. The caller gives a folder that nobody looks at yet, and renames it when all is done.
#[derive(Debug)]
pub struct AssetWriter {
    folder: PathBuf,
    metadata: Vec<u8>,
    program: Writer<Hashing<BufWriter<File>>>,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenAsset {
    /// Length of the program in bytes.
    pub program_bytes: u64,
    /// SHA-256 of the program.
    pub hash: Sha256Hash,
}

impl AssetWriter {
    /// Creates `folder` and writes the program up to its resources.
    ///
    /// # Errors
    /// When the folder exists or cannot be created, or the program cannot be written.
    pub fn create(folder: impl Into<PathBuf>, program: &Program, metadata: &AssetMetadata) -> Result<Self> {
        let folder = folder.into();
        let metadata = metadata.to_json()?;
        std::fs::create_dir(&folder).map_err(|e| Error::io(&folder, &e))?;
        let path = folder.join(PROGRAM_FILE);
        let file = File::create(&path).map_err(|e| Error::io(&path, &e))?;
        let sink = Hashing { sink: BufWriter::new(file), hash: Sha256::new() };
        let program = Writer::new(program, sink).at(|| path.display().to_string())?;
        Ok(Self { folder, metadata, program })
    }

    /// Where things will lie in the program's file.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        self.program.layout()
    }

    /// Begins the next resource; see [`Writer::resource`].
    ///
    /// # Errors
    /// As there.
    pub fn resource(&mut self, id: ResourceId) -> Result<()> {
        self.program.resource(id).at(|| program_name(&self.folder))
    }

    /// Writes the next bytes of the resource that was begun last; see [`Writer::chunk`].
    ///
    /// # Errors
    /// As there.
    pub fn chunk(&mut self, bytes: &[u8]) -> Result<()> {
        self.program.chunk(bytes).at(|| program_name(&self.folder))
    }

    /// Writes what is left of the program, then its hash and the metadata.
    ///
    /// # Errors
    /// When a resource is missing or not complete, or a file cannot be written.
    pub fn finish(self) -> Result<WrittenAsset> {
        let program_bytes = self.program.layout().total_bytes;
        let name = program_name(&self.folder);
        let sink = self.program.finish().at(|| name)?;
        let hash: Sha256Hash = sink.hash.finalize().into();
        write_file(&self.folder.join(HASH_FILE), &hash)?;
        write_file(&self.folder.join(METADATA_FILE), &self.metadata)?;
        Ok(WrittenAsset { program_bytes, hash })
    }
}

fn program_name(folder: &Path) -> String {
    folder.join(PROGRAM_FILE).display().to_string()
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, bytes).map_err(|e| Error::io(path, &e))
}

/// Hashes what passes through it.
#[derive(Debug)]
struct Hashing<W> {
    sink: W,
    hash: Sha256,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.sink.write(bytes)?;
        self.hash.update(bytes.get(..written).unwrap_or(bytes));
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.sink.flush()
    }
}
