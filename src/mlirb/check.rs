//! What must hold of a program beyond its encoding.
//!
//! Apple's loader trusts most of this: a constant of the wrong length aborts the process or reads past its end.

use std::collections::{BTreeMap, BTreeSet};

use super::attributes::Attribute;
use super::encoding::container::MAX_ALIGNMENT;
use super::graph_view::{GraphPort, GraphView};
use super::ir::{Block, Operation, Program, Properties, Resource, is_decomposable};
use super::names;
use super::properties::property_fields;
use super::types::{TensorType, Type};
use crate::error::At;
use crate::{Error, Result};

/// Checks that the program is an asset, that operands are defined before their use, that operations have the
/// properties and regions they need, that constants are as long as their types say, that calls have the signature of
/// the graph they call, that graphs have distinct names, and resources distinct keys and proper alignments.
///
/// # Errors
/// The first thing that is wrong; the error names the graph and the operation.
pub fn check(program: &Program) -> Result<()> {
    if program.producer.contains('\0') {
        return Err(Error::input("the name of the producer contains NUL"));
    }
    if &*program.asset.name != names::ASSET {
        return Err(Error::input("the operation at the top is not an asset")
            .found(format!("`{}`", program.asset.name))
            .expected(format!("`{}`", names::ASSET)));
    }
    check_resources(&program.resources)?;
    check_operation(&program.asset, &[], &program.resources)?;
    check_calls(program)
}

/// Graphs by name.
type Graphs<'p> = BTreeMap<&'p str, GraphView<'p>>;

fn check_calls(program: &Program) -> Result<()> {
    let mut graphs = Graphs::new();
    for graph in program.graphs() {
        if graphs.insert(graph.name(), graph).is_some() {
            return Err(Error::input("two graphs have the same name").at(format!("graph `{}`", graph.name())));
        }
    }
    for (name, block) in graphs.iter().filter_map(|(name, graph)| Some((name, graph.body()?))) {
        let types = block.value_types();
        let calls = block.operations.iter().filter(|operation| &*operation.name == names::INVOKE);
        for call in calls {
            check_call(call, &types, &graphs).at(|| format!("graph `{name}`: `{}`", names::INVOKE))?;
        }
    }
    Ok(())
}

fn check_call(call: &Operation, values: &[&Type], graphs: &Graphs<'_>) -> Result<()> {
    let Some(name) = callee(call) else { return Err(Error::input("a call that names no graph")) };
    let graph = graphs.get(name).ok_or_else(|| Error::input("no such graph").found(format!("`{name}`")))?;
    let operands = call.operands.iter().filter_map(|operand| values.get(operand.index()).copied());
    expect_types("operands", name, operands.collect(), &graph.inputs())?;
    expect_types("results", name, call.results.iter().collect(), &graph.outputs())
}

fn callee(call: &Operation) -> Option<&str> {
    let Attribute::ParamConstant(constant) = call.property("callee")? else { return None };
    match &constant.value {
        Attribute::SymbolRef(names) => names.first().map(|name| &**name),
        _ => None,
    }
}

fn expect_types(what: &str, callee: &str, found: Vec<&Type>, ports: &[GraphPort<'_>]) -> Result<()> {
    let expected: Vec<&Type> = ports.iter().map(|port| port.ty).collect();
    if found == expected {
        return Ok(());
    }
    let text = |types: Vec<&Type>| types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    Err(Error::input(format!("the {what} of a call are not those of graph `{callee}`"))
        .found(format!("({})", text(found)))
        .expected(format!("({})", text(expected))))
}

fn check_resources(resources: &[Resource]) -> Result<()> {
    let mut keys = BTreeSet::new();
    for resource in resources {
        let place = || format!("resource `{}`", resource.key);
        if resource.key.contains('\0') || !keys.insert(&resource.key) {
            return Err(Error::input("its key is not unique, or contains NUL").at(place()));
        }
        if !resource.alignment.is_power_of_two() || resource.alignment > MAX_ALIGNMENT {
            return Err(Error::input("not an alignment").at(place()).found(resource.alignment));
        }
    }
    Ok(())
}

fn check_operation(operation: &Operation, values: &[&Type], resources: &[Resource]) -> Result<()> {
    check_here(operation, values, resources).at(|| format!("`{}`", operation.name))?;
    for block in operation.regions.iter().filter_map(|region| region.block.as_ref()) {
        check_block(block, resources).at(|| match operation.property("name").and_then(Attribute::as_str) {
            Some(graph) => format!("graph `{graph}`"),
            None => format!("`{}`", operation.name),
        })?;
    }
    Ok(())
}

fn check_block(block: &Block, resources: &[Resource]) -> Result<()> {
    let types = block.value_types();
    if u32::try_from(types.len()).is_err() {
        return Err(Error::input("a region has too many values").found(types.len()));
    }
    let mut defined = block.arguments.len();
    for operation in &block.operations {
        let values = types.get(..defined).unwrap_or(&types);
        check_operation(operation, values, resources)?;
        defined = defined.saturating_add(operation.results.len());
    }
    Ok(())
}

fn check_here(operation: &Operation, values: &[&Type], resources: &[Resource]) -> Result<()> {
    if let Some(operand) = operation.operands.iter().find(|operand| operand.index() >= values.len()) {
        return Err(Error::input("an operand is not defined before its use")
            .found(format!("%{}", operand.index()))
            .expected(format!("less than %{}", values.len())));
    }
    check_properties(operation)?;
    if is_decomposable(&operation.name) && !matches!(operation.regions.as_slice(), [region] if region.block.is_some()) {
        return Err(Error::input("a decomposable operation needs one region with one block"));
    }
    if &*operation.name == names::CONSTANT { check_constant(operation, resources) } else { Ok(()) }
}

fn check_properties(operation: &Operation) -> Result<()> {
    let Properties::Known(values) = &operation.properties else { return Ok(()) };
    let fields = property_fields(&operation.name).unwrap_or(&[]);
    if fields.len() != values.len() {
        return Err(Error::input("the wrong number of properties").found(values.len()).expected(fields.len()));
    }
    let missing = fields.iter().zip(values).find(|(field, value)| !field.optional && value.is_none());
    missing.map_or(Ok(()), |(field, _)| Err(Error::input(format!("property `{}` is missing", field.name))))
}

fn check_constant(operation: &Operation, resources: &[Resource]) -> Result<()> {
    let [Type::Tensor(tensor)] = operation.results.as_slice() else {
        return Err(Error::input("a constant is not a tensor"));
    };
    match operation.property("value") {
        Some(Attribute::DenseElements(elements)) => {
            let expected = if elements.splat { splat_bytes(tensor) } else { tensor.inline_bytes() };
            expect_bytes(tensor, elements.bytes.len() as u64, expected)
        }
        Some(Attribute::DenseResource(id)) => {
            let resource = resources.get(id.index()).ok_or_else(|| {
                Error::input("no such resource").found(id.index()).expected(format!("less than {}", resources.len()))
            })?;
            expect_bytes(tensor, resource.bytes, tensor.resource_bytes()).at(|| format!("resource `{}`", resource.key))
        }
        _ => Ok(()),
    }
}

fn splat_bytes(tensor: &TensorType) -> Option<u64> {
    tensor.element.inline_bits().map(|bits| bits.div_ceil(8))
}

fn expect_bytes(tensor: &TensorType, found: u64, expected: Option<u64>) -> Result<()> {
    match expected {
        Some(expected) if expected == found => Ok(()),
        Some(expected) => Err(Error::input(format!("a constant of type {tensor} has the wrong length"))
            .found(format!("{found} bytes"))
            .expected(format!("{expected} bytes"))),
        None => Err(Error::input(format!("a constant of type {tensor} has no known length"))),
    }
}
