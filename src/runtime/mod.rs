//! What executes the functions of a bundle, seen from the host: named tensors in, named tensors out.
//!
//! A runtime keeps the mutable states (the KV caches) on its own side, so that a decode step moves one embedding
//! in and one row of logits out, whatever the runtime is and wherever it runs.

pub mod coreai;
pub mod eval;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::{Error, Result};

/// One of the assets of a bundle, by the part it plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Asset {
    /// Pixels to visual tokens.
    Vision,
    /// Embeddings to logits, with the KV caches as states.
    Decoder,
}

impl Asset {
    /// Every asset of a bundle.
    pub const ALL: [Self; 2] = [Self::Vision, Self::Decoder];

    /// The name used in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vision => "vision",
            Self::Decoder => "decoder",
        }
    }
}

impl fmt::Display for Asset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A tensor as the host holds it: row-major, in single precision or as integers.
///
/// A runtime converts to and from the element type that the function declares. Clones share their elements.
#[derive(Debug, Clone, PartialEq)]
pub struct HostTensor {
    shape: Vec<usize>,
    data: Arc<TensorData>,
}

/// The elements of a [`HostTensor`].
#[derive(Debug, Clone, PartialEq)]
pub enum TensorData {
    /// For every floating-point type.
    Floats(Vec<f32>),
    /// For token ids and positions.
    Ints(Vec<i32>),
}

impl TensorData {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Floats(values) => values.len(),
            Self::Ints(values) => values.len(),
        }
    }

    /// Whether there is no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl HostTensor {
    /// A tensor of any kind.
    ///
    /// # Errors
    /// When the shape does not hold exactly the elements given.
    pub fn new(shape: Vec<usize>, data: TensorData) -> Result<Self> {
        let elements = shape.iter().try_fold(1_usize, |product, &extent| product.checked_mul(extent));
        if elements == Some(data.len()) {
            return Ok(Self { shape, data: Arc::new(data) });
        }
        Err(Error::input("the shape of a tensor does not hold its elements")
            .found(format!("{} elements", data.len()))
            .expected(format!("shape {shape:?}")))
    }

    /// A tensor of floats.
    ///
    /// # Errors
    /// When the shape does not hold exactly the elements given.
    pub fn floats(shape: Vec<usize>, values: Vec<f32>) -> Result<Self> {
        Self::new(shape, TensorData::Floats(values))
    }

    /// A tensor of integers.
    ///
    /// # Errors
    /// When the shape does not hold exactly the elements given.
    pub fn ints(shape: Vec<usize>, values: Vec<i32>) -> Result<Self> {
        Self::new(shape, TensorData::Ints(values))
    }

    /// Extent of each axis, outermost first.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The elements, row-major.
    #[must_use]
    pub fn data(&self) -> &TensorData {
        &self.data
    }

    /// The elements as floats; none where they are integers.
    #[must_use]
    pub fn as_floats(&self) -> &[f32] {
        match &*self.data {
            TensorData::Floats(values) => values,
            TensorData::Ints(_) => &[],
        }
    }

    /// As [`as_floats`](Self::as_floats), to be changed. Clones keep what they have.
    #[must_use]
    pub fn as_floats_mut(&mut self) -> &mut [f32] {
        match Arc::make_mut(&mut self.data) {
            TensorData::Floats(values) => values,
            TensorData::Ints(_) => &mut [],
        }
    }

    /// Shape and elements.
    #[must_use]
    pub fn into_parts(self) -> (Vec<usize>, TensorData) {
        (self.shape, Arc::unwrap_or_clone(self.data))
    }

    /// Whether this is a clone of `other`, or the other way round.
    #[must_use]
    pub fn shares_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.data, &other.data) && self.shape == other.shape
    }
}

/// A mutable state of a function: named, of fixed shape, kept by the runtime between calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Its name in the asset.
    pub name: String,
    /// Extent of each axis, outermost first.
    pub shape: Vec<usize>,
}

/// One call of one function.
#[derive(Debug, Clone)]
pub struct Call<'a> {
    /// The asset that holds the function.
    pub asset: Asset,
    /// Name of the function in the asset.
    pub function: &'a str,
    /// Every input, by its name.
    pub inputs: Vec<(&'a str, HostTensor)>,
    /// Names of the states the function reads and writes; all were [reset](Runtime::reset_states) before.
    pub states: Vec<&'a str>,
}

/// What a call gave, by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outputs(BTreeMap<String, HostTensor>);

impl FromIterator<(String, HostTensor)> for Outputs {
    fn from_iter<I: IntoIterator<Item = (String, HostTensor)>>(outputs: I) -> Self {
        Self(outputs.into_iter().collect())
    }
}

impl Outputs {
    /// Takes the output `name`.
    ///
    /// # Errors
    /// When there is none.
    pub fn take(&mut self, name: &str) -> Result<HostTensor> {
        self.0.remove(name).ok_or_else(|| {
            let names: Vec<&str> = self.0.keys().map(String::as_str).collect();
            Error::check(format!("no output `{name}`")).found(format!("outputs {names:?}"))
        })
    }

    /// Takes the float output `name`, which must have this shape.
    ///
    /// # Errors
    /// When there is no such output, its shape is another, or it holds integers.
    pub fn take_floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let tensor = self.take(name)?;
        let place = || format!("output `{name}`");
        if tensor.shape != shape {
            return Err(Error::check("wrong shape")
                .at(place())
                .found(format!("{:?}", tensor.shape))
                .expected(format!("{shape:?}")));
        }
        match Arc::unwrap_or_clone(tensor.data) {
            TensorData::Floats(values) => Ok(values),
            TensorData::Ints(_) => {
                Err(Error::check("wrong element type").at(place()).found("integers").expected("floats"))
            }
        }
    }
}

/// Something that executes functions of a bundle.
pub trait Runtime {
    /// The name shown in messages: `core-ai`, `reference`.
    fn name(&self) -> &str;

    /// Makes these the states of `asset`, all zero. Replaces the states it had.
    ///
    /// # Errors
    /// When the asset cannot be loaded or has no such state.
    fn reset_states(&mut self, asset: Asset, states: &[State]) -> Result<()>;

    /// Runs one function to its end; its states change in place.
    ///
    /// # Errors
    /// When the asset or function cannot be loaded, an input does not fit, or the execution fails.
    fn run(&mut self, call: &Call<'_>) -> Result<Outputs>;
}
