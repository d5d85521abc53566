//! Which files of a folder are the shards of its model.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Error, Result};

use super::folder::{FileName, Folder};
use super::index::{INDEX_FILE, Index};
use super::json::MAX_JSON_BYTES;

/// Extensions of files that hold weights in a format that is not read.
const OTHER_WEIGHTS: [&str; 9] = ["bin", "pt", "pth", "ckpt", "gguf", "h5", "msgpack", "onnx", "npz"];

/// The shards of a model.
#[derive(Debug, Default)]
pub(super) struct Layout {
    /// Files to read, sorted.
    pub(super) shards: Vec<FileName>,
    /// What the shards must hold, when an index says so.
    pub(super) index: Option<Index>,
    /// What the reader should know about files that are passed over.
    pub(super) warnings: Vec<String>,
}

impl Layout {
    /// Finds the shards in `folder`, which holds the files `names`.
    pub(super) fn of_folder(folder: &Folder, names: &[FileName], ignore_index: bool) -> Result<Self> {
        let index = if ignore_index { None } else { read_index(folder)? };
        match index {
            Some(index) => Self::by_index(index, names),
            None => Self::by_name(folder, names, ignore_index),
        }
    }

    /// One file alone.
    pub(super) fn of_file(file: FileName) -> Result<Self> {
        if !file.has_extension("safetensors") {
            return Err(Error::input("not a `.safetensors` file").hint("name the folder of the checkpoint instead"));
        }
        if is_adapter(&file) {
            return Err(adapter_only());
        }
        Ok(Self { shards: vec![file], ..Self::default() })
    }

    fn by_index(index: Index, names: &[FileName]) -> Result<Self> {
        index.check_present(names)?;
        let shards = index.shards();
        let passed_over = names.iter().filter(|name| is_safetensors(name) && !shards.contains(name));
        let warnings = passed_over.map(|name| format!("`{name}` is not read: the index does not name it")).collect();
        Ok(Self { shards: shards.into_iter().cloned().collect(), index: Some(index), warnings })
    }

    fn by_name(folder: &Folder, names: &[FileName], ignore_index: bool) -> Result<Self> {
        let whole_model = names.iter().any(|name| is_safetensors(name) && name.as_str().starts_with("model"));
        let other_copy = |name: &FileName| whole_model && name.as_str().starts_with("consolidated");
        let (mut shards, mut warnings) = (Vec::new(), Vec::new());
        for name in names.iter().filter(|name| is_safetensors(name)) {
            if is_adapter(name) {
                warnings.push(format!("`{name}` is not read: an adapter is not part of the model"));
            } else if other_copy(name) {
                warnings.push(format!("`{name}` is not read: it holds the model in another layout"));
            } else {
                shards.push(name.clone());
            }
        }
        if shards.is_empty() {
            return Err(no_shards(folder, names).at(folder.location()));
        }
        match incomplete(&shards) {
            Some(problem) if ignore_index => warnings.push(problem),
            Some(problem) => {
                return Err(Error::input(problem).at(folder.location()).hint("download the missing files"));
            }
            None => {}
        }
        Ok(Self { shards, index: None, warnings })
    }
}

fn read_index(folder: &Folder) -> Result<Option<Index>> {
    let file = FileName::new(INDEX_FILE)?;
    let bytes = folder.read(&file, MAX_JSON_BYTES)?;
    bytes.map(|bytes| Index::parse(folder.display(&file), &bytes)).transpose()
}

fn is_safetensors(name: &FileName) -> bool {
    name.has_extension("safetensors") && !name.is_hidden()
}

fn is_adapter(name: &FileName) -> bool {
    name.as_str().starts_with("adapter")
}

/// Whether the file is no weights, no shard index, and not hidden.
pub(super) fn is_side_file(name: &FileName) -> bool {
    let weights = OTHER_WEIGHTS.iter().chain(&["safetensors"]).any(|extension| name.has_extension(extension));
    !weights && !name.is_hidden() && !name.as_str().ends_with(".index.json")
}

fn adapter_only() -> Error {
    Error::input("an adapter, not a model").hint("merge the adapter into its base model first")
}

/// Why a folder without shards is no checkpoint.
fn no_shards(folder: &Folder, names: &[FileName]) -> Error {
    let error = Error::input("no `.safetensors` file in the folder");
    if names.iter().any(|name| is_safetensors(name) && is_adapter(name)) {
        return adapter_only();
    }
    if let Some(other) = names.iter().find(|name| OTHER_WEIGHTS.iter().any(|extension| name.has_extension(extension))) {
        let hint = "only safetensors weights are read: save the model as safetensors first";
        return error.found(format!("`{other}`")).hint(hint);
    }
    match folder {
        Folder::Disk(path) if path.join("snapshots").is_dir() => error.hint(
            "this is a model's folder in the Hub cache: name one of its `snapshots/<revision>`, or the model's id",
        ),
        _ if names.is_empty() => error.found("no files at all"),
        _ => error.hint("download the weights too"),
    }
}

/// What is missing from sets of shards that are numbered `…-00001-of-00003.safetensors`.
fn incomplete(shards: &[FileName]) -> Option<String> {
    let mut sets: BTreeMap<(&str, usize), BTreeSet<usize>> = BTreeMap::new();
    for (stem, number, count) in shards.iter().filter_map(|shard| numbering(shard.as_str())) {
        sets.entry((stem, count)).or_default().insert(number);
    }
    sets.into_iter().find(|((_, count), numbers)| numbers.len() < *count).map(|((stem, count), numbers)| {
        let present: Vec<_> = numbers.iter().map(usize::to_string).collect();
        format!("only {} of {count} shards `{stem}-*` are there: number {}", numbers.len(), present.join(", "))
    })
}

/// Stem, number and count of a numbered shard.
fn numbering(name: &str) -> Option<(&str, usize, usize)> {
    let (numbered, count) = name.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
    let (stem, number) = numbered.rsplit_once('-')?;
    Some((stem, number.parse().ok()?, count.parse().ok()?))
}
