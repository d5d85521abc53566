//! The `.aimodel` folder: the program `main.mlirb`, its hash `main.hash`, and `metadata.json`.

mod metadata;
mod read;
#[cfg(test)]
mod tests;
mod write;

pub use metadata::{AssetMetadata, creation_date};
pub use read::Asset;
pub use write::{AssetWriter, WrittenAsset};

/// The program.
const PROGRAM_FILE: &str = "main.mlirb";
/// The SHA-256 of the program, 32 raw bytes.
const HASH_FILE: &str = "main.hash";
/// The metadata.
const METADATA_FILE: &str = "metadata.json";

/// A SHA-256.
pub type Sha256Hash = [u8; 32];
