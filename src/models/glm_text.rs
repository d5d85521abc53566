//! The decoder of GLM-OCR: grouped-query attention, four norms a layer, a fused gate and up projection, and rotary
//! angles in sections of time, row and column (M-RoPE).
//!
//! Text and image come in through one list of ids: an id from the vocabulary size on stands for a visual token. The
//! three positions of each token are computed here, so that the host keeps one counter.

use super::Loader;
use super::attention::{Rotary, angles, cache_type, frequencies, merge_heads, split_heads};
use super::mtp::PredictionLayers;
use super::net::{Bias, Net};
use super::settings::{agree, epsilon_or, layers, lookup, only, rope_theta, size};
use super::tied::tied_head;
use crate::checkpoint::Json;
use crate::graph::{Binary, Dim, Function, Op, Symbol, TensorType, Unary, ValueId};
use crate::grid::Grid;
use crate::weights::Weights;
use crate::{ElementType, Error, Result};

/// Where config.json says how many rotary frequencies turn by time, row and column.
const SECTIONS: [&str; 2] = ["rope_parameters.mrope_section", "rope_scaling.mrope_section"];

const PREFIX: &str = "model.language_model.";
const EMBEDDINGS: &str = "model.language_model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// Sizes and constants of the decoder, from config.json.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Decoder layers that are run.
    pub layers: usize,
    /// Next-token-prediction layers behind them, which are not.
    pub prediction_layers: usize,
    /// Attention heads of queries.
    pub heads: usize,
    /// Attention heads of keys and values; a divisor of `heads`.
    pub kv_heads: usize,
    /// Width of one attention head.
    pub head_width: usize,
    /// Rows of the embedding table and of the head.
    pub vocabulary: usize,
    /// Width of the MLP.
    pub intermediate: usize,
    /// Longest sequence.
    pub max_positions: usize,
    /// Rotary frequencies that turn by time, by row, by column; half a head in all.
    pub sections: [usize; 3],
    /// Base of the rotary angles.
    pub rope_theta: f64,
    /// Added to the mean square in norms.
    pub epsilon: f32,
    /// Whether the embedding table is the head, too.
    pub tied: bool,
    /// Tokens around and in place of an image.
    pub image: ImageTokens,
    /// Tokens that end the text.
    pub stop: Vec<u32>,
}

/// Tokens that mark an image in the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageTokens {
    /// Before the image.
    pub begin: u32,
    /// Stands for the visual tokens.
    pub placeholder: u32,
    /// After the image.
    pub end: u32,
}

impl Config {
    /// Reads and checks the decoder's settings, `text_config`.
    ///
    /// # Errors
    /// When a setting is missing, contradicts another, or asks for something that is not implemented.
    pub fn read(root: &Json<'_>) -> Result<Self> {
        only(root, "model_type", Json::as_str, "glm_ocr")?;
        let text = root.field("text_config")?;
        refuse_unsupported(&text)?;
        let tie = ["tie_word_embeddings", "text_config.tie_word_embeddings"];
        let config = Self {
            hidden: size(&text, "hidden_size")?,
            layers: layers(&text.field("num_hidden_layers")?)?,
            prediction_layers: text.optional("num_nextn_predict_layers").map_or(Ok(0), |json| json.as_usize())?,
            heads: size(&text, "num_attention_heads")?,
            kv_heads: size(&text, "num_key_value_heads")?,
            head_width: size(&text, "head_dim")?,
            vocabulary: size(&text, "vocab_size")?,
            intermediate: size(&text, "intermediate_size")?,
            max_positions: size(&text, "max_position_embeddings")?,
            sections: sections(&text)?,
            rope_theta: rope_theta(&text, &[""])?,
            epsilon: epsilon_or(&text, "rms_norm_eps", 1e-5)?,
            tied: agree(root, &tie, Json::as_bool)?.unwrap_or(false),
            image: ImageTokens {
                begin: token(&root.field("image_start_token_id")?)?,
                placeholder: token(&root.field("image_token_id")?)?,
                end: token(&root.field("image_end_token_id")?)?,
            },
            stop: tokens(&text.field("eos_token_id")?)?,
        };
        config.check(root, &text)?;
        Ok(config)
    }

    fn check(&self, root: &Json<'_>, text: &Json<'_>) -> Result<()> {
        if !self.heads.is_multiple_of(self.kv_heads) {
            let error = text.field("num_key_value_heads")?.error("groups do not divide the heads");
            return Err(error.found(self.kv_heads).expected(format!("a divisor of {}", self.heads)));
        }
        let turning: usize = self.sections.iter().sum();
        if !self.head_width.is_multiple_of(2) || turning != self.head_width / 2 {
            let said = SECTIONS.into_iter().find_map(|path| lookup(text, path)).unwrap_or_else(|| text.clone());
            let error = said.error("the rotary sections do not make up half a head");
            let expected = format!("half of head_dim {}", self.head_width);
            return Err(error.found(format!("{:?}, {turning} in all", self.sections)).expected(expected));
        }
        if self.prediction_layers > self.layers {
            let error = text.field("num_nextn_predict_layers")?.error("more prediction layers than layers");
            return Err(error.found(self.prediction_layers).expected(format!("at most {}", self.layers)));
        }
        let ImageTokens { begin, placeholder, end } = self.image;
        let ids = [begin, placeholder, end].into_iter().chain(self.stop.iter().copied());
        if let Some(id) = ids.into_iter().find(|&id| id as usize >= self.vocabulary) {
            let error = root.error("a token is not in the vocabulary");
            return Err(error.found(id).expected(format!("less than {}", self.vocabulary)));
        }
        Ok(())
    }

    fn prediction(&self) -> PredictionLayers {
        PredictionLayers {
            prefix: "model.language_model.layers.",
            first: self.layers,
            declared: self.prediction_layers,
        }
    }

    /// What is odd about the checkpoint's next-token-prediction layers without making it unusable, as sentences.
    #[must_use]
    pub fn warnings(&self, loader: &Loader<'_>) -> Vec<String> {
        self.prediction().warnings(loader)
    }
}

fn refuse_unsupported(text: &Json<'_>) -> Result<()> {
    only(text, "model_type", Json::as_str, "glm_ocr_text")?;
    only(text, "hidden_act", Json::as_str, "silu")?;
    only(text, "attention_bias", Json::as_bool, false)?;
    for path in ["partial_rotary_factor", "rope_parameters.partial_rotary_factor"] {
        only(text, path, Json::as_f64, 1.0)?;
    }
    Ok(())
}

/// How many rotary frequencies turn by time, row and column.
fn sections(text: &Json<'_>) -> Result<[usize; 3]> {
    let list = agree(text, &SECTIONS, Json::as_usize_list)?
        .ok_or_else(|| text.error("a setting is missing").expected(SECTIONS.join(" or ")))?;
    let sections = <[usize; 3]>::try_from(list.as_slice()).ok().filter(|all| all.iter().all(|n| *n <= 1 << 16));
    let wrong = || text.error("mrope_section: three sections are expected").found(format!("{list:?}"));
    sections.ok_or_else(wrong)
}

fn token(json: &Json<'_>) -> Result<u32> {
    u32::try_from(json.as_u64()?).map_err(|_| json.error("not a token id"))
}

/// One token or a list of them.
fn tokens(json: &Json<'_>) -> Result<Vec<u32>> {
    match json.as_list() {
        Ok(list) if list.is_empty() => Err(json.error("no token ends the text")),
        Ok(list) => list.iter().map(token).collect(),
        Err(_) => Ok(vec![token(json)?]),
    }
}

/// A function of the decoder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Its name.
    pub name: String,
    /// Visual tokens of a page.
    pub grid: Grid,
    /// Tokens that it reads at once.
    pub query: Query,
}

/// How many tokens a function reads at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Query {
    /// So many.
    Tokens(usize),
    /// As many as the host likes.
    Any,
}

/// Names of the functions' values; part of the host contract.
pub mod names {
    /// Token ids; one from the vocabulary size on is a visual token.
    pub const INPUT_IDS: &str = "input_ids";
    /// Position of the first token fed, counted from 0 without regard to images.
    pub const POSITION: &str = "pos";
    /// Run-time extent: tokens fed.
    pub const QUERY: &str = "query";
    /// Visual tokens.
    pub const IMAGE_EMBEDS: &str = "image_embeds";
    /// Position of the first token after the image.
    pub const ROPE_SHIFT_START: &str = "rope_shift_start";
    /// What text from there on is moved back by.
    pub const ROPE_SHIFT_AMOUNT: &str = "rope_shift_amount";
    /// State of rotated keys.
    pub const KEY_CACHE: &str = "keyCache";
    /// State of values.
    pub const VALUE_CACHE: &str = "valueCache";
    /// Scores of the next token, for each token fed.
    pub const LOGITS: &str = "logits";
}

/// The functions asked for, each `(input_ids si32 [1, s], pos si32 [1], image_embeds [tokens, hidden],
/// rope_shift_start si32 [1], rope_shift_amount si32 [1]; keyCache, valueCache) -> logits [1, s, vocabulary]` with
/// caches `[layers, 1, kv heads, cache, head width]`.
///
/// The tokens fed are at `pos` and the positions after it: their columns are written there, and every token sees those
/// up to its own.
///
/// # Errors
/// When a length does not fit, a tensor is missing or misshapen, or the head contradicts the embedding table it is
/// said to be.
pub fn functions(
    config: &Config,
    calls: &[Call],
    cache: usize,
    element: ElementType,
    loader: &mut Loader<'_>,
    weights: &mut Weights,
) -> Result<Vec<Function>> {
    check_lengths(config, calls, cache)?;
    config.prediction().drop(loader);
    if config.tied {
        tied_head(loader, HEAD, EMBEDDINGS)?;
    }
    let build = |call: &Call| {
        let net = Net::new(&call.name, element, loader, weights);
        Decoder { config, grid: call.grid, cache, query: call.query.extent(cache), net }.build()
    };
    calls.iter().map(build).collect()
}

fn check_lengths(config: &Config, calls: &[Call], cache: usize) -> Result<()> {
    if cache == 0 || cache > config.max_positions {
        let error = Error::input("the length of the cache does not fit the model");
        return Err(error.found(cache).expected(format!("1 to {}", config.max_positions)));
    }
    for call in calls {
        if let Query::Tokens(tokens) = call.query
            && !(1..=cache).contains(&tokens)
        {
            let error = Error::input("a function reads more tokens than the cache holds").at(call.name.clone());
            return Err(error.found(tokens).expected(format!("1 to {cache}")));
        }
    }
    Ok(())
}

impl Query {
    /// The extent of the tokens fed.
    fn extent(self, cache: usize) -> Dim {
        match self {
            Self::Tokens(tokens) => Dim::Fixed(tokens),
            Self::Any => Dim::Symbol(Symbol::new(names::QUERY, 1, cache)),
        }
    }
}

struct Decoder<'k, 'l, 'c, 'w> {
    config: &'k Config,
    grid: Grid,
    /// Positions of the cache.
    cache: usize,
    /// Tokens fed.
    query: Dim,
    net: Net<'l, 'c, 'w>,
}

/// What is fed, one for each token.
struct Tokens {
    /// `si32 [s]`, the visual tokens among them clamped to the last text id.
    text: ValueId,
    /// `si32 [s]`, the text among them clamped to slot 0.
    slot: ValueId,
    /// `i1 [s, 1]`.
    is_image: ValueId,
    /// Position in the sequence, `si32 [s]`.
    position: ValueId,
    /// Position of the first token, `si32 [1]`.
    start: ValueId,
}

/// Values that all layers share, and the caches as written so far.
struct Stream {
    rotary: Rotary,
    /// Position of the first token fed, `si32 [1]`.
    start: ValueId,
    keys: ValueId,
    values: ValueId,
}

impl Decoder<'_, '_, '_, '_> {
    fn build(mut self) -> Result<Function> {
        let (hidden, vocabulary) = (self.config.hidden, self.config.vocabulary);
        let tokens = self.tokens();
        let mut x = self.embed(&tokens);
        let mut stream = self.stream(&tokens);
        for layer in 0..self.config.layers {
            x = self.layer(x, layer, &mut stream);
            self.net.b.label(x, format!("layer.{layer}"));
        }
        let x = self.net.rms_norm(x, &format!("{PREFIX}norm"), hidden, self.config.epsilon);
        self.net.b.label(x, "norm");
        let head = self.net.weight(if self.config.tied { EMBEDDINGS } else { HEAD }, &[vocabulary, hidden]);
        let logits = self.net.b.linear(x, head, None);
        self.net.b.result(names::LOGITS, logits);
        self.net.b.state_result(names::KEY_CACHE, stream.keys);
        self.net.b.state_result(names::VALUE_CACHE, stream.values);
        self.net.finish()
    }

    fn tokens(&mut self) -> Tokens {
        let (vocabulary, s) = (self.config.vocabulary as i32, self.query.clone());
        let row = TensorType { element: ElementType::I32, shape: vec![Dim::Fixed(1), s.clone()] };
        let b = &mut self.net.b;
        let ids = b.input(names::INPUT_IDS, row);
        let start = b.input(names::POSITION, TensorType::new(ElementType::I32, &[1]));
        let position = b.counted_from(start, &s);
        let zero = b.integers(&[1], &[0]);
        let ids = b.reshape_to(ids, std::slice::from_ref(&s));
        let (last, first_slot) = (b.integers(&[1], &[vocabulary - 1]), b.integers(&[1], &[vocabulary]));
        let is_image = b.binary(Binary::Greater, ids, last);
        let slot = b.sub(ids, first_slot);
        Tokens {
            text: b.binary(Binary::Min, ids, last),
            slot: b.binary(Binary::Max, slot, zero),
            is_image: b.reshape_to(is_image, &[s.clone(), Dim::Fixed(1)]),
            position,
            start,
        }
    }

    /// Rows of the embedding table, and visual tokens in their places: `[1, s, hidden]`.
    fn embed(&mut self, tokens: &Tokens) -> ValueId {
        let (hidden, element) = (self.config.hidden, self.net.element());
        let table = self.net.weight(EMBEDDINGS, &[self.config.vocabulary, hidden]);
        let b = &mut self.net.b;
        let seen = b.input(names::IMAGE_EMBEDS, TensorType::new(element, &[self.grid.tokens(), hidden]));
        let text = b.take_rows(table, tokens.text);
        let image = b.take_rows(seen, tokens.slot);
        let x = b.node(Op::Select, &[tokens.is_image, image, text]);
        let x = b.reshape_to(x, &[Dim::Fixed(1), self.query.clone(), hidden.into()]);
        b.label(x, "inputs_embeds")
    }

    /// Time, row and column of each token: `si32 [s, 3]`. The three are equal for text. Visual tokens share the time at
    /// which the image starts, and count rows and columns from there; the text behind them goes on after the longer
    /// side of the image.
    fn positions(&mut self, tokens: &Tokens) -> ValueId {
        let column = [self.query.clone(), Dim::Fixed(1)];
        let grid = self.grid;
        let b = &mut self.net.b;
        let shift_start = b.input(names::ROPE_SHIFT_START, TensorType::new(ElementType::I32, &[1]));
        let shift = b.input(names::ROPE_SHIFT_AMOUNT, TensorType::new(ElementType::I32, &[1]));
        let none = b.integers(&[1], &[0]);
        let before = b.binary(Binary::Greater, shift_start, tokens.position);
        let shift = b.node(Op::Select, &[before, none, shift]);
        let text = b.sub(tokens.position, shift);
        let text = b.reshape_to(text, &column);

        let offsets: Vec<i32> = grid.cells().flat_map(|[row, column]| [0, row as i32, column as i32]).collect();
        let offsets = b.integers(&[grid.tokens(), 3], &offsets);
        let offset = b.take_rows(offsets, tokens.slot);
        let image_start = b.sub(tokens.position, tokens.slot);
        let image_start = b.reshape_to(image_start, &column);
        let image = b.add(image_start, offset);
        let positions = b.node(Op::Select, &[tokens.is_image, image, text]);
        b.label(positions, "mrope_positions")
    }

    fn stream(&mut self, tokens: &Tokens) -> Stream {
        let positions = self.positions(tokens);
        let rotary = self.rotary(positions);
        let config = self.config;
        let state = cache_type(self.net.element(), config.layers, config.kv_heads, self.cache, config.head_width);
        let b = &mut self.net.b;
        Stream {
            rotary,
            start: tokens.start,
            keys: b.state(names::KEY_CACHE, state.clone()),
            values: b.state(names::VALUE_CACHE, state),
        }
    }

    /// Each frequency turns by one of the three positions (`si32 [s, 3]`).
    fn rotary(&mut self, positions: ValueId) -> Rotary {
        let frequencies = frequencies(self.config.head_width, self.config.rope_theta);
        let element = self.net.element();
        let b = &mut self.net.b;
        let mut parts = Vec::new();
        let mut rest = frequencies.as_slice();
        for (axis, length) in self.config.sections.into_iter().enumerate() {
            let (section, after) = rest.split_at(length.min(rest.len()));
            rest = after;
            if section.is_empty() {
                continue;
            }
            let along = b.slice_axis(positions, 1, axis, axis + 1);
            parts.push(angles(b, along, section));
        }
        let angles = b.concat(&parts, 1);
        let rotary = Rotary::of_neighbours(b, angles, element);
        rotary.label(b);
        rotary
    }

    /// Both branches are normed before they are read and again before they are added. The norm before the MLP is
    /// called `post_attention_layernorm`.
    fn layer(&mut self, x: ValueId, layer: usize, stream: &mut Stream) -> ValueId {
        let prefix = format!("{PREFIX}layers.{layer}.");
        let y = self.norm(x, &prefix, "input");
        let y = self.attention(y, &format!("{prefix}self_attn."), layer, stream);
        let y = self.norm(y, &prefix, "post_self_attn");
        let x = self.net.b.add(x, y);
        let y = self.norm(x, &prefix, "post_attention");
        let y = self.mlp(y, &format!("{prefix}mlp."));
        let y = self.norm(y, &prefix, "post_mlp");
        self.net.b.add(x, y)
    }

    fn norm(&mut self, x: ValueId, prefix: &str, which: &str) -> ValueId {
        self.net.rms_norm(x, &format!("{prefix}{which}_layernorm"), self.config.hidden, self.config.epsilon)
    }

    fn attention(&mut self, y: ValueId, prefix: &str, layer: usize, stream: &mut Stream) -> ValueId {
        let Config { hidden, heads, kv_heads, head_width: d, .. } = *self.config;
        let [q, k, v] = [("q_proj", heads), ("k_proj", kv_heads), ("v_proj", kv_heads)].map(|(part, heads)| {
            let x = self.net.linear(y, &format!("{prefix}{part}"), (hidden, heads * d), Bias::No);
            split_heads(&mut self.net.b, x, heads)
        });
        let b = &mut self.net.b;
        let (q, k) = (stream.rotary.rotate_neighbours(b, q), stream.rotary.rotate_neighbours(b, k));
        b.label(k, format!("cache.{layer}.key"));
        b.label(v, format!("cache.{layer}.value"));
        stream.keys = b.node(Op::KvAppend { layer }, &[stream.keys, k, stream.start]);
        stream.values = b.node(Op::KvAppend { layer }, &[stream.values, v, stream.start]);
        let seen = [q, stream.keys, stream.values, stream.start];
        let y = b.node(Op::CachedAttention { layer, window: None }, &seen);
        let y = merge_heads(b, y);
        self.net.linear(y, &format!("{prefix}o_proj"), (heads * d, hidden), Bias::No)
    }

    /// `down(silu(gate) * up)`; gate and up are rows of one projection, gate first.
    fn mlp(&mut self, y: ValueId, prefix: &str) -> ValueId {
        let Config { hidden, intermediate, .. } = *self.config;
        let both = self.net.linear(y, &format!("{prefix}gate_up_proj"), (hidden, 2 * intermediate), Bias::No);
        let b = &mut self.net.b;
        let gate = b.slice_axis(both, 2, 0, intermediate);
        let up = b.slice_axis(both, 2, intermediate, 2 * intermediate);
        let gate = b.unary(Unary::Silu, gate);
        let inner = b.mul(gate, up);
        self.net.linear(inner, &format!("{prefix}down_proj"), (intermediate, hidden), Bias::No)
    }
}

#[cfg(test)]
mod tests;
