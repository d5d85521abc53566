//! The DeepseekV2 decoder as Unlimited-OCR has it: plain attention heads (no MLA), reference sliding-window
//! attention, greedy softmax routing over experts, shared experts.

use super::Loader;
use super::attention::{Rotary, cache_type, merge_heads, split_heads};
use super::net::{Bias, Net};
use super::settings::{MAX_EXTENT, MAX_LAYERS, agree, epsilon, is, lookup, only, require, rope_theta, within};
use crate::checkpoint::Json;
use crate::error::At;
use crate::graph::{Function, Op, TensorType, ValueId, Window};
use crate::weights::{WeightId, Weights};
use crate::{ElementType, Error, Result};

/// Sizes and constants of the decoder, from config.json.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Attention heads; as many for keys and values.
    pub heads: usize,
    /// Rows of the embedding table and of the head.
    pub vocabulary: usize,
    /// Width of the dense layers' MLP.
    pub intermediate: usize,
    /// Leading layers with a dense MLP.
    pub dense_layers: usize,
    /// The routed experts of the other layers.
    pub experts: Experts,
    /// Decoded tokens a query sees besides the prefix, itself included.
    pub window: usize,
    /// Longest sequence.
    pub max_positions: usize,
    /// Base of the rotary angles.
    pub rope_theta: f64,
    /// Added to the mean square in norms.
    pub epsilon: f32,
    /// First token of every prompt.
    pub bos: u32,
    /// Token that ends the text.
    pub eos: u32,
}

/// Routed and shared experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Experts {
    /// Routed experts in a layer.
    pub routed: usize,
    /// Experts chosen for a token.
    pub chosen: usize,
    /// Shared experts, run for every token as one MLP of that many times the width.
    pub shared: usize,
    /// Width of one expert.
    pub width: usize,
}

impl Config {
    /// Reads and checks the decoder's settings: `language_config` in the original file, `text_config` in what
    /// transformers 5 writes.
    ///
    /// # Errors
    /// When a setting is missing, contradicts another, or asks for something that is not implemented.
    pub fn read(root: &Json<'_>) -> Result<Self> {
        let section = match (root.optional("language_config"), root.optional("text_config")) {
            (Some(_), Some(text)) => return Err(text.error("two decoders: language_config and text_config")),
            (Some(_), None) => "language_config",
            (None, Some(_)) => "text_config",
            (None, None) => return Err(root.error("a section is missing").expected("language_config or text_config")),
        };
        let text = Section { root, name: section };
        refuse_unsupported(&text)?;
        let count = |name: &str| text.required(&[name], Json::as_usize);
        let token = |name: &str| text.required(&[name], token_id);
        let config = Self {
            hidden: count("hidden_size")?,
            layers: count("num_hidden_layers")?,
            heads: count("num_attention_heads")?,
            vocabulary: count("vocab_size")?,
            intermediate: count("intermediate_size")?,
            dense_layers: count("first_k_dense_replace")?,
            experts: Experts {
                routed: count("n_routed_experts")?,
                chosen: count("num_experts_per_tok")?,
                shared: text.optional(&["n_shared_experts"], Json::as_usize)?.unwrap_or(0),
                width: count("moe_intermediate_size")?,
            },
            window: text.required(&["sliding_window", "sliding_window_size"], Json::as_usize)?,
            max_positions: count("max_position_embeddings")?,
            rope_theta: rope_theta(root, &[&format!("{section}."), ""])?,
            epsilon: text.optional(&["rms_norm_eps"], epsilon)?.unwrap_or(1e-6),
            bos: token("bos_token_id")?,
            eos: token("eos_token_id")?,
        };
        config.check(&text)?;
        Ok(config)
    }

    /// Width of one attention head.
    #[must_use]
    pub const fn head_width(&self) -> usize {
        self.hidden / self.heads
    }

    fn check(&self, text: &Section<'_, '_>) -> Result<()> {
        let ranges: [(&[&str], _, _); 14] = [
            (&["hidden_size"], self.hidden, 1..=MAX_EXTENT),
            (&["num_hidden_layers"], self.layers, 1..=MAX_LAYERS),
            (&["num_attention_heads"], self.heads, 1..=MAX_EXTENT),
            (&["vocab_size"], self.vocabulary, 1..=MAX_EXTENT),
            (&["intermediate_size"], self.intermediate, 1..=MAX_EXTENT),
            (&["first_k_dense_replace"], self.dense_layers, 0..=self.layers),
            (&["n_routed_experts"], self.experts.routed, 1..=1 << 16),
            (&["num_experts_per_tok"], self.experts.chosen, 1..=self.experts.routed),
            (&["n_shared_experts"], self.experts.shared, 0..=1 << 16),
            (&["moe_intermediate_size"], self.experts.width, 1..=MAX_EXTENT),
            (&["sliding_window", "sliding_window_size"], self.window, 1..=MAX_EXTENT),
            (&["max_position_embeddings"], self.max_positions, 1..=MAX_EXTENT),
            (&["bos_token_id"], self.bos as usize, 0..=self.vocabulary - 1),
            (&["eos_token_id"], self.eos as usize, 0..=self.vocabulary - 1),
        ];
        for (names, value, range) in ranges {
            within(&text.place(names), value, range)?;
        }
        if !self.hidden.is_multiple_of(2 * self.heads) {
            let error = text.place(&["num_attention_heads"]).error("heads do not divide the width into even parts");
            return Err(error.found(self.heads).expected(format!("twice as many divide {}", self.hidden)));
        }
        for name in ["head_dim", "v_head_dim"] {
            text.only(name, Json::as_usize, self.head_width())?;
        }
        text.only("num_key_value_heads", Json::as_usize, self.heads)
    }
}

/// The decoder's section of config.json. The original file repeats its settings at the top level, which is what the
/// original's code reads, so the two must agree.
struct Section<'r, 'a> {
    root: &'r Json<'a>,
    name: &'static str,
}

impl<'a> Section<'_, 'a> {
    fn paths(&self, names: &[&str]) -> Vec<String> {
        let inner = names.iter().map(|name| format!("{}.{name}", self.name));
        inner.chain(names.iter().map(|&name| name.to_owned())).collect()
    }

    /// A setting under any of its names.
    fn optional<T>(&self, names: &[&str], read: impl Fn(&Json<'a>) -> Result<T>) -> Result<Option<T>>
    where
        T: PartialEq + std::fmt::Debug,
    {
        let paths = self.paths(names);
        agree(self.root, &paths.iter().map(String::as_str).collect::<Vec<_>>(), read)
    }

    fn required<T>(&self, names: &[&str], read: impl Fn(&Json<'a>) -> Result<T>) -> Result<T>
    where
        T: PartialEq + std::fmt::Debug,
    {
        let paths = self.paths(names);
        require(self.root, &paths.iter().map(String::as_str).collect::<Vec<_>>(), read)
    }

    /// Refuses another value than the only one implemented.
    fn only<T>(&self, name: &str, read: impl Fn(&Json<'a>) -> Result<T>, supported: T) -> Result<()>
    where
        T: PartialEq + std::fmt::Debug + Copy,
    {
        self.paths(&[name]).iter().try_for_each(|path| only(self.root, path, &read, supported))
    }

    /// Where a setting is under any of its names, for messages.
    fn place(&self, names: &[&str]) -> Json<'a> {
        let found = self.paths(names).iter().find_map(|path| lookup(self.root, path));
        found.unwrap_or_else(|| self.root.clone())
    }
}

fn token_id(json: &Json<'_>) -> Result<u32> {
    let id = json.as_u64()?;
    u32::try_from(id).map_err(|_| json.error("not a token id").found(id))
}

fn refuse_unsupported(text: &Section<'_, '_>) -> Result<()> {
    text.only("topk_method", Json::as_str, "greedy")?;
    text.only("scoring_func", Json::as_str, "softmax")?;
    text.only("routed_scaling_factor", Json::as_f64, 1.0)?;
    text.only("moe_layer_freq", Json::as_usize, 1)?;
    text.only("hidden_act", Json::as_str, "silu")?;
    for name in ["use_mla", "norm_topk_prob", "attention_bias", "mlp_bias", "tie_word_embeddings"] {
        text.only(name, Json::as_bool, false)?;
    }
    for name in ["n_group", "topk_group"] {
        text.only(name, Json::as_usize, 1)?;
    }
    for name in ["q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"] {
        text.only(name, Json::as_usize, 0)?;
    }
    // What transformers 5 writes for each layer.
    let kinds = text.paths(&["layer_types"]);
    let kinds = kinds.iter().find_map(|path| lookup(text.root, path)).map_or(Ok(Vec::new()), |list| list.as_list())?;
    kinds.iter().try_for_each(|kind| is(kind, Json::as_str, &"reference_sliding_attention"))
}

/// Sizes of the functions that the checkpoint does not decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lengths {
    /// Tokens of the prompt, image included: the rows of `prefill`, seen by every later token.
    pub prefix: usize,
    /// Positions of the cache.
    pub cache: usize,
}

/// Names of the functions' values; part of the host contract.
pub mod names {
    /// Function that reads the prompt.
    pub const PREFILL: &str = "prefill";
    /// Function that decodes one token.
    pub const DECODE: &str = "decode";
    /// Embedded tokens.
    pub const INPUTS_EMBEDS: &str = "inputs_embeds";
    /// Absolute position of the token decoded.
    pub const POSITION: &str = "pos";
    /// State of rotated keys.
    pub const KEY_CACHE: &str = "keyCache";
    /// State of values.
    pub const VALUE_CACHE: &str = "valueCache";
    /// Scores of the next token.
    pub const LOGITS: &str = "logits";
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Prefill,
    Decode,
}

/// `prefill(inputs_embeds [1, prefix, hidden]; keyCache, valueCache) -> logits [1, 1, vocabulary]`, which reads the
/// whole prompt from position 0, and `decode(inputs_embeds [1, 1, hidden], pos si32 [1]; ..)`, which reads one token
/// at `pos`. Caches are `[layers, 1, heads, cache, head width]`.
///
/// # Errors
/// When a tensor is missing or misshapen.
pub fn functions(
    config: &Config,
    lengths: Lengths,
    element: ElementType,
    loader: &mut Loader<'_>,
    weights: &mut Weights,
) -> Result<[Function; 2]> {
    check_experts(config, loader)?;
    let mut build = |phase: Phase| {
        let name = if phase == Phase::Prefill { names::PREFILL } else { names::DECODE };
        let net = Net::new(name, element, loader, weights);
        Decoder { config, lengths, phase, net }.build()
    };
    Ok([build(Phase::Prefill)?, build(Phase::Decode)?])
}

/// The table of token embeddings, `[vocabulary, hidden]`.
///
/// # Errors
/// When the tensor is missing or misshapen.
pub fn embeddings(
    config: &Config,
    element: ElementType,
    loader: &mut Loader<'_>,
    weights: &mut Weights,
) -> Result<WeightId> {
    let read = weights.read_parameter(loader.tensor("model.embed_tokens.weight", &[config.vocabulary, config.hidden])?);
    weights.cast(read, element)
}

/// Whether the routed experts under `prefix` are packed into two tensors.
fn is_packed(loader: &Loader<'_>, prefix: &str) -> bool {
    ["gate_up_proj", "down_proj"].iter().any(|name| loader.has(&format!("{prefix}experts.{name}")))
}

/// Checks in one go that each layer has all of its experts, so that the sentence can say which are missing.
fn check_experts(config: &Config, loader: &Loader<'_>) -> Result<()> {
    (config.dense_layers..config.layers)
        .try_for_each(|layer| check_layer(config, loader, &format!("model.layers.{layer}.mlp.")))
        .at(|| loader.location())
}

fn check_layer(config: &Config, loader: &Loader<'_>, prefix: &str) -> Result<()> {
    let packed = is_packed(loader, prefix);
    for part in ["gate_proj", "up_proj", "down_proj"] {
        let name = |expert: usize| format!("{prefix}experts.{expert}.{part}.weight");
        let (there, missing): (Vec<_>, Vec<_>) = (0..config.experts.routed).partition(|&e| loader.has(&name(e)));
        match there.first() {
            Some(&expert) if packed => {
                return Err(Error::input("the layer's experts are stored both packed and one by one")
                    .at(format!("tensor `{}`", name(expert)))
                    .hint("the checkpoint was merged from two layouts: keep the files of one"));
            }
            _ if !packed && !missing.is_empty() => {
                return Err(missing_experts(&missing, config).at(name_of(prefix, part)));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The tensors of one part of every expert, in messages.
fn name_of(prefix: &str, part: &str) -> String {
    format!("tensors `{prefix}experts.*.{part}.weight`")
}

fn missing_experts(missing: &[usize], config: &Config) -> Error {
    const SHOWN: usize = 8;
    let mut list: Vec<String> = missing.iter().take(SHOWN).map(ToString::to_string).collect();
    list.extend((missing.len() > SHOWN).then(|| "..".to_owned()));
    let (subject, verb) = if missing.len() == 1 { ("expert", "is") } else { ("experts", "are") };
    Error::input(format!("{subject} {} {verb} missing", list.join(", ")))
        .found(format!("{} experts", config.experts.routed - missing.len()))
        .expected(config.experts.routed)
        .hint("is the download complete, and does config.json belong to it?")
}

struct Decoder<'k, 'l, 'c, 'w> {
    config: &'k Config,
    lengths: Lengths,
    phase: Phase,
    net: Net<'l, 'c, 'w>,
}

/// Values that all layers of a function share, and the caches as written so far.
struct Stream {
    /// Position of the first token fed, `si32 [1]`.
    start: ValueId,
    rotary: Rotary,
    keys: ValueId,
    values: ValueId,
}

impl Decoder<'_, '_, '_, '_> {
    fn build(mut self) -> Result<Function> {
        let mut x = self.net.b.input(names::INPUTS_EMBEDS, self.embeds_type());
        let mut stream = self.stream();
        for layer in 0..self.config.layers {
            x = self.layer(x, layer, &mut stream);
            self.net.b.label(x, format!("layer.{layer}"));
        }
        let (hidden, rows) = (self.config.hidden, self.rows());
        let x = self.net.rms_norm(x, "model.norm", hidden, self.config.epsilon);
        self.net.b.label(x, "norm");
        let last = self.net.b.slice_axis(x, 1, rows - 1, rows);
        let logits = self.net.linear(last, "lm_head", (hidden, self.config.vocabulary), Bias::No);
        self.net.b.result(names::LOGITS, logits);
        self.net.b.state_result(names::KEY_CACHE, stream.keys);
        self.net.b.state_result(names::VALUE_CACHE, stream.values);
        self.net.finish()
    }

    fn rows(&self) -> usize {
        match self.phase {
            Phase::Prefill => self.lengths.prefix,
            Phase::Decode => 1,
        }
    }

    fn embeds_type(&self) -> TensorType {
        TensorType::new(self.net.element(), &[1, self.rows(), self.config.hidden])
    }

    fn stream(&mut self) -> Stream {
        let (config, lengths, element) = (self.config, self.lengths, self.net.element());
        let b = &mut self.net.b;
        let (start, positions) = match self.phase {
            Phase::Prefill => {
                let rows: Vec<i32> = (0..lengths.prefix as i32).collect();
                (b.integers(&[1], &[0]), b.integers(&[lengths.prefix], &rows))
            }
            Phase::Decode => {
                let position = b.input(names::POSITION, TensorType::new(ElementType::I32, &[1]));
                (position, position)
            }
        };
        let cache = cache_type(element, config.layers, config.heads, lengths.cache, config.head_width());
        let keys = b.state(names::KEY_CACHE, cache.clone());
        let values = b.state(names::VALUE_CACHE, cache);
        let rotary = Rotary::split_half(b, positions, config.head_width(), config.rope_theta, element);
        Stream { start, rotary, keys, values }
    }

    fn layer(&mut self, x: ValueId, layer: usize, stream: &mut Stream) -> ValueId {
        let (hidden, epsilon) = (self.config.hidden, self.config.epsilon);
        let prefix = format!("model.layers.{layer}.");
        let y = self.net.rms_norm(x, &format!("{prefix}input_layernorm"), hidden, epsilon);
        let y = self.attention(y, &prefix, layer, stream);
        let x = self.net.b.add(x, y);
        let y = self.net.rms_norm(x, &format!("{prefix}post_attention_layernorm"), hidden, epsilon);
        let y = if layer < self.config.dense_layers {
            self.net.gated_mlp(y, &format!("{prefix}mlp."), (hidden, self.config.intermediate), Bias::No)
        } else {
            self.mixture(y, &format!("{prefix}mlp."), layer)
        };
        self.net.b.add(x, y)
    }

    fn attention(&mut self, y: ValueId, prefix: &str, layer: usize, stream: &mut Stream) -> ValueId {
        let sizes = (self.config.hidden, self.config.hidden);
        let [q, k, v] = ["q_proj", "k_proj", "v_proj"].map(|part| {
            let x = self.net.linear(y, &format!("{prefix}self_attn.{part}"), sizes, Bias::No);
            split_heads(&mut self.net.b, x, self.config.heads)
        });
        let (q, k) = (stream.rotary.rotate_half(&mut self.net.b, q), stream.rotary.rotate_half(&mut self.net.b, k));
        let b = &mut self.net.b;
        stream.keys = b.node(Op::KvAppend { layer }, &[stream.keys, k, stream.start]);
        stream.values = b.node(Op::KvAppend { layer }, &[stream.values, v, stream.start]);
        let window = Some(Window { prefix: self.lengths.prefix, span: self.config.window });
        let seen = [q, stream.keys, stream.values, stream.start];
        let y = b.node(Op::CachedAttention { layer, window }, &seen);
        let y = merge_heads(&mut self.net.b, y);
        self.net.linear(y, &format!("{prefix}self_attn.o_proj"), sizes, Bias::No)
    }

    fn mixture(&mut self, y: ValueId, prefix: &str, layer: usize) -> ValueId {
        let (hidden, rows, experts) = (self.config.hidden, self.rows(), self.config.experts);
        let element = self.net.element();
        let tokens = self.net.b.reshape(y, &[rows, hidden]);
        let (probability, expert) = self.route(tokens, prefix, layer);
        let mut inputs = vec![tokens, probability, expert];
        inputs.extend(self.expert_weights(prefix));
        let mut z = self.net.b.node(Op::RoutedExperts { experts: experts.routed }, &inputs);
        if experts.shared > 0 {
            let width = experts.shared * experts.width;
            let shared = self.net.gated_mlp(tokens, &format!("{prefix}shared_experts."), (hidden, width), Bias::No);
            let shared = self.net.b.cast(shared, ElementType::F32);
            z = self.net.b.add(z, shared);
        }
        let z = self.net.b.cast(z, element);
        self.net.b.reshape(z, &[1, rows, hidden])
    }

    /// Raw softmax probabilities of the chosen experts, in f32 throughout: rounding the router changes which experts
    /// are chosen.
    fn route(&mut self, tokens: ValueId, prefix: &str, layer: usize) -> (ValueId, ValueId) {
        let experts = self.config.experts;
        let weight = self.net.weight_as(
            &format!("{prefix}gate.weight"),
            &[experts.routed, self.config.hidden],
            ElementType::F32,
        );
        let b = &mut self.net.b;
        let tokens = b.cast(tokens, ElementType::F32);
        let scores = b.linear(tokens, weight, None);
        b.label(scores, format!("router.{layer}.logits"));
        let probabilities = b.softmax_f32(scores);
        let sorted = b.node(Op::Sort { axis: 1, descending: true }, &[probabilities]);
        let order = b.node(Op::ArgSort { axis: 1, descending: true }, &[probabilities]);
        let probability = b.slice_axis(sorted, 1, 0, experts.chosen);
        let expert = b.slice_axis(order, 1, 0, experts.chosen);
        b.label(probability, format!("router.{layer}.topk_weights"));
        b.label(expert, format!("router.{layer}.topk_indices"));
        (probability, expert)
    }

    /// Gate, up and down of every expert, in that order: from one tensor each, or cut from packed tensors.
    fn expert_weights(&mut self, prefix: &str) -> Vec<ValueId> {
        let (hidden, width, routed) = (self.config.hidden, self.config.experts.width, self.config.experts.routed);
        let packed = is_packed(self.net.loader(), prefix);
        let mut values = Vec::with_capacity(3 * routed);
        for (part, shape) in [("gate", [width, hidden]), ("up", [width, hidden]), ("down", [hidden, width])] {
            for expert in 0..routed {
                let weight = if packed {
                    self.packed_expert(prefix, part, expert)
                } else {
                    self.net.recipe(&format!("{prefix}experts.{expert}.{part}_proj.weight"), &shape, self.net.element())
                };
                values.push(self.net.constant(weight));
            }
        }
        values
    }

    /// One expert of `gate_up_proj [experts, 2 x width, hidden]` (gate rows first) or `down_proj [experts, hidden,
    /// width]`, named as if it were stored alone, so that both layouts give the same bundle.
    fn packed_expert(&mut self, prefix: &str, part: &str, expert: usize) -> Result<WeightId> {
        let (hidden, width, routed) = (self.config.hidden, self.config.experts.width, self.config.experts.routed);
        let (name, rows, columns, first) = match part {
            "gate" => ("gate_up_proj", 2 * width, hidden, 0),
            "up" => ("gate_up_proj", 2 * width, hidden, width),
            _ => ("down_proj", hidden, width, 0),
        };
        let taken = if part == "down" { hidden } else { width };
        let all = self.net.recipe(&format!("{prefix}experts.{name}"), &[routed, rows, columns], self.net.element())?;
        let weights = self.net.b.weights();
        let all = weights.reshape(all, &[routed * rows, columns])?;
        let rows = weights.rows(all, expert * rows + first, expert * rows + first + taken)?;
        weights.set_name(rows, format!("{prefix}experts.{expert}.{part}_proj.weight"));
        Ok(rows)
    }
}
