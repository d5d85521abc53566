//! Decoders that take token ids and, beside them, the visual tokens that some of the ids are slots of.

use std::path::Path;

use ::image::RgbImage;

use super::{Seen, stored};
use crate::error::At;
use crate::grid::Grid;
use crate::host::image::{self, Fit};
use crate::host::kv::{Feed, Sequence, Start};
use crate::host::recipe::{DecoderFunctions, GridRecipe, Recipe, SlotsContract, Variant};
use crate::host::slots::Slots;
use crate::host::tokenizer::Tokenizer;
use crate::runtime::{Asset, Call, HostTensor, Runtime};
use crate::{Error, Result};

/// The variants, the quickest first.
const BY_SPEED: [Variant; 3] = [Variant::Prefill, Variant::Dynamic, Variant::Step];

/// The host's side of the contract.
#[derive(Debug)]
pub(super) struct SlotsHost {
    contract: SlotsContract,
    hidden: usize,
    vocabulary: usize,
    grids: Vec<Laid>,
    variant: Variant,
}

/// A grid, and the prompt of a page that is seen in it.
#[derive(Debug)]
struct Laid {
    recipe: GridRecipe,
    grid: Grid,
    prompt: Vec<u32>,
}

/// How a prompt is read: as many whole chunks as there are by one function, the rest and all that follows token by
/// token by another.
struct Plan<'r> {
    chunk: usize,
    chunks: &'r str,
    step: &'r str,
}

impl SlotsHost {
    pub(super) fn open(
        bundle: &Path,
        recipe: &Recipe,
        contract: &SlotsContract,
        tokenizer: &Tokenizer,
    ) -> Result<Self> {
        let ids = tokenizer.encode(&contract.prompt.rendered)?;
        let lay = |(index, grid)| -> Result<Laid> {
            let laid = Laid::new(contract, grid, &ids).at(|| format!("contract.slots.grids[{index}]"))?;
            stored::check_prompt(bundle, &grid.prompt_input_ids, &laid.prompt)?;
            Ok(laid)
        };
        let grids = contract.grids.iter().enumerate().map(lay).collect::<Result<_>>()?;
        let there = contract.variants();
        let variant = BY_SPEED.into_iter().find(|variant| there.contains(variant));
        Ok(Self {
            contract: contract.clone(),
            hidden: recipe.hidden_size,
            vocabulary: recipe.vocab_size,
            grids,
            variant: variant.ok_or_else(|| Error::input("the decoder has no function that reads a prompt"))?,
        })
    }

    pub(super) fn choose(&mut self, variant: Variant) -> Result<()> {
        let there = self.contract.variants();
        if there.contains(&variant) {
            self.variant = variant;
            return Ok(());
        }
        let there: Vec<&str> = there.into_iter().map(Variant::name).collect();
        Err(Error::input("the bundle does not have these functions").found(variant).expected(there.join(" or ")))
    }

    /// The ids fed in the prefill, for each grid.
    pub(super) fn prompts(&self) -> impl Iterator<Item = &[u32]> {
        self.grids.iter().map(|laid| laid.prompt.as_slice())
    }

    /// The grid of the size that the checkpoint's processor gives the page, or else of the closest aspect ratio.
    pub(super) fn grid_of(&self, page: &RgbImage) -> Result<usize> {
        let sides = [page.width(), page.height()];
        let own = self.contract.page.processor().size(sides[0], sides[1])?;
        if let Some(exact) = self.grids.iter().position(|laid| self.pixels(laid) == own) {
            return Ok(exact);
        }
        let stretch = |laid: &Laid| stretch(sides, self.pixels(laid));
        let all = self.grids.iter().map(stretch).enumerate();
        let closest = all.min_by(|(_, a), (_, b)| a.total_cmp(b));
        closest.map(|(index, _)| index).ok_or_else(|| Error::input("there is no grid"))
    }

    /// Width and height of a page in a grid.
    fn pixels(&self, laid: &Laid) -> [u32; 2] {
        let token = self.contract.page.processor().token_pixels();
        [laid.grid.columns(), laid.grid.rows()].map(|tokens| tokens as u32 * token)
    }

    fn laid(&self, grid: usize) -> Result<&Laid> {
        self.grids.get(grid).ok_or_else(|| {
            Error::input("there is no such grid").found(grid).expected(format!("less than {}", self.grids.len()))
        })
    }

    /// Visual tokens `[tokens, hidden]`. A page whose own size is that of the grid is stretched to it, as Hugging Face
    /// does; any other keeps its aspect.
    pub(super) fn see(&self, runtime: &mut dyn Runtime, grid: usize, page: &RgbImage) -> Result<HostTensor> {
        let laid = self.laid(grid)?;
        let vision = &self.contract.vision;
        let call = Call {
            asset: Asset::Vision,
            function: &laid.recipe.vision,
            inputs: vec![(vision.patches.as_str(), self.patches(laid, page)?)],
            states: Vec::new(),
        };
        let shape = [laid.grid.tokens(), self.hidden];
        let tokens = runtime.run(&call)?.take_floats(&vision.image_embeds, &shape)?;
        HostTensor::floats(shape.to_vec(), tokens)
    }

    fn patches(&self, laid: &Laid, page: &RgbImage) -> Result<HostTensor> {
        let processor = self.contract.page.processor();
        let size = self.pixels(laid);
        let stretched = processor.size(page.width(), page.height())? == size;
        let fit = if stretched { Fit::Stretch } else { Fit::Pad { fill: self.contract.page.fill } };
        processor.patches(&image::fit(page, size, fit)?)
    }

    pub(super) fn prefill(
        &self,
        runtime: &mut dyn Runtime,
        sequence: &mut Sequence<'_>,
        seen: &Seen,
    ) -> Result<Vec<f32>> {
        let laid = self.laid(seen.grid)?;
        let Plan { chunk, chunks, step } = self.plan(laid)?;
        let whole = laid.prompt.chunks_exact(chunk);
        let rest = whole.remainder().chunks(1).map(|ids| (step, ids));
        let mut logits = Vec::new();
        for (function, ids) in whole.map(|ids| (chunks, ids)).chain(rest) {
            logits = self.logits(runtime, sequence, self.feed(seen, function, ids)?)?;
        }
        Ok(logits)
    }

    pub(super) fn decode(
        &self,
        runtime: &mut dyn Runtime,
        sequence: &mut Sequence<'_>,
        (seen, id): (&Seen, u32),
    ) -> Result<Vec<f32>> {
        let function = self.plan(self.laid(seen.grid)?)?.step;
        self.logits(runtime, sequence, self.feed(seen, function, &[id])?)
    }

    fn plan<'r>(&self, laid: &'r Laid) -> Result<Plan<'r>> {
        let plan = Plan::of(&laid.recipe.decoder, self.variant, laid.prompt.len());
        plan.ok_or_else(|| Error::input("the grid does not have these functions").found(self.variant))
    }

    /// The call of a function with these tokens of a page.
    fn feed<'f>(&'f self, seen: &Seen, function: &'f str, ids: &[u32]) -> Result<Feed<'f>> {
        let decoder = &self.contract.decoder;
        let shift = self.laid(seen.grid)?.recipe.rope_shift();
        let tokens = ids.iter().map(|id| token(*id)).collect::<Result<_>>()?;
        let inputs = vec![
            (decoder.input_ids.as_str(), HostTensor::ints(vec![1, ids.len()], tokens)?),
            (decoder.image_embeds.as_str(), seen.tokens.clone()),
            (decoder.rope_shift_start.as_str(), HostTensor::ints(vec![1], vec![shift.start])?),
            (decoder.rope_shift_amount.as_str(), HostTensor::ints(vec![1], vec![shift.amount])?),
        ];
        Ok(Feed { function, inputs, tokens: ids.len(), start: Start::Behind })
    }

    /// The last row of the logits.
    fn logits(&self, runtime: &mut dyn Runtime, sequence: &mut Sequence<'_>, feed: Feed<'_>) -> Result<Vec<f32>> {
        let tokens = feed.tokens;
        let mut outputs = sequence.feed(runtime, feed)?;
        let mut rows = outputs.take_floats(&self.contract.decoder.logits, &[1, tokens, self.vocabulary])?;
        let last = rows.len().saturating_sub(self.vocabulary);
        Ok(rows.split_off(last))
    }
}

/// A token as functions take it.
fn token(id: u32) -> Result<i32> {
    i32::try_from(id).map_err(|_| Error::input("the token does not fit into 32 bits").found(id))
}

impl Laid {
    /// Puts the slots of a grid into the prompt `ids`, which has one image token.
    fn new(contract: &SlotsContract, recipe: &GridRecipe, ids: &[u32]) -> Result<Self> {
        let grid = recipe.grid()?;
        let prompt = &contract.prompt;
        let slots = Slots { placeholder: prompt.image_token_id, vocabulary: prompt.first_slot_id, grid };
        let filled = slots.fill(ids)?;
        let (found, expected) = ((filled.ids.len(), filled.shift), (recipe.prefix_length, recipe.rope_shift()));
        if found != expected {
            let said = |(length, shift)| format!("{length} tokens, {shift:?}");
            return Err(Error::input("the prompt is laid out otherwise than the recipe says")
                .found(said(found))
                .expected(said(expected))
                .hint("the tokenizer is not the one the bundle was made with"));
        }
        Ok(Self { recipe: recipe.clone(), grid, prompt: filled.ids })
    }
}

impl<'r> Plan<'r> {
    /// How `functions` read a prompt of `length` tokens, if they are there.
    fn of(functions: &'r DecoderFunctions, variant: Variant, length: usize) -> Option<Self> {
        let step = functions.step.as_deref();
        let plan = match variant {
            Variant::Dynamic => {
                let any = functions.dynamic.as_deref()?;
                Self { chunk: length, chunks: any, step: any }
            }
            Variant::Step => Self { chunk: 1, chunks: step?, step: step? },
            Variant::Prefill => {
                let prefill = functions.prefill.as_ref()?;
                Self { chunk: prefill.tokens, chunks: &prefill.function, step: step? }
            }
        };
        Some(plan).filter(|plan| plan.chunk > 0)
    }
}

/// How far the aspect ratio of a page is from that of a grid: 1 where they are equal, in either direction more.
fn stretch([width, height]: [u32; 2], [columns, rows]: [u32; 2]) -> f64 {
    let (a, b) = (u64::from(width) * u64::from(rows), u64::from(height) * u64::from(columns));
    a.max(b) as f64 / a.min(b) as f64
}

#[cfg(test)]
mod tests;
