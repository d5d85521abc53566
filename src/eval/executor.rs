//! Runs entry functions by name.

use std::collections::BTreeMap;

use super::constants::Constants;
use super::machine::{Call, Machine};
use super::plan::Plan;
use super::{Rounding, Tensor};
use crate::error::At;
use crate::graph::{Function, Module, Parameter, ParameterKind, ValueId};
use crate::{Error, Result};

/// Tensors by name.
pub type Tensors = BTreeMap<String, Tensor>;

/// How functions are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Whether values are rounded to their types.
    pub rounding: Rounding,
    /// Bytes of weights kept between uses. Weights beyond it are made anew at each use, so that a model larger than
    /// memory runs, slowly.
    pub cache_bytes: usize,
}

impl Default for Options {
    /// Single precision throughout, 4 GiB of weights kept.
    fn default() -> Self {
        Self { rounding: Rounding::None, cache_bytes: 4 << 30 }
    }
}

/// What a call returns.
#[derive(Debug, Clone, PartialEq)]
pub struct Outputs {
    /// The results by name.
    pub results: Tensors,
    /// The labelled values asked for, by label.
    pub probes: Tensors,
}

/// Runs the functions of a module. Weights are made once and shared by all calls.
#[derive(Debug)]
pub struct Executor<'m> {
    machine: Machine<'m>,
    plans: BTreeMap<&'m str, Plan>,
}

impl<'m> Executor<'m> {
    /// An executor for a module that [verifies](Module::verify).
    #[must_use]
    pub fn new(module: &'m Module, options: Options) -> Self {
        let constants = Constants::new(&module.weights, options.cache_bytes);
        let machine = Machine { functions: &module.functions, constants, rounding: options.rounding };
        let plans = module.functions.iter().map(|f| (f.name.as_str(), Plan::of_results(f))).collect();
        Self { machine, plans }
    }

    /// Runs a function. `inputs` has a tensor for each input; `states` has one for each state, and holds the contents
    /// on return afterwards.
    ///
    /// # Errors
    /// When an argument is missing, unknown or of another type than its parameter, or an operation fails: an index
    /// out of range, a weight that cannot be read. States are unchanged if the arguments do not fit, and lost if an
    /// operation fails.
    pub fn run(&self, function: &str, inputs: Tensors, states: &mut Tensors) -> Result<Tensors> {
        self.run_with_probes(function, inputs, states, &[]).map(|outputs| outputs.results)
    }

    /// As [`Executor::run`]; the values labelled `labels` are returned, too.
    ///
    /// # Errors
    /// As [`Executor::run`], and when there is no such label.
    pub fn run_with_probes(
        &self,
        function: &str,
        mut inputs: Tensors,
        states: &mut Tensors,
        labels: &[&str],
    ) -> Result<Outputs> {
        let function = self.function(function)?;
        let place = || format!("function `{}`", function.name);
        let probes = labels.iter().map(|label| probe(function, label)).collect::<Result<Vec<_>>>().at(place)?;
        let arguments = take_arguments(function, &mut inputs, states).at(place)?;
        let returned: Vec<ValueId> = function.results.iter().chain(&function.states).map(|r| r.value).collect();
        let wanted: Vec<ValueId> = returned.iter().copied().chain(probes).collect();
        let plan = match self.plans.get(function.name.as_str()) {
            Some(plan) if labels.is_empty() => plan,
            _ => &Plan::new(function, wanted.iter().copied()),
        };
        let call = Call { function, plan, wanted: &wanted, depth: 0 };
        let mut values = self.machine.call(&call, arguments).at(place)?.into_iter();
        let results = function.results.iter().map(|r| r.name.clone()).zip(&mut values).collect();
        states.extend(function.states.iter().map(|r| r.name.clone()).zip(&mut values));
        Ok(Outputs { results, probes: labels.iter().map(|&label| label.to_owned()).zip(values).collect() })
    }

    /// Zeros for each state of a function.
    ///
    /// # Errors
    /// When there is no such function, or a state has an extent chosen at run time.
    pub fn zero_states(&self, function: &str) -> Result<Tensors> {
        let function = self.function(function)?;
        let zeros = |p: &Parameter| {
            let ty = function.ty(p.value);
            match ty.fixed_shape() {
                Some(shape) => Ok((p.name.clone(), Tensor::zeros(ty.element, &shape))),
                None => Err(Error::input("a state has no fixed shape").at(format!("`{}`", p.name)).found(ty)),
            }
        };
        function.parameters_of(ParameterKind::State).map(zeros).collect()
    }

    fn function(&self, name: &str) -> Result<&'m Function> {
        self.machine.functions.iter().find(|f| f.name == name).ok_or_else(|| {
            let names: Vec<_> = self.machine.functions.iter().map(|f| format!("`{}`", f.name)).collect();
            Error::input("no such function").found(format!("`{name}`")).expected(names.join(", "))
        })
    }
}

fn probe(function: &Function, label: &str) -> Result<ValueId> {
    function.labelled(label).ok_or_else(|| {
        let labels: Vec<_> = function.labels().map(|(label, _)| format!("`{label}`")).collect();
        Error::input("no such label").found(format!("`{label}`")).expected(labels.join(", "))
    })
}

/// Arguments in the order of the parameters, moved out of `inputs` and `states`.
fn take_arguments(function: &Function, inputs: &mut Tensors, states: &mut Tensors) -> Result<Vec<Tensor>> {
    let mut bindings = super::signature::Bindings::default();
    for parameter in &function.parameters {
        let (from, kind) = match parameter.kind {
            ParameterKind::Input => (&*inputs, "input"),
            ParameterKind::State => (&*states, "state"),
        };
        let found = from.get(&parameter.name).ok_or_else(|| Error::input(format!("no such {kind} was given")));
        found
            .and_then(|tensor| bindings.bind(function.ty(parameter.value), tensor))
            .at(|| format!("{kind} `{}`", parameter.name))?;
    }
    let known = || function.parameters_of(ParameterKind::Input);
    if let Some(unknown) = inputs.keys().find(|name| !known().any(|p| p.name == **name)) {
        let names: Vec<_> = known().map(|p| format!("`{}`", p.name)).collect();
        return Err(Error::input("an unknown input was given")
            .found(format!("`{unknown}`"))
            .expected(names.join(", ")));
    }
    let taken = function.parameters.iter().map(|p| match p.kind {
        ParameterKind::Input => inputs.remove(&p.name),
        ParameterKind::State => states.remove(&p.name),
    });
    taken.map(|tensor| tensor.ok_or_else(|| Error::input("two parameters have one name"))).collect()
}
