//! Unlimited-OCR: which graphs, host tensors and contract its checkpoint gives.

use super::blueprint::{Parts, asset_path};
use super::kv::{self, CacheNames};
use super::manifest::{ImageToken, UnlimitedOcrSettings};
use super::tokenizer_files::{self, TOKENIZER, TokenizerFiles};
use super::{ExportRequest, Manifest, context, stop_tokens};
use crate::checkpoint::{Checkpoint, Json};
use crate::error::At;
use crate::graph::Module;
use crate::grid::Grid;
use crate::host::prompt::Prompt;
use crate::host::recipe::{
    Arrangement, CacheRecipe, Contract, DecoderAsset, DecodingRecipe, EmbeddingsContract, HostTensorFile, HostTensors,
    ImageMode, ImageRecipe, PromptRecipe, Recipe, StopToken, VisionAsset, VisualRecipe,
};
use crate::host::tokenizer::Tokenizer;
use crate::models::{Loader, deep_encoder, deepseek_v2};
use crate::passes::KvForm;
use crate::weights::{WeightId, Weights};
use crate::{ElementType, Error, Result};

/// What config.json, the tokenizer and the request decide together.
struct Settings<'r> {
    manifest: &'r Manifest,
    own: &'r UnlimitedOcrSettings,
    text: deepseek_v2::Config,
    vision: deep_encoder::Config,
    side: usize,
    grid: Grid,
    lengths: deepseek_v2::Lengths,
    prompt: PromptRecipe,
    prompt_ids: Vec<u32>,
    stop: Vec<StopToken>,
    tokenizer: TokenizerFiles,
    kv: KvForm,
}

/// The parts of an export.
///
/// # Errors
/// When the checkpoint is not a whole one of this model, or the request does not fit it.
pub(super) fn parts(
    request: &ExportRequest,
    (manifest, own): (&Manifest, &UnlimitedOcrSettings),
    checkpoint: &Checkpoint,
    kv: KvForm,
) -> Result<Parts> {
    let settings = Settings::read(request, (manifest, own), checkpoint, kv)?;
    let element = request.precision.element();
    let mut loader = Loader::new(checkpoint);
    let vision = settings.vision_module(element, &mut loader)?;
    let decoder = settings.decoder_module(element, &mut loader)?;
    let mut host_weights = Weights::default();
    let host = settings.host_tensors(element, &mut loader, &mut host_weights)?;
    loader.finish()?;
    let recipe = settings.recipe(element, &host.map(|(path, id)| host_file(path, element, &host_weights, id)));
    recipe.check().at(|| "recipe.json")?;
    Ok(Parts {
        assets: vec![("vision", vision), ("decoder", decoder)],
        host_tensors: host
            .map(|(path, id)| (format!("{path}.{element}"), id))
            .into_iter()
            .chain([settings.prompt_file(&mut host_weights)?])
            .collect(),
        host_weights,
        recipe,
        dropped: loader.dropped().to_vec(),
        files: settings.tokenizer.files,
        notes: settings.tokenizer.notes,
    })
}

impl<'r> Settings<'r> {
    fn read(
        request: &ExportRequest,
        (manifest, own): (&'r Manifest, &'r UnlimitedOcrSettings),
        checkpoint: &Checkpoint,
        kv: KvForm,
    ) -> Result<Self> {
        let config = checkpoint.config();
        let text = deepseek_v2::Config::read(&config)?;
        let vision = deep_encoder::Config::read(&config)?;
        if vision.output != text.hidden {
            let output = config.field("projector_config")?.field("n_embed")?;
            let error = output.error("visual tokens are not as wide as the decoder").found(vision.output);
            return Err(error.expected(text.hidden));
        }
        let side = request.image_size.unwrap_or(own.image.side);
        let grid = grid(side)?;
        let tokenizer = tokenizer_files::open(checkpoint)?;
        let image_token = image_token(&config, &tokenizer, &own.prompt)?;
        let prompt_text = request.prompt.clone().unwrap_or_else(|| manifest.defaults.prompt.clone());
        let prompt = Prompt { bos: text.bos, image_token, grid, text: &prompt_text };
        let prompt_ids = prompt.ids(&tokenizer)?;
        if let Some(id) = prompt_ids.iter().find(|&&id| id as usize >= text.vocabulary) {
            let error = Error::input("the tokenizer does not belong to the model: it gives a token without a row");
            let expected = format!("ids below vocab_size, {}", text.vocabulary);
            return Err(error.at(format!("{}/tokenizer.json", checkpoint.location())).found(id).expected(expected));
        }
        let prefix = prompt_ids.len();
        let cache = context::length(request, manifest, text.max_positions)?;
        context::check_prompt(prefix, cache)?;
        let stop = stop_tokens::read(checkpoint, &["language_config", "text_config"], text.vocabulary)?;
        Ok(Self {
            manifest,
            own,
            side,
            grid,
            lengths: deepseek_v2::Lengths { prefix, cache },
            prompt: PromptRecipe {
                text: prompt_text,
                prefix_length: prefix,
                bos_token_id: text.bos,
                image_token_id: image_token,
            },
            prompt_ids,
            tokenizer: tokenizer_files::read(checkpoint, &tokenizer, &stop)?,
            stop,
            kv,
            text,
            vision,
        })
    }

    fn vision_module(&self, element: ElementType, loader: &mut Loader<'_>) -> Result<Module> {
        let mut module = Module::default();
        let function = deep_encoder::function(&self.vision, self.side, element, loader, &mut module.weights)?;
        module.functions.push(function);
        Ok(module)
    }

    fn decoder_module(&self, element: ElementType, loader: &mut Loader<'_>) -> Result<Module> {
        let mut module = Module::default();
        let functions = deepseek_v2::functions(&self.text, self.lengths, element, loader, &mut module.weights)?;
        module.functions.extend(functions);
        Ok(module)
    }

    /// The tensors of the checkpoint that the host holds: path without its element type, and weight.
    fn host_tensors(
        &self,
        element: ElementType,
        loader: &mut Loader<'_>,
        weights: &mut Weights,
    ) -> Result<[(&'static str, WeightId); 3]> {
        let embed_tokens = deepseek_v2::embeddings(&self.text, element, loader, weights)?;
        let mut vector = |name: &str| {
            let read = weights.read_parameter(loader.tensor(name, &[self.text.hidden])?);
            weights.cast(read, element)
        };
        Ok([
            ("assets/embed_tokens", embed_tokens),
            ("assets/image_newline", vector("model.image_newline")?),
            // The checkpoint's own spelling.
            ("assets/view_seperator", vector("model.view_seperator")?),
        ])
    }

    fn prompt_file(&self, weights: &mut Weights) -> Result<(String, WeightId)> {
        let ids: Vec<i32> = self.prompt_ids.iter().map(|&id| id as i32).collect();
        Ok((PROMPT_FILE.to_owned(), weights.literal_i32(&[ids.len()], &ids)?))
    }

    fn recipe(&self, element: ElementType, tensors: &[HostTensorFile; 3]) -> Recipe {
        let decoding = &self.manifest.decoding;
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
                max_tokens: self.lengths.cache - self.lengths.prefix,
            },
            cache: CacheRecipe {
                layers: self.text.layers,
                heads: self.text.heads,
                length: self.lengths.cache,
                head_dim: self.text.head_width(),
            },
            sliding_window: Some(self.text.window),
            kv: kv::recipe(self.kv, CACHE_NAMES),
            tokenizer: TOKENIZER.to_owned(),
            contract: Contract::Embeddings(self.contract(tensors)),
            notes: self.tokenizer.notes.clone(),
        }
    }

    fn contract(&self, tensors: &[HostTensorFile; 3]) -> EmbeddingsContract {
        let [embed_tokens, image_newline, view_separator] = tensors.clone();
        let prompt_input_ids = HostTensorFile {
            file: PROMPT_FILE.to_owned(),
            element: ElementType::I32,
            shape: vec![self.lengths.prefix],
        };
        EmbeddingsContract {
            image: self.image_recipe(),
            visual: VisualRecipe {
                rows: self.grid.rows(),
                columns: self.grid.columns(),
                positions: self.grid.positions(),
                arrangement: Arrangement::RowsNewlineSeparator,
            },
            prompt: self.prompt.clone(),
            vision: vision_asset(),
            decoder: decoder_asset(),
            host_tensors: HostTensors { embed_tokens, image_newline, view_separator, prompt_input_ids },
        }
    }

    fn image_recipe(&self) -> ImageRecipe {
        let image = &self.own.image;
        let stretched = self.side <= image.stretch_up_to;
        ImageRecipe {
            side: self.side as u32,
            mode: if stretched { ImageMode::Stretch } else { ImageMode::Pad },
            fill: image.fill,
            mean: image.mean,
            std: image.std,
        }
    }
}

const PROMPT_FILE: &str = "assets/prompt_input_ids.i32";

fn host_file(path: &str, element: ElementType, weights: &Weights, id: WeightId) -> HostTensorFile {
    HostTensorFile { file: format!("{path}.{element}"), element, shape: weights.shape(id).to_vec() }
}

fn grid(side: usize) -> Result<Grid> {
    let token = deep_encoder::TOKEN_PIXELS;
    if side == 0 || !side.is_multiple_of(token) || side > 4096 {
        let error = Error::input("the image size does not fit the model").at("--image-size").found(side);
        return Err(error.expected(format!("a multiple of {token} up to 4096")));
    }
    Grid::new(side / token, side / token)
}

/// The id of the image token: config.json, the tokenizer, and the constant of the model's code; those that say agree.
fn image_token(config: &Json<'_>, tokenizer: &Tokenizer, own: &ImageToken) -> Result<u32> {
    let known = tokenizer.id(&own.image_token);
    let Some(json) = config.optional("image_token_id") else {
        return Ok(known.unwrap_or(own.image_token_id));
    };
    let id = u32::try_from(json.as_u64()?).map_err(|_| json.error("not a token id"))?;
    match known {
        Some(known) if known != id => Err(json.error("disagrees with the tokenizer").found(id).expected(known)),
        _ => Ok(id),
    }
}

fn vision_asset() -> VisionAsset {
    use deep_encoder::names;
    VisionAsset {
        asset: asset_path("vision"),
        function: names::MAIN.to_owned(),
        image: names::IMAGE.to_owned(),
        visual_tokens: names::VISUAL_TOKENS.to_owned(),
    }
}

const CACHE_NAMES: CacheNames = CacheNames {
    position: deepseek_v2::names::POSITION,
    keys: deepseek_v2::names::KEY_CACHE,
    values: deepseek_v2::names::VALUE_CACHE,
};

fn decoder_asset() -> DecoderAsset {
    use deepseek_v2::names;
    DecoderAsset {
        asset: asset_path("decoder"),
        prefill: names::PREFILL.to_owned(),
        decode: names::DECODE.to_owned(),
        inputs_embeds: names::INPUTS_EMBEDS.to_owned(),
        logits: names::LOGITS.to_owned(),
    }
}
