//! Reads one page: pixels, visual tokens, prefill, then one token a step.
//!
//! The loop is the same for every bundle; what is fed to which function is a matter of the contract, in a file each.

mod embeddings;
mod slots;
mod stored;

use std::path::Path;

use ::image::RgbImage;

use super::decode::{Generator, Next, StopReason};
use super::recipe::{Contract, Recipe, Variant};
use super::tokenizer::Tokenizer;
use crate::runtime::{HostTensor, Runtime, TensorData};
use crate::{Error, Result};

pub use embeddings::EmbeddingsHost;
use slots::SlotsHost;

/// Everything of a bundle that the host itself uses.
#[derive(Debug)]
pub struct HostAssets {
    recipe: Recipe,
    tokenizer: Tokenizer,
    side: Side,
}

/// The host's side of a contract.
#[derive(Debug)]
enum Side {
    Embeddings(EmbeddingsHost),
    Slots(SlotsHost),
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

/// A page as the vision function gives it. Clones share the visual tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    grid: usize,
    tokens: HostTensor,
}

impl Seen {
    /// Number of the grid the page was seen in; its prompt has the same number.
    #[must_use]
    pub const fn grid(&self) -> usize {
        self.grid
    }

    /// The visual tokens, in the shape in which the function gives them.
    #[must_use]
    pub const fn tokens(&self) -> &HostTensor {
        &self.tokens
    }

    /// The elements of the visual tokens, row-major.
    #[must_use]
    pub fn values(&self) -> &[f32] {
        match self.tokens.data() {
            TensorData::Floats(values) => values,
            TensorData::Ints(_) => &[],
        }
    }
}

impl HostAssets {
    /// Path of the recipe in a bundle.
    pub const RECIPE: &'static str = "assets/recipe.json";

    /// Loads what the recipe of a bundle names. An embedding table stays on disk.
    ///
    /// # Errors
    /// When a file is missing, damaged, or contradicts the recipe.
    pub fn open(bundle: impl AsRef<Path>) -> Result<Self> {
        let bundle = bundle.as_ref();
        let recipe = Recipe::open(bundle.join(Self::RECIPE))?;
        let tokenizer = Tokenizer::open(bundle.join(&recipe.tokenizer))?;
        let side = match &recipe.contract {
            Contract::Embeddings(contract) => {
                Side::Embeddings(EmbeddingsHost::open(bundle, &recipe, contract, &tokenizer)?)
            }
            Contract::Slots(contract) => Side::Slots(SlotsHost::open(bundle, &recipe, contract, &tokenizer)?),
        };
        Ok(Self { recipe, tokenizer, side })
    }

    /// Reads with the functions of `variant` from now on, instead of the quickest there are.
    ///
    /// # Errors
    /// When the bundle does not have them; names those it has.
    pub fn choose(&mut self, variant: Variant) -> Result<()> {
        match &mut self.side {
            Side::Embeddings(_) => Err(Error::input("the functions of this bundle leave no choice").found(variant)),
            Side::Slots(side) => side.choose(variant),
        }
    }

    /// The host contract.
    #[must_use]
    pub const fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// The tokenizer.
    #[must_use]
    pub const fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The host's side of a decoder that takes embeddings, if it does.
    #[must_use]
    pub const fn embeddings(&self) -> Option<&EmbeddingsHost> {
        match &self.side {
            Side::Embeddings(side) => Some(side),
            Side::Slots(_) => None,
        }
    }

    /// The ids fed in the prefill, for each grid.
    #[must_use]
    pub fn prompts(&self) -> Vec<&[u32]> {
        match &self.side {
            Side::Embeddings(side) => vec![side.prompt()],
            Side::Slots(side) => side.prompts().collect(),
        }
    }

    /// Number of the grid that a page is seen in.
    ///
    /// # Errors
    /// When the page is too narrow for any.
    pub fn grid_of(&self, page: &RgbImage) -> Result<usize> {
        match &self.side {
            Side::Embeddings(_) => Ok(0),
            Side::Slots(side) => side.grid_of(page),
        }
    }
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
    let seen = steps.see(page)?;
    let mut logits = steps.prefill(&seen)?;
    let mut policy = host.recipe.policy()?;
    policy.max_tokens = limit.unwrap_or(usize::MAX).min(policy.max_tokens);
    let prompt = host.prompts().get(seen.grid).copied().unwrap_or_default();
    let mut generator = Generator::new(policy, prompt);
    let stop = loop {
        match generator.next(&logits)? {
            Next::Stop(reason) => break reason,
            Next::Token(id) => {
                let step = generator.output().len();
                each_token(step)?;
                logits = steps.decode(&seen, id, step)?;
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

    /// The visual tokens of a page, in the grid that suits it.
    ///
    /// # Errors
    /// When the page cannot be preprocessed or the function fails.
    pub fn see(&mut self, page: &RgbImage) -> Result<Seen> {
        let grid = self.host.grid_of(page)?;
        self.see_in(grid, page)
    }

    /// The visual tokens of a page in the grid of this number.
    ///
    /// # Errors
    /// When there is no such grid, the page cannot be preprocessed or the function fails.
    pub fn see_in(&mut self, grid: usize, page: &RgbImage) -> Result<Seen> {
        let tokens = match &self.host.side {
            Side::Embeddings(side) => side.see(self.runtime, page),
            Side::Slots(side) => side.see(self.runtime, grid, page),
        };
        Ok(Seen { grid, tokens: tokens.map_err(|e| e.at("vision"))? })
    }

    /// Logits `[vocabulary]` after the prompt, from empty caches.
    ///
    /// # Errors
    /// When a function fails.
    pub fn prefill(&mut self, seen: &Seen) -> Result<Vec<f32>> {
        let logits = match &self.host.side {
            Side::Embeddings(side) => side.prefill(self.runtime, seen),
            Side::Slots(side) => side.prefill(self.runtime, seen),
        };
        logits.map_err(|e| e.at("prefill"))
    }

    /// Logits `[vocabulary]` after the `step`-th generated token, counted from 1.
    ///
    /// # Errors
    /// When the function fails.
    pub fn decode(&mut self, seen: &Seen, id: u32, step: usize) -> Result<Vec<f32>> {
        let logits = match &self.host.side {
            Side::Embeddings(side) => side.decode(self.runtime, id, step),
            Side::Slots(side) => side.decode(self.runtime, seen, id, step),
        };
        logits.map_err(|e| e.at(format!("decode step {step}")))
    }
}

/// A number as functions take ids and positions.
fn to_i32(what: &str, value: impl TryInto<i32>) -> Result<i32> {
    value.try_into().map_err(|_| Error::input(format!("the {what} does not fit into 32 bits")))
}
