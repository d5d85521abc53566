mod chunk;
#[cfg(test)]
mod tests;

use std::ops::Range;

use self::chunk::Chunk;
use super::{Arguments, Call, Outcome, Pass};
use crate::error::At;
use crate::graph::{Function, FunctionRole, Module, Op, ValueId};
use crate::weights::Weights;
use crate::{Error, Result};

/// `chunk-layers`: a function with caches becomes functions of so many decoder layers each, for runtimes that cannot
/// compile all of them at once. They are called one after the other.
///
/// ```text
/// function decode(inputs_embeds, pos; keyCache [12,..], valueCache [12,..]) -> logits
///
/// function decode_0(inputs_embeds, pos; keyCache [5,..], valueCache [5,..]) -> hidden
/// function decode_1(hidden, pos; keyCache [5,..], valueCache [5,..]) -> hidden
/// function decode_2(hidden, pos; keyCache [2,..], valueCache [2,..]) -> logits
/// ```
///
/// The cuts are at the values labelled `layer.K`. Each chunk takes those inputs of the function that its layers need,
/// and computes what they share (positions, rotary angles) anew; what comes before the first layer is part of the first
/// chunk, what comes after the last layer part of the last. A cache of a chunk has the layers of the chunk alone,
/// counted from 0. The weights are shared by all.
///
/// Runs on the source graph, before `static-kv`, which gives each chunk the form that it gives whole functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkLayers {
    /// Decoder layers of a chunk; the last chunk may have fewer.
    pub layers: usize,
}

impl ChunkLayers {
    /// The value that a chunk passes on: a result of every chunk but the last, an input of every chunk but the first.
    pub const HIDDEN: &str = "hidden";

    /// The layers of each chunk of a decoder of `layers`. A decoder that is a single chunk is not rewritten.
    #[must_use]
    pub fn chunks(self, layers: usize) -> Vec<Range<usize>> {
        let size = self.layers.max(1);
        (0..layers).step_by(size).map(|first| first..layers.min(first + size)).collect()
    }

    /// The name of a chunk of the function `whole`.
    #[must_use]
    pub fn function_name(whole: &str, chunk: usize) -> String {
        format!("{whole}_{chunk}")
    }

    /// The chunks of a function with caches of more layers than a chunk has.
    fn cut(self, function: &Function) -> Result<Option<Vec<Chunk<'_>>>> {
        let layers = cached_layers(function);
        let chunks = self.chunks(layers);
        if function.role != FunctionRole::Entry || chunks.len() < 2 {
            return Ok(None);
        }
        let passed_on = (0..layers).map(|layer| passed_on(function, layer)).collect::<Result<Vec<_>>>()?;
        Ok(Some(chunks.into_iter().map(|layers| Chunk::of(function, &passed_on, layers)).collect()))
    }

    /// The functions that `function` becomes.
    fn split(self, function: &Function, weights: &mut Weights) -> Result<Option<Vec<Function>>> {
        let Some(chunks) = self.cut(function)? else { return Ok(None) };
        let build =
            |(index, chunk): (usize, &Chunk<'_>)| chunk.function(&Self::function_name(&function.name, index), weights);
        chunks.iter().enumerate().map(build).collect::<Result<_>>().map(Some)
    }
}

impl Pass for ChunkLayers {
    fn name(&self) -> &'static str {
        "chunk-layers"
    }

    fn run(&self, module: &mut Module) -> Result<Outcome> {
        if self.layers == 0 {
            return Err(Error::input("a chunk has no layers").found(0).expected("at least 1"));
        }
        let (mut functions, mut sites) = (Vec::new(), 0);
        for function in &module.functions {
            match self.split(function, &mut module.weights).at(|| format!("function `{}`", function.name))? {
                Some(chunks) => {
                    sites += 1;
                    functions.extend(chunks);
                }
                None => functions.push(function.clone()),
            }
        }
        module.functions = functions;
        Ok(Outcome::of(sites, "no function has a cache of more layers than a chunk"))
    }

    fn calls_after(&self, before: &Function, arguments: Arguments) -> Result<Vec<Call>> {
        let Some(chunks) = self.cut(before)? else { return Ok(vec![Call::of(before, arguments)]) };
        let call = |(index, chunk): (usize, &Chunk<'_>)| {
            let function = Self::function_name(&before.name, index);
            Ok(Call { function, arguments: chunk.arguments(&arguments)? })
        };
        chunks.iter().enumerate().map(call).collect()
    }
}

/// How many layers the caches of a function have; none where it has no caches.
fn cached_layers(function: &Function) -> usize {
    let append = function.nodes.iter().find(|node| matches!(node.op, Op::KvAppend { .. }));
    append.and_then(|node| node.ty.shape.first()?.fixed()).unwrap_or(0)
}

/// What a layer passes on to the next.
fn passed_on(function: &Function, layer: usize) -> Result<ValueId> {
    let label = format!("layer.{layer}");
    function
        .labelled(&label)
        .ok_or_else(|| Error::input("what a layer passes on is not labelled").expected(format!("a value `{label}`")))
}
