//! Graphs of a program as functions with named inputs and outputs.

use super::attributes::{Attribute, Opaque};
use super::ir::{Block, Operation, Program, is_graph};
use super::names;
use super::types::{FunctionType, Type};

/// A graph.
#[derive(Debug, Clone, Copy)]
pub struct GraphView<'p> {
    operation: &'p Operation,
}

/// An input or an output of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphPort<'p> {
    /// The name it is addressed by at run time.
    pub name: Option<&'p str>,
    /// Its type: a handle for state, a token for state given back.
    pub ty: &'p Type,
}

impl Program {
    /// The graphs, in file order.
    pub fn graphs(&self) -> impl Iterator<Item = GraphView<'_>> {
        self.operations().iter().filter_map(GraphView::new)
    }
}

impl<'p> GraphView<'p> {
    /// `operation` as a graph, if it is one.
    #[must_use]
    pub fn new(operation: &'p Operation) -> Option<Self> {
        is_graph(operation).then_some(Self { operation })
    }

    /// The operation itself.
    #[must_use]
    pub const fn operation(self) -> &'p Operation {
        self.operation
    }

    /// Its name; empty when it has none.
    #[must_use]
    pub fn name(self) -> &'p str {
        self.operation.property("name").and_then(Attribute::as_str).unwrap_or("")
    }

    /// Whether it can be called by other graphs only.
    #[must_use]
    pub fn is_private(self) -> bool {
        self.flag("isPrivate")
    }

    /// Whether it must stay a function of its own.
    #[must_use]
    pub fn is_no_inline(self) -> bool {
        self.flag("noInline")
    }

    /// Name and declaration of the composite it stands for, if it does.
    #[must_use]
    pub fn composite(self) -> Option<&'p Opaque> {
        self.operation.property("compositeDecl")?.as_opaque()
    }

    /// Its inputs, in order.
    #[must_use]
    pub fn inputs(self) -> Vec<GraphPort<'p>> {
        let types = self.function_type().map_or(&[][..], |function| &function.operands);
        self.ports("argAttrs", types)
    }

    /// Its outputs, in order.
    #[must_use]
    pub fn outputs(self) -> Vec<GraphPort<'p>> {
        let types = self.function_type().map_or(&[][..], |function| &function.results);
        self.ports("resAttrs", types)
    }

    /// Its body, unless it has none.
    #[must_use]
    pub fn body(self) -> Option<&'p Block> {
        self.operation.regions.first()?.block.as_ref()
    }

    fn flag(self, name: &str) -> bool {
        self.operation.property(name).and_then(Attribute::as_integer).is_some_and(|flag| flag.bits() != 0)
    }

    fn function_type(self) -> Option<&'p FunctionType> {
        match self.operation.property("functionType")? {
            Attribute::Type(Type::Function(function)) => Some(function),
            _ => None,
        }
    }

    fn ports(self, property: &str, types: &'p [Type]) -> Vec<GraphPort<'p>> {
        let attributes = self.operation.property(property).and_then(Attribute::as_array).unwrap_or(&[]);
        let names = attributes.iter().map(port_name).chain(std::iter::repeat(None));
        types.iter().zip(names).map(|(ty, name)| GraphPort { name, ty }).collect()
    }
}

fn port_name(attributes: &Attribute) -> Option<&str> {
    let mut opaques = attributes.as_array()?.iter().filter_map(Attribute::as_opaque);
    opaques.find(|opaque| &*opaque.name == names::NAME_ATTRIBUTE)?.parameters.first()?.as_str()
}
