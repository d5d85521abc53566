//! Which functions of a program use which of its resources.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::mlirb::{Attribute, GraphView, Operation, Program, names};

/// Resources by the entry functions that use them, directly or through graphs they call.
#[derive(Debug)]
pub(super) struct Usage<'p> {
    program: &'p Program,
    /// Entry functions in file order, each with the places of its resources.
    entries: Vec<(&'p str, BTreeSet<usize>)>,
}

/// Bytes of the weights of an entry function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Bytes {
    /// Of weights that another entry function uses, too.
    pub shared_bytes: u64,
    /// Of weights that no other uses.
    pub unique_bytes: u64,
}

impl<'p> Usage<'p> {
    pub(super) fn of(program: &'p Program) -> Self {
        let graphs: BTreeMap<&str, GraphView<'_>> = program.graphs().map(|graph| (graph.name(), graph)).collect();
        let used = |graph: GraphView<'p>| {
            let mut found = Found { graphs: &graphs, seen: BTreeSet::new(), resources: BTreeSet::new() };
            found.graph(graph);
            (graph.name(), found.resources)
        };
        Self { program, entries: program.graphs().filter(|graph| !graph.is_private()).map(used).collect() }
    }

    /// The entry functions with the bytes of their weights, in file order.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&'p str, Bytes)> + '_ {
        self.entries.iter().map(|(name, resources)| (*name, self.bytes(name, resources)))
    }

    /// The entry functions that use the resource at `index`.
    pub(super) fn users(&self, index: usize) -> Vec<String> {
        let users = self.entries.iter().filter(|(_, resources)| resources.contains(&index));
        users.map(|(name, _)| (*name).to_owned()).collect()
    }

    fn bytes(&self, entry: &str, resources: &BTreeSet<usize>) -> Bytes {
        let others = self.entries.iter().filter(|(name, _)| *name != entry);
        let others: BTreeSet<usize> = others.flat_map(|(_, resources)| resources.iter().copied()).collect();
        let sum = |places: Vec<usize>| {
            let bytes = places.into_iter().filter_map(|place| Some(self.program.resources.get(place)?.bytes));
            bytes.fold(0, u64::saturating_add)
        };
        Bytes {
            shared_bytes: sum(resources.intersection(&others).copied().collect()),
            unique_bytes: sum(resources.difference(&others).copied().collect()),
        }
    }
}

struct Found<'g, 'p> {
    graphs: &'g BTreeMap<&'p str, GraphView<'p>>,
    seen: BTreeSet<&'p str>,
    resources: BTreeSet<usize>,
}

impl<'p> Found<'_, 'p> {
    fn graph(&mut self, graph: GraphView<'p>) {
        if self.seen.insert(graph.name()) {
            operations(graph.operation()).into_iter().for_each(|operation| self.operation(operation));
        }
    }

    fn operation(&mut self, operation: &'p Operation) {
        if let Some(Attribute::DenseResource(id)) = operation.property("value") {
            self.resources.insert(id.index());
        }
        if let Some(graph) = callee(operation).and_then(|name| self.graphs.get(name)) {
            self.graph(*graph);
        }
    }
}

/// All operations below one, decompositions included.
pub(super) fn operations(operation: &Operation) -> Vec<&Operation> {
    let blocks = operation.regions.iter().filter_map(|region| region.block.as_ref());
    let inner = blocks.flat_map(|block| &block.operations);
    inner.flat_map(|operation| std::iter::once(operation).chain(operations(operation))).collect()
}

/// The graph that an operation calls, if it calls one.
pub(super) fn callee(operation: &Operation) -> Option<&str> {
    if &*operation.name != names::INVOKE {
        return None;
    }
    match operation.property("callee")? {
        Attribute::ParamConstant(constant) => match &constant.value {
            Attribute::SymbolRef(path) => path.last().map(|name| &**name),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ElementType::F16;
    use crate::mlirb::TensorType;
    use crate::mlirb::build::{GraphBuilder, Input, ProgramBuilder};

    /// `a` calls `inner`, which holds the first resource; `b` holds the first and the second; nobody the third.
    fn program() -> Program {
        let mut program = ProgramBuilder::new("test");
        let ids = [4, 8, 16].map(|bytes| program.resource(format!("w{bytes}"), bytes).unwrap());
        let ty = |bytes: u64| TensorType::new([bytes / 2], F16);
        let mut inner = GraphBuilder::new("inner", vec![Input::tensor("x", ty(4))]).private();
        let w = inner.body().resource_constant(ty(4), ids[0]).unwrap();
        program.add(inner.finish(&[("y", w)]).unwrap());
        let mut a = GraphBuilder::new("a", vec![Input::tensor("x", ty(4))]);
        let x = a.input(0).unwrap();
        let y = a.body().invoke("inner", vec![x], [ty(4).into()]).unwrap()[0];
        program.add(a.finish(&[("y", y)]).unwrap());
        let mut b = GraphBuilder::new("b", Vec::new());
        let one = b.body().resource_constant(ty(4), ids[0]).unwrap();
        let two = b.body().resource_constant(ty(8), ids[1]).unwrap();
        program.add(b.finish(&[("one", one), ("two", two)]).unwrap());
        program.finish()
    }

    #[test]
    fn weights_are_counted_through_calls_and_shared_ones_apart() {
        let program = program();
        let usage = Usage::of(&program);
        let bytes = |shared_bytes, unique_bytes| Bytes { shared_bytes, unique_bytes };
        assert_eq!(usage.entries().collect::<Vec<_>>(), [("a", bytes(4, 0)), ("b", bytes(4, 8))]);
        assert_eq!([usage.users(0), usage.users(1), usage.users(2)], [vec!["a", "b"], vec!["b"], vec![]]);
    }
}
