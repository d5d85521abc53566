//! From a program back to a module, its weights left in the asset.

use std::collections::HashMap;

use super::attributes::raise_type;
use super::elementwise::{elementwise, reduction};
use super::kernel;
use crate::error::At;
use crate::graph::{
    Composite, Dim, Function, FunctionResult, FunctionRole, Module, Node, Op, Parameter, ParameterKind, TensorType,
    ValueId,
};
use crate::mlirb::{self, Attribute, GraphView, Operation, ProgramFile, Type, names};
use crate::weights::{WeightId, Weights};
use crate::{ElementType, Error, Result};

/// Constants of equal elements up to this many are laid out: the parameters of operations are among them.
const LARGEST_SPLAT: usize = 256;

/// The module a program was lowered from, as far as the executor can tell: primitive operations, composites as
/// functions, states as values.
///
/// # Errors
/// When the program has an operation or a type that the graph has no form for, naming graph and operation.
pub fn raise(file: &ProgramFile) -> Result<Module> {
    let mut module = Module::default();
    for graph in file.program().graphs() {
        let function = Raising::new(file, graph, &mut module.weights)
            .run()
            .at(|| format!("{}: graph `{}`", file.source().name(), graph.name()))?;
        module.functions.push(function);
    }
    module.verify().at(|| file.source().name().to_owned())?;
    Ok(module)
}

/// What a value of the program is in the graph.
#[derive(Debug, Clone, Copy)]
enum Raised {
    Value(ValueId),
    /// The handle of the state with this index.
    Handle(usize),
    Token,
}

struct Raising<'p, 'w> {
    file: &'p ProgramFile,
    graph: GraphView<'p>,
    weights: &'w mut Weights,
    function: Function,
    values: Vec<Raised>,
    /// The current contents of each state.
    states: Vec<(String, ValueId)>,
    types: Vec<&'p Type>,
    /// Values that are inline constants, by value of the program.
    inline: HashMap<usize, Vec<i64>>,
}

impl<'p, 'w> Raising<'p, 'w> {
    fn new(file: &'p ProgramFile, graph: GraphView<'p>, weights: &'w mut Weights) -> Self {
        let role = match (graph.is_private(), graph.composite()) {
            (true, Some(declaration)) => {
                FunctionRole::Composite(Composite { operation: declaration.name.to_string(), attributes: Vec::new() })
            }
            (true, None) => {
                FunctionRole::Composite(Composite { operation: graph.name().to_owned(), attributes: Vec::new() })
            }
            _ => FunctionRole::Entry,
        };
        let types = graph.body().map(|body| body.value_types()).unwrap_or_default();
        Self {
            file,
            graph,
            weights,
            function: Function::new(graph.name(), role),
            values: Vec::new(),
            states: Vec::new(),
            types,
            inline: HashMap::new(),
        }
    }

    fn run(mut self) -> Result<Function> {
        self.parameters()?;
        let body = self.graph.body().ok_or_else(|| Error::input("a graph without a body"))?;
        for (index, operation) in body.operations.iter().enumerate() {
            if &*operation.name == names::OUTPUT {
                self.outputs(operation)?;
            } else {
                self.operation(operation).at(|| format!("operation {index} `{}`", operation.name))?;
            }
        }
        for (name, value) in self.states {
            self.function.states.push(FunctionResult { name, value });
        }
        Ok(self.function)
    }

    fn parameters(&mut self) -> Result<()> {
        for port in self.graph.inputs() {
            let name = port.name.unwrap_or_default().to_owned();
            let (kind, ty) = match port.ty {
                Type::Handle(contents) => (ParameterKind::State, raise_type(tensor_type(contents)?)?),
                other => (ParameterKind::Input, raise_type(tensor_type(other)?)?),
            };
            let value = self.push(Op::Parameter, Vec::new(), ty);
            if kind == ParameterKind::State {
                self.values.push(Raised::Handle(self.states.len()));
                self.states.push((name.clone(), value));
            } else {
                self.values.push(Raised::Value(value));
            }
            self.function.parameters.push(Parameter { name, kind, value });
        }
        Ok(())
    }

    fn outputs(&mut self, operation: &Operation) -> Result<()> {
        let names: Vec<&str> = self.graph.outputs().iter().map(|port| port.name.unwrap_or_default()).collect();
        for (operand, name) in operation.operands.iter().zip(names) {
            if let Raised::Value(value) = self.raised(*operand)? {
                self.function.results.push(FunctionResult { name: name.to_owned(), value });
            }
        }
        Ok(())
    }

    fn operation(&mut self, operation: &'p Operation) -> Result<()> {
        match &*operation.name {
            names::CONSTANT => self.constant(operation),
            names::INVOKE => {
                let callee = callee(operation)?;
                let ty = result_type(operation)?;
                self.plain(operation, Op::Invoke(callee), ty)
            }
            "dataflow.create_token_v1" => {
                self.values.push(Raised::Token);
                Ok(())
            }
            "dataflow.read_handle_v1" => {
                let state = self.handle(operation)?;
                self.values.push(Raised::Value(self.states[state].1));
                self.values.push(Raised::Token);
                Ok(())
            }
            "dataflow.write_handle_v1" => {
                let state = self.handle(operation)?;
                self.states[state].1 = self.operand(operation, 1)?;
                self.values.push(Raised::Token);
                Ok(())
            }
            "ax.copy_with_constraints_v1" | "ax.copy_discarding_constraints_v1" => {
                let value = self.operand(operation, 0)?;
                self.values.push(Raised::Value(value));
                Ok(())
            }
            "primitive.split_v1" => self.split(operation),
            "primitive.get_shape_v2" | "primitive.get_shape_v1" => {
                let ty = result_type(operation)?.with_element(ElementType::I32);
                self.plain(operation, Op::ShapeOf, ty)
            }
            _ => {
                let (op, inputs) = self.form(operation)?;
                let ty = result_type(operation)?;
                let inputs = inputs.into_iter().map(|i| self.operand(operation, i)).collect::<Result<_>>()?;
                let value = self.push(op, inputs, ty);
                self.values.push(Raised::Value(value));
                Ok(())
            }
        }
    }

    /// The graph operation and which operands are its inputs; the others are its parameters.
    fn form(&mut self, operation: &Operation) -> Result<(Op, Vec<usize>)> {
        let count = operation.operands.len();
        let all: Vec<usize> = (0..count).collect();
        let attribute = ["approximate"].iter().find_map(|name| operation.property(name));
        if let Some(op) = elementwise(&operation.name, attribute) {
            return Ok((op, all));
        }
        if let Some(kind) = reduction(&operation.name) {
            return Ok((Op::Reduce { kind, axes: self.axes(operation, 1)? }, vec![0]));
        }
        let ty = result_type(operation)?;
        Ok(match &*operation.name {
            "broadcasting_where_v1" | "primitive.where_v1" => (Op::Select, all),
            "primitive.cast_v1" => (Op::Cast(ty.element), vec![0]),
            "softmax_v1" => (Op::Softmax { axis: self.axis(operation, 1)? }, vec![0]),
            "sort_v1" => (Op::Sort { axis: self.axis(operation, 1)?, descending: self.flag(operation, 2)? }, vec![0]),
            "primitive.argsort_v1" => {
                (Op::ArgSort { axis: self.axis(operation, 1)?, descending: self.flag(operation, 2)? }, vec![0])
            }
            "argmax_v1" => (Op::ArgMax { axis: self.axis(operation, 1)? }, vec![0]),
            "broadcasting_batch_matmul_v1" | "primitive.batch_matmul_v1" => (Op::MatMul, all),
            "primitive.conv2d_v1" => (self.convolution(operation)?, vec![0, 1]),
            "primitive.transpose_v1" => (Op::Transpose(self.extents(operation, 1)?), vec![0]),
            "primitive.reshape_v2" | "primitive.reshape_v1" if ty.fixed_shape().is_none() => (Op::ReshapeAt, all),
            "primitive.range_v1" => match self.known(operation, 2) {
                Some([1]) => (Op::Range, vec![0, 1]),
                _ => return Err(Error::input("ranges with steps are not supported")),
            },
            "primitive.reshape_v2"
            | "primitive.reshape_v1"
            | "primitive.expand_dims_v1"
            | "primitive.shrink_dims_v1" => (Op::Reshape(fixed(&ty)?), vec![0]),
            "primitive.broadcast_to_v1" | "primitive.broadcast_in_dims_v1" => (Op::BroadcastTo(fixed(&ty)?), vec![0]),
            "primitive.concat_v1" => {
                (Op::Concat { axis: self.scalar_axis(operation, 0, ty.rank())? }, (1..count).collect())
            }
            "primitive.slice_v1" => match self.bounds(operation)? {
                Some((begin, end)) => (Op::Slice { begin, end }, vec![0]),
                None => (Op::SliceAt, vec![0, 1, 2]),
            },
            "primitive.slice_update_v1" => (Op::SliceUpdate, vec![0, 1, 2, 4]),
            "primitive.pad_v1" => {
                let margins = self.extents(operation, 1)?;
                let before = margins.iter().step_by(2).copied().collect();
                let after = margins.iter().skip(1).step_by(2).copied().collect();
                (Op::Pad { before, after }, vec![0])
            }
            "primitive.gather_nd_v1" => (Op::Gather, all),
            "primitive.gather_along_axis_v1" => (Op::GatherAlongAxis { axis: self.axis(operation, 2)? }, vec![0, 1]),
            "primitive.blockwise_shift_scale_v2" => {
                self.zero_shift(operation)?;
                (Op::BlockScale, vec![0, 1])
            }
            kernel::OPERATION if is_gather_qmm(operation) => (Op::GatherQmm, vec![0, 1, 2, 3]),
            name => return Err(Error::input("the executor has no such operation").found(format!("`{name}`"))),
        })
    }

    fn convolution(&self, operation: &Operation) -> Result<Op> {
        let stride = self.extents(operation, 2)?;
        let (dilation, groups) = (self.extents(operation, 3)?, self.extents(operation, 4)?);
        match (stride.as_slice(), dilation.as_slice(), groups.as_slice()) {
            (&[y, x], &[1, 1], &[groups]) => Ok(Op::Conv2d { stride: [y, x], groups }),
            _ => Err(Error::input("dilated convolutions are not supported")),
        }
    }

    /// Bounds known at export, clamped to the extents; `None` when they are computed.
    fn bounds(&self, operation: &Operation) -> Result<Option<(Vec<usize>, Vec<usize>)>> {
        let (Some(begin), Some(end)) = (self.known(operation, 1), self.known(operation, 2)) else {
            return Ok(None);
        };
        if self.known(operation, 3).is_none_or(|steps| steps.iter().any(|step| *step != 1)) {
            return Err(Error::input("slices with steps are not supported"));
        }
        // An axis of run-time extent stays whole, which is what verifying the module asks of it.
        let extents = raise_type(tensor_type(self.type_of(operation, 0)?)?)?.shape;
        let clamp = |bounds: &[i64]| -> Vec<usize> {
            let bound = |(&bound, extent): (&i64, &Dim)| {
                let extent = extent.fixed().unwrap_or(Op::TO_END) as i64;
                (if bound < 0 { bound + extent } else { bound }).clamp(0, extent) as usize
            };
            bounds.iter().zip(&extents).map(bound).collect()
        };
        Ok(Some((clamp(begin), clamp(end))))
    }

    fn zero_shift(&self, operation: &Operation) -> Result<()> {
        let zero = |index| self.known(operation, index).is_some_and(|values| values.iter().all(|v| *v == 0));
        if zero(2) && zero(3) { Ok(()) } else { Err(Error::input("shifted block scales are not supported")) }
    }

    /// One slice for each part.
    fn split(&mut self, operation: &Operation) -> Result<()> {
        let x = self.operand(operation, 0)?;
        let ty = self.function.ty(x).clone();
        let (sizes, axis) = (self.extents(operation, 1)?, self.scalar_axis(operation, 2, ty.rank())?);
        let mut position = 0;
        for size in sizes {
            let (mut begin, mut end) = (vec![0; ty.rank()], fixed(&ty)?);
            (begin[axis], end[axis]) = (position, position + size);
            position += size;
            let extents: Vec<usize> = begin.iter().zip(&end).map(|(b, e)| e.saturating_sub(*b)).collect();
            let value = self.push(Op::Slice { begin, end }, vec![x], ty.with_shape(&extents));
            self.values.push(Raised::Value(value));
        }
        Ok(())
    }

    fn constant(&mut self, operation: &'p Operation) -> Result<()> {
        let ty = result_type(operation)?;
        let shape = fixed(&ty)?;
        let weight = match operation.property("value") {
            Some(Attribute::DenseResource(id)) if ty.element == ElementType::U32 => self.words(*id, &shape)?,
            Some(Attribute::DenseResource(id)) => {
                let tensor = self.file.tensor(*id, ty.element, &shape)?;
                self.weights.read(&tensor)
            }
            Some(Attribute::DenseElements(elements)) => {
                let count: usize = shape.iter().product();
                if elements.splat && count > LARGEST_SPLAT {
                    return self.broadcast(&elements.bytes, ty);
                }
                let bytes = if elements.splat { elements.bytes.repeat(count) } else { elements.bytes.to_vec() };
                self.inline.insert(self.values.len(), integers(ty.element, &bytes));
                self.weights.literal(ty.element, &shape, bytes)?
            }
            _ => return Err(Error::input("a constant without elements")),
        };
        let value = self.push(Op::Constant(weight), Vec::new(), ty);
        self.values.push(Raised::Value(value));
        Ok(())
    }

    /// One element repeated to a large shape; it is not laid out unless something uses it.
    fn broadcast(&mut self, element: &[u8], ty: TensorType) -> Result<()> {
        self.inline.insert(self.values.len(), integers(ty.element, element));
        let literal = self.weights.literal(ty.element, &[], element.to_vec())?;
        let one = self.push(Op::Constant(literal), Vec::new(), TensorType::new(ty.element, &[]));
        let value = self.push(Op::BroadcastTo(fixed(&ty)?), vec![one], ty);
        self.values.push(Raised::Value(value));
        Ok(())
    }

    /// Packed codes: four bytes a word, read as the bytes they are.
    fn words(&mut self, id: mlirb::ResourceId, shape: &[usize]) -> Result<WeightId> {
        let mut bytes = shape.to_vec();
        if let Some(last) = bytes.last_mut() {
            *last *= 4;
        }
        let tensor = self.file.tensor(id, ElementType::I8, &bytes)?;
        let read = self.weights.read(&tensor);
        self.weights.view(read, ElementType::U32)
    }

    fn plain(&mut self, operation: &Operation, op: Op, ty: TensorType) -> Result<()> {
        let inputs = (0..operation.operands.len()).map(|i| self.operand(operation, i)).collect::<Result<_>>()?;
        let value = self.push(op, inputs, ty);
        self.values.push(Raised::Value(value));
        Ok(())
    }

    fn push(&mut self, op: Op, inputs: Vec<ValueId>, ty: TensorType) -> ValueId {
        self.function.push(Node { op, inputs, ty, label: None })
    }

    fn raised(&self, value: mlirb::ValueId) -> Result<Raised> {
        let missing = || Error::input("a value is used before it is made").found(format!("%{}", value.index()));
        self.values.get(value.index()).copied().ok_or_else(missing)
    }

    fn operand(&self, operation: &Operation, index: usize) -> Result<ValueId> {
        match self.raised(operand(operation, index)?)? {
            Raised::Value(value) => Ok(value),
            _ => Err(Error::input("a tensor is expected").at(format!("operand {index}"))),
        }
    }

    fn handle(&self, operation: &Operation) -> Result<usize> {
        match self.raised(operand(operation, 0)?)? {
            Raised::Handle(state) => Ok(state),
            _ => Err(Error::input("a handle is expected").at("operand 0")),
        }
    }

    fn type_of(&self, operation: &Operation, index: usize) -> Result<&'p Type> {
        let value = operand(operation, index)?;
        self.types.get(value.index()).copied().ok_or_else(|| Error::input("a value without a type"))
    }

    /// The elements of an operand that is an inline constant of integers.
    fn known(&self, operation: &Operation, index: usize) -> Option<&[i64]> {
        self.inline.get(&operation.operands.get(index)?.index()).map(Vec::as_slice)
    }

    fn extents(&self, operation: &Operation, index: usize) -> Result<Vec<usize>> {
        let known = self.known(operation, index);
        let extents = known.and_then(|values| values.iter().map(|v| usize::try_from(*v).ok()).collect());
        extents.ok_or_else(|| Error::input("a constant of small integers is expected").at(format!("operand {index}")))
    }

    fn flag(&self, operation: &Operation, index: usize) -> Result<bool> {
        Ok(self.extents(operation, index)? == [1])
    }

    /// The axis of operand 0 that operand `index` names.
    fn axis(&self, operation: &Operation, index: usize) -> Result<usize> {
        let rank = tensor_type(self.type_of(operation, 0)?)?.shape.len();
        self.scalar_axis(operation, index, rank)
    }

    fn scalar_axis(&self, operation: &Operation, index: usize, rank: usize) -> Result<usize> {
        match self.known(operation, index) {
            Some(&[axis]) => count_axis(axis, rank),
            _ => Err(Error::input("a constant axis is expected").at(format!("operand {index}"))),
        }
    }

    fn axes(&self, operation: &Operation, index: usize) -> Result<Vec<usize>> {
        let rank = tensor_type(self.type_of(operation, 0)?)?.shape.len();
        let known = self.known(operation, index).ok_or_else(|| Error::input("constant axes are expected"))?;
        known.iter().map(|&axis| count_axis(axis, rank)).collect()
    }
}

/// Negative axes count from the end.
fn count_axis(axis: i64, rank: usize) -> Result<usize> {
    let from_start = if axis < 0 { axis + rank as i64 } else { axis };
    let in_range = usize::try_from(from_start).ok().filter(|axis| *axis < rank);
    in_range.ok_or_else(|| Error::input("no such axis").found(axis).expected(format!("less than {rank}")))
}

fn operand(operation: &Operation, index: usize) -> Result<mlirb::ValueId> {
    operation.operands.get(index).copied().ok_or_else(|| Error::input("an operand is missing").found(index))
}

fn tensor_type(ty: &Type) -> Result<&mlirb::TensorType> {
    ty.as_tensor().ok_or_else(|| Error::input("a tensor is expected").found(ty.to_string()))
}

fn result_type(operation: &Operation) -> Result<TensorType> {
    match operation.results.as_slice() {
        [ty] => raise_type(tensor_type(ty)?),
        results => Err(Error::input("one result is expected").found(results.len())),
    }
}

fn fixed(ty: &TensorType) -> Result<Vec<usize>> {
    ty.fixed_shape().ok_or_else(|| Error::input("a static shape is expected").found(ty))
}

fn callee(operation: &Operation) -> Result<String> {
    let name = match operation.property("callee") {
        Some(Attribute::ParamConstant(constant)) => match &constant.value {
            Attribute::SymbolRef(path) => path.last().map(ToString::to_string),
            _ => None,
        },
        _ => None,
    };
    name.ok_or_else(|| Error::input("a call without a callee"))
}

fn is_gather_qmm(operation: &Operation) -> bool {
    operation.property("kernel_name").and_then(Attribute::as_str) == Some(kernel::NAME)
}

/// Elements as integers; empty for floating-point constants that are not zero.
fn integers(element: ElementType, bytes: &[u8]) -> Vec<i64> {
    let size = element.size();
    let word = |chunk: &[u8]| {
        let mut wide = [0; 8];
        wide[..size].copy_from_slice(chunk);
        let shift = 64 - 8 * size as u32;
        let bits = u64::from_le_bytes(wide);
        match element {
            ElementType::I8 | ElementType::I16 | ElementType::I32 | ElementType::I64 => {
                ((bits << shift) as i64) >> shift
            }
            _ => bits as i64,
        }
    };
    bytes.chunks_exact(size).map(word).collect()
}
