//! Feeds a decoder the tokens of one page after the other, in whatever form it keeps its keys and values.

use std::ops::Range;

use super::recipe::{CacheRecipe, ChunkFunction, ChunkRecipe, HostCache, KvCaches, KvFeed, KvRecipe, Recipe};
use crate::error::At;
use crate::runtime::{Asset, Call, HostTensor, Outputs, Runtime, State};
use crate::{Error, Result};

/// The tokens that a decoder has been fed, and what the host keeps of them.
#[derive(Debug, Clone)]
pub(super) struct Sequence<'r> {
    kv: &'r KvRecipe,
    cache: CacheRecipe,
    states: Vec<State>,
    /// Tokens fed.
    length: usize,
    /// For each part that a function is called as; empty where the runtime keeps the caches.
    held: Vec<Held<'r>>,
}

/// Keys and values of some layers, each `[layers, 1, heads, length, head_dim]`, with the host.
#[derive(Debug, Clone)]
struct Held<'r>([(&'r HostCache, HostTensor); 2]);

/// A call of a decoder function, but for what the form of the caches adds.
#[derive(Debug)]
pub(super) struct Feed<'a> {
    /// Name of the function in the contract.
    pub(super) function: &'a str,
    /// The inputs that the contract speaks of.
    pub(super) inputs: Vec<(&'a str, HostTensor)>,
    /// Tokens fed.
    pub(super) tokens: usize,
    /// Where the function starts.
    pub(super) start: Start,
}

/// Where a function starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// At position 0, always.
    AtZero,
    /// Behind the tokens that were fed before.
    Behind,
}

/// What is called in one go: a whole function, or that of a chunk of layers.
#[derive(Clone, Copy)]
struct Part<'a> {
    function: &'a str,
    /// The inputs it takes, where it does not take all.
    takes: Option<&'a ChunkFunction>,
}

impl Part<'_> {
    fn takes(&self, name: &str) -> bool {
        self.takes.is_none_or(|function| function.takes(name))
    }
}

impl<'r> Sequence<'r> {
    /// Of a bundle with this recipe; [`begin`](Self::begin) comes before the first call.
    pub(super) fn new(recipe: &'r Recipe) -> Self {
        Self { kv: &recipe.kv, cache: recipe.cache, states: recipe.states(), length: 0, held: Vec::new() }
    }

    /// Tokens fed.
    pub(super) const fn length(&self) -> usize {
        self.length
    }

    /// Forgets all tokens.
    ///
    /// # Errors
    /// When the runtime has no such states, or there is no memory for the caches that the host keeps.
    pub(super) fn begin(&mut self, runtime: &mut dyn Runtime) -> Result<()> {
        self.length = 0;
        match &self.kv.caches {
            KvCaches::States { .. } => runtime.reset_states(Asset::Decoder, &self.states),
            KvCaches::Host { keys, values } => {
                let empty = |layers| Held::empty([keys, values], self.cache.shape(layers));
                self.held = self.layers().into_iter().map(empty).collect::<Result<_>>()?;
                Ok(())
            }
        }
    }

    /// The layers of each part that a function is called as.
    fn layers(&self) -> Vec<Range<usize>> {
        match self.kv.chunks.as_slice() {
            [] => std::iter::once(0..self.cache.layers).collect(),
            chunks => chunks.iter().map(ChunkRecipe::range).collect(),
        }
    }

    /// Calls a function with the tokens that come next, part by part where it is cut into chunks.
    ///
    /// # Errors
    /// When the caches are full, or a call fails.
    pub(super) fn feed(&mut self, runtime: &mut dyn Runtime, feed: Feed<'_>) -> Result<Outputs> {
        let places = self.places(feed.tokens)?;
        let kv = self.kv;
        let mut inputs = feed.inputs;
        if feed.start == Start::Behind {
            let of = |feed: &'r KvFeed| Ok((feed.input(), self.place(feed, &places)?));
            inputs.extend(kv.feeds.iter().map(of).collect::<Result<Vec<_>>>()?);
        }
        let mut outputs = Outputs::default();
        for (index, part) in parts(kv, feed.function)?.into_iter().enumerate() {
            let mut given = inputs.clone();
            if index > 0 {
                given.push((ChunkFunction::HIDDEN, outputs.take(ChunkFunction::HIDDEN)?));
            }
            if feed.start == Start::Behind {
                given.extend(self.held.get(index).into_iter().flat_map(Held::inputs));
            }
            outputs = self.run(runtime, part, given)?;
            if let Some(held) = self.held.get_mut(index) {
                held.put(&mut outputs, &places).at(|| format!("function `{}`", part.function))?;
            }
        }
        self.length = places.end;
        Ok(outputs)
    }

    /// Where so many tokens go that come next.
    fn places(&self, tokens: usize) -> Result<Range<usize>> {
        let end = self.length.checked_add(tokens).filter(|end| *end <= self.cache.length);
        end.map(|end| self.length..end).ok_or_else(|| {
            let error =
                Error::input("the caches have no room").found(format!("{} tokens and {tokens} more", self.length));
            error.expected(format!("at most {}", self.cache.length))
        })
    }

    fn run(&self, runtime: &mut dyn Runtime, part: Part<'_>, mut given: Vec<(&str, HostTensor)>) -> Result<Outputs> {
        given.retain(|(name, _)| part.takes(name));
        let states = self.states.iter().map(|state| state.name.as_str()).collect();
        runtime.run(&Call { asset: Asset::Decoder, function: part.function, inputs: given, states })
    }

    /// The input that says that the tokens of a call are at `places`.
    fn place(&self, feed: &KvFeed, places: &Range<usize>) -> Result<HostTensor> {
        match feed {
            KvFeed::Position { .. } => HostTensor::ints(vec![1], vec![position(places.start)?]),
            KvFeed::PositionIds { .. } => HostTensor::ints(vec![1, places.end], (0..position(places.end)?).collect()),
            KvFeed::WriteMask { .. } => {
                let row = |place: usize| places.clone().map(move |own| f32::from(u8::from(own == place)));
                let mask = (0..self.cache.length).flat_map(row).collect();
                HostTensor::floats(vec![self.cache.length, places.len()], mask)
            }
        }
    }

    /// Keys and values of all layers, each `[layers, 1, heads, length, head_dim]`, where the host keeps them.
    pub(super) fn columns(&self) -> Option<[Vec<f32>; 2]> {
        let all = |of: usize| self.held.iter().flat_map(|held| held.0[of].1.as_floats()).copied().collect();
        matches!(self.kv.caches, KvCaches::Host { .. }).then(|| [all(0), all(1)])
    }
}

/// The parts of a function in the order in which they are called.
fn parts<'k>(kv: &'k KvRecipe, function: &'k str) -> Result<Vec<Part<'k>>> {
    if kv.chunks.is_empty() {
        return Ok(vec![Part { function, takes: None }]);
    }
    let of_chunk = |chunk: &'k ChunkRecipe| {
        let own = chunk.functions.get(function).ok_or_else(|| {
            Error::input("a chunk has no such function").at("kv.chunks").expected(format!("`{function}`"))
        })?;
        Ok(Part { function: &own.function, takes: Some(own) })
    };
    kv.chunks.iter().map(of_chunk).collect()
}

/// A position as functions take it.
fn position(value: usize) -> Result<i32> {
    i32::try_from(value).map_err(|_| Error::input("the position does not fit into 32 bits").found(value))
}

impl<'r> Held<'r> {
    fn empty([keys, values]: [&'r HostCache; 2], shape: [usize; 5]) -> Result<Self> {
        let none = zeros(shape)?;
        Ok(Self([(keys, none.clone()), (values, none)]))
    }

    /// What a function takes of it.
    fn inputs(&self) -> [(&'r str, HostTensor); 2] {
        self.0.each_ref().map(|(names, values)| (names.past.as_str(), values.clone()))
    }

    /// Puts what a function gives in its place.
    fn put(&mut self, outputs: &mut Outputs, places: &Range<usize>) -> Result<()> {
        for (names, cache) in &mut self.0 {
            let &[layers, one, heads, length, width] = cache.shape() else { continue };
            let new = outputs.take_floats(&names.new, &[layers, one, heads, places.len(), width])?;
            let rows = cache.as_floats_mut().chunks_exact_mut(length * width);
            for (rows, new) in rows.zip(new.chunks_exact(places.len() * width)) {
                rows[places.start * width..places.end * width].copy_from_slice(new);
            }
        }
        Ok(())
    }
}

/// All zero. The sizes are the bundle's, so they may be more than there is memory for.
fn zeros(shape: [usize; 5]) -> Result<HostTensor> {
    let elements = shape.iter().try_fold(1_usize, |product, extent| product.checked_mul(*extent));
    let mut values = Vec::new();
    let room = elements.filter(|elements| values.try_reserve_exact(*elements).is_ok());
    let elements = room.ok_or_else(|| {
        Error::environment("there is no memory for the caches").at("cache").found(format!("{shape:?} elements"))
    })?;
    values.resize(elements, 0.0);
    HostTensor::floats(shape.into(), values)
}

#[cfg(test)]
mod tests;
