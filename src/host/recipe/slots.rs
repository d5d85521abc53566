//! The contract of decoders that take token ids and, beside them, the visual tokens that some of the ids are slots of.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::functions::{FunctionPorts, Port, WholeFunction};
use super::{HostTensorFile, MAX_EXTENT, Recipe, ensure, ensure_deviations, ensure_inside};
use crate::grid::Grid;
use crate::host::image::{MAX_SIDE, Normalisation};
use crate::host::patches::PageProcessor;
use crate::host::slots::RopeShift;
use crate::runtime::Asset;
use crate::{ElementType, Error, Result};

/// A page in one of several grids, each with functions of its own; all share weights and states.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlotsContract {
    /// From a page to patches.
    pub page: PageRecipe,
    /// What is fed before the first generated token.
    pub prompt: SlotsPrompt,
    /// The grids there are functions for; the first is the default.
    pub grids: Vec<GridRecipe>,
    /// The vision asset.
    pub vision: PatchesAsset,
    /// The decoder asset.
    pub decoder: IdsAsset,
    /// Extents that are chosen at run time; all others are fixed.
    pub symbols: Vec<SymbolRecipe>,
    /// How an engine has to be set up.
    pub engine: EngineRecipe,
}

/// From a page to patches `[n, 3 * frames * patch * patch]`.
///
/// A page whose own size, resized as the checkpoint's processor does it, is that of a grid is stretched to it. Any other
/// goes to the grid of the closest aspect ratio, its own kept, centred on a ground of one colour.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PageRecipe {
    /// Side of a patch, in pixels.
    pub patch: u32,
    /// Frames of a patch; the page is repeated.
    pub frames: u32,
    /// Patches along each side of a visual token.
    pub merge: u32,
    /// Fewest and most pixels of a page as the checkpoint's processor resizes it, counted in every frame.
    pub pixels: [u64; 2],
    /// Mean of red, green, blue, in 0 to 1.
    pub mean: [f32; 3],
    /// Standard deviation of red, green, blue, in 0 to 1.
    pub std: [f32; 3],
    /// Colour of the ground.
    pub fill: [u8; 3],
}

/// What is fed before the first generated token: `rendered` as token ids, its one image token replaced by the slots of
/// the grid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotsPrompt {
    /// The instruction.
    pub text: String,
    /// The whole prompt, with one image token.
    pub rendered: String,
    /// What rendered it: `chat_template.jinja`, `tokenizer_config.json: chat_template` or `built-in`.
    pub origin: String,
    /// Token that stands for the image.
    pub image_token_id: u32,
    /// Id of the first visual token; that of slot i is `first_slot_id + i`.
    pub first_slot_id: u32,
}

/// A grid of visual tokens, and what belongs to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GridRecipe {
    /// Rows of visual tokens.
    pub rows: usize,
    /// Visual tokens in a row.
    pub columns: usize,
    /// Name of the vision function.
    pub vision: String,
    /// Names of the decoder functions.
    pub decoder: DecoderFunctions,
    /// Tokens of the prompt.
    pub prefix_length: usize,
    /// Position of the first token after the image.
    pub rope_shift_start: i32,
    /// What is taken off the positions from there on.
    pub rope_shift_amount: i32,
    /// The prompt, i32 `[prefix]`.
    pub prompt_input_ids: HostTensorFile,
}

/// The decoder functions of one grid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecoderFunctions {
    /// The function that takes any number of tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dynamic: Option<String>,
    /// The function that takes one token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// The function that takes a chunk of the prompt; only beside one that takes one token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill: Option<PrefillFunction>,
}

/// A function that takes a chunk of the prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefillFunction {
    /// Name of the function.
    pub function: String,
    /// Tokens it takes.
    pub tokens: usize,
}

/// The vision asset: for each grid `function(patches [n, elements]) -> image_embeds [tokens, hidden]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatchesAsset {
    /// Path of the asset in the bundle.
    pub asset: String,
    /// Name of the input.
    pub patches: String,
    /// Name of the output.
    pub image_embeds: String,
}

/// The decoder asset: for each grid functions `(input_ids si32 [1, s], image_embeds [tokens, hidden],
/// rope_shift_start si32 [1], rope_shift_amount si32 [1]) -> logits [1, s, vocabulary]`, all over the same caches. What
/// they take and give besides is a matter of the form of the caches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdsAsset {
    /// Path of the asset in the bundle.
    pub asset: String,
    /// Name of the input of token ids.
    pub input_ids: String,
    /// Name of the input of visual tokens.
    pub image_embeds: String,
    /// Name of the input of the position of the first token after the image.
    pub rope_shift_start: String,
    /// Name of the input of what is taken off from there on.
    pub rope_shift_amount: String,
    /// Name of the output.
    pub logits: String,
}

/// An extent that is chosen at run time. For `input_ids` this holds of the functions that take any number of tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SymbolRecipe {
    /// Its name.
    pub name: String,
    /// The input of the decoder whose extent it is.
    pub input: String,
    /// Axis of the input, counted from 0.
    pub axis: usize,
    /// Smallest extent.
    pub min: usize,
    /// Largest extent.
    pub max: usize,
}

/// How an engine has to be set up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineRecipe {
    /// What `COREAI_CHUNK_THRESHOLD` has to be: 1 where a function takes one token only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk_threshold: Option<usize>,
    /// Whether the option `expectFrequentReshapes` has to be set.
    pub expect_frequent_reshapes: bool,
    /// The command that compiles an asset ahead of time.
    pub aot_compile: String,
}

/// Which functions read a prompt and go on from there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Variant {
    /// One function that takes any number of tokens: the prompt at once, then one token a call.
    Dynamic,
    /// One function that takes one token, for the prompt, too.
    Step,
    /// Whole chunks of the prompt by a function of their own, the rest and what follows token by token.
    Prefill,
}

impl Variant {
    /// Every variant.
    pub const ALL: [Self; 3] = [Self::Dynamic, Self::Step, Self::Prefill];

    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dynamic => "dynamic",
            Self::Step => "s1",
            Self::Prefill => "pf64",
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Variant {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let known = Self::ALL.map(Self::name).join(", ");
        let variant = Self::ALL.into_iter().find(|variant| variant.name() == name);
        variant.ok_or_else(|| Error::input("no such functions").found(format!("`{name}`")).expected(known))
    }
}

/// Where the contract is in the recipe.
const PLACE: &str = "contract.slots";

impl SlotsContract {
    /// Checks that the parts agree with each other and with the rest of `recipe`.
    pub(super) fn check(&self, recipe: &Recipe) -> Result<()> {
        self.page.check()?;
        let at = |field: &str| format!("{PLACE}.{field}");
        recipe.check_token(at("prompt.image_token_id"), self.prompt.image_token_id)?;
        let first = self.prompt.first_slot_id;
        ensure(first as usize == recipe.vocab_size, at("prompt.first_slot_id"), first, || {
            format!("the vocabulary of {}", recipe.vocab_size)
        })?;
        ensure_inside(at("vision.asset"), &self.vision.asset)?;
        ensure_inside(at("decoder.asset"), &self.decoder.asset)?;
        self.check_grids(recipe)?;
        let any = self.variants().contains(&Variant::Dynamic);
        ensure(!any || recipe.kv.takes_any_number(), "kv.feeds", &recipe.kv.form, || {
            "`position-ids` alone, where a function takes any number of tokens".to_owned()
        })?;
        self.check_symbols(recipe)?;
        let threshold = self.engine.chunk_threshold;
        ensure(threshold != Some(0), at("engine.chunk_threshold"), 0, || "at least 1".to_owned())
    }

    fn check_grids(&self, recipe: &Recipe) -> Result<()> {
        let place = |index: usize| format!("{PLACE}.grids[{index}]");
        ensure(!self.grids.is_empty(), format_args!("{PLACE}.grids"), "none", || "at least one".to_owned())?;
        for (index, grid) in self.grids.iter().enumerate() {
            grid.check(&place(index), &self.page, recipe)?;
            let twice = self.grids.iter().take(index).any(|other| other.sides() == grid.sides());
            let found = format!("{} x {}", grid.rows, grid.columns);
            ensure(!twice, place(index), found, || "another grid than those before".to_owned())?;
            let (variants, first) = (grid.decoder.variants(), self.variants());
            let found = format!("{variants:?}");
            ensure(variants == first, place(index) + ".decoder", found, || {
                format!("{first:?}, as the first grid has")
            })?;
        }
        for part in Asset::ALL {
            let mut names = BTreeSet::new();
            let twice = self.functions(part).into_iter().find(|name| !names.insert(*name));
            ensure(
                twice.is_none(),
                format_args!("{PLACE}.grids"),
                format!("`{}` twice", twice.unwrap_or_default()),
                || format!("functions of the {part} asset that are each named once"),
            )?;
        }
        Ok(())
    }

    /// The functions are called with anything from one token to full caches.
    fn check_symbols(&self, recipe: &Recipe) -> Result<()> {
        let expected = recipe.changing(Asset::Decoder);
        let found: Vec<(&str, usize)> =
            self.symbols.iter().map(|symbol| (symbol.input.as_str(), symbol.axis)).collect();
        let said = format!("{found:?}");
        let (mut sorted, mut wanted) = (found, expected);
        sorted.sort_unstable();
        wanted.sort_unstable();
        ensure(sorted == wanted, format_args!("{PLACE}.symbols"), said, || format!("{wanted:?}"))?;
        for (index, symbol) in self.symbols.iter().enumerate() {
            let bounds = [symbol.min, symbol.max];
            let length = recipe.cache.length;
            let found = format!("{bounds:?}");
            ensure(bounds == [1, length], format_args!("{PLACE}.symbols[{index}]"), found, || {
                format!("bounds of 1 and {length}, the length of the caches")
            })?;
        }
        Ok(())
    }

    /// The input of tokens and its axis of them, where a function takes any number.
    pub(super) fn changing(&self) -> Option<(&str, usize)> {
        self.variants().contains(&Variant::Dynamic).then_some((self.decoder.input_ids.as_str(), 1))
    }

    /// What the vision functions take and give.
    pub(super) fn vision_ports(&self, recipe: &Recipe) -> Vec<FunctionPorts> {
        let PageRecipe { patch, frames, merge, .. } = self.page;
        let [patch, frames, merge] = [patch, frames, merge].map(|size| size as usize);
        let port = |name: &str, rows, width| Port::new(name, recipe.element_type, [Some(rows), Some(width)]);
        let of_grid = |grid: &GridRecipe| {
            let tokens = grid.tokens();
            FunctionPorts {
                asset: Asset::Vision,
                name: grid.vision.clone(),
                inputs: vec![port(&self.vision.patches, tokens * merge * merge, 3 * frames * patch * patch)],
                states: Vec::new(),
                outputs: vec![port(&self.vision.image_embeds, tokens, recipe.hidden_size)],
            }
        };
        self.grids.iter().map(of_grid).collect()
    }

    /// The decoder functions of every grid.
    pub(super) fn whole_functions(&self, recipe: &Recipe) -> Vec<WholeFunction<'_>> {
        self.grids.iter().flat_map(|grid| self.functions_of(grid, recipe)).collect()
    }

    fn functions_of<'r>(&'r self, grid: &'r GridRecipe, recipe: &Recipe) -> Vec<WholeFunction<'r>> {
        let ids = &self.decoder;
        let visual = [Some(grid.tokens()), Some(recipe.hidden_size)];
        let function = |(name, tokens): (&'r String, Option<usize>)| WholeFunction {
            name,
            tokens,
            from_zero: false,
            inputs: vec![
                Port::new(&ids.input_ids, ElementType::I32, [Some(1), tokens]),
                Port::new(&ids.image_embeds, recipe.element_type, visual),
                Port::new(&ids.rope_shift_start, ElementType::I32, [Some(1)]),
                Port::new(&ids.rope_shift_amount, ElementType::I32, [Some(1)]),
            ],
            logits: Port::new(&ids.logits, recipe.element_type, [Some(1), tokens, Some(recipe.vocab_size)]),
        };
        grid.decoder.all().map(function).collect()
    }

    pub(super) fn functions(&self, part: Asset) -> Vec<&str> {
        match part {
            Asset::Vision => self.grids.iter().map(|grid| grid.vision.as_str()).collect(),
            Asset::Decoder => {
                let all = self.grids.iter().flat_map(|grid| grid.decoder.all());
                all.map(|(name, _)| name.as_str()).collect()
            }
        }
    }

    /// The variants there are functions for, in every grid.
    #[must_use]
    pub fn variants(&self) -> Vec<Variant> {
        self.grids.first().map_or_else(Vec::new, |grid| grid.decoder.variants())
    }
}

impl PageRecipe {
    fn check(&self) -> Result<()> {
        for (field, found, most) in [("patch", self.patch, 256), ("frames", self.frames, 16), ("merge", self.merge, 16)]
        {
            ensure((1..=most).contains(&found), format_args!("{PLACE}.page.{field}"), found, || {
                format!("1 to {most}")
            })?;
        }
        let [least, most] = self.pixels;
        ensure((1..=most).contains(&least), format_args!("{PLACE}.page.pixels"), format!("{:?}", self.pixels), || {
            "at least one, and no more than the most".to_owned()
        })?;
        ensure_deviations(format_args!("{PLACE}.page.std"), &self.std)
    }

    /// From a page to patches.
    #[must_use]
    pub fn processor(&self) -> PageProcessor {
        PageProcessor {
            patch: self.patch,
            frames: self.frames,
            merge: self.merge,
            pixels: self.pixels,
            normalisation: Normalisation { mean: self.mean, std: self.std },
        }
    }
}

impl GridRecipe {
    fn check(&self, place: &str, page: &PageRecipe, recipe: &Recipe) -> Result<()> {
        let grid = self.grid().map_err(|e| e.at(place))?;
        let token = page.processor().token_pixels() as usize;
        let fits = [self.rows, self.columns].into_iter().all(|side| side * token <= MAX_SIDE as usize);
        let found = format!("{} x {} tokens of {token} pixels", self.rows, self.columns);
        ensure(fits, place, found, || format!("at most {MAX_SIDE} pixels a side"))?;
        let (prefix, tokens) = (self.prefix_length, grid.tokens());
        ensure(tokens <= MAX_EXTENT, place, tokens, || format!("at most {MAX_EXTENT} visual tokens"))?;
        recipe.check_prefix(format_args!("{place}.prefix_length"), prefix, tokens)?;
        self.check_shift(place, grid)?;
        self.decoder.check(&format!("{place}.decoder"), recipe)?;
        self.prompt_input_ids.check_ids(format_args!("{place}.prompt_input_ids"), prefix)
    }

    /// The image, of that many tokens, ends where the shift starts, and takes as many positions as its longer side.
    fn check_shift(&self, place: &str, grid: Grid) -> Result<()> {
        let RopeShift { start, amount } = self.rope_shift();
        let tokens = grid.tokens();
        let inside = usize::try_from(start).is_ok_and(|start| (tokens..=self.prefix_length).contains(&start));
        ensure(inside, format_args!("{place}.rope_shift_start"), start, || {
            format!("{tokens} to {}", self.prefix_length)
        })?;
        let expected = tokens - self.rows.max(self.columns);
        let taken = usize::try_from(amount) == Ok(expected);
        ensure(taken, format_args!("{place}.rope_shift_amount"), amount, || expected.to_string())
    }

    /// The grid.
    ///
    /// # Errors
    /// When a side is zero or too large.
    pub fn grid(&self) -> Result<Grid> {
        Grid::new(self.rows, self.columns)
    }

    /// How text after the image is counted.
    #[must_use]
    pub const fn rope_shift(&self) -> RopeShift {
        RopeShift { start: self.rope_shift_start, amount: self.rope_shift_amount }
    }

    /// Visual tokens.
    const fn tokens(&self) -> usize {
        self.rows.saturating_mul(self.columns)
    }

    const fn sides(&self) -> [usize; 2] {
        [self.rows, self.columns]
    }
}

impl DecoderFunctions {
    fn check(&self, place: &str, recipe: &Recipe) -> Result<()> {
        let one = self.dynamic.is_some() || self.step.is_some();
        ensure(one, place, "no function", || "`dynamic` or `step`".to_owned())?;
        let Some(prefill) = &self.prefill else { return Ok(()) };
        ensure(self.step.is_some(), format_args!("{place}.prefill"), &prefill.function, || {
            "`step` beside it, which takes what is left of a prompt".to_owned()
        })?;
        let (tokens, length) = (prefill.tokens, recipe.cache.length);
        let fits = (2..=length).contains(&tokens);
        ensure(fits, format_args!("{place}.prefill.tokens"), tokens, || format!("2 to {length}"))
    }

    /// The names of all functions, and the tokens they take.
    fn all(&self) -> impl Iterator<Item = (&String, Option<usize>)> {
        let dynamic = self.dynamic.as_ref().map(|name| (name, None));
        let step = self.step.as_ref().map(|name| (name, Some(1)));
        let prefill = self.prefill.as_ref().map(|prefill| (&prefill.function, Some(prefill.tokens)));
        [dynamic, step, prefill].into_iter().flatten()
    }

    /// The variants these are functions for.
    #[must_use]
    pub fn variants(&self) -> Vec<Variant> {
        let has = |variant: &Variant| match variant {
            Variant::Dynamic => self.dynamic.is_some(),
            Variant::Step => self.step.is_some(),
            Variant::Prefill => self.step.is_some() && self.prefill.is_some(),
        };
        Variant::ALL.into_iter().filter(has).collect()
    }
}

#[cfg(test)]
pub(in crate::host) mod tests;
