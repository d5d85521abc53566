//! Runs the nodes of a function in order.

use std::collections::BTreeMap;

use super::constants::Constants;
use super::operands::{Operands, Slot};
use super::plan::Plan;
use super::signature::Bindings;
use super::tensor::round_slice;
use super::{Tensor, ops};
use crate::error::At;
use crate::graph::{Function, Node, Op, ValueId};
use crate::{ElementType, Error, Result};

/// How deep composites may call composites.
const MAX_DEPTH: usize = 16;

/// What happens to values whose type is narrower than single precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rounding {
    /// They stay in single precision: the mathematics of the graph without its storage.
    #[default]
    None,
    /// They are rounded to their type after each node, as a device that stores them does.
    AsStored,
}

/// What it takes to run functions.
#[derive(Debug)]
pub(super) struct Machine<'m> {
    pub(super) functions: &'m [Function],
    pub(super) constants: Constants<'m>,
    pub(super) rounding: Rounding,
}

/// One call.
#[derive(Debug)]
pub(super) struct Call<'c> {
    pub(super) function: &'c Function,
    pub(super) plan: &'c Plan,
    /// The values returned.
    pub(super) wanted: &'c [ValueId],
    pub(super) depth: usize,
}

impl Machine<'_> {
    /// Runs a call; `arguments` are in the order of the parameters. Returns the wanted values in order.
    pub(super) fn call(&self, call: &Call<'_>, arguments: Vec<Tensor>) -> Result<Vec<Tensor>> {
        let function = call.function;
        let mut bindings = Bindings::default();
        let mut values: BTreeMap<ValueId, Tensor> = BTreeMap::new();
        for (parameter, argument) in function.parameters.iter().zip(arguments) {
            bindings.bind(function.ty(parameter.value), &argument).at(|| format!("`{}`", parameter.name))?;
            if call.plan.needs(parameter.value) {
                values.insert(parameter.value, argument);
            }
        }
        for (id, node) in function.iter() {
            let computed = !matches!(node.op, Op::Parameter | Op::Constant(_));
            if computed && call.plan.needs(id) {
                let value = self.step(call, id, &mut values).and_then(|value| {
                    bindings.check(&node.ty, &value)?;
                    Ok(value)
                });
                values.insert(id, value.at(|| place(id, node))?);
            }
        }
        call.wanted.iter().map(|&value| self.returned(function, value, &values)).collect()
    }

    fn step(&self, call: &Call<'_>, id: ValueId, values: &mut BTreeMap<ValueId, Tensor>) -> Result<Tensor> {
        let node = call.function.node(id);
        let mut slots = Vec::with_capacity(node.inputs.len());
        for (position, &input) in node.inputs.iter().enumerate() {
            let used_again = !call.plan.ends_at(input, id) || node.inputs[position + 1..].contains(&input);
            slots.push(match call.function.node(input).op {
                Op::Constant(weight) => Slot::Constant(weight),
                _ if used_again => Slot::Value(values.get(&input).cloned().ok_or_else(|| unknown(input))?),
                _ => Slot::Value(values.remove(&input).ok_or_else(|| unknown(input))?),
            });
        }
        let operands = Operands::new(slots, &self.constants);
        let value = match &node.op {
            Op::Invoke(callee) => self.invoke(callee, operands, call.depth)?,
            op => ops::apply(op, operands)?,
        };
        Ok(self.stored(node, value))
    }

    fn invoke(&self, name: &str, mut operands: Operands<'_>, depth: usize) -> Result<Tensor> {
        let function = self.functions.iter().find(|f| f.name == name);
        let function = function.ok_or_else(|| Error::input("no such callee").found(format!("`{name}`")))?;
        if depth == MAX_DEPTH {
            return Err(Error::input("composites call each other too deeply").found(format!("`{name}`")));
        }
        let [result] = function.results.as_slice() else {
            return Err(Error::input("a callee needs one result").found(format!("`{name}`")));
        };
        let (plan, wanted) = (Plan::of_results(function), [result.value]);
        let call = Call { function, plan: &plan, wanted: &wanted, depth: depth + 1 };
        let mut results = self.call(&call, operands.rest()?).at(|| format!("composite `{name}`"))?;
        results.pop().ok_or_else(|| unknown(result.value))
    }

    /// The value as the next node sees it.
    fn stored(&self, node: &Node, value: Tensor) -> Tensor {
        let narrow = matches!(node.ty.element, ElementType::F16 | ElementType::BF16);
        match value {
            Tensor::F32(mut array) if self.rounding == Rounding::AsStored && narrow && !ops::only_moves(&node.op) => {
                ops::each_slice(&mut array, |slice| round_slice(slice, node.ty.element));
                Tensor::F32(array)
            }
            value => value,
        }
    }

    fn returned(&self, function: &Function, value: ValueId, values: &BTreeMap<ValueId, Tensor>) -> Result<Tensor> {
        match function.node(value).op {
            Op::Constant(weight) => self.constants.whole(weight),
            _ => values.get(&value).cloned().ok_or_else(|| unknown(value)),
        }
    }
}

fn place(id: ValueId, node: &Node) -> String {
    match &node.label {
        Some(label) => format!("%{} `{}` ({label})", id.index(), node.op.name()),
        None => format!("%{} `{}`", id.index(), node.op.name()),
    }
}

#[cold]
fn unknown(value: ValueId) -> Error {
    Error::input("a value is not known").found(format!("%{}", value.index()))
}
