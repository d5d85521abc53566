//! Proof that a pass kept the numbers: every entry function is run before and after on the same inputs.

use std::collections::BTreeMap;

use crate::error::At;
use crate::eval::{Executor, Options, Tensor, Tensors};
use crate::graph::{Dim, Function, Module, ParameterKind, TensorType};
use crate::{Error, Result};

/// Results and states of every entry function on fixed inputs.
#[derive(Debug, Clone)]
pub struct Numbers(BTreeMap<String, Vec<f32>>);

/// What a function is called with.
#[derive(Debug, Clone)]
pub struct Arguments {
    /// Inputs by name.
    pub inputs: Tensors,
    /// Contents of the states on entry, by name.
    pub states: Tensors,
}

impl Arguments {
    /// Noise that depends on nothing but names and shapes.
    fn noise(function: &Function) -> Result<Self> {
        Ok(Self {
            inputs: noise_for(function, ParameterKind::Input)?,
            states: noise_for(function, ParameterKind::State)?,
        })
    }
}

/// One call of a function.
#[derive(Debug, Clone)]
pub struct Call {
    /// Its name.
    pub function: String,
    /// What it is called with.
    pub arguments: Arguments,
}

impl Call {
    /// A call of `function`.
    #[must_use]
    pub fn of(function: &Function, arguments: Arguments) -> Self {
        Self { function: function.name.clone(), arguments }
    }
}

/// The calls that stand for one call of each entry function, by its name: itself, or after a pass those of what became
/// of it.
pub(super) type Calls = BTreeMap<String, Vec<Call>>;

impl Numbers {
    /// Runs every entry function of a module on inputs that depend on nothing but their names and shapes, in single
    /// precision.
    ///
    /// # Errors
    /// When a function cannot be run.
    pub fn of(module: &Module) -> Result<Self> {
        Self::on(module, calls(module)?)
    }

    /// Makes these calls, in single precision. A call takes those results of the one before that it has inputs for.
    /// What several calls give under one name follow one another.
    pub(super) fn on(module: &Module, calls: Calls) -> Result<Self> {
        let executor = Executor::new(module, Options::default());
        let mut numbers = Self(BTreeMap::new());
        for (whole, calls) in calls {
            let mut passed_on = Tensors::new();
            for Call { function, arguments: Arguments { mut inputs, mut states } } in calls {
                let is_input = |name: &String| module.function(&function).is_some_and(|f| f.parameter(name).is_ok());
                inputs.extend(passed_on.into_iter().filter(|(name, _)| is_input(name)));
                let results = executor.run(&function, inputs, &mut states)?;
                numbers.append(&whole, results.iter().chain(&states));
                passed_on = results;
            }
        }
        Ok(numbers)
    }

    fn append<'t>(&mut self, function: &str, tensors: impl Iterator<Item = (&'t String, &'t Tensor)>) {
        for (name, tensor) in tensors {
            if let Ok(values) = tensor.to_floats() {
                self.0.entry(format!("{function}.{name}")).or_default().extend(values);
            }
        }
    }

    /// Those whose names (`FUNCTION.RESULT`) pass.
    pub(super) fn only(mut self, passes: impl Fn(&str) -> bool) -> Self {
        self.0.retain(|name, _| passes(name));
        self
    }

    /// The largest absolute difference to the numbers before, relative to the largest magnitude where that is above 1.
    ///
    /// # Errors
    /// When a result of before is not there or has another size.
    pub fn difference(&self, before: &Self) -> Result<f32> {
        let mut largest = 0.0_f32;
        for (name, was) in &before.0 {
            let is = self.0.get(name).filter(|is| is.len() == was.len());
            let is = is.ok_or_else(|| Error::check("a result changed its size").at(name.clone()))?;
            let magnitude = was.iter().fold(1.0_f32, |most, v| most.max(v.abs()));
            let difference = is.iter().zip(was).map(|(a, b)| (a - b).abs()).fold(0.0, larger);
            largest = larger(largest, difference / magnitude);
        }
        Ok(largest)
    }
}

/// Noise for every entry function of a module.
pub(super) fn calls(module: &Module) -> Result<Calls> {
    let of = |function: &Function| {
        let arguments = Arguments::noise(function).at(|| format!("function `{}`", function.name))?;
        Ok((function.name.clone(), vec![Call::of(function, arguments)]))
    };
    module.entries().map(of).collect()
}

/// The larger; not a number is larger than all.
fn larger(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() { f32::NAN } else { a.max(b) }
}

fn noise_for(function: &Function, kind: ParameterKind) -> Result<Tensors> {
    let tensors = function.parameters_of(kind).map(|parameter| {
        let tensor = noise(&parameter.name, function.ty(parameter.value)).at(|| parameter.name.clone())?;
        Ok((parameter.name.clone(), tensor))
    });
    tensors.collect()
}

/// What extents that are chosen at run time are here, as far as their bounds let them.
const RUN_TIME_EXTENT: usize = 5;

/// The extent of an axis in [`Numbers`].
pub(super) fn extent(dim: &Dim) -> usize {
    match dim {
        Dim::Fixed(n) => *n,
        Dim::Symbol(symbol) => RUN_TIME_EXTENT.clamp(symbol.min, symbol.max) * symbol.times,
    }
}

/// Floating-point inputs are noise between -1 and 1; integers (positions, offsets) are 1.
fn noise(name: &str, ty: &TensorType) -> Result<Tensor> {
    let shape: Vec<usize> = ty.shape.iter().map(extent).collect();
    let elements = shape.iter().product();
    if !ty.element.is_float() {
        return Tensor::integers(&shape, vec![1; elements]);
    }
    let mut state = name.bytes().fold(0x9E37_79B9_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let values = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    });
    Tensor::floats(&shape, values.take(elements).collect())
}
