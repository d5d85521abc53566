//! `recipe.json`: everything an application has to know to read a page with a bundle.
//!
//! The bundle carries it; reading and verifying are driven by it alone, so nothing about a model is built into the
//! host. What all bundles have is here; what differs with how the decoder is fed is the [`Contract`]. Unknown keys are
//! ignored, so that a later writer can add some without a new format version.

mod embeddings;
mod functions;
pub(in crate::host) mod kv;
pub(in crate::host) mod slots;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::Range;
use std::path::{Component, Path};

use serde::{Deserialize, Serialize};

use super::decode::{NoRepeatNgram, Policy, RunCap};
use crate::runtime::{Asset, State};
use crate::{ElementType, Error, Result};

pub use embeddings::{
    Arrangement, DecoderAsset, EmbeddingsContract, HostTensors, ImageMode, ImageRecipe, PromptRecipe, VisionAsset,
    VisualRecipe,
};
use functions::WholeFunction;
pub use functions::{FunctionPorts, Port};
pub use kv::{CacheRows, ChunkFunction, ChunkRecipe, HostCache, KvCaches, KvFeed, KvRecipe};
pub use slots::{
    DecoderFunctions, EngineRecipe, GridRecipe, IdsAsset, PageRecipe, PatchesAsset, PrefillFunction, SlotsContract,
    SlotsPrompt, SymbolRecipe, Variant,
};

/// The host contract of a bundle.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Recipe {
    /// Always [`FORMAT_VERSION`](Self::FORMAT_VERSION).
    pub format_version: u32,
    /// Name of the exported model, such as `unlimited-ocr`.
    pub model: String,
    /// Element type of embeddings, caches and logits: `f16` or `f32`.
    #[serde(with = "element_name")]
    pub element_type: ElementType,
    /// Tokens that end the text.
    pub stop: Vec<StopToken>,
    /// Elements of one embedding.
    pub hidden_size: usize,
    /// Width of the logits.
    pub vocab_size: usize,
    /// How tokens are chosen.
    pub decoding: DecodingRecipe,
    /// Shape of the KV caches.
    pub cache: CacheRecipe,
    /// Generated tokens that a generated token sees, itself included; none means all.
    pub sliding_window: Option<usize>,
    /// How the decoder keeps its KV caches.
    pub kv: KvRecipe,
    /// Path of the tokenizer in the bundle.
    pub tokenizer: String,
    /// How a page and tokens are fed.
    pub contract: Contract,
    /// What an application has to know besides, as sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// How a page and tokens are fed to the functions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contract {
    /// The decoder takes embeddings, which the host looks up and arranges.
    Embeddings(EmbeddingsContract),
    /// The decoder takes token ids and, beside them, the visual tokens that some of the ids are slots of.
    Slots(SlotsContract),
}

/// A token that ends the text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopToken {
    /// Its id.
    pub id: u32,
    /// Where the id came from, such as `config.json: eos_token_id`.
    pub origin: String,
}

/// How tokens are chosen: greedily, under two rules against repetition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DecodingRecipe {
    /// No n-gram occurs twice in the window.
    pub no_repeat_ngram: Option<NgramRecipe>,
    /// A token may not be repeated this many times in a row.
    pub run_cap: Option<usize>,
    /// Most tokens to generate.
    pub max_tokens: usize,
}

/// No n-gram of `size` tokens occurs twice in the last `window` tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NgramRecipe {
    /// Tokens of an n-gram.
    pub size: usize,
    /// Tokens looked back at.
    pub window: usize,
}

/// Shape of one KV cache: `[layers, 1, heads, length, head_dim]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheRecipe {
    /// Decoder layers.
    pub layers: usize,
    /// Key-value heads.
    pub heads: usize,
    /// Positions.
    pub length: usize,
    /// Elements of one head.
    pub head_dim: usize,
}

/// A file of raw little-endian elements, row-major, without header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostTensorFile {
    /// Path in the bundle.
    pub file: String,
    /// Type of one element.
    #[serde(with = "element_name")]
    pub element: ElementType,
    /// Extent of each axis, outermost first.
    pub shape: Vec<usize>,
}

impl CacheRecipe {
    /// Shape of a cache of some of the layers.
    #[must_use]
    pub const fn shape(&self, layers: Range<usize>) -> [usize; 5] {
        [layers.end.saturating_sub(layers.start), 1, self.heads, self.length, self.head_dim]
    }
}

impl Recipe {
    /// The version of the format that is written and read here.
    pub const FORMAT_VERSION: u32 = 1;

    /// Reads and checks a `recipe.json` file.
    ///
    /// # Errors
    /// When the file cannot be read or is not a consistent recipe of this version; names file and JSON path.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(|e| Error::io(path, &e))?;
        Self::from_json(&path.display().to_string(), &bytes)
    }

    /// Reads and checks a recipe; `name` is shown in errors.
    ///
    /// # Errors
    /// When the bytes are not a consistent recipe of this version; names the JSON path.
    pub fn from_json(name: &str, bytes: &[u8]) -> Result<Self> {
        check_version(bytes).map_err(|e| e.at(name))?;
        let json = &mut serde_json::Deserializer::from_slice(bytes);
        let recipe: Self = serde_path_to_error::deserialize(json)
            .map_err(|e| Error::input(e.inner().to_string()).at(e.path().to_string()).at(name))?;
        recipe.check().map_err(|e| e.at(name))?;
        Ok(recipe)
    }

    /// The recipe as JSON text, with a newline at the end.
    ///
    /// # Errors
    /// When a float is not finite.
    pub fn to_json(&self) -> Result<String> {
        let text = serde_json::to_string_pretty(self).map_err(|e| Error::input(e.to_string()).at("recipe.json"))?;
        Ok(text + "\n")
    }

    /// Checks that the parts agree with each other.
    ///
    /// # Errors
    /// When they do not; names the JSON path.
    pub fn check(&self) -> Result<()> {
        self.check_numbers()?;
        ensure(is_float(self.element_type), "element_type", self.element_type, || FLOATS.to_owned())?;
        ensure(!self.stop.is_empty(), "stop", "no token", || "at least one".to_owned())?;
        for (index, stop) in self.stop.iter().enumerate() {
            self.check_token(format_args!("stop[{index}].id"), stop.id)?;
        }
        ensure_inside("tokenizer", &self.tokenizer)?;
        match &self.contract {
            Contract::Embeddings(contract) => contract.check(self)?,
            Contract::Slots(contract) => contract.check(self)?,
        }
        self.kv.check(self)?;
        self.policy().map(|_| ())
    }

    fn check_numbers(&self) -> Result<()> {
        for (path, size) in [
            ("cache.layers", self.cache.layers),
            ("cache.heads", self.cache.heads),
            ("cache.head_dim", self.cache.head_dim),
            ("cache.length", self.cache.length),
            ("hidden_size", self.hidden_size),
            ("vocab_size", self.vocab_size),
            ("decoding.max_tokens", self.decoding.max_tokens),
        ] {
            ensure((1..=MAX_EXTENT).contains(&size), path, size, || format!("1 to {MAX_EXTENT}"))?;
        }
        Ok(())
    }

    fn check_token(&self, path: impl Display, id: u32) -> Result<()> {
        let vocabulary = self.vocab_size;
        ensure((id as usize) < vocabulary, path, id, || format!("less than the vocabulary of {vocabulary}"))
    }

    /// A prompt is longer than the image in it, and leaves room in the caches.
    fn check_prefix(&self, path: impl Display, prefix: usize, image: usize) -> Result<()> {
        let length = self.cache.length;
        ensure(prefix > image, path, prefix, || format!("more than {image}"))?;
        ensure(length > prefix, "cache.length", length, || format!("more than the prefix of {prefix}"))
    }

    /// How tokens are chosen; the context is the length of the caches.
    ///
    /// # Errors
    /// When a rule against repetition can never apply.
    pub fn policy(&self) -> Result<Policy> {
        let ngram = self.decoding.no_repeat_ngram.map(|rule| NoRepeatNgram::new(rule.size, rule.window));
        let run_cap = self.decoding.run_cap.map(RunCap::new);
        Ok(Policy {
            stop_ids: self.stop.iter().map(|stop| stop.id).collect(),
            max_tokens: self.decoding.max_tokens,
            context: self.cache.length,
            no_repeat_ngram: ngram.transpose().map_err(|e| e.at("decoding.no_repeat_ngram"))?,
            run_cap: run_cap.transpose().map_err(|e| e.at("decoding.run_cap"))?,
        })
    }

    /// The states of the decoder, keys first; none where the host keeps the caches.
    #[must_use]
    pub fn states(&self) -> Vec<State> {
        self.kv.states(self.cache)
    }

    /// Where an asset is in the bundle.
    #[must_use]
    pub fn asset(&self, part: Asset) -> &str {
        match (&self.contract, part) {
            (Contract::Embeddings(contract), Asset::Vision) => &contract.vision.asset,
            (Contract::Embeddings(contract), Asset::Decoder) => &contract.decoder.asset,
            (Contract::Slots(contract), Asset::Vision) => &contract.vision.asset,
            (Contract::Slots(contract), Asset::Decoder) => &contract.decoder.asset,
        }
    }

    /// The functions of an asset.
    #[must_use]
    pub fn functions(&self, part: Asset) -> Vec<&str> {
        let whole = match &self.contract {
            Contract::Embeddings(contract) => contract.functions(part),
            Contract::Slots(contract) => contract.functions(part),
        };
        match part {
            Asset::Vision => whole,
            Asset::Decoder => whole.into_iter().flat_map(|name| self.kv.names(name)).collect(),
        }
    }

    /// What the functions of an asset take and give, in the order of [`functions`](Self::functions).
    #[must_use]
    pub fn ports(&self, part: Asset) -> Vec<FunctionPorts> {
        match (part, &self.contract) {
            (Asset::Decoder, _) => {
                self.whole_functions().iter().flat_map(|whole| self.kv.functions(whole, self)).collect()
            }
            (Asset::Vision, Contract::Embeddings(contract)) => vec![contract.vision_ports(self)],
            (Asset::Vision, Contract::Slots(contract)) => contract.vision_ports(self),
        }
    }

    /// What each function of the decoder takes and gives, as text, by its name.
    #[must_use]
    pub fn decoder_signatures(&self) -> BTreeMap<String, String> {
        self.ports(Asset::Decoder).into_iter().map(|ports| (ports.name.clone(), ports.to_string())).collect()
    }

    /// The decoder functions as the contract has them.
    fn whole_functions(&self) -> Vec<WholeFunction<'_>> {
        match &self.contract {
            Contract::Embeddings(contract) => contract.whole_functions(self),
            Contract::Slots(contract) => contract.whole_functions(self),
        }
    }

    /// Bytes that a decode step hands in and out where there are `total` tokens with it; none where no function takes
    /// one token. What the runtime keeps between calls is not moved.
    #[must_use]
    pub fn bytes_per_step(&self, total: usize) -> Option<u64> {
        let step = self.whole_functions().into_iter().find_map(WholeFunction::of_one_token)?;
        let calls = self.kv.functions(&step, self);
        Some(calls.iter().map(|ports| ports.bytes_moved(total)).fold(0, u64::saturating_add))
    }

    /// Name of the output that scores the next token.
    #[must_use]
    pub fn logits(&self) -> &str {
        match &self.contract {
            Contract::Embeddings(contract) => &contract.decoder.logits,
            Contract::Slots(contract) => &contract.decoder.logits,
        }
    }

    /// Inputs of an asset, and axes of theirs, whose extents are chosen with each call; all others are fixed.
    #[must_use]
    pub fn changing(&self, part: Asset) -> Vec<(&str, usize)> {
        if part == Asset::Vision {
            return Vec::new();
        }
        let ids = self.contract.slots().and_then(SlotsContract::changing);
        ids.into_iter().chain(self.kv.growing_input().map(|input| (input, 1))).collect()
    }

    /// The tensors the host holds.
    #[must_use]
    pub fn host_tensors(&self) -> Vec<&HostTensorFile> {
        match &self.contract {
            Contract::Embeddings(contract) => contract.host_tensors.all().to_vec(),
            Contract::Slots(contract) => contract.grids.iter().map(|grid| &grid.prompt_input_ids).collect(),
        }
    }

    /// Tokens of the longest prompt.
    #[must_use]
    pub fn longest_prefix(&self) -> usize {
        match &self.contract {
            Contract::Embeddings(contract) => contract.prompt.prefix_length,
            Contract::Slots(contract) => contract.grids.iter().map(|grid| grid.prefix_length).max().unwrap_or(0),
        }
    }
}

impl Contract {
    /// The contract of a decoder that takes embeddings, if it is one.
    #[must_use]
    pub const fn embeddings(&self) -> Option<&EmbeddingsContract> {
        match self {
            Self::Embeddings(contract) => Some(contract),
            Self::Slots(_) => None,
        }
    }

    /// The contract of a decoder that takes token ids and visual tokens, if it is one.
    #[must_use]
    pub const fn slots(&self) -> Option<&SlotsContract> {
        match self {
            Self::Embeddings(_) => None,
            Self::Slots(contract) => Some(contract),
        }
    }
}

/// Largest extent of one axis; products of the few axes here stay far from overflow.
const MAX_EXTENT: usize = 1 << 24;

const FLOATS: &str = "f16 or f32";

fn is_float(element: ElementType) -> bool {
    matches!(element, ElementType::F16 | ElementType::F32)
}

impl HostTensorFile {
    /// A tensor of floats of this shape.
    fn check_floats(&self, path: impl Display, shape: &[usize]) -> Result<()> {
        ensure(is_float(self.element), format_args!("{path}.element"), self.element, || FLOATS.to_owned())?;
        self.check_rest(path, shape)
    }

    /// A tensor of `length` token ids.
    fn check_ids(&self, path: impl Display, length: usize) -> Result<()> {
        let ids = self.element == ElementType::I32;
        ensure(ids, format_args!("{path}.element"), self.element, || ElementType::I32.to_string())?;
        self.check_rest(path, &[length])
    }

    fn check_rest(&self, path: impl Display, shape: &[usize]) -> Result<()> {
        let found = format!("{:?}", self.shape);
        ensure(self.shape == shape, format_args!("{path}.shape"), found, || format!("{shape:?}"))?;
        ensure_inside(format_args!("{path}.file"), &self.file)
    }
}

fn ensure(holds: bool, path: impl Display, found: impl Display, expected: impl FnOnce() -> String) -> Result<()> {
    if holds {
        return Ok(());
    }
    Err(Error::input("the recipe contradicts itself").at(path.to_string()).found(found).expected(expected()))
}

fn ensure_inside(place: impl Display, path: &str) -> Result<()> {
    let inside = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    ensure(inside && !path.is_empty(), place, format!("{path:?}"), || "a path inside the bundle".to_owned())
}

fn ensure_deviations(path: impl Display, std: &[f32; 3]) -> Result<()> {
    for (index, std) in std.iter().enumerate() {
        let positive = std.is_finite() && *std > 0.0;
        ensure(positive, format_args!("{path}[{index}]"), std, || "a positive number".to_owned())?;
    }
    Ok(())
}

/// Checks the version before anything else: another version may differ in everything else.
fn check_version(bytes: &[u8]) -> Result<()> {
    #[derive(Deserialize)]
    struct Version {
        format_version: u32,
    }
    let version: Version = serde_json::from_slice(bytes).map_err(|e| Error::input(e.to_string()))?;
    if version.format_version == Recipe::FORMAT_VERSION {
        return Ok(());
    }
    Err(Error::input("the recipe has another format version")
        .at("format_version")
        .found(version.format_version)
        .expected(Recipe::FORMAT_VERSION)
        .hint("read the bundle with the version of this tool that wrote it"))
}

/// Element types by their names.
mod element_name {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::ElementType;

    pub(super) fn serialize<S: Serializer>(element: &ElementType, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(element.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ElementType, D::Error> {
        let name = String::deserialize(from)?;
        ElementType::from_name(&name).ok_or_else(|| D::Error::custom(format!("no element type is called `{name}`")))
    }
}

#[cfg(test)]
pub(super) mod tests;
