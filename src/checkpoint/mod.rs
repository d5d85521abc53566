//! A checkpoint: the configuration, the tensors and the side files of one model, wherever they lie.
//!
//! A folder, a snapshot in the Hub cache (a folder of links) and a single `.safetensors` file are all read as one
//! [`Checkpoint`]. Opening reads the headers and checks everything that can be checked without reading the weights, so
//! that a damaged or unsuitable checkpoint is refused in the first second. Tensor bytes are read on demand.

mod disguise;
mod folder;
pub mod hub;
mod index;
mod json;
mod layout;
mod merge;
mod safetensors;
mod unique;
mod unsupported;

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::error::At;
use crate::storage::StoredTensor;
use crate::{Error, Result};

use folder::{FileName, Folder};
use layout::Layout;

pub use json::{Json, JsonDocument, MAX_JSON_BYTES};
pub use safetensors::MAX_HEADER_BYTES;

/// Largest side file that is read, in bytes. The largest tokenizers are about a tenth of it.
pub const MAX_SIDE_FILE_BYTES: u64 = 256 << 20;

const CONFIG_FILE: &str = "config.json";

/// How to open a checkpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Takes the shards that are in the folder, whatever the shard index says.
    pub ignore_index: bool,
}

/// One shard of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// Name of the file.
    pub name: String,
    /// Size of the file.
    pub bytes: u64,
    /// Number of tensors in it.
    pub tensors: usize,
}

/// A model as it was published: configuration, tensors, side files.
#[derive(Debug)]
pub struct Checkpoint {
    location: String,
    folder: Folder,
    config: JsonDocument,
    tensors: BTreeMap<Arc<str>, StoredTensor>,
    shards: Vec<Shard>,
    side_files: Vec<FileName>,
    warnings: Vec<String>,
}

impl Checkpoint {
    /// Opens the checkpoint at `path`: a folder or a single `.safetensors` file with its `config.json` beside it.
    ///
    /// # Errors
    /// When there is none, or it is incomplete, damaged or not of plain weights.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, OpenOptions::default())
    }

    /// Opens the checkpoint at `path` in a way of the caller's choice.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn open_with(path: &Path, options: OpenOptions) -> Result<Self> {
        let location = path.display().to_string();
        let metadata = std::fs::metadata(path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => Error::input("no such file or folder").at(location.as_str()),
            _ => Error::io(path, &e),
        })?;
        if metadata.is_dir() {
            return Self::open_folder(Folder::Disk(path.to_owned()), options);
        }
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let layout = FileName::new(name).and_then(Layout::of_file).at(|| location.as_str())?;
        // The folder is that of the name as given: a link in a snapshot has its side files beside the link.
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let folder = Folder::Disk(folder.to_owned());
        let names = folder.names()?;
        Self::assemble(location, folder, &names, layout)
    }

    /// Opens a checkpoint whose files are part of the program, with the same checks; `name` stands for its path.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn built_in(name: &str, files: &[(&str, &'static [u8])]) -> Result<Self> {
        Self::open_folder(Folder::built_in(name, files)?, OpenOptions::default())
    }

    fn open_folder(folder: Folder, options: OpenOptions) -> Result<Self> {
        let location = folder.location();
        let names = folder.names()?;
        let layout = Layout::of_folder(&folder, &names, options.ignore_index)?;
        Self::assemble(location, folder, &names, layout)
    }

    fn assemble(location: String, folder: Folder, names: &[FileName], layout: Layout) -> Result<Self> {
        let config = read_config(&folder)?;
        let mut warnings = layout.warnings;
        let (mut shards, mut parts) = (Vec::new(), Vec::new());
        for name in &layout.shards {
            let source = folder.open(name)?.ok_or_else(|| missing(&folder, name))?;
            let tensors = safetensors::read_shard(&source)?;
            layout.index.as_ref().map_or(Ok(()), |index| index.check_shard(name, &tensors))?;
            shards.push(Shard { name: name.as_str().to_owned(), bytes: source.size(), tensors: tensors.len() });
            parts.push(tensors);
        }
        let tensors = merge::merge(parts, &mut warnings)?;
        if tensors.is_empty() {
            return Err(Error::input("the checkpoint holds no tensors").at(location));
        }
        unsupported::refuse(tensors.values())?;
        if config.root().optional("quantization_config").is_some() {
            warnings.push("config.json: quantization_config is ignored: the tensors are plain weights".to_owned());
        }
        let side_files = names.iter().filter(|name| layout::is_side_file(name)).cloned().collect();
        Ok(Self { location, folder, config, tensors, shards, side_files, warnings })
    }

    /// Path or name of the checkpoint, for messages.
    #[must_use]
    pub fn location(&self) -> &str {
        &self.location
    }

    /// The outermost object of `config.json`.
    #[must_use]
    pub fn config(&self) -> Json<'_> {
        self.config.root()
    }

    /// The tensors, sorted by name.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &StoredTensor> {
        self.tensors.values()
    }

    /// The tensor `name`, if there is one.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&StoredTensor> {
        self.tensors.get(name)
    }

    /// The weight files, sorted by name.
    #[must_use]
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// What is odd about the checkpoint without making it unusable, as sentences.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The bytes of a file beside the weights, unchanged; `None` when there is none of that name.
    ///
    /// # Errors
    /// When `name` is not a plain file name, or the file cannot be read, is over [`MAX_SIDE_FILE_BYTES`], or is a
    /// Git-LFS pointer.
    pub fn side_file(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let name = FileName::new(name).at(|| self.location.as_str())?;
        self.folder.read(&name, MAX_SIDE_FILE_BYTES)
    }

    /// A JSON file beside the weights, parsed; `None` when there is none of that name.
    ///
    /// # Errors
    /// When `name` is not a plain file name, or the file cannot be read, is over [`MAX_JSON_BYTES`], or is not JSON.
    pub fn side_json(&self, name: &str) -> Result<Option<JsonDocument>> {
        let name = FileName::new(name).at(|| self.location.as_str())?;
        read_json(&self.folder, &name)
    }

    /// Names of the files beside the weights, sorted: no weights, no shard index, no hidden files, no folders.
    pub fn side_file_names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.side_files.iter().map(FileName::as_str)
    }
}

fn read_json(folder: &Folder, name: &FileName) -> Result<Option<JsonDocument>> {
    let bytes = folder.read(name, MAX_JSON_BYTES)?;
    bytes.map(|bytes| JsonDocument::parse(folder.display(name), &bytes)).transpose()
}

fn read_config(folder: &Folder) -> Result<JsonDocument> {
    let name = FileName::new(CONFIG_FILE)?;
    let config = read_json(folder, &name)?.ok_or_else(|| missing(folder, &name))?;
    if !config.root().is_object() {
        return Err(config.root().error("not a model configuration").expected("an object"));
    }
    Ok(config)
}

fn missing(folder: &Folder, name: &FileName) -> Error {
    Error::input("no such file")
        .at(folder.display(name))
        .hint("the folder must hold the whole checkpoint, as published")
}
