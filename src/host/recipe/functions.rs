//! What the functions of a bundle take and give, as a recipe says it.

use std::fmt;

use crate::ElementType;
use crate::runtime::Asset;

/// A named tensor that a function takes or gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Type of one element.
    pub element: ElementType,
    /// Extent of each axis, outermost first; none where it is chosen with each call.
    pub shape: Vec<Option<usize>>,
}

/// What a function takes and gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionPorts {
    /// The asset that holds it.
    pub asset: Asset,
    /// Its name.
    pub name: String,
    /// What is handed in with each call.
    pub inputs: Vec<Port>,
    /// What the runtime keeps between calls.
    pub states: Vec<Port>,
    /// What each call gives.
    pub outputs: Vec<Port>,
}

/// A decoder function as a contract has it: of all layers, and without what the form of the caches adds.
#[derive(Debug)]
pub(super) struct WholeFunction<'r> {
    pub(super) name: &'r str,
    /// Tokens fed; none where their number is chosen with each call.
    pub(super) tokens: Option<usize>,
    /// Whether it always starts at position 0.
    pub(super) from_zero: bool,
    pub(super) inputs: Vec<Port>,
    pub(super) logits: Port,
}

impl<'r> WholeFunction<'r> {
    /// The function as it is called for one token, if it can be and goes on from any position.
    pub(super) fn of_one_token(self) -> Option<Self> {
        if self.from_zero || self.tokens.is_some_and(|tokens| tokens != 1) {
            return None;
        }
        let one = |port: Port| Port { shape: port.shape.iter().map(|extent| extent.or(Some(1))).collect(), ..port };
        let inputs = self.inputs.into_iter().map(one).collect();
        Some(Self { tokens: Some(1), inputs, logits: one(self.logits), ..self })
    }
}

impl Port {
    pub(super) fn new<const N: usize>(name: &str, element: ElementType, shape: [Option<usize>; N]) -> Self {
        Self { name: name.to_owned(), element, shape: shape.into() }
    }

    /// Bytes of the tensor, with `chosen` for every extent that is chosen with each call.
    #[must_use]
    pub fn bytes(&self, chosen: usize) -> u64 {
        let extents = self.shape.iter().map(|extent| extent.unwrap_or(chosen) as u64);
        extents.fold(self.element.size() as u64, u64::saturating_mul)
    }
}

impl FunctionPorts {
    /// Bytes that a call hands in and out, with `chosen` for every extent that is chosen with it. States stay where
    /// they are.
    #[must_use]
    pub fn bytes_moved(&self, chosen: usize) -> u64 {
        self.inputs.iter().chain(&self.outputs).map(|port| port.bytes(chosen)).fold(0, u64::saturating_add)
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let extent = |extent: &Option<usize>| extent.map_or_else(|| "?".to_owned(), |extent| extent.to_string());
        let shape: Vec<String> = self.shape.iter().map(extent).collect();
        write!(f, "{}: {}[{}]", self.name, self.element, shape.join(","))
    }
}

impl fmt::Display for FunctionPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |ports: &[Port]| ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let states = if self.states.is_empty() { "" } else { "; states " };
        write!(f, "({}{states}{}) -> ({})", list(&self.inputs), list(&self.states), list(&self.outputs))
    }
}
