//! Tests of whole programs.

mod corruption;
mod properties;
mod samples;
mod writing;

use std::sync::Arc;

use super::{Program, ProgramFile, Writer};
use crate::Result;
use crate::storage::MemorySource;

/// Writes a program whose resource `i` is filled with byte `i + 1`.
fn write(program: &Program) -> Result<Vec<u8>> {
    let mut writer = Writer::new(program, Vec::new())?;
    for (index, resource) in program.resources.iter().enumerate() {
        writer.resource(super::ResourceId::new(index as u32))?;
        writer.chunk(&vec![index as u8 + 1; resource.bytes as usize])?;
    }
    writer.finish()
}

fn read(bytes: &[u8]) -> Result<ProgramFile> {
    ProgramFile::open(Arc::new(MemorySource::new("test.mlirb", bytes)))
}
