//! Rebuilding a function node by node: the way passes rewrite.

use super::{Builder, Function, FunctionResult, Node, Op, ValueId};
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

    fn copy(&mut self, node: &Node) -> ValueId {
        let inputs = self.inputs(node);
        self.builder.declared(node.op.clone(), &inputs, node.ty.clone())
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
    mut rule: impl FnMut(&mut Rewriter<'_, '_>, &Node) -> Result<Option<ValueId>>,
) -> Result<(Function, usize)> {
    let builder = Builder::new(function.name.clone(), function.role.clone(), weights);
    let mut rewriter = Rewriter { old: function, builder, map: Vec::with_capacity(function.nodes.len()) };
    let mut replaced = 0;
    let mut parameters = function.parameters.iter();
    for node in &function.nodes {
        let value = if node.op == Op::Parameter {
            match parameters.next() {
                Some(p) => rewriter.builder.parameter(&p.name, p.kind, node.ty.clone()),
                None => rewriter.copy(node),
            }
        } else if let Some(value) = rule(&mut rewriter, node)? {
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
    let remap = |results: &[FunctionResult]| {
        let mapped = results.iter().map(|r| FunctionResult { name: r.name.clone(), value: rewriter.mapped(r.value) });
        mapped.collect::<Vec<_>>()
    };
    let (results, states) = (remap(&function.results), remap(&function.states));
    let mut new = rewriter.builder.finish()?;
    (new.results, new.states) = (results, states);
    Ok((new, replaced))
}
