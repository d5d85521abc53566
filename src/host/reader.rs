//! Reads one page: pixels, visual tokens, prefill, then one token a step.

use std::path::Path;
use std::sync::Arc;

use ::image::RgbImage;

use super::arrange::{self, EmbeddingTable, Marks, StoredEmbeddings};
use super::decode::{Generator, Next, StopReason};
use super::prompt::Prompt;
use super::recipe::{HostTensorFile, Recipe};
use super::tokenizer::Tokenizer;
use crate::runtime::{Asset, Call, HostTensor, Runtime};
use crate::storage::{FileSource, StoredTensor};
use crate::{ElementType, Error, Result};

/// Everything of a bundle that the host itself uses.
#[derive(Debug)]
pub struct HostAssets {
    recipe: Recipe,
    tokenizer: Tokenizer,
    embeddings: Box<dyn EmbeddingTable>,
    marks: Marks,
    prompt: Vec<u32>,
}

/// What was read on a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// The text.
    pub text: String,
    /// The generated tokens; the stop token, if one was chosen, is the last.
    pub ids: Vec<u32>,
    /// Why it ended there.
    pub stop: StopReason,
}

impl HostAssets {
    /// Path of the recipe in a bundle.
    pub const RECIPE: &'static str = "assets/recipe.json";

    /// Loads what the recipe of a bundle names. The embedding table stays on disk.
    ///
    /// # Errors
    /// When a file is missing, damaged, or contradicts the recipe.
    pub fn open(bundle: impl AsRef<Path>) -> Result<Self> {
        let bundle = bundle.as_ref();
        let recipe = Recipe::open(bundle.join(Self::RECIPE))?;
        let tensors = &recipe.host_tensors;
        let tokenizer = Tokenizer::open(bundle.join(&recipe.tokenizer))?;
        let embeddings = StoredEmbeddings::new(open_tensor(bundle, "embed_tokens", &tensors.embed_tokens)?)?;
        let newline = read_floats(&open_tensor(bundle, "image_newline", &tensors.image_newline)?)?;
        let separator = read_floats(&open_tensor(bundle, "view_separator", &tensors.view_separator)?)?;
        let stored_prompt = read_ids(&open_tensor(bundle, "prompt_input_ids", &tensors.prompt_input_ids)?)?;
        let marks = Marks::new(newline, separator)?;
        let assets = Self::new(recipe, tokenizer, Box::new(embeddings), marks)?;
        if assets.prompt != stored_prompt {
            return Err(Error::input("the stored prompt is not what the tokenizer makes of the recipe's prompt")
                .at(bundle.join(&assets.recipe.host_tensors.prompt_input_ids.file).display().to_string()));
        }
        Ok(assets)
    }

    /// Puts the parts together and builds the prompt.
    ///
    /// # Errors
    /// When the recipe contradicts itself or one of the parts.
    pub fn new(
        recipe: Recipe,
        tokenizer: Tokenizer,
        embeddings: Box<dyn EmbeddingTable>,
        marks: Marks,
    ) -> Result<Self> {
        recipe.check().map_err(|e| e.at("recipe.json"))?;
        for (what, hidden) in [("embedding table", embeddings.hidden()), ("newline vector", marks.hidden())] {
            if hidden != recipe.hidden_size {
                return Err(Error::input(format!("the {what} has another width"))
                    .found(hidden)
                    .expected(format!("hidden_size {}", recipe.hidden_size)));
            }
        }
        let prompt = build_prompt(&recipe, &tokenizer)?;
        Ok(Self { recipe, tokenizer, embeddings, marks, prompt })
    }

    /// The host contract.
    #[must_use]
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// The ids fed in the prefill.
    #[must_use]
    pub fn prompt(&self) -> &[u32] {
        &self.prompt
    }

    /// The tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The input `[1, 3, side, side]` of the vision function for a page.
    ///
    /// # Errors
    /// When the page cannot be made square.
    pub fn pixels(&self, page: &RgbImage) -> Result<HostTensor> {
        self.recipe.normalisation().to_nchw(&self.recipe.preprocessing().apply(page)?)
    }

    /// The input `[1, prefix, hidden]` of the prefill, from visual tokens `[rows * columns, hidden]`.
    ///
    /// # Errors
    /// When there are too few or too many visual tokens, or an embedding cannot be read.
    pub fn prefill_embeds(&self, visual_tokens: &[f32]) -> Result<HostTensor> {
        let features = self.marks.arrange(self.recipe.grid()?, visual_tokens)?;
        let image_token = self.recipe.prompt.image_token_id;
        let embeds = arrange::inputs_embeds(&self.prompt, image_token, &features, self.embeddings.as_ref())?;
        HostTensor::floats(vec![1, self.prompt.len(), self.recipe.hidden_size], embeds)
    }

    /// The input `[1, 1, hidden]` of a decode step.
    ///
    /// # Errors
    /// When the token has no embedding or it cannot be read.
    pub fn token_embeds(&self, id: u32) -> Result<HostTensor> {
        let mut row = vec![0.0; self.recipe.hidden_size];
        self.embeddings.row(id, &mut row)?;
        HostTensor::floats(vec![1, 1, self.recipe.hidden_size], row)
    }
}

fn build_prompt(recipe: &Recipe, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
    let prompt = Prompt {
        bos: recipe.prompt.bos_token_id,
        image_token: recipe.prompt.image_token_id,
        grid: recipe.grid()?,
        text: &recipe.prompt.text,
    };
    let ids = prompt.ids(tokenizer)?;
    if ids.len() != recipe.prompt.prefix_length {
        return Err(Error::input("the prompt has another length than the recipe says")
            .at("prompt.prefix_length")
            .found(ids.len())
            .expected(recipe.prompt.prefix_length)
            .hint("the tokenizer is not the one the bundle was made with"));
    }
    Ok(ids)
}

fn open_tensor(bundle: &Path, name: &str, file: &HostTensorFile) -> Result<StoredTensor> {
    let source = FileSource::open(bundle.join(&file.file))?;
    let tensor = StoredTensor {
        name: Arc::from(name),
        source: Arc::new(source),
        offset: 0,
        element: file.element,
        shape: file.shape.clone(),
    };
    arrange::check_extent(&tensor)?;
    Ok(tensor)
}

fn read_bytes(tensor: &StoredTensor) -> Result<Vec<u8>> {
    let mut bytes = vec![0; tensor.elements() * tensor.element.size()];
    tensor.read_at(&mut bytes, 0)?;
    Ok(bytes)
}

fn read_floats(tensor: &StoredTensor) -> Result<Vec<f32>> {
    let mut values = vec![0.0; tensor.elements()];
    arrange::to_floats(tensor.element, &read_bytes(tensor)?, &mut values);
    Ok(values)
}

fn read_ids(tensor: &StoredTensor) -> Result<Vec<u32>> {
    debug_assert_eq!(tensor.element, ElementType::I32);
    Ok(read_bytes(tensor)?.as_chunks::<4>().0.iter().map(|&bytes| u32::from_le_bytes(bytes)).collect())
}

/// Reads one page. `limit` lowers the most tokens generated; `each_token` is told how many there are after every
/// step, and ends the reading by an error.
///
/// # Errors
/// When the page cannot be preprocessed, or a function fails or gives something of the wrong shape; names the step.
pub fn read_page(
    runtime: &mut dyn Runtime,
    host: &HostAssets,
    page: &RgbImage,
    limit: Option<usize>,
    each_token: &dyn Fn(usize) -> Result<()>,
) -> Result<Reading> {
    let mut steps = Steps::new(runtime, host);
    let visual_tokens = steps.see(page)?;
    let mut logits = steps.prefill(&visual_tokens)?;
    let mut policy = host.recipe.policy()?;
    policy.max_tokens = limit.unwrap_or(usize::MAX).min(policy.max_tokens);
    let mut generator = Generator::new(policy, &host.prompt);
    let stop = loop {
        match generator.next(&logits)? {
            Next::Stop(reason) => break reason,
            Next::Token(id) => {
                let step = generator.output().len();
                each_token(step)?;
                logits = steps.decode(id, step)?;
            }
        }
    };
    let ids = generator.output().to_vec();
    Ok(Reading { text: host.tokenizer.decode(text_ids(&ids, stop))?, ids, stop })
}

/// The ids without the stop token: not every checkpoint marks it as special.
fn text_ids(ids: &[u32], stop: StopReason) -> &[u32] {
    match (stop, ids) {
        (StopReason::StopToken(_), [text @ .., _]) => text,
        _ => ids,
    }
}

/// The calls that reading a page takes, one by one.
pub struct Steps<'a> {
    runtime: &'a mut dyn Runtime,
    host: &'a HostAssets,
}

impl std::fmt::Debug for Steps<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Steps").field("runtime", &self.runtime.name()).finish_non_exhaustive()
    }
}

impl<'a> Steps<'a> {
    /// The calls of `runtime` as the recipe of `host` describes them.
    pub fn new(runtime: &'a mut dyn Runtime, host: &'a HostAssets) -> Self {
        Self { runtime, host }
    }

    /// Visual tokens `[rows * columns, hidden]` of a page.
    ///
    /// # Errors
    /// When the page cannot be preprocessed or the function fails.
    pub fn see(&mut self, page: &RgbImage) -> Result<Vec<f32>> {
        self.run_vision(page).map_err(|e| e.at("vision"))
    }

    /// Logits `[vocabulary]` after the prompt, from empty caches.
    ///
    /// # Errors
    /// When the function fails.
    pub fn prefill(&mut self, visual_tokens: &[f32]) -> Result<Vec<f32>> {
        self.run_prefill(visual_tokens).map_err(|e| e.at("prefill"))
    }

    /// Logits `[vocabulary]` after the `step`-th generated token, counted from 1.
    ///
    /// # Errors
    /// When the function fails.
    pub fn decode(&mut self, id: u32, step: usize) -> Result<Vec<f32>> {
        self.run_decode(id, step).map_err(|e| e.at(format!("decode step {step}")))
    }

    fn run_vision(&mut self, page: &RgbImage) -> Result<Vec<f32>> {
        let recipe = &self.host.recipe;
        let call = Call {
            asset: Asset::Vision,
            function: &recipe.vision.function,
            inputs: vec![(recipe.vision.image.as_str(), self.host.pixels(page)?)],
            states: Vec::new(),
        };
        let shape = [1, recipe.grid()?.tokens(), recipe.hidden_size];
        self.runtime.run(&call)?.take_floats(&recipe.vision.visual_tokens, &shape)
    }

    fn run_prefill(&mut self, visual_tokens: &[f32]) -> Result<Vec<f32>> {
        let recipe = &self.host.recipe;
        self.runtime.reset_states(Asset::Decoder, &recipe.states())?;
        let embeds = self.host.prefill_embeds(visual_tokens)?;
        self.logits(&recipe.decoder.prefill, vec![(recipe.decoder.inputs_embeds.as_str(), embeds)])
    }

    fn run_decode(&mut self, id: u32, step: usize) -> Result<Vec<f32>> {
        let decoder = &self.host.recipe.decoder;
        let position = i32::try_from(self.host.prompt.len() + step - 1)
            .map_err(|_| Error::input("the position does not fit into 32 bits"))?;
        let inputs = vec![
            (decoder.inputs_embeds.as_str(), self.host.token_embeds(id)?),
            (decoder.position.as_str(), HostTensor::ints(vec![1], vec![position])?),
        ];
        self.logits(&decoder.decode, inputs)
    }

    fn logits(&mut self, function: &str, inputs: Vec<(&str, HostTensor)>) -> Result<Vec<f32>> {
        let recipe = &self.host.recipe;
        let states = vec![recipe.decoder.key_cache.as_str(), recipe.decoder.value_cache.as_str()];
        let call = Call { asset: Asset::Decoder, function, inputs, states };
        self.runtime.run(&call)?.take_floats(&recipe.decoder.logits, &[1, 1, recipe.vocab_size])
    }
}

#[cfg(test)]
mod tests;
