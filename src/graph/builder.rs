//! Builds functions node by node, with shape inference.

use std::collections::HashMap;
use std::sync::Arc;

use super::infer::{Inferred, infer};
use super::{
    Binary, Dim, Function, FunctionResult, FunctionRole, Node, Op, Parameter, ParameterKind, Reduction, TensorType,
    Unary, ValueId,
};
use crate::weights::{Resampling, WeightId, Weights};
use crate::{ElementType, Error, Result};

/// Builds one function over a table of weights.
///
/// Methods return values, not results: the first misfit is remembered, later ones are ignored, and
/// [`Builder::finish`] reports it with the node it arose at. So a forward pass reads like its formula.
#[derive(Debug)]
pub struct Builder<'w> {
    function: Function,
    weights: &'w mut Weights,
    constants: HashMap<WeightId, ValueId>,
    /// Shapes that were read at run time, as values.
    extents: HashMap<Vec<Dim>, ValueId>,
    error: Option<Error>,
}

impl<'w> Builder<'w> {
    /// Starts a function.
    pub fn new(name: impl Into<String>, role: FunctionRole, weights: &'w mut Weights) -> Self {
        Self {
            function: Function::new(name, role),
            weights,
            constants: HashMap::new(),
            extents: HashMap::new(),
            error: None,
        }
    }

    /// The function so far.
    #[must_use]
    pub fn function(&self) -> &Function {
        &self.function
    }

    /// The table of weights.
    pub fn weights(&mut self) -> &mut Weights {
        self.weights
    }

    /// The type of a value.
    #[must_use]
    pub fn ty(&self, value: ValueId) -> &TensorType {
        self.function.ty(value)
    }

    /// The element type of a value.
    #[must_use]
    pub fn element(&self, value: ValueId) -> ElementType {
        self.ty(value).element
    }

    /// The extents of a value; a symbol counts as 1.
    #[must_use]
    pub fn shape(&self, value: ValueId) -> Vec<usize> {
        self.ty(value).shape.iter().map(|dim| dim.fixed().unwrap_or(1)).collect()
    }

    /// The function, checked.
    ///
    /// # Errors
    /// The first misfit of a node.
    pub fn finish(self) -> Result<Function> {
        match self.error {
            Some(error) => Err(error.at(format!("function `{}`", self.function.name))),
            None => Ok(self.function),
        }
    }

    /// Adds an input.
    pub fn input(&mut self, name: &str, ty: TensorType) -> ValueId {
        self.parameter(name, ParameterKind::Input, ty)
    }

    /// Adds a state; the value is its contents on entry.
    pub fn state(&mut self, name: &str, ty: TensorType) -> ValueId {
        self.parameter(name, ParameterKind::State, ty)
    }

    /// Adds a parameter.
    pub fn parameter(&mut self, name: &str, kind: ParameterKind, ty: TensorType) -> ValueId {
        let value = self.function.push(Node { op: Op::Parameter, inputs: Vec::new(), ty, label: None });
        self.function.parameters.push(Parameter { name: name.to_owned(), kind, value });
        value
    }

    /// Returns `value` under `name`.
    pub fn result(&mut self, name: &str, value: ValueId) {
        self.function.results.push(FunctionResult { name: name.to_owned(), value });
    }

    /// Returns `value` as the contents of state `name`.
    pub fn state_result(&mut self, name: &str, value: ValueId) {
        self.function.states.push(FunctionResult { name: name.to_owned(), value });
    }

    /// Names a value for people and probes.
    pub fn label(&mut self, value: ValueId, label: impl Into<Arc<str>>) -> ValueId {
        self.function.nodes[value.index()].label = Some(label.into());
        value
    }

    /// Adds a node, its result type inferred.
    pub fn node(&mut self, op: Op, inputs: &[ValueId]) -> ValueId {
        let types: Vec<&TensorType> = inputs.iter().map(|&input| self.function.ty(input)).collect();
        let inferred = infer(&op, &types, self.weights);
        let fallback = types.first().map_or_else(|| TensorType::new(ElementType::F32, &[]), |ty| (*ty).clone());
        let ty = match inferred {
            Ok(Inferred::Type(ty)) => ty,
            Ok(Inferred::Declared) => {
                self.fail(Error::input(format!("`{}` needs a declared type", op.name())));
                fallback
            }
            Err(error) => {
                self.fail(error.at(format!("node {} `{}`", self.function.nodes.len(), op.name())));
                fallback
            }
        };
        self.declared(op, inputs, ty)
    }

    /// Adds a node with a declared result type. A constant that is there already is used again.
    pub fn declared(&mut self, op: Op, inputs: &[ValueId], ty: TensorType) -> ValueId {
        if let Op::Constant(weight) = op {
            let function = &mut self.function;
            let constant = || function.push(Node { op: Op::Constant(weight), inputs: Vec::new(), ty, label: None });
            return *self.constants.entry(weight).or_insert_with(constant);
        }
        self.function.push(Node { op, inputs: inputs.to_vec(), ty, label: None })
    }

    /// The value of a shape that was read before.
    pub(super) fn known_extents(&self, shape: &[Dim]) -> Option<ValueId> {
        self.extents.get(shape).copied()
    }

    pub(super) fn remember_extents(&mut self, shape: &[Dim], value: ValueId) {
        self.extents.insert(shape.to_vec(), value);
    }

    /// Remembers an error, if it is the first.
    pub fn fail(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }

    /// A stored weight.
    pub fn constant(&mut self, weight: WeightId) -> ValueId {
        self.node(Op::Constant(weight), &[])
    }

    /// A weight that may have failed to be made.
    pub fn weight(&mut self, weight: Result<WeightId>) -> ValueId {
        match weight {
            Ok(id) => self.constant(id),
            Err(error) => {
                self.fail(error);
                self.scalar(0.0, ElementType::F32)
            }
        }
    }

    /// A scalar of a floating-point type.
    pub fn scalar(&mut self, value: f32, element: ElementType) -> ValueId {
        let bytes = match element {
            ElementType::F16 => half::f16::from_f32(value).to_le_bytes().to_vec(),
            ElementType::BF16 => half::bf16::from_f32(value).to_le_bytes().to_vec(),
            _ => value.to_le_bytes().to_vec(),
        };
        let element = if bytes.len() == 4 { ElementType::F32 } else { element };
        let weight = self.weights.literal(element, &[], bytes);
        self.weight(weight)
    }

    /// A table of single-precision numbers.
    pub fn floats(&mut self, shape: &[usize], values: &[f32]) -> ValueId {
        let weight = self.weights.literal_f32(shape, values);
        self.weight(weight)
    }

    /// A table of 32-bit integers.
    pub fn integers(&mut self, shape: &[usize], values: &[i32]) -> ValueId {
        let weight = self.weights.literal_i32(shape, values);
        self.weight(weight)
    }

    /// `f(x)`.
    pub fn unary(&mut self, f: Unary, x: ValueId) -> ValueId {
        self.node(Op::Unary(f), &[x])
    }

    /// `f(a, b)`, broadcasting.
    pub fn binary(&mut self, f: Binary, a: ValueId, b: ValueId) -> ValueId {
        self.node(Op::Binary(f), &[a, b])
    }

    /// `a + b`.
    pub fn add(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.binary(Binary::Add, a, b)
    }

    /// `a - b`.
    pub fn sub(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.binary(Binary::Sub, a, b)
    }

    /// `a * b`.
    pub fn mul(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.binary(Binary::Mul, a, b)
    }

    /// `x` times a number.
    pub fn scale(&mut self, x: ValueId, factor: f32) -> ValueId {
        let factor = self.scalar(factor, self.element(x));
        self.mul(x, factor)
    }

    /// `x` in another element type; `x` itself where it has that type.
    pub fn cast(&mut self, x: ValueId, element: ElementType) -> ValueId {
        if self.element(x) == element { x } else { self.node(Op::Cast(element), &[x]) }
    }

    /// `x` in another shape; `x` itself where it has that shape.
    pub fn reshape(&mut self, x: ValueId, shape: &[usize]) -> ValueId {
        if self.ty(x).fixed_shape().is_some_and(|s| s == shape) {
            return x;
        }
        self.node(Op::Reshape(shape.to_vec()), &[x])
    }

    /// Axes permuted.
    pub fn transpose(&mut self, x: ValueId, perm: &[usize]) -> ValueId {
        self.node(Op::Transpose(perm.to_vec()), &[x])
    }

    /// The last two axes exchanged.
    pub fn transpose_last(&mut self, x: ValueId) -> ValueId {
        let rank = self.ty(x).rank();
        let mut perm: Vec<usize> = (0..rank).collect();
        if rank >= 2 {
            perm.swap(rank - 2, rank - 1);
        }
        self.transpose(x, &perm)
    }

    /// Matrix product.
    pub fn matmul(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.node(Op::MatMul, &[a, b])
    }

    /// `begin..end` of one axis; the others stay whole.
    pub fn slice_axis(&mut self, x: ValueId, axis: usize, begin: usize, end: usize) -> ValueId {
        let mut ends: Vec<usize> = self.ty(x).shape.iter().map(|dim| dim.fixed().unwrap_or(Op::TO_END)).collect();
        let mut begins = vec![0; ends.len()];
        if let (Some(b), Some(e)) = (begins.get_mut(axis), ends.get_mut(axis)) {
            (*b, *e) = (begin, end);
        }
        self.node(Op::Slice { begin: begins, end: ends }, &[x])
    }

    /// Values joined along an axis.
    pub fn concat(&mut self, parts: &[ValueId], axis: usize) -> ValueId {
        self.node(Op::Concat { axis }, parts)
    }

    /// Repeated along axes of extent 1.
    pub fn broadcast_to(&mut self, x: ValueId, shape: &[usize]) -> ValueId {
        self.node(Op::BroadcastTo(shape.to_vec()), &[x])
    }

    /// Zeros after the elements of one axis, up to extent `to`; `x` itself where it is that long.
    pub fn pad_axis(&mut self, x: ValueId, axis: usize, to: usize) -> ValueId {
        let shape = self.shape(x);
        let missing = shape.get(axis).map_or(0, |extent| to.saturating_sub(*extent));
        if missing == 0 {
            return x;
        }
        let mut after = vec![0; shape.len()];
        after[axis] = missing;
        self.node(Op::Pad { before: vec![0; shape.len()], after }, &[x])
    }

    /// Sum over an axis, which stays as extent 1.
    pub fn reduce(&mut self, kind: Reduction, x: ValueId, axis: usize) -> ValueId {
        self.node(Op::Reduce { kind, axes: vec![axis] }, &[x])
    }

    /// Softmax over the last axis, computed in f32 and cast back.
    pub fn softmax_f32(&mut self, x: ValueId) -> ValueId {
        let element = self.element(x);
        let axis = self.ty(x).rank().saturating_sub(1);
        let wide = self.cast(x, ElementType::F32);
        let soft = self.node(Op::Softmax { axis }, &[wide]);
        self.cast(soft, element)
    }

    /// What is added to scores so that only the keys `seen` (`i1`) have weight: zero there, elsewhere a number whose
    /// `exp` is zero in every floating-point type and which is finite in half precision. f32, of the shape of `seen`.
    pub fn additive_mask(&mut self, seen: ValueId) -> ValueId {
        let (shown, hidden) = (self.scalar(0.0, ElementType::F32), self.scalar(-30_000.0, ElementType::F32));
        self.node(Op::Select, &[seen, shown, hidden])
    }

    /// Rows of `x` along its first axis by number (`si32 [..]`): `[.., x.shape[1..]]`.
    pub fn take_rows(&mut self, x: ValueId, rows: ValueId) -> ValueId {
        let shape: Vec<Dim> = self.dims(rows).into_iter().chain([Dim::Fixed(1)]).collect();
        let index = self.reshape_to(rows, &shape);
        self.node(Op::Gather, &[x, index])
    }

    /// A linear layer.
    pub fn linear(&mut self, x: ValueId, weight: ValueId, bias: Option<ValueId>) -> ValueId {
        let inputs: Vec<ValueId> = [x, weight].into_iter().chain(bias).collect();
        self.node(Op::Linear, &inputs)
    }

    /// Root-mean-square norm over the last axis.
    pub fn rms_norm(&mut self, x: ValueId, gamma: ValueId, epsilon: f32) -> ValueId {
        self.node(Op::RmsNorm { epsilon }, &[x, gamma])
    }

    /// Layer norm over the last axis.
    pub fn layer_norm(&mut self, x: ValueId, gamma: ValueId, beta: ValueId, epsilon: f32) -> ValueId {
        self.node(Op::LayerNorm { epsilon }, &[x, gamma, beta])
    }

    /// Attention of `q [1, heads, n, d]` to `k` and `v [1, groups, keys, d]`.
    pub fn attention(&mut self, [q, k, v]: [ValueId; 3], causal: bool) -> ValueId {
        self.node(Op::Attention { causal }, &[q, k, v])
    }

    /// A table of positions resampled.
    pub fn resample(&mut self, x: ValueId, kind: Resampling, to: &[usize]) -> ValueId {
        self.node(Op::Resample { kind, to: to.to_vec() }, &[x])
    }
}
