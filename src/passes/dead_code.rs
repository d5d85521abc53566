use super::{Outcome, Pass};
use crate::Result;
use crate::graph::{Function, FunctionResult, Module, Node, Op, Parameter, ValueId};

/// `dead-code`: nodes that no result needs leave the function. Parameters stay: they are the contract.
#[derive(Debug, Clone, Copy)]
pub struct DeadCode;

impl Pass for DeadCode {
    fn name(&self) -> &'static str {
        "dead-code"
    }

    fn run(&self, module: &mut Module) -> Result<Outcome> {
        let before: usize = module.functions.iter().map(|f| f.nodes.len()).sum();
        module.functions.iter_mut().for_each(sweep);
        let after: usize = module.functions.iter().map(|f| f.nodes.len()).sum();
        Ok(Outcome::of(before - after, "every node is needed"))
    }
}

/// Removes what no result of the function needs.
pub(super) fn sweep(function: &mut Function) {
    let live = live_nodes(function);
    let mut renamed = vec![None; function.nodes.len()];
    let mut kept = Function::new(function.name.clone(), function.role.clone());
    for (index, node) in std::mem::take(&mut function.nodes).into_iter().enumerate() {
        if live[index] {
            let inputs = node.inputs.iter().filter_map(|input| renamed[input.index()]).collect();
            renamed[index] = Some(kept.push(Node { inputs, ..node }));
        }
    }
    let rename = |value: ValueId| renamed[value.index()].unwrap_or(value);
    let results = |list: &[FunctionResult]| {
        list.iter().map(|r| FunctionResult { value: rename(r.value), ..r.clone() }).collect::<Vec<_>>()
    };
    kept.parameters = function.parameters.iter().map(|p| Parameter { value: rename(p.value), ..p.clone() }).collect();
    (kept.results, kept.states) = (results(&function.results), results(&function.states));
    *function = kept;
}

/// Which nodes a result depends on; every input of a live node is live.
fn live_nodes(function: &Function) -> Vec<bool> {
    let mut live = vec![false; function.nodes.len()];
    for result in function.results.iter().chain(&function.states) {
        live[result.value.index()] = true;
    }
    for (index, node) in function.nodes.iter().enumerate().rev() {
        live[index] |= node.op == Op::Parameter;
        if live[index] {
            node.inputs.iter().for_each(|input| live[input.index()] = true);
        }
    }
    live
}
