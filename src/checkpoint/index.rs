//! `model.safetensors.index.json`: which shard holds which tensor.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use crate::error::At;
use crate::storage::StoredTensor;
use crate::{Error, Result};

use super::folder::FileName;
use super::json;
use super::unique::unique_entries;

/// Name of the index file.
pub(super) const INDEX_FILE: &str = "model.safetensors.index.json";

/// What to do about an index that does not fit its shards.
pub(super) const IGNORE_HINT: &str =
    "download the missing files, or ignore the index (`--ignore-index`) to take what is on disk";

/// A parsed index.
#[derive(Debug)]
pub(super) struct Index {
    /// The index file in messages.
    file: String,
    /// Shard of every tensor.
    shard_of: BTreeMap<String, FileName>,
}

#[derive(Deserialize)]
struct IndexFile {
    weight_map: WeightMap,
}

struct WeightMap(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct MapVisitor;
        impl<'de> Visitor<'de> for MapVisitor {
            type Value = WeightMap;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object from tensor names to file names")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> std::result::Result<WeightMap, A::Error> {
                unique_entries(map, None).map(WeightMap)
            }
        }
        deserializer.deserialize_map(MapVisitor)
    }
}

impl Index {
    /// Parses an index, named `file` in errors.
    pub(super) fn parse(file: String, bytes: &[u8]) -> Result<Self> {
        let parsed: IndexFile = json::from_bytes(&file, bytes)?;
        let mut shard_of = BTreeMap::new();
        for (tensor, shard) in parsed.weight_map.0 {
            let shard = FileName::new(shard).at(|| format!("weight_map.{tensor}")).at(|| file.as_str())?;
            shard_of.insert(tensor, shard);
        }
        if shard_of.is_empty() {
            return Err(Error::input("the weight map is empty").at(file).hint(IGNORE_HINT));
        }
        Ok(Self { file, shard_of })
    }

    /// The shards, sorted.
    pub(super) fn shards(&self) -> BTreeSet<&FileName> {
        self.shard_of.values().collect()
    }

    /// Refuses an index that names shards which are not in `present`.
    pub(super) fn check_present(&self, present: &[FileName]) -> Result<()> {
        let shards = self.shards();
        let missing: Vec<_> = shards.iter().filter(|shard| !present.contains(shard)).map(|s| s.as_str()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let there: Vec<_> =
            present.iter().filter(|name| name.has_extension("safetensors")).map(FileName::as_str).collect();
        Err(Error::input(format!("{} of {} shards it names are missing", missing.len(), shards.len()))
            .at(self.file.as_str())
            .found(list(&there))
            .expected(format!("also {}", list(&missing)))
            .hint(IGNORE_HINT))
    }

    /// Checks that `tensors`, read from `shard`, are those that the index places there. A tensor that the index
    /// places in another shard is passed over: that shard is checked to have it, and equal names are compared later.
    pub(super) fn check_shard(&self, shard: &FileName, tensors: &[StoredTensor]) -> Result<()> {
        let held: BTreeSet<&str> = tensors.iter().map(|tensor| tensor.name.as_ref()).collect();
        let lacking = self.shard_of.iter().find(|(name, place)| *place == shard && !held.contains(name.as_str()));
        if let Some((name, _)) = lacking {
            return Err(self.disagreement(name, format!("the index places it in `{shard}`, which does not have it")));
        }
        match held.into_iter().find(|&name| !self.shard_of.contains_key(name)) {
            Some(name) => Err(self.disagreement(name, format!("`{shard}` has it, but the index does not list it"))),
            None => Ok(()),
        }
    }

    fn disagreement(&self, tensor: &str, problem: String) -> Error {
        Error::input(problem).at(format!("tensor `{tensor}`")).at(self.file.as_str()).hint(IGNORE_HINT)
    }
}

/// A few names, and how many there are besides.
fn list(names: &[&str]) -> String {
    const SHOWN: usize = 4;
    let shown: Vec<_> = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect();
    match names.len().saturating_sub(SHOWN) {
        0 if shown.is_empty() => "none".to_owned(),
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
