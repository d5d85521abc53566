//! From a module of primitive operations to a program.

use std::collections::{BTreeMap, HashMap};

use super::attributes::{lower_composite, lower_type};
use super::elementwise::{binary_name, reduction_name, unary_name};
use super::kernel;
use super::names::Keys;
use super::states::StateVersions;
use crate::error::At;
use crate::graph::{Function, FunctionRole, Module, Node, Op, ParameterKind, ValueId};
use crate::mlirb::build::{FEATURE_LEVEL, GraphBuilder, Input, METAL_FEATURE_LEVEL, NewOperation, ProgramBuilder};
use crate::mlirb::{self, Attribute, HwConstraints, Operation, PaddingMode, Program, ResourceId, Type};
use crate::weights::{Recipe, WeightId, Weights};
use crate::{ElementType, Error, Result};

/// Tables of fewer elements lie inline, as in Apple's files; weights of a checkpoint are always resources.
const INLINE_ELEMENTS: usize = 256;

/// A program and the weights its resources hold.
#[derive(Debug)]
pub struct Lowered {
    /// The program, without the bytes of its resources.
    pub program: Program,
    /// The weight of each resource, in order; no weight twice.
    pub weights: Vec<WeightId>,
}

/// Lowers a module; `producer` is stamped on the program.
///
/// # Errors
/// When a source operation is left, naming it.
pub fn lower(module: &Module, producer: &str) -> Result<Lowered> {
    let metal = module.functions.iter().any(|f| f.nodes.iter().any(|node| node.op == Op::GatherQmm));
    let level = if metal { METAL_FEATURE_LEVEL } else { FEATURE_LEVEL };
    let mut resources = Resources {
        builder: ProgramBuilder::new(producer).level(level),
        keys: Keys::default(),
        by_weight: HashMap::new(),
        order: Vec::new(),
    };
    for function in &module.functions {
        let graph = Lowering::new(function, &module.weights, &mut resources)
            .and_then(Lowering::run)
            .at(|| format!("function `{}`", function.name))?;
        resources.builder.add(graph);
    }
    Ok(Lowered { program: resources.builder.finish(), weights: resources.order })
}

/// The resources of the program so far.
struct Resources {
    builder: ProgramBuilder,
    keys: Keys,
    by_weight: HashMap<WeightId, ResourceId>,
    order: Vec<WeightId>,
}

impl Resources {
    /// The resource that holds the bytes of `id`; reshapes and views of one weight share it.
    fn of(&mut self, weights: &Weights, id: WeightId) -> Result<ResourceId> {
        let storage = weights.storage(id);
        if let Some(resource) = self.by_weight.get(&storage) {
            return Ok(*resource);
        }
        let key = self.keys.key(weights, storage);
        let resource = self.builder.resource(key, weights.bytes(storage))?;
        self.by_weight.insert(storage, resource);
        self.order.push(storage);
        Ok(resource)
    }
}

/// A handle of the graph being lowered and where its chain of reads and writes is.
#[derive(Debug, Clone, Copy)]
struct State {
    handle: mlirb::ValueId,
    token: mlirb::ValueId,
}

struct Lowering<'m, 'r> {
    function: &'m Function,
    weights: &'m Weights,
    resources: &'r mut Resources,
    graph: GraphBuilder,
    /// The lowered value of each node so far.
    values: Vec<Option<mlirb::ValueId>>,
    states: Vec<State>,
    versions: StateVersions,
    /// How many nodes and results use a value.
    uses: Vec<usize>,
    /// Inline constants by type and bytes, each made once.
    inline: BTreeMap<(String, Vec<u8>), mlirb::ValueId>,
}

impl<'m, 'r> Lowering<'m, 'r> {
    fn new(function: &'m Function, weights: &'m Weights, resources: &'r mut Resources) -> Result<Self> {
        let inputs = function.parameters.iter().map(|p| {
            let ty = lower_type(function.ty(p.value));
            match p.kind {
                ParameterKind::Input => Input::tensor(p.name.as_str(), ty),
                ParameterKind::State => Input::state(p.name.as_str(), ty),
            }
        });
        let mut graph = GraphBuilder::new(function.name.as_str(), inputs.collect());
        if let FunctionRole::Composite(composite) = &function.role {
            graph = graph.composite(lower_composite(function, composite));
        }
        Ok(Self {
            function,
            weights,
            resources,
            graph,
            values: vec![None; function.nodes.len()],
            states: Vec::new(),
            versions: StateVersions::of(function),
            uses: count_uses(function),
            inline: BTreeMap::new(),
        })
    }

    fn run(mut self) -> Result<Operation> {
        self.parameters()?;
        for (id, node) in self.function.iter() {
            if node.op != Op::Parameter {
                let value = self.node(node).at(|| format!("%{} `{}`", id.index(), node.op.name()))?;
                let value = self.publish(id, value)?;
                self.values[id.index()] = Some(value);
            }
        }
        let function = self.function;
        let mut outputs = Vec::new();
        for (state, result) in self.states.iter().zip(&function.states) {
            outputs.push((result.name.as_str(), state.token));
        }
        for result in &function.results {
            outputs.push((result.name.as_str(), self.value(result.value)?));
        }
        self.graph.finish(&outputs)
    }

    fn parameters(&mut self) -> Result<()> {
        let function = self.function;
        let mut token = None;
        for (index, parameter) in function.parameters.iter().enumerate() {
            let argument = self.graph.input(index)?;
            let value = match parameter.kind {
                ParameterKind::Input => argument,
                ParameterKind::State => {
                    let first = match token {
                        Some(token) => token,
                        None => self.add(NewOperation::new("dataflow.create_token_v1").result(Type::Token))?,
                    };
                    token = Some(first);
                    let ty = lower_type(function.ty(parameter.value));
                    let (value, token) = self.read_handle(argument, first, ty)?;
                    self.states.push(State { handle: argument, token });
                    value
                }
            };
            self.values[parameter.value.index()] = Some(value);
        }
        Ok(())
    }

    /// Writes a new version of a state to its buffer, and reads it back if it is used for more than the next version:
    /// a runtime may keep only one of several writes to one buffer unless the graph reads in between. A version that
    /// the next one alone is made from is not written at all.
    fn publish(&mut self, id: ValueId, value: mlirb::ValueId) -> Result<mlirb::ValueId> {
        let Some(index) = self.versions.state_of(id) else {
            return Ok(value);
        };
        let is_last = self.function.states.get(index).is_some_and(|state| state.value == id);
        if !is_last && self.uses[id.index()] <= 1 {
            return Ok(value);
        }
        let State { handle, token } = self.states[index];
        let write = NewOperation::new("dataflow.write_handle_v1").operands([handle, value, token]).result(Type::Token);
        let token = self.add(write)?;
        self.states[index].token = token;
        if self.uses[id.index()] <= 1 {
            return Ok(value);
        }
        let (value, token) = self.read_handle(handle, token, lower_type(self.function.ty(id)))?;
        self.states[index].token = token;
        Ok(value)
    }

    fn read_handle(
        &mut self,
        handle: mlirb::ValueId,
        token: mlirb::ValueId,
        ty: mlirb::TensorType,
    ) -> Result<(mlirb::ValueId, mlirb::ValueId)> {
        let read =
            NewOperation::new("dataflow.read_handle_v1").operands([handle, token]).result(ty).result(Type::Token);
        match self.graph.body().add(read)?.as_slice() {
            &[value, token] => Ok((value, token)),
            results => Err(Error::input("a read gives a value and a token").found(results.len())),
        }
    }

    fn node(&mut self, node: &Node) -> Result<mlirb::ValueId> {
        match &node.op {
            Op::Constant(id) => self.constant(*id),
            Op::Invoke(callee) => {
                let (operands, ty) = (self.operands(node)?, Type::from(lower_type(&node.ty)));
                let results = self.graph.body().invoke(callee, operands, [ty])?;
                results.first().copied().ok_or_else(|| Error::input("a call without a result"))
            }
            Op::GatherQmm => self.gather_qmm(node),
            Op::ShapeOf => self.shape_of(node),
            _ => {
                let mut operation = self.operation(node)?;
                operation = operation.result(lower_type(&node.ty));
                self.add(operation)
            }
        }
    }

    /// The operation of the dialect with its operands and properties; the caller adds the result.
    fn operation(&mut self, node: &Node) -> Result<NewOperation> {
        let inputs = self.operands(node)?;
        let named = |name: &str| NewOperation::new(name).operands(inputs.iter().copied());
        Ok(match &node.op {
            Op::Unary(f) => {
                let (name, attribute) = unary_name(*f).ok_or_else(|| no_form(node))?;
                attribute.into_iter().fold(named(name), NewOperation::property)
            }
            Op::Binary(f) => {
                let of_integers = !self.function.ty(node.inputs[0]).element.is_float();
                named(binary_name(*f, of_integers).ok_or_else(|| no_form(node))?)
            }
            Op::Select => named("broadcasting_where_v1"),
            Op::Cast(_) => named("primitive.cast_v1"),
            Op::Reduce { kind, axes } => {
                let axes = self.signed(axes)?;
                named(reduction_name(*kind).ok_or_else(|| no_form(node))?).operands([axes])
            }
            Op::Softmax { axis } => named("softmax_v1").operands([self.signed_scalar(*axis)?]),
            Op::Sort { axis, descending } => named("sort_v1").operands(self.order(*axis, *descending)?),
            Op::ArgSort { axis, descending } => named("primitive.argsort_v1").operands(self.order(*axis, *descending)?),
            Op::ArgMax { axis } => named("argmax_v1").operands([self.signed_scalar(*axis)?]),
            Op::MatMul => named("broadcasting_batch_matmul_v1"),
            Op::Conv2d { stride, groups } => {
                let stride = self.unsigned(stride)?;
                let dilation = self.unsigned(&[1, 1])?;
                let groups = self.table(ElementType::U32, &[], u32_bytes(&[*groups])?)?;
                named("primitive.conv2d_v1").operands([stride, dilation, groups])
            }
            Op::Transpose(perm) => named("primitive.transpose_v1").operands([self.unsigned(perm)?]),
            Op::Reshape(shape) => named("primitive.reshape_v2").operands([self.unsigned(shape)?]),
            Op::ReshapeAt => named("primitive.reshape_v2"),
            Op::Range => named("primitive.range_v1").operands([self.signed_scalar(1)?]),
            Op::BroadcastTo(shape) => named("primitive.broadcast_to_v1").operands([self.unsigned(shape)?]),
            Op::Concat { axis } => {
                let axis = self.signed_scalar(*axis)?;
                NewOperation::new("primitive.concat_v1").operands([axis]).operands(inputs.iter().copied())
            }
            Op::Slice { begin, end } => {
                let bounds = [self.signed(begin)?, self.signed(end)?, self.signed(&vec![1; begin.len()])?];
                named("primitive.slice_v1").operands(bounds)
            }
            Op::SliceAt => {
                let step = self.signed(&vec![1; node.ty.rank()])?;
                named("primitive.slice_v1").operands([step])
            }
            Op::SliceUpdate => {
                let step = self.signed(&vec![1; node.ty.rank()])?;
                let [to, begin, end, update] = inputs[..] else { return Err(no_form(node)) };
                NewOperation::new("primitive.slice_update_v1").operands([to, begin, end, step, update])
            }
            Op::Pad { before, after } => {
                let margins: Vec<usize> = before.iter().zip(after).flat_map(|(b, a)| [*b, *a]).collect();
                let margins = self.unsigned(&margins)?;
                let zero = self.table(node.ty.element, &[], vec![0; node.ty.element.size()])?;
                let mode = Attribute::PaddingMode(PaddingMode::Constant);
                named("primitive.pad_v1").operands([margins, zero]).property(mode)
            }
            Op::Gather => named("primitive.gather_nd_v1"),
            Op::GatherAlongAxis { axis } => {
                named("primitive.gather_along_axis_v1").operands([self.signed_scalar(*axis)?])
            }
            Op::BlockScale => {
                let scales = self.function.ty(node.inputs[1]);
                let shape = scales.fixed_shape().ok_or_else(|| no_form(node))?;
                let before = self.zeros(self.function.ty(node.inputs[0]).element, &shape)?;
                let after = self.zeros(node.ty.element, &shape)?;
                named("primitive.blockwise_shift_scale_v2").operands([before, after])
            }
            _ => return Err(no_form(node)),
        })
    }

    /// Extents are unsigned in the dialect, and everything computed from them is signed.
    fn shape_of(&mut self, node: &Node) -> Result<mlirb::ValueId> {
        let ty = lower_type(&node.ty);
        let unsigned = lower_type(&node.ty.with_element(ElementType::U32));
        let operands = self.operands(node)?;
        let shape = self.add(NewOperation::new("primitive.get_shape_v2").operands(operands).result(unsigned))?;
        self.add(NewOperation::new("primitive.cast_v1").operands([shape]).result(ty))
    }

    /// The kernel with its edges: operands go through Metal buffers, the result comes back from one.
    fn gather_qmm(&mut self, node: &Node) -> Result<mlirb::ValueId> {
        let mut operands = Vec::new();
        for (&input, value) in node.inputs.iter().zip(self.operands(node)?) {
            let ty = in_metal_buffer(lower_type(self.function.ty(input)));
            let copy = NewOperation::new("ax.copy_with_constraints_v1").operands([value]).result(ty);
            operands.push(self.add(copy)?);
        }
        let shape = node.ty.fixed_shape().ok_or_else(|| no_form(node))?;
        let &[slots, n] = shape.as_slice() else { return Err(no_form(node)) };
        let (slots, n) = (narrow(slots)?, narrow(n)?);
        for launch in [kernel::threads_per_grid(slots, n).to_vec(), kernel::THREADS_PER_GROUP.to_vec(), vec![slots, n]]
        {
            let bytes = launch.iter().flat_map(|v| v.to_le_bytes()).collect();
            operands.push(self.table(ElementType::U32, &[launch.len()], bytes)?);
        }
        let ty = lower_type(&node.ty);
        let run = NewOperation::new(kernel::OPERATION)
            .operands(operands)
            .result(in_metal_buffer(ty.clone()))
            .property(Attribute::string(kernel::NAME))
            .property(Attribute::string(kernel::SOURCE));
        let result = self.add(run)?;
        self.add(NewOperation::new("ax.copy_discarding_constraints_v1").operands([result]).result(ty))
    }

    fn constant(&mut self, id: WeightId) -> Result<mlirb::ValueId> {
        if let Recipe::Literal { element, shape, bytes } = self.weights.recipe(id)
            && self.weights.elements(id) < INLINE_ELEMENTS
        {
            return self.table(*element, shape, bytes.to_vec());
        }
        let resource = self.resources.of(self.weights, id)?;
        let shape = self.weights.shape(id).iter().map(|n| *n as u64);
        let ty = mlirb::TensorType::new(shape, self.weights.element(id));
        self.graph.body().resource_constant(ty, resource)
    }

    /// An inline constant; equal ones are made once.
    fn table(&mut self, element: ElementType, shape: &[usize], bytes: Vec<u8>) -> Result<mlirb::ValueId> {
        let ty = mlirb::TensorType::new(shape.iter().map(|n| *n as u64), element);
        let key = (ty.to_string(), bytes);
        if let Some(value) = self.inline.get(&key) {
            return Ok(*value);
        }
        let value = self.graph.body().constant(ty, &key.1)?;
        self.inline.insert(key, value);
        Ok(value)
    }

    /// Zeros, of which only one is stored however many there are.
    fn zeros(&mut self, element: ElementType, shape: &[usize]) -> Result<mlirb::ValueId> {
        let ty = mlirb::TensorType::new(shape.iter().map(|n| *n as u64), element);
        let key = (ty.to_string(), Vec::new());
        if let Some(value) = self.inline.get(&key) {
            return Ok(*value);
        }
        let value = self.graph.body().splat(ty, &vec![0; element.size()])?;
        self.inline.insert(key, value);
        Ok(value)
    }

    fn signed(&mut self, values: &[usize]) -> Result<mlirb::ValueId> {
        let bytes = i32_bytes(values)?;
        self.table(ElementType::I32, &[values.len()], bytes)
    }

    fn signed_scalar(&mut self, value: usize) -> Result<mlirb::ValueId> {
        let bytes = i32_bytes(&[value])?;
        self.table(ElementType::I32, &[], bytes)
    }

    fn unsigned(&mut self, values: &[usize]) -> Result<mlirb::ValueId> {
        let bytes = u32_bytes(values)?;
        self.table(ElementType::U32, &[values.len()], bytes)
    }

    /// Operands of a sort: axis, direction, and stable.
    fn order(&mut self, axis: usize, descending: bool) -> Result<[mlirb::ValueId; 3]> {
        let axis = self.signed_scalar(axis)?;
        let descending = self.table(ElementType::Bool, &[], vec![u8::from(descending)])?;
        let stable = self.table(ElementType::Bool, &[], vec![1])?;
        Ok([axis, descending, stable])
    }

    fn operands(&self, node: &Node) -> Result<Vec<mlirb::ValueId>> {
        node.inputs.iter().map(|&input| self.value(input)).collect()
    }

    fn value(&self, id: ValueId) -> Result<mlirb::ValueId> {
        self.values[id.index()].ok_or_else(|| Error::input("a value is used before it is made").found(id.index()))
    }

    fn add(&mut self, operation: NewOperation) -> Result<mlirb::ValueId> {
        self.graph.body().value(operation)
    }
}

fn count_uses(function: &Function) -> Vec<usize> {
    let mut uses = vec![0; function.nodes.len()];
    let inputs = function.nodes.iter().flat_map(|node| &node.inputs);
    let results = function.results.iter().chain(&function.states).map(|r| &r.value);
    inputs.chain(results).for_each(|value| uses[value.index()] += 1);
    uses
}

fn no_form(node: &Node) -> Error {
    Error::input(format!("`{}` has no form in the aicode dialect", node.op.name()))
        .hint("a pass has to rewrite it first")
}

fn in_metal_buffer(mut ty: mlirb::TensorType) -> mlirb::TensorType {
    let constraints = HwConstraints::mtl_buffer(ty.shape.len());
    ty.encoding = Some(Attribute::HwConstraints(constraints.into()));
    ty
}

fn narrow(value: usize) -> Result<u32> {
    u32::try_from(value).map_err(|_| Error::input("an extent is too large for the dialect").found(value))
}

fn u32_bytes(values: &[usize]) -> Result<Vec<u8>> {
    Ok(values.iter().map(|&v| narrow(v)).collect::<Result<Vec<_>>>()?.into_iter().flat_map(u32::to_le_bytes).collect())
}

fn i32_bytes(values: &[usize]) -> Result<Vec<u8>> {
    let signed = |&value: &usize| {
        i32::try_from(value).map_err(|_| Error::input("an extent is too large for the dialect").found(value))
    };
    Ok(values.iter().map(signed).collect::<Result<Vec<_>>>()?.into_iter().flat_map(i32::to_le_bytes).collect())
}
