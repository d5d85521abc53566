//! The invariants of a module; checked after each pass.

use std::collections::BTreeSet;

use super::infer::{Inferred, infer};
use super::{Function, Module, Node, Op, ParameterKind, TensorType};
use crate::weights::Weights;
use crate::{Error, Result};

impl Module {
    /// Checks every function: inputs are earlier values, types fit, calls match their callee, names are unique,
    /// each state parameter has one result.
    ///
    /// # Errors
    /// The first violation, with function and node.
    pub fn verify(&self) -> Result<()> {
        unique(self.functions.iter().map(|f| f.name.as_str()), "function")?;
        for function in &self.functions {
            self.verify_function(function).map_err(|e| e.at(format!("function `{}`", function.name)))?;
        }
        Ok(())
    }

    fn verify_function(&self, function: &Function) -> Result<()> {
        unique(function.parameters.iter().map(|p| p.name.as_str()), "parameter")?;
        verify_parameters(function)?;
        unique(function.results.iter().map(|r| r.name.as_str()), "result")?;
        unique(function.labels().map(|(label, _)| label), "label")?;
        for (id, node) in function.iter() {
            let checked = match node.inputs.iter().find(|input| **input >= id) {
                Some(input) => {
                    Err(Error::input("an input is not an earlier value").found(format!("%{}", input.index())))
                }
                None => verify_node(function, node, &self.weights).and_then(|()| self.verify_call(function, node)),
            };
            checked.map_err(|e| e.at(format!("%{} `{}`", id.index(), node.op.name())))?;
        }
        if let Some(result) = function.results.iter().find(|r| r.value.index() >= function.nodes.len()) {
            return Err(Error::input("a result is not a value").found(format!("`{}`", result.name)));
        }
        let states: Vec<_> = function.parameters_of(ParameterKind::State).collect();
        let fits = states.len() == function.states.len()
            && states.iter().zip(&function.states).all(|(p, r)| {
                p.name == r.name
                    && r.value.index() < function.nodes.len()
                    && function.ty(p.value) == function.ty(r.value)
            });
        if fits { Ok(()) } else { Err(Error::input("each state needs one result of its name and type, in order")) }
    }

    fn verify_call(&self, function: &Function, node: &Node) -> Result<()> {
        let Op::Invoke(name) = &node.op else {
            return Ok(());
        };
        let callee = self.function(name).ok_or_else(|| Error::input("no such callee").found(format!("`{name}`")))?;
        let arguments = node.inputs.iter().map(|&input| function.ty(input));
        let parameters = callee.parameters.iter().map(|p| callee.ty(p.value));
        let results: Vec<&TensorType> = callee.results.iter().map(|r| callee.ty(r.value)).collect();
        if arguments.eq(parameters) && results == [&node.ty] {
            return Ok(());
        }
        Err(Error::input("a call does not match its callee").found(format!("`{name}`")))
    }
}

/// The parameters are the parameter nodes, in order: rewriting copies them one by one.
fn verify_parameters(function: &Function) -> Result<()> {
    let nodes = function.iter().filter(|(_, node)| node.op == Op::Parameter).map(|(id, _)| id);
    if nodes.eq(function.parameters.iter().map(|p| p.value)) {
        return Ok(());
    }
    Err(Error::input("the parameters are not the parameter nodes in order"))
}

fn verify_node(function: &Function, node: &Node, weights: &Weights) -> Result<()> {
    let types: Vec<&TensorType> = node.inputs.iter().map(|&input| function.ty(input)).collect();
    match infer(&node.op, &types, weights)? {
        Inferred::Type(ty) if ty != node.ty => {
            Err(Error::input("the result type is wrong").found(&node.ty).expected(ty))
        }
        _ => Ok(()),
    }
}

fn unique<'a>(names: impl Iterator<Item = &'a str>, what: &str) -> Result<()> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(Error::input(format!("two {what}s have one name")).found(format!("`{name}`")));
        }
    }
    Ok(())
}
