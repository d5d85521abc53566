//! Small checkpoints made by hand, for the tests of this module.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A safetensors file with this header text and data.
pub(super) fn file(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// A safetensors file of BF16 vectors: names and contents, one element per two bytes.
pub(super) fn shard(tensors: &[(&str, &[u8])]) -> Vec<u8> {
    let typed: Vec<_> = tensors.iter().map(|&(name, data)| (name, "BF16", vec![data.len() / 2], data)).collect();
    typed_shard(&typed)
}

/// A safetensors file of tensors with dtype, shape and contents, in the given order.
pub(super) fn typed_shard(tensors: &[(&str, &str, Vec<usize>, &[u8])]) -> Vec<u8> {
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let start = data.len();
        data.extend_from_slice(bytes);
        let name = serde_json::to_string(name).unwrap();
        let end = data.len();
        entries.push(format!(r#"{name}:{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{start},{end}]}}"#));
    }
    file(&format!("{{{}}}", entries.join(",")), &data)
}

/// An index that places every tensor in a file.
pub(super) fn index(places: &[(&str, &str)]) -> String {
    let map: serde_json::Map<_, _> =
        places.iter().map(|&(tensor, file)| (tensor.to_owned(), serde_json::Value::from(file))).collect();
    serde_json::json!({"metadata": {"total_size": 0}, "weight_map": map}).to_string()
}

/// A folder that is removed at the end of the test.
pub(super) struct Files(TempDir);

impl Files {
    pub(super) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// A folder with a `config.json`.
    pub(super) fn with_config() -> Self {
        Self::new().add("config.json", br#"{"model_type": "tiny"}"#)
    }

    /// A whole checkpoint of two shards with an index: `a` and `b` in the first, `c` in the second.
    pub(super) fn two_shards() -> Self {
        let (first, second) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
        Self::with_config()
            .add(first, &shard(&[("a", &[1, 2]), ("b", &[3, 4, 5, 6])]))
            .add(second, &shard(&[("c", &[7, 8])]))
            .add("model.safetensors.index.json", index(&[("a", first), ("b", first), ("c", second)]).as_bytes())
    }

    pub(super) fn add(self, name: &str, bytes: &[u8]) -> Self {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
        self
    }

    pub(super) fn remove(self, name: &str) -> Self {
        std::fs::remove_file(self.path().join(name)).unwrap();
        self
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }
}
