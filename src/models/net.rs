//! A graph builder with the vocabulary of transformer layers: weights by name, linear layers, norms.

use super::Loader;
use crate::graph::{Builder, Function, FunctionRole, Unary, ValueId};
use crate::weights::{WeightId, Weights};
use crate::{ElementType, Error, Result};

/// Builds one function of a model from the tensors of a checkpoint.
#[derive(Debug)]
pub struct Net<'l, 'c, 'w> {
    /// Builds the graph.
    pub b: Builder<'w>,
    loader: &'l mut Loader<'c>,
    element: ElementType,
    /// The first weight that could not be had. What is built on it is wrong, too, so it is reported alone.
    failed: Option<Error>,
}

/// Whether a layer has a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bias {
    /// `name.bias` is added.
    Yes,
    /// There is none.
    No,
}

impl<'l, 'c, 'w> Net<'l, 'c, 'w> {
    /// Starts an entry function whose activations are of type `element`.
    pub fn new(name: &str, element: ElementType, loader: &'l mut Loader<'c>, weights: &'w mut Weights) -> Self {
        Self { b: Builder::new(name, FunctionRole::Entry, weights), loader, element, failed: None }
    }

    /// The element type of activations.
    #[must_use]
    pub const fn element(&self) -> ElementType {
        self.element
    }

    /// The tensors of the checkpoint.
    pub fn loader(&mut self) -> &mut Loader<'c> {
        self.loader
    }

    /// Ends the function.
    ///
    /// # Errors
    /// The first error of a weight, else the first of the graph.
    pub fn finish(self) -> Result<Function> {
        match self.failed {
            Some(error) => Err(error),
            None => self.b.finish(),
        }
    }

    /// A weight as a constant; an error shows when the function is finished.
    pub fn constant(&mut self, weight: Result<WeightId>) -> ValueId {
        match weight {
            Ok(id) => self.b.constant(id),
            Err(error) => {
                self.failed.get_or_insert(error);
                self.b.scalar(0.0, ElementType::F32)
            }
        }
    }

    /// The recipe of tensor `name` of this shape, cast to `element`.
    ///
    /// # Errors
    /// When the tensor is missing or misshapen.
    pub fn recipe(&mut self, name: &str, shape: &[usize], element: ElementType) -> Result<WeightId> {
        let tensor = self.loader.tensor(name, shape)?;
        let read = self.b.weights().read_parameter(tensor);
        self.b.weights().cast(read, element)
    }

    /// Tensor `name` as a constant of the activation type.
    pub fn weight(&mut self, name: &str, shape: &[usize]) -> ValueId {
        self.weight_as(name, shape, self.element)
    }

    /// Tensor `name` as a constant of type `element`.
    pub fn weight_as(&mut self, name: &str, shape: &[usize], element: ElementType) -> ValueId {
        let recipe = self.recipe(name, shape, element);
        self.constant(recipe)
    }

    /// Linear layer `name`, `[.., in]` to `[.., out]`; `sizes` is `(in, out)`.
    pub fn linear(&mut self, x: ValueId, name: &str, sizes: (usize, usize), bias: Bias) -> ValueId {
        let weight = self.weight(&format!("{name}.weight"), &[sizes.1, sizes.0]);
        let bias = (bias == Bias::Yes).then(|| self.weight(&format!("{name}.bias"), &[sizes.1]));
        self.b.linear(x, weight, bias)
    }

    /// Layer norm `name` over the last axis of extent `width`.
    pub fn layer_norm(&mut self, x: ValueId, name: &str, width: usize, epsilon: f32) -> ValueId {
        let gamma = self.weight(&format!("{name}.weight"), &[width]);
        let beta = self.weight(&format!("{name}.bias"), &[width]);
        self.b.layer_norm(x, gamma, beta, epsilon)
    }

    /// Root-mean-square norm `name` over the last axis of extent `width`.
    pub fn rms_norm(&mut self, x: ValueId, name: &str, width: usize, epsilon: f32) -> ValueId {
        let gamma = self.weight(&format!("{name}.weight"), &[width]);
        self.b.rms_norm(x, gamma, epsilon)
    }

    /// `down(silu(gate x) * up x)` with the layers `{prefix}gate_proj`, `up_proj`, `down_proj`; `sizes` is
    /// `(hidden, intermediate)`.
    pub fn gated_mlp(&mut self, x: ValueId, prefix: &str, sizes: (usize, usize), bias: Bias) -> ValueId {
        let gate = self.linear(x, &format!("{prefix}gate_proj"), sizes, bias);
        let gate = self.b.unary(Unary::Silu, gate);
        let up = self.linear(x, &format!("{prefix}up_proj"), sizes, bias);
        let inner = self.b.mul(gate, up);
        self.linear(inner, &format!("{prefix}down_proj"), (sizes.1, sizes.0), bias)
    }
}
