//! Decoders that take embeddings: the host looks tokens up and arranges the visual ones among them.

use std::path::Path;

use ::image::RgbImage;

use super::{Seen, stored};
use crate::host::arrange::{self, EmbeddingTable, Marks, StoredEmbeddings};
use crate::host::kv::{Feed, Sequence, Start};
use crate::host::prompt::Prompt;
use crate::host::recipe::{EmbeddingsContract, Recipe};
use crate::host::tokenizer::Tokenizer;
use crate::runtime::{Asset, Call, HostTensor, Runtime};
use crate::{Error, Result};

/// The host's side of the contract.
#[derive(Debug)]
pub struct EmbeddingsHost {
    contract: EmbeddingsContract,
    hidden: usize,
    vocabulary: usize,
    table: Box<dyn EmbeddingTable>,
    marks: Marks,
    prompt: Vec<u32>,
}

impl EmbeddingsHost {
    pub(super) fn open(
        bundle: &Path,
        recipe: &Recipe,
        contract: &EmbeddingsContract,
        tokenizer: &Tokenizer,
    ) -> Result<Self> {
        let tensors = &contract.host_tensors;
        let table = StoredEmbeddings::new(stored::open(bundle, "embed_tokens", &tensors.embed_tokens)?)?;
        let vector = |name, file| stored::read_floats(&stored::open(bundle, name, file)?);
        let newline = vector("image_newline", &tensors.image_newline)?;
        let separator = vector("view_separator", &tensors.view_separator)?;
        let prompt = build_prompt(contract, tokenizer)?;
        stored::check_prompt(bundle, &tensors.prompt_input_ids, &prompt)?;
        Ok(Self {
            contract: contract.clone(),
            hidden: recipe.hidden_size,
            vocabulary: recipe.vocab_size,
            table: Box::new(table),
            marks: Marks::new(newline, separator)?,
            prompt,
        })
    }

    /// The ids fed in the prefill.
    #[must_use]
    pub fn prompt(&self) -> &[u32] {
        &self.prompt
    }

    /// The input `[1, 3, side, side]` of the vision function for a page.
    ///
    /// # Errors
    /// When the page cannot be made square.
    pub fn pixels(&self, page: &RgbImage) -> Result<HostTensor> {
        self.contract.normalisation().to_nchw(&self.contract.preprocessing().apply(page)?)
    }

    /// The input `[1, prefix, hidden]` of the prefill, from visual tokens `[rows * columns, hidden]`.
    ///
    /// # Errors
    /// When there are too few or too many visual tokens, or an embedding cannot be read.
    pub fn prefill_embeds(&self, visual_tokens: &[f32]) -> Result<HostTensor> {
        let features = self.marks.arrange(self.contract.grid()?, visual_tokens)?;
        let image_token = self.contract.prompt.image_token_id;
        let embeds = arrange::inputs_embeds(&self.prompt, image_token, &features, self.table.as_ref())?;
        HostTensor::floats(vec![1, self.prompt.len(), self.hidden], embeds)
    }

    /// The input `[1, 1, hidden]` of a decode step.
    ///
    /// # Errors
    /// When the token has no embedding or it cannot be read.
    pub fn token_embeds(&self, id: u32) -> Result<HostTensor> {
        let mut row = vec![0.0; self.hidden];
        self.table.row(id, &mut row)?;
        HostTensor::floats(vec![1, 1, self.hidden], row)
    }

    /// Visual tokens `[1, rows * columns, hidden]`.
    pub(super) fn see(&self, runtime: &mut dyn Runtime, page: &RgbImage) -> Result<HostTensor> {
        let vision = &self.contract.vision;
        let call = Call {
            asset: Asset::Vision,
            function: &vision.function,
            inputs: vec![(vision.image.as_str(), self.pixels(page)?)],
            states: Vec::new(),
        };
        let shape = [1, self.contract.grid()?.tokens(), self.hidden];
        let tokens = runtime.run(&call)?.take_floats(&vision.visual_tokens, &shape)?;
        HostTensor::floats(shape.to_vec(), tokens)
    }

    pub(super) fn prefill(
        &self,
        runtime: &mut dyn Runtime,
        sequence: &mut Sequence<'_>,
        seen: &Seen,
    ) -> Result<Vec<f32>> {
        let decoder = &self.contract.decoder;
        let inputs = vec![(decoder.inputs_embeds.as_str(), self.prefill_embeds(seen.values())?)];
        let feed = Feed { function: &decoder.prefill, inputs, tokens: self.prompt.len(), start: Start::AtZero };
        self.logits(runtime, sequence, feed)
    }

    pub(super) fn decode(&self, runtime: &mut dyn Runtime, sequence: &mut Sequence<'_>, id: u32) -> Result<Vec<f32>> {
        let decoder = &self.contract.decoder;
        let inputs = vec![(decoder.inputs_embeds.as_str(), self.token_embeds(id)?)];
        self.logits(runtime, sequence, Feed { function: &decoder.decode, inputs, tokens: 1, start: Start::Behind })
    }

    fn logits(&self, runtime: &mut dyn Runtime, sequence: &mut Sequence<'_>, feed: Feed<'_>) -> Result<Vec<f32>> {
        let mut outputs = sequence.feed(runtime, feed)?;
        outputs.take_floats(&self.contract.decoder.logits, &[1, 1, self.vocabulary])
    }
}

fn build_prompt(contract: &EmbeddingsContract, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
    let prompt = Prompt {
        bos: contract.prompt.bos_token_id,
        image_token: contract.prompt.image_token_id,
        grid: contract.grid()?,
        text: &contract.prompt.text,
    };
    let ids = prompt.ids(tokenizer)?;
    if ids.len() != contract.prompt.prefix_length {
        return Err(Error::input("the prompt has another length than the recipe says")
            .at("contract.embeddings.prompt.prefix_length")
            .found(ids.len())
            .expected(contract.prompt.prefix_length)
            .hint("the tokenizer is not the one the bundle was made with"));
    }
    Ok(ids)
}

#[cfg(test)]
mod tests;
