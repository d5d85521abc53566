//! Rebuilding a function node by node: the way passes rewrite.

use super::{Builder, Function, FunctionResult, Node, Op, Parameter, ValueId};
use crate::Result;
use crate::weights::Weights;

/// The new function while it is rebuilt, as a rule sees it at one node of the old one.
#[derive(Debug)]
pub struct Rewriter<'f, 'w> {
    old: &'f Function,
    /// Builds the new function.
    pub builder: Builder<'w>,
    map: Vec<ValueId>,
}

impl Rewriter<'_, '_> {
    /// The new value of a value of the old function. The rule sees nodes in program order, so inputs are there.
    #[must_use]
    pub fn mapped(&self, old: ValueId) -> ValueId {
        self.map[old.index()]
    }

    /// The new values of a node's inputs.
    #[must_use]
    pub fn inputs(&self, node: &Node) -> Vec<ValueId> {
        node.inputs.iter().map(|&input| self.mapped(input)).collect()
    }

    /// The value of the old function that the rule is at.
    #[must_use]
    pub fn value(&self) -> ValueId {
        ValueId(self.map.len() as u32)
    }

    /// The old function.
    #[must_use]
    pub fn old(&self) -> &Function {
        self.old
    }

    /// The weight behind a new value, if it is a constant.
    #[must_use]
    pub fn constant(&self, value: ValueId) -> Option<crate::weights::WeightId> {
        match self.builder.function().node(value).op {
            Op::Constant(weight) => Some(weight),
            _ => None,
        }
    }

    /// The parameter as it was.
    pub fn copy_parameter(&mut self, parameter: &Parameter) -> ValueId {
        let ty = self.old.ty(parameter.value).clone();
        self.builder.parameter(&parameter.name, parameter.kind, ty)
    }

    /// What the new function returns where nothing else is asked for.
    #[must_use]
    pub fn returned(&self) -> Returned {
        let mapped = |results: &[FunctionResult]| {
            let mapped = results.iter().map(|r| FunctionResult { name: r.name.clone(), value: self.mapped(r.value) });
            mapped.collect()
        };
        Returned { results: mapped(&self.old.results), states: mapped(&self.old.states) }
    }

    fn copy(&mut self, node: &Node) -> ValueId {
        let inputs = self.inputs(node);
        self.builder.declared(node.op.clone(), &inputs, node.ty.clone())
    }
}

/// What a function returns.
#[derive(Debug, Clone, PartialEq)]
pub struct Returned {
    /// Tensors, in order.
    pub results: Vec<FunctionResult>,
    /// Contents of each state, in the order of the state parameters.
    pub states: Vec<FunctionResult>,
}

/// A rewrite that changes more of a function than its nodes.
pub trait Rules {
    /// The new value of a parameter.
    ///
    /// # Errors
    /// When the rules cannot be applied.
    fn parameter(&mut self, rewriter: &mut Rewriter<'_, '_>, parameter: &Parameter) -> Result<ValueId> {
        Ok(rewriter.copy_parameter(parameter))
    }

    /// The replacement of a node, or `None` to keep it.
    ///
    /// # Errors
    /// When the rules cannot be applied.
    fn node(&mut self, rewriter: &mut Rewriter<'_, '_>, node: &Node) -> Result<Option<ValueId>>;

    /// What the new function returns.
    ///
    /// # Errors
    /// When the rules cannot be applied.
    fn returned(&mut self, rewriter: &mut Rewriter<'_, '_>) -> Result<Returned> {
        Ok(rewriter.returned())
    }
}

/// A rule for nodes alone.
struct Nodes<R>(R);

impl<R: FnMut(&mut Rewriter<'_, '_>, &Node) -> Result<Option<ValueId>>> Rules for Nodes<R> {
    fn node(&mut self, rewriter: &mut Rewriter<'_, '_>, node: &Node) -> Result<Option<ValueId>> {
        self.0(rewriter, node)
    }
}

/// Rebuilds `function`: `rule` returns the replacement of a node, or `None` to keep it. Returns the new function and
/// how many nodes were replaced. Labels stay with what replaces their node.
///
/// # Errors
/// When the rule fails or a new node does not fit.
pub fn rewrite(
    function: &Function,
    weights: &mut Weights,
    rule: impl FnMut(&mut Rewriter<'_, '_>, &Node) -> Result<Option<ValueId>>,
) -> Result<(Function, usize)> {
    rewrite_by(function, weights, &mut Nodes(rule))
}

/// As [`rewrite`], with rules for parameters and results, too.
///
/// # Errors
/// As there.
pub fn rewrite_by(function: &Function, weights: &mut Weights, rules: &mut dyn Rules) -> Result<(Function, usize)> {
    let builder = Builder::new(function.name.clone(), function.role.clone(), weights);
    let mut rewriter = Rewriter { old: function, builder, map: Vec::with_capacity(function.nodes.len()) };
    let mut replaced = 0;
    let mut parameters = function.parameters.iter();
    for node in &function.nodes {
        let value = if node.op == Op::Parameter {
            match parameters.next() {
                Some(parameter) => rules.parameter(&mut rewriter, parameter)?,
                None => rewriter.copy(node),
            }
        } else if let Some(value) = rules.node(&mut rewriter, node)? {
            replaced += 1;
            value
        } else {
            rewriter.copy(node)
        };
        if let Some(label) = &node.label
            && rewriter.builder.function().labelled(label).is_none()
        {
            rewriter.builder.label(value, label.clone());
        }
        rewriter.map.push(value);
    }
    let returned = rules.returned(&mut rewriter)?;
    let mut new = rewriter.builder.finish()?;
    (new.results, new.states) = (returned.results, returned.states);
    Ok((new, replaced))
}
