//! What functions take and give: those that are there, and those that a recipe speaks of.

use std::collections::BTreeMap;
use std::fmt;

use crate::graph::{Dim, Function, ParameterKind, Symbol, TensorType};
use crate::host::recipe::{FunctionPorts, Port};

/// What a function takes and gives, by name.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Signature {
    pub(super) inputs: Ports,
    pub(super) states: Ports,
    pub(super) results: Ports,
}

/// Types by name.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ports(BTreeMap<String, TensorType>);

impl Ports {
    fn new<'n>(ports: impl IntoIterator<Item = (&'n str, TensorType)>) -> Self {
        Self(ports.into_iter().map(|(name, ty)| (name.to_owned(), ty)).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn get(&self, name: &str) -> Option<&TensorType> {
        self.0.get(name)
    }
}

impl Signature {
    pub(super) fn of(function: &Function) -> Self {
        let parameters =
            |kind| Ports::new(function.parameters_of(kind).map(|p| (p.name.as_str(), function.ty(p.value).clone())));
        Self {
            inputs: parameters(ParameterKind::Input),
            states: parameters(ParameterKind::State),
            results: Ports::new(function.results.iter().map(|r| (r.name.as_str(), function.ty(r.value).clone()))),
        }
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ports: Vec<String> = self.0.iter().map(|(name, ty)| format!("{name}: {ty}")).collect();
        f.write_str(&ports.join(", "))
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let states = if self.states.0.is_empty() { "" } else { "; states " };
        write!(f, "({}{states}{}) -> ({})", self.inputs, self.states, self.results)
    }
}

/// What a recipe says of a function.
impl From<&FunctionPorts> for Signature {
    fn from(said: &FunctionPorts) -> Self {
        let ports = |ports: &[Port]| Ports::new(ports.iter().map(|port| (port.name.as_str(), ty(port))));
        Self { inputs: ports(&said.inputs), states: ports(&said.states), results: ports(&said.outputs) }
    }
}

/// An extent that is chosen with each call is in a program without name and bounds.
fn ty(port: &Port) -> TensorType {
    let extent = |extent: &Option<usize>| extent.map_or_else(|| Dim::Symbol(Symbol::unknown()), Dim::Fixed);
    TensorType { element: port.element, shape: port.shape.iter().map(extent).collect() }
}
