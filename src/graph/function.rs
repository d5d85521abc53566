//! Functions: nodes in program order, each with one result.

use std::sync::Arc;

use super::{Op, TensorType};
use crate::{Error, Result};

/// A value of a function: the result of the node with this index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub(crate) u32);

impl ValueId {
    /// Position of the node among the nodes of its function.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// One operation with its inputs and the type of its result.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// What is computed.
    pub op: Op,
    /// Earlier values of the same function.
    pub inputs: Vec<ValueId>,
    /// Type of the result.
    pub ty: TensorType,
    /// A name for people and probes, such as `layer.0`; unique within the function.
    pub label: Option<Arc<str>>,
}

/// How the outside hands a parameter over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ParameterKind {
    /// A tensor given with each call.
    Input,
    /// A buffer that lives between calls and is changed in place.
    State,
}

/// A named parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    /// The name callers use.
    pub name: String,
    /// Input or state.
    pub kind: ParameterKind,
    /// Its value inside the function; for a state, the contents on entry.
    pub value: ValueId,
}

/// A named result; for a state, the contents on return under the name of the state.
#[derive(Debug, Clone, PartialEq)]
pub struct FunctionResult {
    /// The name callers use.
    pub name: String,
    /// The value returned.
    pub value: ValueId,
}

/// What a function is for.
#[derive(Debug, Clone, PartialEq)]
pub enum FunctionRole {
    /// Callers may call it.
    Entry,
    /// A private composite that entries invoke; runtimes may replace it by their own implementation.
    Composite(Composite),
}

/// The declaration of a composite, which a runtime recognises it by.
#[derive(Debug, Clone, PartialEq)]
pub struct Composite {
    /// The operation it implements: `rms_norm`, `layer_norm`.
    pub operation: String,
    /// Attributes in alphabetical order.
    pub attributes: Vec<(String, CompositeAttribute)>,
}

/// The value of a composite's attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum CompositeAttribute {
    /// 64-bit signed integer.
    Integer(i64),
    /// List of 64-bit signed integers.
    Integers(Vec<i64>),
    /// Single precision.
    Float(f32),
    /// Truth value.
    Bool(bool),
    /// Text.
    Text(String),
}

/// A function: parameters, nodes in program order, results.
#[derive(Debug, Clone, PartialEq)]
pub struct Function {
    /// The name callers use.
    pub name: String,
    /// Entry or composite.
    pub role: FunctionRole,
    /// In the order of the signature.
    pub parameters: Vec<Parameter>,
    /// A node uses only earlier nodes.
    pub nodes: Vec<Node>,
    /// Tensors returned, in order.
    pub results: Vec<FunctionResult>,
    /// Contents of each state on return, in the order of the state parameters.
    pub states: Vec<FunctionResult>,
}

impl Function {
    /// An entry function without anything in it.
    #[must_use]
    pub fn new(name: impl Into<String>, role: FunctionRole) -> Self {
        Self {
            name: name.into(),
            role,
            parameters: Vec::new(),
            nodes: Vec::new(),
            results: Vec::new(),
            states: Vec::new(),
        }
    }

    /// The node that makes `value`.
    ///
    /// # Panics
    /// When `value` belongs to another function.
    #[must_use]
    pub fn node(&self, value: ValueId) -> &Node {
        &self.nodes[value.index()]
    }

    /// The type of `value`.
    #[must_use]
    pub fn ty(&self, value: ValueId) -> &TensorType {
        &self.node(value).ty
    }

    /// All nodes with the values they make, in program order.
    pub fn iter(&self) -> impl Iterator<Item = (ValueId, &Node)> {
        self.nodes.iter().enumerate().map(|(i, node)| (ValueId(i as u32), node))
    }

    /// Appends a node.
    pub fn push(&mut self, node: Node) -> ValueId {
        let id = ValueId(self.nodes.len() as u32);
        self.nodes.push(node);
        id
    }

    /// The value labelled `label`.
    #[must_use]
    pub fn labelled(&self, label: &str) -> Option<ValueId> {
        self.iter().find(|(_, node)| node.label.as_deref() == Some(label)).map(|(id, _)| id)
    }

    /// The values labelled, in program order.
    pub fn labels(&self) -> impl Iterator<Item = (&str, ValueId)> {
        self.iter().filter_map(|(id, node)| Some((node.label.as_deref()?, id)))
    }

    /// The parameter with this name.
    ///
    /// # Errors
    /// When there is none; the error lists those there are.
    pub fn parameter(&self, name: &str) -> Result<&Parameter> {
        self.parameters.iter().find(|p| p.name == name).ok_or_else(|| {
            let names: Vec<_> = self.parameters.iter().map(|p| format!("`{}`", p.name)).collect();
            Error::input("no such parameter")
                .at(format!("function `{}`", self.name))
                .found(format!("`{name}`"))
                .expected(names.join(", "))
        })
    }

    /// Parameters of one kind, in order.
    pub fn parameters_of(&self, kind: ParameterKind) -> impl Iterator<Item = &Parameter> {
        self.parameters.iter().filter(move |p| p.kind == kind)
    }
}
