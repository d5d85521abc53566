//! The golden checkpoint in memory, to be changed and saved in one of the layouts that checkpoints have.

use std::path::Path;

use half::{bf16, f16};
use serde_json::{Map, Value, json};

use super::golden;

/// Names of the shards of [`Checkpoint::save`], as the original has them.
pub const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
/// Name of the shard index.
pub const INDEX: &str = "model.safetensors.index.json";
/// Files beside the weights, of which a checkpoint has some.
const SIDE_FILES: [&str; 7] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "processor_config.json",
    "preprocessor_config.json",
    "generation_config.json",
    "chat_template.jinja",
];

/// One tensor: elements are little-endian and row-major.
#[derive(Clone)]
pub struct Tensor {
    pub name: String,
    pub dtype: String,
    pub shape: Vec<usize>,
    pub data: Vec<u8>,
}

impl Tensor {
    /// A BF16 tensor; values are rounded.
    pub fn bf16(name: &str, shape: &[usize], values: &[f32]) -> Self {
        let data = values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect();
        Self { name: name.to_owned(), dtype: "BF16".to_owned(), shape: shape.to_vec(), data }
    }

    /// The elements of a BF16 tensor.
    pub fn values(&self) -> Vec<f32> {
        assert_eq!(self.dtype, "BF16", "{}", self.name);
        self.data.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
    }

    /// Stores the same values as F32.
    pub fn widen(&mut self) {
        self.data = self.values().iter().flat_map(|v| v.to_le_bytes()).collect();
        "F32".clone_into(&mut self.dtype);
    }

    /// Stores the same values as F16 if all of them can be; says whether.
    pub fn convert_to_f16(&mut self) -> bool {
        let values = self.values();
        let exact = values.iter().all(|v| f16::from_f32(*v).to_f32().to_bits() == v.to_bits());
        if exact {
            self.data = values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect();
            "F16".clone_into(&mut self.dtype);
        }
        exact
    }
}

/// A whole checkpoint.
#[derive(Clone)]
pub struct Checkpoint {
    pub config: Value,
    pub tensors: Vec<Tensor>,
    pub files: Vec<(String, Vec<u8>)>,
}

impl Checkpoint {
    /// `golden/structure/unlimited-ocr`, its tensors in the order in which they are stored.
    pub fn golden() -> Self {
        Self::structure("unlimited-ocr")
    }

    /// `golden/structure/glm-ocr`, its tensors in the order in which they are stored.
    pub fn golden_glm() -> Self {
        Self::structure("glm-ocr")
    }

    fn structure(model: &str) -> Self {
        let folder = golden(&format!("structure/{model}"));
        let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
        Self {
            config: serde_json::from_slice(&read("config.json")).unwrap(),
            tensors: SHARDS.iter().flat_map(|shard| parse(&read(shard))).collect(),
            files: SIDE_FILES
                .iter()
                .filter(|name| folder.join(name).exists())
                .map(|name| (name.to_string(), read(name)))
                .collect(),
        }
    }

    /// The tensor of this name.
    pub fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    /// Takes a tensor out.
    pub fn take(&mut self, name: &str) -> Tensor {
        let place = self.tensors.iter().position(|tensor| tensor.name == name);
        self.tensors.remove(place.unwrap_or_else(|| panic!("no tensor {name}")))
    }

    /// Sets a setting of the decoder in its section and, where it is repeated, at the top level.
    pub fn set(&mut self, name: &str, value: Value) {
        if self.config.get(name).is_some() {
            self.config[name] = value.clone();
        }
        self.config["language_config"][name] = value;
    }

    /// Saves two shards with an index, as the original is published.
    pub fn save(&self, folder: &Path) {
        self.save_shards(folder, &SHARDS);
    }

    /// Saves shards of about equally many tensors with an index.
    pub fn save_shards(&self, folder: &Path, names: &[&str]) {
        self.save_side_files(folder);
        let mut weight_map = Map::new();
        for (name, tensors) in names.iter().zip(self.tensors.chunks(self.tensors.len().div_ceil(names.len()))) {
            std::fs::write(folder.join(name), serialize(tensors)).unwrap();
            weight_map.extend(tensors.iter().map(|tensor| (tensor.name.clone(), json!(name))));
        }
        let index = json!({"metadata": {"total_size": 0}, "weight_map": weight_map});
        std::fs::write(folder.join(INDEX), index.to_string()).unwrap();
    }

    /// Saves `model.safetensors` alone, without an index.
    pub fn save_single(&self, folder: &Path) {
        self.save_side_files(folder);
        std::fs::write(folder.join("model.safetensors"), serialize(&self.tensors)).unwrap();
    }

    fn save_side_files(&self, folder: &Path) {
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(folder.join("config.json"), self.config.to_string()).unwrap();
        for (name, bytes) in &self.files {
            std::fs::write(folder.join(name), bytes).unwrap();
        }
    }
}

/// The header of a safetensors file and what comes after it.
pub fn split(file: &[u8]) -> (&str, &[u8]) {
    let (length, rest) = file.split_first_chunk().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    (std::str::from_utf8(header).unwrap(), data)
}

/// A safetensors file of this header and data.
pub fn join(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

fn parse(file: &[u8]) -> Vec<Tensor> {
    let (header, data) = split(file);
    let header: Map<String, Value> = serde_json::from_str(header).unwrap();
    let number = |value: &Value| value.as_u64().unwrap() as usize;
    let mut tensors: Vec<(usize, Tensor)> = header
        .iter()
        .filter(|(name, _)| *name != "__metadata__")
        .map(|(name, entry)| {
            let (start, end) = (number(&entry["data_offsets"][0]), number(&entry["data_offsets"][1]));
            let shape = entry["shape"].as_array().unwrap().iter().map(number).collect();
            let dtype = entry["dtype"].as_str().unwrap().to_owned();
            (start, Tensor { name: name.clone(), dtype, shape, data: data[start..end].to_vec() })
        })
        .collect();
    tensors.sort_by_key(|(start, _)| *start);
    tensors.into_iter().map(|(_, tensor)| tensor).collect()
}

fn serialize(tensors: &[Tensor]) -> Vec<u8> {
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for Tensor { name, dtype, shape, data: bytes } in tensors {
        let start = data.len();
        data.extend_from_slice(bytes);
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, data.len()]});
        entries.push(format!("{}:{entry}", json!(name)));
    }
    join(&format!("{{{}}}", entries.join(",")), &data)
}
