//! One chunk of a function: what it needs of it, and the function made of that.

use std::ops::Range;

use super::ChunkLayers;
use crate::error::At;
use crate::eval::{Tensor, Tensors};
use crate::graph::{
    Builder, Dim, Function, FunctionResult, FunctionRole, Node, Op, Parameter, ParameterKind, TensorType, ValueId,
};
use crate::passes::Arguments;
use crate::weights::Weights;
use crate::{Error, Result};

/// The values of the chunk, by those of the whole function.
type Copies = Vec<Option<ValueId>>;

/// Some of the decoder layers of a function.
#[derive(Debug)]
pub(super) struct Chunk<'f> {
    whole: &'f Function,
    layers: Range<usize>,
    /// What the layer before the first passes on; none where the first is that of the function.
    entry: Option<ValueId>,
    /// What the chunk returns.
    results: Vec<FunctionResult>,
    /// The values of the whole function that it is made from.
    needed: Vec<bool>,
}

impl<'f> Chunk<'f> {
    /// `passed_on` has the value that each layer of the function passes on.
    pub(super) fn of(whole: &'f Function, passed_on: &[ValueId], layers: Range<usize>) -> Self {
        let entry = layers.start.checked_sub(1).and_then(|before| passed_on.get(before).copied());
        let exit = layers.end.checked_sub(1).and_then(|last| passed_on.get(last).copied());
        let results = match exit.filter(|_| layers.end < passed_on.len()) {
            Some(value) => vec![FunctionResult { name: ChunkLayers::HIDDEN.to_owned(), value }],
            None => whole.results.clone(),
        };
        let mut chunk = Self { whole, layers, entry, results, needed: vec![false; whole.nodes.len()] };
        chunk.find_needed();
        chunk
    }

    /// Walks back from what the chunk returns to its entry.
    fn find_needed(&mut self) {
        let whole = self.whole;
        for result in self.results.iter().chain(&whole.states) {
            self.needed[result.value.index()] = true;
        }
        for (index, node) in whole.nodes.iter().enumerate().rev() {
            if self.needed[index] && self.entry.is_none_or(|entry| entry.index() != index) {
                self.taken(node).iter().for_each(|input| self.needed[input.index()] = true);
            }
        }
    }

    /// The inputs of a node that the chunk needs: of the columns of other layers, the cache they are appended to.
    fn taken<'n>(&self, node: &'n Node) -> &'n [ValueId] {
        match node.op {
            Op::KvAppend { layer } if self.own(layer).is_none() => &node.inputs[..1],
            _ => &node.inputs,
        }
    }

    /// The number of a layer within the chunk.
    fn own(&self, layer: usize) -> Option<usize> {
        self.layers.contains(&layer).then(|| layer - self.layers.start)
    }

    /// The chunk as a function.
    pub(super) fn function(&self, name: &str, weights: &mut Weights) -> Result<Function> {
        let mut b = Builder::new(name, FunctionRole::Entry, weights);
        let mut copies: Copies = vec![None; self.whole.nodes.len()];
        if let Some(entry) = self.entry {
            copies[entry.index()] = Some(b.input(ChunkLayers::HIDDEN, self.whole.ty(entry).clone()));
        }
        let mut parameters = self.whole.parameters.iter();
        for (value, node) in self.whole.iter() {
            let parameter = (node.op == Op::Parameter).then(|| parameters.next()).flatten();
            if !self.needed[value.index()] || copies[value.index()].is_some() {
                continue;
            }
            let copy = match parameter {
                Some(parameter) => self.parameter(&mut b, parameter)?,
                None => self.node(&mut b, node, &copies)?,
            };
            if let Some(label) = &node.label {
                b.label(copy, label.clone());
            }
            copies[value.index()] = Some(copy);
        }
        let mut function = b.finish()?;
        let copied = |results: &[FunctionResult]| {
            let copy = |r: &FunctionResult| Some(FunctionResult { value: copies[r.value.index()]?, ..r.clone() });
            results.iter().filter_map(copy).collect()
        };
        (function.results, function.states) = (copied(&self.results), copied(&self.whole.states));
        Ok(function)
    }

    /// A state has the layers of the chunk.
    fn parameter(&self, b: &mut Builder<'_>, parameter: &Parameter) -> Result<ValueId> {
        let ty = self.whole.ty(parameter.value);
        let ty = match parameter.kind {
            ParameterKind::Input => ty.clone(),
            ParameterKind::State => self.state(ty).at(|| format!("state `{}`", parameter.name))?,
        };
        Ok(b.parameter(&parameter.name, parameter.kind, ty))
    }

    fn state(&self, whole: &TensorType) -> Result<TensorType> {
        match whole.shape.as_slice() {
            [Dim::Fixed(layers), columns @ ..] if self.layers.end <= *layers => {
                let shape = std::iter::once(Dim::Fixed(self.layers.len())).chain(columns.iter().cloned()).collect();
                Ok(TensorType { element: whole.element, shape })
            }
            _ => Err(Error::input("a state is no cache of the layers").found(whole).expected("[layers, ..]")),
        }
    }

    fn node(&self, b: &mut Builder<'_>, node: &Node, copies: &Copies) -> Result<ValueId> {
        let inputs: Vec<ValueId> = self.taken(node).iter().filter_map(|input| copies[input.index()]).collect();
        match (&node.op, inputs.as_slice()) {
            (Op::KvAppend { layer }, [cache, ..]) => Ok(match self.own(*layer) {
                Some(layer) => b.node(Op::KvAppend { layer }, &inputs),
                None => *cache,
            }),
            (Op::CachedAttention { layer, window }, _) => {
                let elsewhere = || Error::input("a layer takes more than what the layer before passes on");
                let own = self.own(*layer).ok_or_else(|| elsewhere().found(format!("attention of layer {layer}")))?;
                Ok(b.node(Op::CachedAttention { layer: own, window: *window }, &inputs))
            }
            (op, _) => Ok(b.declared(op.clone(), &inputs, node.ty.clone())),
        }
    }

    /// What the chunk is called with where the whole function is called with `whole`, but for what the chunk before
    /// passes on.
    pub(super) fn arguments(&self, whole: &Arguments) -> Result<Arguments> {
        let needed = |name: &String| {
            let of_name = self.whole.parameters.iter().find(|parameter| parameter.name == *name);
            of_name.is_some_and(|parameter| self.needed[parameter.value.index()])
        };
        let inputs = whole.inputs.iter().filter(|(name, _)| needed(name));
        let states = whole.states.iter().map(|(name, cache)| Ok((name.clone(), self.rows(cache)?)));
        Ok(Arguments {
            inputs: inputs.map(|(name, tensor)| (name.clone(), tensor.clone())).collect(),
            states: states.collect::<Result<Tensors>>()?,
        })
    }

    /// The layers of the chunk of a cache.
    fn rows(&self, cache: &Tensor) -> Result<Tensor> {
        let fail = || Error::input("a cache has not the layers of the function").found(format!("{:?}", cache.shape()));
        let [layers, columns @ ..] = cache.shape() else { return Err(fail()) };
        let row: usize = columns.iter().product();
        let shape: Vec<usize> = std::iter::once(self.layers.len()).chain(columns.iter().copied()).collect();
        let values = cache.to_floats()?;
        let rows = values.get(self.layers.start * row..self.layers.end * row).filter(|_| self.layers.end <= *layers);
        Tensor::floats(&shape, rows.ok_or_else(fail)?.to_vec())
    }
}
