//! Every operation against numbers worked out by hand or plain loops, and whole functions.

mod functions;
mod operations;
mod properties;

use super::{Executor, Options, Tensor, Tensors};
use crate::graph::{Builder, FunctionRole, Module, Op, TensorType, ValueId};
use crate::weights::Weights;
use crate::{ElementType, Result};

/// A module of one entry function `main`.
pub(super) fn module(build: impl FnOnce(&mut Builder<'_>)) -> Result<Module> {
    let mut weights = Weights::default();
    let mut builder = Builder::new("main", FunctionRole::Entry, &mut weights);
    build(&mut builder);
    let function = builder.finish()?;
    let module = Module { functions: vec![function], weights };
    module.verify()?;
    Ok(module)
}

/// The result `y` of `main`.
pub(super) fn run(module: &Module, inputs: Tensors) -> Result<Tensor> {
    let mut results = Executor::new(module, Options::default()).run("main", inputs, &mut Tensors::new())?;
    Ok(results.remove("y").expect("a result `y`"))
}

/// One operation on inputs that are parameters, and again on inputs that are weights: both give the same.
pub(super) fn apply(op: &Op, inputs: &[(ElementType, Tensor)]) -> Result<Tensor> {
    apply_declared(op, inputs, None)
}

pub(super) fn apply_declared(op: &Op, inputs: &[(ElementType, Tensor)], ty: Option<TensorType>) -> Result<Tensor> {
    let finish = |builder: &mut Builder<'_>, values: &[ValueId]| {
        let result = match ty.clone() {
            Some(ty) => builder.declared(op.clone(), values, ty),
            None => builder.node(op.clone(), values),
        };
        builder.result("y", result);
    };
    let with_parameters = module(|builder| {
        let parameters = inputs
            .iter()
            .enumerate()
            .map(|(i, (element, tensor))| builder.input(&format!("x{i}"), TensorType::new(*element, tensor.shape())));
        let values: Vec<ValueId> = parameters.collect();
        finish(builder, &values);
    })?;
    let arguments = inputs.iter().enumerate().map(|(i, (_, tensor))| (format!("x{i}"), tensor.clone())).collect();
    let result = run(&with_parameters, arguments);
    let with_weights = module(|builder| {
        let values: Vec<ValueId> = inputs.iter().map(|(element, tensor)| weight(builder, *element, tensor)).collect();
        finish(builder, &values);
    })?;
    let again = run(&with_weights, Tensors::new());
    assert_eq!(result.as_ref().ok(), again.as_ref().ok(), "parameters and weights differ");
    result
}

/// A tensor as a literal weight.
pub(super) fn weight(builder: &mut Builder<'_>, element: ElementType, tensor: &Tensor) -> ValueId {
    let bytes = tensor.to_literal_bytes(element).expect("a tensor of this type");
    let literal = builder.weights().literal(element, tensor.shape(), bytes);
    builder.weight(literal)
}

pub(super) fn f32s(shape: &[usize], values: &[f32]) -> (ElementType, Tensor) {
    (ElementType::F32, Tensor::floats(shape, values.to_vec()).expect("values that fit"))
}

pub(super) fn i32s(shape: &[usize], values: &[i32]) -> (ElementType, Tensor) {
    (ElementType::I32, Tensor::integers(shape, values.to_vec()).expect("values that fit"))
}

pub(super) fn bools(shape: &[usize], values: &[bool]) -> (ElementType, Tensor) {
    (ElementType::Bool, Tensor::truths(shape, values.to_vec()).expect("values that fit"))
}

pub(super) fn i8s(shape: &[usize], values: &[i8]) -> (ElementType, Tensor) {
    let bytes: Vec<u8> = values.iter().map(|&v| v as u8).collect();
    let tensor = Tensor::from_literal_bytes(ElementType::I8, shape, &bytes);
    (ElementType::I8, tensor.expect("values that fit"))
}

/// Asserts that all elements are within `tolerance` of `expected`, relative above 1.
#[track_caller]
pub(super) fn assert_close(found: &Tensor, shape: &[usize], expected: &[f32], tolerance: f32) {
    assert_eq!(found.shape(), shape);
    let found = found.to_floats().expect("floating-point numbers");
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        let same = a == b || (a - b).abs() <= tolerance * b.abs().max(1.0);
        assert!(same, "element {i}: {a} instead of {b} in {found:?}");
    }
    assert_eq!(found.len(), expected.len());
}
