//! The reference executor as a runtime: the functions as they were written, read back from the assets.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::{Asset as Part, Call, HostTensor, Outputs, Runtime, State, TensorData};
use crate::aicode;
use crate::asset::Asset;
use crate::eval::{Executor, Options, Tensor, Tensors};
use crate::graph::Module;
use crate::{Error, Result};

/// The modules of a bundle's assets, read back.
#[derive(Debug)]
pub struct Modules(BTreeMap<Part, Module>);

impl Modules {
    /// Reads the assets.
    ///
    /// # Errors
    /// When an asset is damaged or has an operation the executor does not know.
    pub fn open(assets: &BTreeMap<Part, PathBuf>) -> Result<Self> {
        let raise = |(part, path): (&Part, &PathBuf)| {
            let asset = Asset::open(path)?;
            Ok((*part, aicode::raise(asset.file())?))
        };
        assets.iter().map(raise).collect::<Result<_>>().map(Self)
    }

    /// The module of an asset.
    #[must_use]
    pub fn get(&self, part: Part) -> Option<&Module> {
        self.0.get(&part)
    }
}

/// Runs the modules of a bundle with the reference executor.
#[derive(Debug)]
pub struct Eval<'m> {
    executors: BTreeMap<Part, (&'m Module, Executor<'m>)>,
    states: BTreeMap<Part, Tensors>,
}

impl<'m> Eval<'m> {
    /// An executor for each module.
    #[must_use]
    pub fn new(modules: &'m Modules, options: Options) -> Self {
        let executor = |(part, module): (&Part, &'m Module)| (*part, (module, Executor::new(module, options)));
        Self { executors: modules.0.iter().map(executor).collect(), states: BTreeMap::new() }
    }

    /// The contents of the states of an asset, by name, once it has any.
    #[must_use]
    pub fn states(&self, part: Part) -> Option<&Tensors> {
        self.states.get(&part)
    }

    fn executor(&self, part: Part) -> Result<&(&'m Module, Executor<'m>)> {
        self.executors.get(&part).ok_or_else(|| Error::input(format!("the bundle has no {part} asset")))
    }
}

impl Runtime for Eval<'_> {
    fn name(&self) -> &'static str {
        "eval"
    }

    fn reset_states(&mut self, asset: Part, states: &[State]) -> Result<()> {
        let (module, _) = self.executor(asset)?;
        let mut fresh = Tensors::new();
        for state in states {
            let parameters = module.entries().filter_map(|f| f.parameter(&state.name).ok().map(|p| f.ty(p.value)));
            let ty = parameters.into_iter().next().ok_or_else(|| {
                Error::input("no function has such a state").at(asset.name()).found(format!("`{}`", state.name))
            })?;
            fresh.insert(state.name.clone(), Tensor::zeros(ty.element, &state.shape));
        }
        self.states.insert(asset, fresh);
        Ok(())
    }

    fn run(&mut self, call: &Call<'_>) -> Result<Outputs> {
        let mut all = self.states.remove(&call.asset).unwrap_or_default();
        let mut states: Tensors =
            call.states.iter().filter_map(|&name| all.remove(name).map(|state| (name.to_owned(), state))).collect();
        let inputs = call.inputs.iter().map(|(name, tensor)| Ok(((*name).to_owned(), to_eval(tensor)?)));
        let inputs = inputs.collect::<Result<Tensors>>()?;
        let (_, executor) = self.executor(call.asset)?;
        let results = executor.run(call.function, inputs, &mut states)?;
        all.extend(states);
        self.states.insert(call.asset, all);
        results.into_iter().map(|(name, tensor)| Ok((name, to_host(&tensor)?))).collect()
    }
}

fn to_eval(tensor: &HostTensor) -> Result<Tensor> {
    match tensor.data() {
        TensorData::Floats(values) => Tensor::floats(tensor.shape(), values.clone()),
        TensorData::Ints(values) => Tensor::integers(tensor.shape(), values.clone()),
    }
}

fn to_host(tensor: &Tensor) -> Result<HostTensor> {
    let shape = tensor.shape().to_vec();
    match tensor.to_floats() {
        Ok(values) => HostTensor::floats(shape, values),
        Err(_) => HostTensor::ints(shape, tensor.to_integers()?),
    }
}
