//! Rules that a program has to keep although every reader takes one that does not: runtimes compute something else,
//! or slowly, or end the process.

use std::collections::BTreeSet;

use super::Parts;
use crate::aicode::kernel;
use crate::error::At;
use crate::mlirb::{Attribute, Dim, GraphView, Operation, Program, ScalarType, TensorType, Type, is_decomposable};
use crate::passes::QuantiseExperts;
use crate::quant::BLOCK;
use crate::{Error, Result};

/// One rule.
pub(super) struct Rule {
    pub(super) name: &'static str,
    /// What is said when it is kept.
    kept: &'static str,
    check: fn(GraphView<'_>, Changing<'_>) -> Result<()>,
}

/// Inputs, and axes of theirs, whose extents the recipe leaves to run time.
type Changing<'r> = &'r [(&'r str, usize)];

/// The rules, each checked on every graph.
pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "static-shapes",
        kept: "no input changes its shape at run time but where the recipe says so",
        check: static_shapes,
    },
    Rule {
        name: "state-writes",
        kept: "every write to a state is the last or is read back",
        check: |graph, _| state_writes(graph),
    },
    Rule { name: "rounding", kept: "no floor, trunc or ceil", check: |graph, _| no_rounding(graph) },
    Rule {
        name: "kernels",
        kept: "every kernel is one of ours with the shapes it is written for",
        check: |graph, _| kernels(graph),
    },
    Rule { name: "locations", kept: "no operation tells where it was made", check: |graph, _| no_locations(graph) },
];

/// Checks one rule on all programs.
pub(super) fn run(rule: &Rule, parts: &Parts<'_>) -> Result<String> {
    for (part, asset) in &parts.assets {
        let changing = parts.recipe.changing(*part);
        check(rule, asset.program(), &changing).at(|| asset.file().source().name())?;
    }
    Ok(rule.kept.to_owned())
}

pub(super) fn check(rule: &Rule, program: &Program, changing: Changing<'_>) -> Result<()> {
    program.graphs().try_for_each(|graph| (rule.check)(graph, changing).at(|| format!("graph `{}`", graph.name())))
}

/// Whether a program has an operation of this name.
pub(super) fn has_operation(program: &Program, name: &str) -> bool {
    program.graphs().flat_map(operations).any(|operation| &*operation.name == name)
}

/// The operations of a graph and of the regions in it, other than decompositions, which stand for what is beside them.
fn operations(graph: GraphView<'_>) -> Vec<&Operation> {
    let mut found = Vec::new();
    collect(graph.operation(), &mut found);
    found
}

/// The operations of a graph alone: those that values and states of the graph are operands of.
fn body(graph: GraphView<'_>) -> &[Operation] {
    graph.body().map_or(&[], |body| &body.operations)
}

fn collect<'p>(operation: &'p Operation, found: &mut Vec<&'p Operation>) {
    for block in operation.regions.iter().filter_map(|region| region.block.as_ref()) {
        for inner in &block.operations {
            found.push(inner);
            if !is_decomposable(&inner.name) {
                collect(inner, found);
            }
        }
    }
}

/// A shape that changes has the device compile the function anew, and faults on some: only what an engine is told of may
/// change.
fn static_shapes(graph: GraphView<'_>, changing: Changing<'_>) -> Result<()> {
    // What changes at the entry changes in the graphs that are called from there, too.
    if graph.is_private() && !changing.is_empty() {
        return Ok(());
    }
    for port in graph.inputs() {
        let name = port.name.unwrap_or_default();
        if !is_fixed(port.ty, |axis| changing.contains(&(name, axis))) {
            let error = Error::check("an input has no fixed shape").at(format!("`{name}`"));
            return Err(error.found(port.ty).hint("the device compiles the function anew for every shape"));
        }
    }
    Ok(())
}

/// Whether a tensor, or what a state holds, has no other extents that are not fixed than those that may be.
fn is_fixed(ty: &Type, may_change: impl Fn(usize) -> bool) -> bool {
    let (contents, is_state) = match ty {
        Type::Handle(contents) => (&**contents, true),
        other => (other, false),
    };
    let fixed = |(axis, dim): (usize, &Dim)| *dim != Dim::Dynamic || (!is_state && may_change(axis));
    contents.as_tensor().is_some_and(|tensor| tensor.shape.iter().enumerate().all(fixed))
}

/// Apple's GPU delegate may keep only one of several writes to a state that is not read in between.
fn state_writes(graph: GraphView<'_>) -> Result<()> {
    let mut unread = BTreeSet::new();
    for operation in body(graph) {
        let Some(handle) = operation.operands.first() else { continue };
        match &*operation.name {
            "dataflow.read_handle_v1" => drop(unread.remove(handle)),
            "dataflow.write_handle_v1" if !unread.insert(*handle) => {
                let name = graph.inputs().get(handle.index()).and_then(|port| port.name).unwrap_or_default();
                return Err(Error::check("a state is written twice without being read in between")
                    .at(format!("`{name}`"))
                    .hint("Apple's GPU delegate may keep only one of the two"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Apple's GPU delegate gives these back as they are.
fn no_rounding(graph: GraphView<'_>) -> Result<()> {
    let rounds = |name: &str| {
        let name = name.rsplit('.').next().unwrap_or(name);
        ["floor_v", "trunc_v", "ceil_v"].iter().any(|prefix| name.starts_with(prefix))
    };
    match operations(graph).into_iter().find(|operation| rounds(&operation.name)) {
        Some(operation) => Err(Error::check("an operation that rounds")
            .found(format!("`{}`", operation.name))
            .hint("Apple's GPU delegate gives its operand back as it is")),
        None => Ok(()),
    }
}

fn no_locations(graph: GraphView<'_>) -> Result<()> {
    let nowhere = Attribute::nowhere();
    match operations(graph).into_iter().find(|operation| operation.location != nowhere) {
        Some(operation) => Err(Error::check("an operation tells where it was made")
            .at(format!("`{}`", operation.name))
            .found(operation.location.to_string())),
        None => Ok(()),
    }
}

/// A kernel trusts its operands: other shapes read past their end.
fn kernels(graph: GraphView<'_>) -> Result<()> {
    let types = graph.body().map(|body| body.value_types()).unwrap_or_default();
    for operation in body(graph).iter().filter(|operation| &*operation.name == kernel::OPERATION) {
        let name = operation.property("kernel_name").and_then(Attribute::as_str).unwrap_or_default();
        if name != kernel::NAME {
            return Err(Error::check("an unknown kernel").found(format!("`{name}`")).expected(kernel::NAME));
        }
        let operands = operation.operands.iter().filter_map(|operand| types.get(operand.index())?.as_tensor());
        let operands: Vec<&TensorType> = operands.chain(operation.results.iter().filter_map(Type::as_tensor)).collect();
        if !fits_gather_qmm(&operands) {
            let operands: Vec<String> = operands.iter().map(ToString::to_string).collect();
            return Err(Error::check("operands that the kernel is not written for")
                .at(format!("`{name}`"))
                .found(operands.join(", "))
                .expected(
                    "f16 [slots, k], ui32 [e, n, k/4], f16 [e, n, k/32], si32 [slots], launch tables, f16 [slots, n]",
                ));
        }
    }
    Ok(())
}

/// Whether these are the operands and the result of `gather_qmm`.
fn fits_gather_qmm(types: &[&TensorType]) -> bool {
    const STEP: u64 = QuantiseExperts::KERNEL_STEP as u64;
    let typed: Vec<(ScalarType, Vec<u64>)> =
        types.iter().filter_map(|tensor| Some((tensor.element, extents(tensor)?))).collect();
    let [
        (ScalarType::F16, a),
        (ScalarType::UI32, codes),
        (ScalarType::F16, scales),
        (ScalarType::SI32, expert),
        launch @ ..,
        (ScalarType::F16, result),
    ] = typed.as_slice()
    else {
        return false;
    };
    let (&[slots, k], &[experts, n, words]) = (a.as_slice(), codes.as_slice()) else { return false };
    let tables = [[3], [3], [2]].iter().eq(launch.iter().map(|(_, shape)| shape.as_slice()));
    k % STEP == 0
        && n % 4 == 0
        && words == k / 4
        && *scales == [experts, n, k / BLOCK as u64]
        && *expert == [slots]
        && *result == [slots, n]
        && tables
        && launch.iter().all(|(element, _)| *element == ScalarType::UI32)
}

fn extents(tensor: &TensorType) -> Option<Vec<u64>> {
    let fixed = |dim: &Dim| match dim {
        Dim::Fixed(extent) => Some(*extent),
        Dim::Dynamic => None,
    };
    tensor.shape.iter().map(fixed).collect()
}
