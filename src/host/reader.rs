//! Reads one page: pixels, visual tokens, prefill, then one token a step.
//!
//! The loop is the same for every bundle; what is fed to which function is a matter of the contract, in a file each.

mod embeddings;
mod slots;
mod stored;

use std::path::Path;

use ::image::RgbImage;

use super::decode::{Generator, Next, StopReason};
use super::kv::Sequence;
use super::recipe::{Contract, Recipe, Variant};
use super::tokenizer::Tokenizer;
use crate::error::At;
use crate::runtime::{HostTensor, Runtime};
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
        self.tokens.as_floats()
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
    let mut session = Session::new(host);
    let seen = session.see(runtime, page)?;
    let mut logits = session.prefill(runtime, &seen)?;
    let mut policy = host.recipe.policy()?;
    policy.max_tokens = limit.unwrap_or(usize::MAX).min(policy.max_tokens);
    let prompt = host.prompts().get(seen.grid).copied().unwrap_or_default();
    let mut generator = Generator::new(policy, prompt);
    let stop = loop {
        match generator.next(&logits)? {
            Next::Stop(reason) => break reason,
            Next::Token(id) => {
                each_token(generator.output().len())?;
                logits = session.decode(runtime, id)?;
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

/// The calls that reading pages takes, one by one, and what lives between them. All are made on one runtime.
#[derive(Debug)]
pub struct Session<'h> {
    host: &'h HostAssets,
    sequence: Sequence<'h>,
    page: Option<Seen>,
}

impl<'h> Session<'h> {
    /// Of a bundle, as its recipe describes it.
    #[must_use]
    pub fn new(host: &'h HostAssets) -> Self {
        Self { host, sequence: Sequence::new(&host.recipe), page: None }
    }

    /// The visual tokens of a page, in the grid that suits it.
    ///
    /// # Errors
    /// When the page cannot be preprocessed or the function fails.
    pub fn see(&self, runtime: &mut dyn Runtime, page: &RgbImage) -> Result<Seen> {
        self.see_in(runtime, self.host.grid_of(page)?, page)
    }

    /// The visual tokens of a page in the grid of this number.
    ///
    /// # Errors
    /// When there is no such grid, the page cannot be preprocessed or the function fails.
    pub fn see_in(&self, runtime: &mut dyn Runtime, grid: usize, page: &RgbImage) -> Result<Seen> {
        let tokens = match &self.host.side {
            Side::Embeddings(side) => side.see(runtime, page),
            Side::Slots(side) => side.see(runtime, grid, page),
        };
        Ok(Seen { grid, tokens: tokens.at(|| "vision")? })
    }

    /// Logits `[vocabulary]` after the prompt of a page, from empty caches.
    ///
    /// # Errors
    /// When a function fails.
    pub fn prefill(&mut self, runtime: &mut dyn Runtime, seen: &Seen) -> Result<Vec<f32>> {
        self.page = None;
        let logits = self.prompt(runtime, seen).at(|| "prefill")?;
        self.page = Some(seen.clone());
        Ok(logits)
    }

    fn prompt(&mut self, runtime: &mut dyn Runtime, seen: &Seen) -> Result<Vec<f32>> {
        self.sequence.begin(runtime)?;
        match &self.host.side {
            Side::Embeddings(side) => side.prefill(runtime, &mut self.sequence, seen),
            Side::Slots(side) => side.prefill(runtime, &mut self.sequence, seen),
        }
    }

    /// Logits `[vocabulary]` after one more token of the page whose prompt was read.
    ///
    /// # Errors
    /// When no prompt was read, the caches are full, or the function fails.
    pub fn decode(&mut self, runtime: &mut dyn Runtime, id: u32) -> Result<Vec<f32>> {
        let seen = self.page.as_ref().ok_or_else(|| Error::input("no prompt was read"))?;
        let prompt = self.host.prompts().get(seen.grid).map_or(0, |prompt| prompt.len());
        let step = (self.sequence.length() + 1).saturating_sub(prompt);
        let logits = match &self.host.side {
            Side::Embeddings(side) => side.decode(runtime, &mut self.sequence, id),
            Side::Slots(side) => side.decode(runtime, &mut self.sequence, (seen, id)),
        };
        logits.at(|| format!("decode step {step}"))
    }

    /// The recipe of the bundle.
    #[must_use]
    pub const fn recipe(&self) -> &Recipe {
        &self.host.recipe
    }

    /// Tokens in the caches.
    #[must_use]
    pub const fn length(&self) -> usize {
        self.sequence.length()
    }

    /// Keys and values, each `[layers, 1, heads, length, head_dim]`, where the host keeps them.
    #[must_use]
    pub fn columns(&self) -> Option<[Vec<f32>; 2]> {
        self.sequence.columns()
    }
}
