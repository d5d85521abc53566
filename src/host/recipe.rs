//! `recipe.json`: everything an application has to know to read a page with a bundle.
//!
//! The bundle carries it; reading and verifying are driven by it alone, so nothing about a model is built into the
//! host. Unknown keys are ignored, so that a later writer can add some without a new format version.

use std::path::{Component, Path};

use serde::{Deserialize, Serialize};

use super::decode::{NoRepeatNgram, Policy, RunCap};
use super::image::{MAX_SIDE, Normalisation, Preprocessing};
use crate::grid::Grid;
use crate::runtime::State;
use crate::{ElementType, Error, Result};

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
    /// From a page to pixels.
    pub image: ImageRecipe,
    /// From visual tokens to prompt positions.
    pub visual: VisualRecipe,
    /// What is fed before the first generated token.
    pub prompt: PromptRecipe,
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
    /// How the decoder writes its KV caches, such as `indexed`.
    pub kv_form: String,
    /// The vision asset.
    pub vision: VisionAsset,
    /// The decoder asset.
    pub decoder: DecoderAsset,
    /// Tensors the host holds.
    pub host_tensors: HostTensors,
    /// Path of the tokenizer in the bundle.
    pub tokenizer: String,
}

/// From a page to pixels `[1, 3, side, side]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImageRecipe {
    /// Side of the square image, in pixels.
    pub side: u32,
    /// How a page becomes square.
    pub mode: ImageMode,
    /// Colour of the ground when padded.
    pub fill: [u8; 3],
    /// Mean of red, green, blue, in 0 to 1.
    pub mean: [f32; 3],
    /// Standard deviation of red, green, blue, in 0 to 1.
    pub std: [f32; 3],
}

/// How a page becomes square.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImageMode {
    /// The aspect is not kept.
    Stretch,
    /// The aspect is kept; the page is centred on a ground of one colour.
    Pad,
}

/// From visual tokens `[rows * columns, hidden]` to prompt positions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VisualRecipe {
    /// Rows of visual tokens.
    pub rows: usize,
    /// Visual tokens in a row.
    pub columns: usize,
    /// Positions they take in the prompt.
    pub positions: usize,
    /// How they are arranged.
    pub arrangement: Arrangement,
}

/// How visual tokens are arranged in the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Arrangement {
    /// Every row is followed by the newline vector; the separator comes last.
    #[serde(rename = "rows+newline, separator last")]
    RowsNewlineSeparator,
}

/// What is fed before the first generated token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PromptRecipe {
    /// The instruction.
    pub text: String,
    /// Tokens in all.
    pub prefix_length: usize,
    /// Token that begins every sequence.
    pub bos_token_id: u32,
    /// Token that stands for one visual position.
    pub image_token_id: u32,
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

/// The vision asset: `function(image [1, 3, side, side]) -> visual tokens [1, rows * columns, hidden]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VisionAsset {
    /// Path of the asset in the bundle.
    pub asset: String,
    /// Name of the function.
    pub function: String,
    /// Name of the input.
    pub image: String,
    /// Name of the output.
    pub visual_tokens: String,
}

/// The decoder asset, two functions over the same states:
/// `prefill(embeddings [1, prefix, hidden])` and `decode(embeddings [1, 1, hidden], position [1])`,
/// both `-> logits [1, 1, vocabulary]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecoderAsset {
    /// Path of the asset in the bundle.
    pub asset: String,
    /// Name of the function that takes the whole prompt.
    pub prefill: String,
    /// Name of the function that takes one token.
    pub decode: String,
    /// Name of the embeddings input of both.
    pub inputs_embeds: String,
    /// Name of the position input of `decode`.
    pub position: String,
    /// Name of the state of keys.
    pub key_cache: String,
    /// Name of the state of values.
    pub value_cache: String,
    /// Name of the output of both.
    pub logits: String,
}

/// Tensors the host holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostTensors {
    /// `[vocabulary, hidden]`.
    pub embed_tokens: HostTensorFile,
    /// `[hidden]`, after every row of visual tokens.
    pub image_newline: HostTensorFile,
    /// `[hidden]`, after the last row.
    pub view_separator: HostTensorFile,
    /// i32 `[prefix]`.
    pub prompt_input_ids: HostTensorFile,
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
        self.check_tokens()?;
        self.check_tensors()?;
        self.check_paths()?;
        self.policy().map(|_| ())
    }

    fn check_numbers(&self) -> Result<()> {
        let side = self.image.side;
        ensure((1..=MAX_SIDE).contains(&side), "image.side", side, || format!("1 to {MAX_SIDE}"))?;
        for (index, std) in self.image.std.into_iter().enumerate() {
            let positive = std.is_finite() && std > 0.0;
            ensure(positive, &format!("image.std[{index}]"), std, || "a positive number".to_owned())?;
        }
        let positions = self.visual.positions;
        let expected = self.grid()?.positions();
        ensure(positions == expected, "visual.positions", positions, || expected.to_string())?;
        let prefix = self.prompt.prefix_length;
        ensure(prefix > positions, "prompt.prefix_length", prefix, || format!("more than {positions}"))?;
        let length = self.cache.length;
        ensure(length > prefix, "cache.length", length, || format!("more than the prefix of {prefix}"))?;
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

    fn check_tokens(&self) -> Result<()> {
        let stops = self.stop.iter().enumerate().map(|(index, stop)| (format!("stop[{index}].id"), stop.id));
        let named = [
            ("prompt.bos_token_id".to_owned(), self.prompt.bos_token_id),
            ("prompt.image_token_id".to_owned(), self.prompt.image_token_id),
        ];
        for (path, id) in named.into_iter().chain(stops) {
            let vocabulary = self.vocab_size;
            ensure((id as usize) < vocabulary, &path, id, || format!("less than the vocabulary of {vocabulary}"))?;
        }
        ensure(!self.stop.is_empty(), "stop", "no token", || "at least one".to_owned())
    }

    fn check_tensors(&self) -> Result<()> {
        let float = |element| matches!(element, ElementType::F16 | ElementType::F32);
        ensure(float(self.element_type), "element_type", self.element_type, || "f16 or f32".to_owned())?;
        let tensors = &self.host_tensors;
        for (name, tensor, shape) in [
            ("embed_tokens", &tensors.embed_tokens, &[self.vocab_size, self.hidden_size][..]),
            ("image_newline", &tensors.image_newline, &[self.hidden_size]),
            ("view_separator", &tensors.view_separator, &[self.hidden_size]),
        ] {
            tensor.check(name, float(tensor.element), "f16 or f32", shape)?;
        }
        let ids = &tensors.prompt_input_ids;
        ids.check("prompt_input_ids", ids.element == ElementType::I32, "si32", &[self.prompt.prefix_length])
    }

    fn check_paths(&self) -> Result<()> {
        let tensors = &self.host_tensors;
        for (place, path) in [
            ("vision.asset", &self.vision.asset),
            ("decoder.asset", &self.decoder.asset),
            ("tokenizer", &self.tokenizer),
            ("host_tensors.embed_tokens.file", &tensors.embed_tokens.file),
            ("host_tensors.image_newline.file", &tensors.image_newline.file),
            ("host_tensors.view_separator.file", &tensors.view_separator.file),
            ("host_tensors.prompt_input_ids.file", &tensors.prompt_input_ids.file),
        ] {
            let inside = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
            let named = inside && !path.is_empty();
            ensure(named, place, format!("{path:?}"), || "a path inside the bundle".to_owned())?;
        }
        Ok(())
    }

    /// The grid of visual tokens.
    ///
    /// # Errors
    /// When a side is zero or too large.
    pub fn grid(&self) -> Result<Grid> {
        Grid::new(self.visual.rows, self.visual.columns).map_err(|e| e.at("visual"))
    }

    /// From a page of any size to a square one.
    #[must_use]
    pub fn preprocessing(&self) -> Preprocessing {
        let side = self.image.side;
        match self.image.mode {
            ImageMode::Stretch => Preprocessing::Stretch { side },
            ImageMode::Pad => Preprocessing::Pad { side, fill: self.image.fill },
        }
    }

    /// From 8-bit samples to floats.
    #[must_use]
    pub fn normalisation(&self) -> Normalisation {
        Normalisation { mean: self.image.mean, std: self.image.std }
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

    /// The states of the decoder, keys first.
    #[must_use]
    pub fn states(&self) -> [State; 2] {
        let CacheRecipe { layers, heads, length, head_dim } = self.cache;
        [&self.decoder.key_cache, &self.decoder.value_cache]
            .map(|name| State { name: name.clone(), shape: vec![layers, 1, heads, length, head_dim] })
    }
}

/// Largest extent of one axis; products of the few axes here stay far from overflow.
const MAX_EXTENT: usize = 1 << 24;

impl HostTensorFile {
    fn check(&self, name: &str, element_fits: bool, elements: &str, shape: &[usize]) -> Result<()> {
        let path = |key| format!("host_tensors.{name}.{key}");
        ensure(element_fits, &path("element"), self.element, || elements.to_owned())?;
        ensure(self.shape == shape, &path("shape"), format!("{:?}", self.shape), || format!("{shape:?}"))
    }
}

fn ensure(holds: bool, path: &str, found: impl std::fmt::Display, expected: impl FnOnce() -> String) -> Result<()> {
    if holds {
        return Ok(());
    }
    Err(Error::input("the recipe contradicts itself").at(path).found(found).expected(expected()))
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
