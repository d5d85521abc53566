//! How the decoder keeps its keys and values: what its functions take and give for that, and what the host does.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::functions::{FunctionPorts, Port, WholeFunction};
use super::{CacheRecipe, Recipe, ensure};
use crate::runtime::{Asset, State};
use crate::{ElementType, Error, Result};

/// How the decoder keeps its keys and values. This is added to what the contract says of each function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvRecipe {
    /// The name of the form, such as `indexed`; for people: the other fields say what it means.
    pub form: String,
    /// Inputs that say where the tokens of a call are. A function that always starts at position 0 takes none of them.
    pub feeds: Vec<KvFeed>,
    /// Where keys and values are between calls.
    pub caches: KvCaches,
    /// Where each function is cut into several of fewer layers: those, in the order in which they are called.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chunks: Vec<ChunkRecipe>,
    /// What the host does at each step, as sentences.
    pub host: Vec<String>,
}

/// An input that says where the `n` tokens of a call are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum KvFeed {
    /// The position of the first, `si32 [1]`.
    Position {
        /// Name of the input.
        input: String,
    },
    /// The positions of all tokens so far, those of the call included, `si32 [1, total]`: 0, 1, 2, ..
    PositionIds {
        /// Name of the input.
        input: String,
    },
    /// 1 at `[position of token i, i]`, 0 elsewhere, `[length, n]` of the caches' element type.
    WriteMask {
        /// Name of the input.
        input: String,
    },
}

/// Where keys and values are between calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KvCaches {
    /// With the runtime: states `[layers, 1, heads, length, head_dim]`.
    States {
        /// Name of the state of keys.
        keys: String,
        /// Name of the state of values.
        values: String,
        /// Which row is whose.
        rows: CacheRows,
    },
    /// With the host: it hands in what was written so far, and puts what a call gives in its place.
    Host {
        /// The keys.
        keys: HostCache,
        /// The values.
        values: HostCache,
    },
}

/// Which row of a state holds the token at position `p` of `total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheRows {
    /// Row `p`.
    InOrder,
    /// Row `length - total + p`.
    AtTheEnd,
}

/// A cache that the host keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostCache {
    /// Name of the input `[layers, 1, heads, length, head_dim]`; a function that starts at position 0 has no past.
    pub past: String,
    /// Name of the output `[layers, 1, heads, n, head_dim]`: the columns of the `n` tokens of the call.
    pub new: String,
}

/// Some of the decoder's layers, as functions of their own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkRecipe {
    /// The first layer, and the one after the last. Caches of its functions have these layers only.
    pub layers: [usize; 2],
    /// Its function for each whole function of the contract, by the name of that.
    pub functions: BTreeMap<String, ChunkFunction>,
}

/// A function of some of the decoder's layers.
///
/// It gives [`HIDDEN`](Self::HIDDEN), which the next chunk takes; the last gives what the whole function gives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkFunction {
    /// Its name.
    pub function: String,
    /// Names of all inputs it takes.
    pub inputs: Vec<String>,
}

impl ChunkFunction {
    /// Name of what a chunk passes on to the next, `[1, n, hidden]`: an output of one, an input of the other.
    pub const HIDDEN: &str = "hidden";

    /// Whether it takes this input.
    #[must_use]
    pub fn takes(&self, name: &str) -> bool {
        self.inputs.iter().any(|input| input == name)
    }
}

impl ChunkRecipe {
    /// The layers.
    #[must_use]
    pub const fn range(&self) -> Range<usize> {
        self.layers[0]..self.layers[1]
    }
}

impl KvFeed {
    /// Name of the input.
    #[must_use]
    pub fn input(&self) -> &str {
        match self {
            Self::Position { input } | Self::PositionIds { input } | Self::WriteMask { input } => input,
        }
    }

    /// The input of a function that takes so many tokens.
    fn port(&self, tokens: Option<usize>, cache: (CacheRecipe, ElementType)) -> Port {
        let (element, shape) = match self {
            Self::Position { .. } => (ElementType::I32, vec![Some(1)]),
            Self::PositionIds { .. } => (ElementType::I32, vec![Some(1), None]),
            Self::WriteMask { .. } => (cache.1, vec![Some(cache.0.length), tokens]),
        };
        Port { name: self.input().to_owned(), element, shape }
    }
}

/// Where the form is in the recipe.
const PLACE: &str = "kv";

impl KvRecipe {
    /// The input whose extent grows from call to call, if there is one.
    #[must_use]
    pub fn growing_input(&self) -> Option<&str> {
        self.feeds.iter().find(|feed| matches!(feed, KvFeed::PositionIds { .. })).map(KvFeed::input)
    }

    /// Whether a function may take a number of tokens that is chosen at run time: all that depends on it must follow.
    pub(super) fn takes_any_number(&self) -> bool {
        matches!(self.feeds.as_slice(), [KvFeed::PositionIds { .. }])
    }

    /// The states of the decoder, keys first; none where the host keeps the caches.
    pub(super) fn states(&self, cache: CacheRecipe) -> Vec<State> {
        match &self.caches {
            KvCaches::States { keys, values, .. } => [keys, values]
                .map(|name| State { name: name.clone(), shape: cache.shape(0..cache.layers).to_vec() })
                .into(),
            KvCaches::Host { .. } => Vec::new(),
        }
    }

    /// The names of the functions that a whole one is called as.
    pub(super) fn names<'r>(&'r self, whole: &'r str) -> Vec<&'r str> {
        if self.chunks.is_empty() {
            return vec![whole];
        }
        let own = self.chunks.iter().filter_map(|chunk| chunk.functions.get(whole));
        own.map(|function| function.function.as_str()).collect()
    }

    /// The functions that a whole one is called as, with all that they take and give.
    pub(super) fn functions(&self, whole: &WholeFunction<'_>, recipe: &Recipe) -> Vec<FunctionPorts> {
        let all = self.with_caches(whole, recipe);
        if self.chunks.is_empty() {
            return vec![all(whole.name, 0..recipe.cache.layers)];
        }
        let hidden = Port {
            name: ChunkFunction::HIDDEN.to_owned(),
            element: recipe.element_type,
            shape: vec![Some(1), whole.tokens, Some(recipe.hidden_size)],
        };
        let last = self.chunks.len() - 1;
        let cut = |(index, chunk): (usize, &ChunkRecipe)| {
            let own = chunk.functions.get(whole.name)?;
            let mut ports = all(&own.function, chunk.range());
            ports.inputs.push(hidden.clone());
            ports.inputs.retain(|input| own.takes(&input.name));
            if index < last {
                ports.outputs.retain(|output| output.name != whole.logits.name);
                ports.outputs.push(hidden.clone());
            }
            Some(ports)
        };
        self.chunks.iter().enumerate().filter_map(cut).collect()
    }

    /// A function with what the form adds, for so many layers.
    fn with_caches<'w>(
        &'w self,
        whole: &'w WholeFunction<'_>,
        recipe: &'w Recipe,
    ) -> impl Fn(&str, Range<usize>) -> FunctionPorts + 'w {
        let (cache, element) = (recipe.cache, recipe.element_type);
        move |name, layers| {
            let shape = cache.shape(layers);
            let port = |name: &String, length: Option<usize>| {
                let mut shape = shape.map(Some);
                shape[3] = length;
                Port { name: name.clone(), element, shape: shape.to_vec() }
            };
            let length = Some(cache.length);
            let (mut inputs, mut outputs, mut states) = (whole.inputs.clone(), vec![whole.logits.clone()], Vec::new());
            if !whole.from_zero {
                inputs.extend(self.feeds.iter().map(|feed| feed.port(whole.tokens, (cache, element))));
            }
            match &self.caches {
                KvCaches::States { keys, values, .. } => states.extend([keys, values].map(|name| port(name, length))),
                KvCaches::Host { keys, values } => {
                    if !whole.from_zero {
                        inputs.extend([keys, values].map(|cache| port(&cache.past, length)));
                    }
                    outputs.extend([keys, values].map(|cache| port(&cache.new, whole.tokens)));
                }
            }
            FunctionPorts { asset: Asset::Decoder, name: name.to_owned(), inputs, states, outputs }
        }
    }

    /// Checks that the parts agree with each other and with the rest of `recipe`.
    pub(super) fn check(&self, recipe: &Recipe) -> Result<()> {
        ensure(!self.form.is_empty(), format_args!("{PLACE}.form"), "nothing", || "a name".to_owned())?;
        let placed = self.feeds.iter().any(|feed| !matches!(feed, KvFeed::WriteMask { .. }));
        let positions = || "an input that says the position".to_owned();
        ensure(placed, format_args!("{PLACE}.feeds"), format!("{} of them", self.feeds.len()), positions)?;
        for (index, feed) in self.feeds.iter().enumerate() {
            let mut before = self.feeds.iter().take(index);
            let twice = before.any(|other| std::mem::discriminant(other) == std::mem::discriminant(feed));
            ensure(!twice, format_args!("{PLACE}.feeds[{index}]"), feed.input(), || "one of each kind".to_owned())?;
        }
        self.check_chunks(recipe)?;
        self.check_names(recipe)
    }

    /// No function takes or gives two things of one name.
    fn check_names(&self, recipe: &Recipe) -> Result<()> {
        let mut functions = BTreeSet::new();
        for function in recipe.ports(Asset::Decoder) {
            let place = format!("{PLACE}: function `{}`", function.name);
            for ports in [function.inputs.iter().chain(&function.states), function.outputs.iter().chain(&[])] {
                let mut names = BTreeSet::new();
                let twice = ports.map(|port| port.name.as_str()).find(|name| name.is_empty() || !names.insert(*name));
                let found = format!("`{}` more than once", twice.unwrap_or_default());
                ensure(twice.is_none(), &place, found, || "a name for each input, state and output".to_owned())?;
            }
            let fresh = functions.insert(function.name);
            ensure(fresh, place, "more than once", || "functions that are each named once".to_owned())?;
        }
        Ok(())
    }

    fn check_chunks(&self, recipe: &Recipe) -> Result<()> {
        let Some(last) = self.chunks.last() else { return Ok(()) };
        let by_host = matches!(self.caches, KvCaches::Host { .. });
        ensure(by_host, format_args!("{PLACE}.chunks"), "caches that are states", || {
            "caches that the host keeps, where functions are cut into chunks".to_owned()
        })?;
        let mut next = 0;
        for (index, chunk) in self.chunks.iter().enumerate() {
            let [first, end] = chunk.layers;
            let found = format!("{:?}", chunk.layers);
            ensure(first == next && end > first, format_args!("{PLACE}.chunks[{index}].layers"), found, || {
                format!("at least one layer from {next} on")
            })?;
            next = end;
        }
        ensure(next == recipe.cache.layers, format_args!("{PLACE}.chunks"), format!("{:?}", last.layers), || {
            format!("chunks up to the last of {} layers", recipe.cache.layers)
        })?;
        recipe.whole_functions().iter().try_for_each(|whole| self.check_chunks_of(whole, recipe))
    }

    fn check_chunks_of(&self, whole: &WholeFunction<'_>, recipe: &Recipe) -> Result<()> {
        let ports = self.with_caches(whole, recipe)(whole.name, 0..recipe.cache.layers);
        for (index, chunk) in self.chunks.iter().enumerate() {
            let place = format!("{PLACE}.chunks[{index}].functions");
            let own = chunk.functions.get(whole.name).ok_or_else(|| {
                Error::input("the recipe contradicts itself").at(&*place).expected(format!("`{}`", whole.name))
            })?;
            let place = format!("{place}.{}.inputs", whole.name);
            let handed_on = own.takes(ChunkFunction::HIDDEN);
            ensure(handed_on == (index > 0), &place, format!("{:?}", own.inputs), || {
                format!("`{}` in all chunks but the first", ChunkFunction::HIDDEN)
            })?;
            let known = |name: &String| name == ChunkFunction::HIDDEN || ports.inputs.iter().any(|p| p.name == *name);
            let unknown = own.inputs.iter().find(|name| !known(name));
            ensure(unknown.is_none(), &place, format!("`{}`", unknown.map_or("", |name| name)), || {
                format!("inputs of `{}`", whole.name)
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(in crate::host) mod tests;
