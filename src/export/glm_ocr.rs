//! GLM-OCR: which graphs and contract its checkpoint gives.

mod forms;
mod notes;
mod page;
mod prompt;

use super::blueprint::{Parts, asset_path};
use super::kv::{self, CacheNames};
use super::manifest::GlmOcrSettings;
use super::tokenizer_files::{self, TOKENIZER, TokenizerFiles};
use super::{ExportRequest, Manifest, context, stop_tokens};
use crate::checkpoint::Checkpoint;
use crate::error::At;
use crate::graph::Module;
use crate::grid::Grid;
use crate::host::patches::PageProcessor;
use crate::host::recipe::{
    CacheRecipe, Contract, DecoderFunctions, DecodingRecipe, GridRecipe, HostTensorFile, IdsAsset, PageRecipe,
    PatchesAsset, Recipe, SlotsContract, SlotsPrompt, StopToken, SymbolRecipe,
};
use crate::host::slots::{Slots, SlottedPrompt};
use crate::models::{Loader, cogvit, glm_text};
use crate::passes::{KvForm, kv_names};
use crate::weights::{WeightId, Weights};
use crate::{ElementType, Error, Result};
use forms::{Forms, GridName};
use prompt::PagePrompt;

/// What the checkpoint's files and the request decide together.
struct Settings<'r> {
    manifest: &'r Manifest,
    own: &'r GlmOcrSettings,
    text: glm_text::Config,
    vision: cogvit::Config,
    processor: PageProcessor,
    prompt: PagePrompt,
    forms: Forms,
    pages: Vec<Page>,
    context: usize,
    stop: Vec<StopToken>,
    tokenizer: TokenizerFiles,
    kv: KvForm,
}

/// A grid, and what belongs to it.
struct Page {
    name: GridName,
    grid: Grid,
    functions: DecoderFunctions,
    prompt: SlottedPrompt,
}

/// The parts of an export.
///
/// # Errors
/// When the checkpoint is not a whole one of this model, or the request does not fit it.
pub(super) fn parts(
    request: &ExportRequest,
    (manifest, own): (&Manifest, &GlmOcrSettings),
    checkpoint: &Checkpoint,
    kv: KvForm,
) -> Result<Parts> {
    let settings = Settings::read(request, (manifest, own), checkpoint, kv)?;
    let element = request.precision.element();
    let mut loader = Loader::new(checkpoint);
    let vision = settings.vision_module(element, &mut loader)?;
    let decoder = settings.decoder_module(element, &mut loader)?;
    loader.finish()?;
    let recipe = settings.recipe(element);
    recipe.check().at(|| "recipe.json")?;
    let mut host_weights = Weights::default();
    let prompts = settings.pages.iter().map(|page| page.prompt_file(&mut host_weights));
    Ok(Parts {
        assets: vec![("vision", vision), ("decoder", decoder)],
        host_tensors: prompts.collect::<Result<_>>()?,
        host_weights,
        recipe,
        dropped: loader.dropped().to_vec(),
        notes: settings.tokenizer.notes.into_iter().chain(settings.text.warnings(&loader)).collect(),
        files: settings.tokenizer.files,
    })
}

impl<'r> Settings<'r> {
    fn read(
        request: &ExportRequest,
        (manifest, own): (&'r Manifest, &'r GlmOcrSettings),
        checkpoint: &Checkpoint,
        kv: KvForm,
    ) -> Result<Self> {
        let config = checkpoint.config();
        let text = glm_text::Config::read(&config)?;
        let vision = cogvit::Config::read(&config)?;
        let processor = page::processor(checkpoint, &vision)?;
        let tokenizer = tokenizer_files::open(checkpoint)?;
        let instruction = request.prompt.as_ref().unwrap_or(&manifest.defaults.prompt);
        let prompt = PagePrompt::new(checkpoint, instruction)?;
        let context = context::length(request, manifest, text.max_positions)?;
        let forms = Forms::new(request, own, (context, kv))?;
        let grids = if request.grids.is_empty() { &[own.grid][..] } else { &request.grids };
        let ids = tokenizer.encode(&prompt.rendered)?;
        check_grids(grids, ids.len(), context)?;
        let (placeholder, vocabulary) = (text.image.placeholder, text.vocabulary as u32);
        let fill = |grid| Slots { placeholder, vocabulary, grid }.fill(&ids);
        let pages = pages(grids, forms, &fill).at(|| format!("{}: {}", checkpoint.location(), prompt.origin))?;
        let stop = stop_tokens::read(checkpoint, &["text_config"], text.vocabulary)?;
        let tokenizer = tokenizer_files::read(checkpoint, &tokenizer, &stop)?;
        Ok(Self { manifest, own, text, vision, processor, prompt, forms, pages, context, stop, tokenizer, kv })
    }

    fn vision_module(&self, element: ElementType, loader: &mut Loader<'_>) -> Result<Module> {
        let mut module = Module::default();
        for page in &self.pages {
            let name = page.name.vision();
            let function = cogvit::function(&self.vision, &name, page.grid, element, loader, &mut module.weights)?;
            module.functions.push(function);
        }
        Ok(module)
    }

    fn decoder_module(&self, element: ElementType, loader: &mut Loader<'_>) -> Result<Module> {
        let calls: Vec<_> = self.pages.iter().flat_map(|page| forms::calls(&page.functions, page.grid)).collect();
        let mut module = Module::default();
        let functions = glm_text::functions(&self.text, &calls, self.context, element, loader, &mut module.weights)?;
        module.functions.extend(functions);
        Ok(module)
    }

    fn recipe(&self, element: ElementType) -> Recipe {
        let decoding = &self.manifest.decoding;
        let shortest = self.pages.iter().map(|page| page.prompt.ids.len()).min().unwrap_or(0);
        let mut notes = notes::of_contract(self.forms, self.kv);
        notes.extend(self.tokenizer.notes.iter().cloned());
        Recipe {
            format_version: Recipe::FORMAT_VERSION,
            model: self.manifest.name.clone(),
            element_type: element,
            stop: self.stop.clone(),
            hidden_size: self.text.hidden,
            vocab_size: self.text.vocabulary,
            decoding: DecodingRecipe {
                no_repeat_ngram: decoding.no_repeat_ngram.map(Into::into),
                run_cap: decoding.run_cap,
                max_tokens: self.context - shortest,
            },
            cache: CacheRecipe {
                layers: self.text.layers,
                heads: self.text.kv_heads,
                length: self.context,
                head_dim: self.text.head_width,
            },
            sliding_window: None,
            kv: kv::recipe(self.kv, CACHE_NAMES),
            tokenizer: TOKENIZER.to_owned(),
            contract: Contract::Slots(self.contract()),
            notes,
        }
    }

    fn contract(&self) -> SlotsContract {
        SlotsContract {
            page: self.page_recipe(),
            prompt: SlotsPrompt {
                text: self.prompt.text.clone(),
                rendered: self.prompt.rendered.clone(),
                origin: self.prompt.origin.to_owned(),
                image_token_id: self.text.image.placeholder,
                first_slot_id: self.text.vocabulary as u32,
            },
            grids: self.pages.iter().map(Page::recipe).collect(),
            vision: PatchesAsset {
                asset: asset_path("vision"),
                patches: cogvit::names::PATCHES.to_owned(),
                image_embeds: cogvit::names::IMAGE_EMBEDS.to_owned(),
            },
            decoder: decoder_asset(),
            symbols: self.symbols(),
            engine: notes::engine(self.forms, self.kv),
        }
    }

    fn page_recipe(&self) -> PageRecipe {
        let PageProcessor { patch, frames, merge, pixels, normalisation } = self.processor;
        let (mean, std) = (normalisation.mean, normalisation.std);
        PageRecipe { patch, frames, merge, pixels, mean, std, fill: self.own.fill }
    }

    /// What is chosen with each call, up to what the cache holds.
    fn symbols(&self) -> Vec<SymbolRecipe> {
        use glm_text::names::{INPUT_IDS, QUERY};
        use kv_names::{POSITION_IDS, TOTAL};
        let symbol = |name: &str, input: &str| SymbolRecipe {
            name: name.to_owned(),
            input: input.to_owned(),
            axis: 1,
            min: 1,
            max: self.context,
        };
        let query = self.forms.has_dynamic().then(|| symbol(QUERY, INPUT_IDS));
        let total = (self.kv == KvForm::Dynamic).then(|| symbol(TOTAL, POSITION_IDS));
        query.into_iter().chain(total).collect()
    }
}

impl Page {
    fn recipe(&self) -> GridRecipe {
        GridRecipe {
            rows: self.grid.rows(),
            columns: self.grid.columns(),
            vision: self.name.vision(),
            decoder: self.functions.clone(),
            prefix_length: self.prompt.ids.len(),
            rope_shift_start: self.prompt.shift.start,
            rope_shift_amount: self.prompt.shift.amount,
            prompt_input_ids: HostTensorFile {
                file: self.prompt_path(),
                element: ElementType::I32,
                shape: vec![self.prompt.ids.len()],
            },
        }
    }

    fn prompt_path(&self) -> String {
        format!("assets/{}.i32", self.name.of("prompt_input_ids"))
    }

    fn prompt_file(&self, weights: &mut Weights) -> Result<(String, WeightId)> {
        let ids: Vec<i32> = self.prompt.ids.iter().map(|&id| id as i32).collect();
        Ok((self.prompt_path(), weights.literal_i32(&[ids.len()], &ids)?))
    }
}

/// Every grid with its functions and its prompt.
fn pages(grids: &[Grid], forms: Forms, fill: &dyn Fn(Grid) -> Result<SlottedPrompt>) -> Result<Vec<Page>> {
    let page = |(index, &grid): (usize, &Grid)| {
        let name = if index == 0 { GridName::Default } else { GridName::Further(grid) };
        Ok(Page { name, grid, functions: forms.functions(name), prompt: fill(grid)? })
    };
    grids.iter().enumerate().map(page).collect()
}

/// Refuses a grid that is there twice, or whose prompt leaves no room for an answer; `ids` are the tokens of a prompt
/// with one for the page.
fn check_grids(grids: &[Grid], ids: usize, context: usize) -> Result<()> {
    for (index, grid) in grids.iter().enumerate() {
        let place = || format!("--grid {grid}");
        if grids[..index].contains(grid) {
            return Err(Error::input("the grid is asked for twice").at(place()));
        }
        let (tokens, visual) = (ids.saturating_sub(1) + grid.tokens(), grid.tokens());
        if tokens >= context {
            let error = Error::input("the prompt leaves no room for an answer").at(place());
            let error = error.found(format!("{tokens} tokens, {visual} of them visual"));
            let hint = "use a smaller grid, or a larger `--max-context`";
            return Err(error.expected(format!("fewer than --max-context {context}")).hint(hint));
        }
    }
    Ok(())
}

const CACHE_NAMES: CacheNames = CacheNames {
    position: glm_text::names::POSITION,
    keys: glm_text::names::KEY_CACHE,
    values: glm_text::names::VALUE_CACHE,
};

fn decoder_asset() -> IdsAsset {
    use glm_text::names;
    IdsAsset {
        asset: asset_path("decoder"),
        input_ids: names::INPUT_IDS.to_owned(),
        image_embeds: names::IMAGE_EMBEDS.to_owned(),
        rope_shift_start: names::ROPE_SHIFT_START.to_owned(),
        rope_shift_amount: names::ROPE_SHIFT_AMOUNT.to_owned(),
        logits: names::LOGITS.to_owned(),
    }
}

#[cfg(test)]
mod tests;
