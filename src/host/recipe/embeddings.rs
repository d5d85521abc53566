//! The contract of decoders that take embeddings: the host looks tokens up and arranges the visual ones among them.

use serde::{Deserialize, Serialize};

use super::functions::{FunctionPorts, Port, WholeFunction};
use super::{HostTensorFile, Recipe, ensure, ensure_deviations, ensure_inside};
use crate::Result;
use crate::grid::Grid;
use crate::host::image::{MAX_SIDE, Normalisation, Preprocessing};
use crate::runtime::Asset;

/// A square page in one grid; the host holds the embedding table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EmbeddingsContract {
    /// From a page to pixels.
    pub image: ImageRecipe,
    /// From visual tokens to prompt positions.
    pub visual: VisualRecipe,
    /// What is fed before the first generated token.
    pub prompt: PromptRecipe,
    /// The vision asset.
    pub vision: VisionAsset,
    /// The decoder asset.
    pub decoder: DecoderAsset,
    /// Tensors the host holds.
    pub host_tensors: HostTensors,
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

/// The decoder asset, two functions over the same caches: `prefill(embeddings [1, prefix, hidden])`, which starts at
/// position 0, and `decode(embeddings [1, 1, hidden])`, both `-> logits [1, 1, vocabulary]`. What they take and give
/// besides is a matter of the form of the caches.
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

/// Where the contract is in the recipe.
const PLACE: &str = "contract.embeddings";

impl EmbeddingsContract {
    /// Checks that the parts agree with each other and with the rest of `recipe`.
    pub(super) fn check(&self, recipe: &Recipe) -> Result<()> {
        self.check_image()?;
        let positions = self.visual.positions;
        let expected = self.grid()?.positions();
        let at = |field: &str| format!("{PLACE}.{field}");
        ensure(positions == expected, at("visual.positions"), positions, || expected.to_string())?;
        recipe.check_prefix(at("prompt.prefix_length"), self.prompt.prefix_length, positions)?;
        recipe.check_token(at("prompt.bos_token_id"), self.prompt.bos_token_id)?;
        recipe.check_token(at("prompt.image_token_id"), self.prompt.image_token_id)?;
        ensure_inside(at("vision.asset"), &self.vision.asset)?;
        ensure_inside(at("decoder.asset"), &self.decoder.asset)?;
        self.check_tensors(recipe)
    }

    fn check_image(&self) -> Result<()> {
        let side = self.image.side;
        ensure((1..=MAX_SIDE).contains(&side), format_args!("{PLACE}.image.side"), side, || {
            format!("1 to {MAX_SIDE}")
        })?;
        ensure_deviations(format_args!("{PLACE}.image.std"), &self.image.std)
    }

    fn check_tensors(&self, recipe: &Recipe) -> Result<()> {
        let (vocabulary, hidden) = (recipe.vocab_size, recipe.hidden_size);
        let HostTensors { embed_tokens, image_newline, view_separator, prompt_input_ids } = &self.host_tensors;
        let at = |name: &str| format!("{PLACE}.host_tensors.{name}");
        embed_tokens.check_floats(at("embed_tokens"), &[vocabulary, hidden])?;
        image_newline.check_floats(at("image_newline"), &[hidden])?;
        view_separator.check_floats(at("view_separator"), &[hidden])?;
        prompt_input_ids.check_ids(at("prompt_input_ids"), self.prompt.prefix_length)
    }

    pub(super) fn functions(&self, part: Asset) -> Vec<&str> {
        match part {
            Asset::Vision => vec![&self.vision.function],
            Asset::Decoder => vec![&self.decoder.prefill, &self.decoder.decode],
        }
    }

    /// What the vision function takes and gives.
    pub(super) fn vision_ports(&self, recipe: &Recipe) -> FunctionPorts {
        let side = Some(self.image.side as usize);
        let tokens = Some(self.visual.rows.saturating_mul(self.visual.columns));
        let port = |name: &str, shape| Port::new(name, recipe.element_type, shape);
        FunctionPorts {
            asset: Asset::Vision,
            name: self.vision.function.clone(),
            inputs: vec![Port::new(&self.vision.image, recipe.element_type, [Some(1), Some(3), side, side])],
            states: Vec::new(),
            outputs: vec![port(&self.vision.visual_tokens, [Some(1), tokens, Some(recipe.hidden_size)])],
        }
    }

    /// The decoder functions.
    pub(super) fn whole_functions(&self, recipe: &Recipe) -> Vec<WholeFunction<'_>> {
        let port = |name: &str, rows, width| Port::new(name, recipe.element_type, [Some(1), rows, Some(width)]);
        let function = |(name, tokens, from_zero)| WholeFunction {
            name,
            tokens: Some(tokens),
            from_zero,
            inputs: vec![port(&self.decoder.inputs_embeds, Some(tokens), recipe.hidden_size)],
            logits: port(&self.decoder.logits, Some(1), recipe.vocab_size),
        };
        let prefill = (self.decoder.prefill.as_str(), self.prompt.prefix_length, true);
        [prefill, (&self.decoder.decode, 1, false)].map(function).into()
    }

    /// The grid of visual tokens.
    ///
    /// # Errors
    /// When a side is zero or too large.
    pub fn grid(&self) -> Result<Grid> {
        Grid::new(self.visual.rows, self.visual.columns).map_err(|e| e.at(format!("{PLACE}.visual")))
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
}

impl HostTensors {
    /// All of them.
    pub(super) fn all(&self) -> [&HostTensorFile; 4] {
        [&self.embed_tokens, &self.image_newline, &self.view_separator, &self.prompt_input_ids]
    }
}
