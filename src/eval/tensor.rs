//! Values at run time.

use half::{bf16, f16};
use ndarray::{ArcArray, IxDyn};

use crate::{ElementType, Error, Result};

/// A shared array: clones, transposes and slices share elements; writing copies them if they are shared.
pub type Array<T> = ArcArray<T, IxDyn>;

/// The value of a tensor. All floating-point types are held as `f32`, all integers but `si8` as `i32`.
///
/// Elements of `ui32` are held as the `i32` with the same bits.
#[derive(Debug, Clone, PartialEq)]
pub enum Tensor {
    /// `f16`, `bf16`, `f32`, `f64`.
    F32(Array<f32>),
    /// Integers other than `si8`.
    I32(Array<i32>),
    /// `si8`: quantised codes.
    I8(Array<i8>),
    /// `i1`.
    Bool(Array<bool>),
}

/// A Rust type that holds the elements of a [`Tensor`].
pub(super) trait Element: Copy + Default + Send + Sync + 'static {
    fn wrap(array: Array<Self>) -> Tensor;
    /// `None` when the tensor holds other elements.
    fn unwrap(tensor: Tensor) -> Option<Array<Self>>;
}

macro_rules! element {
    ($type:ty, $variant:ident) => {
        impl Element for $type {
            fn wrap(array: Array<Self>) -> Tensor {
                Tensor::$variant(array)
            }
            fn unwrap(tensor: Tensor) -> Option<Array<Self>> {
                match tensor {
                    Tensor::$variant(array) => Some(array),
                    _ => None,
                }
            }
        }
    };
}

element!(f32, F32);
element!(i32, I32);
element!(i8, I8);
element!(bool, Bool);

/// Runs `$body` with `$T` being the Rust type of the elements of `$tensor`.
macro_rules! with_element {
    ($tensor:expr, $T:ident => $body:expr) => {
        match $tensor {
            $crate::eval::Tensor::F32(_) => {
                type $T = f32;
                $body
            }
            $crate::eval::Tensor::I32(_) => {
                type $T = i32;
                $body
            }
            $crate::eval::Tensor::I8(_) => {
                type $T = i8;
                $body
            }
            $crate::eval::Tensor::Bool(_) => {
                type $T = bool;
                $body
            }
        }
    };
}
pub(super) use with_element;

impl Tensor {
    /// A tensor of single-precision numbers, row-major.
    ///
    /// # Errors
    /// When the number of values does not fit the shape.
    pub fn floats(shape: &[usize], values: Vec<f32>) -> Result<Self> {
        shaped(shape, values).map(Self::F32)
    }

    /// A tensor of 32-bit integers, row-major.
    ///
    /// # Errors
    /// When the number of values does not fit the shape.
    pub fn integers(shape: &[usize], values: Vec<i32>) -> Result<Self> {
        shaped(shape, values).map(Self::I32)
    }

    /// A tensor of truth values, row-major.
    ///
    /// # Errors
    /// When the number of values does not fit the shape.
    pub fn truths(shape: &[usize], values: Vec<bool>) -> Result<Self> {
        shaped(shape, values).map(Self::Bool)
    }

    /// Zeros of a type.
    #[must_use]
    pub fn zeros(element: ElementType, shape: &[usize]) -> Self {
        match element {
            ElementType::Bool => Self::Bool(Array::default(shape)),
            ElementType::I8 => Self::I8(Array::zeros(shape)),
            element if element.is_float() => Self::F32(Array::zeros(shape)),
            _ => Self::I32(Array::zeros(shape)),
        }
    }

    /// The extents.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        match self {
            Self::F32(a) => a.shape(),
            Self::I32(a) => a.shape(),
            Self::I8(a) => a.shape(),
            Self::Bool(a) => a.shape(),
        }
    }

    /// Whether it can be the value of a tensor with elements of this type.
    #[must_use]
    pub fn holds(&self, element: ElementType) -> bool {
        match self {
            Self::F32(_) => element.is_float(),
            Self::I8(_) => element == ElementType::I8,
            Self::Bool(_) => element == ElementType::Bool,
            Self::I32(_) => !element.is_float() && !matches!(element, ElementType::I8 | ElementType::Bool),
        }
    }

    /// The elements in row-major order.
    ///
    /// # Errors
    /// When they are not floating-point numbers.
    pub fn to_floats(&self) -> Result<Vec<f32>> {
        match self {
            Self::F32(a) => Ok(a.iter().copied().collect()),
            other => Err(other.wrong_kind("floating-point numbers")),
        }
    }

    /// The elements in row-major order, `si8` widened.
    ///
    /// # Errors
    /// When they are not integers.
    pub fn to_integers(&self) -> Result<Vec<i32>> {
        match self {
            Self::I32(a) => Ok(a.iter().copied().collect()),
            Self::I8(a) => Ok(a.iter().map(|&v| i32::from(v)).collect()),
            other => Err(other.wrong_kind("integers")),
        }
    }

    /// The elements as stored: row-major, little-endian, floating-point numbers rounded to nearest.
    ///
    /// # Errors
    /// When the tensor does not hold such elements, or an integer does not fit the type.
    pub fn to_literal_bytes(&self, element: ElementType) -> Result<Vec<u8>> {
        if !self.holds(element) {
            return Err(self.wrong_kind(element));
        }
        match self {
            Self::F32(a) => Ok(a.iter().flat_map(|&v| float_bytes(v, element)).collect()),
            Self::I8(a) => Ok(a.iter().map(|&v| v as u8).collect()),
            Self::Bool(a) => Ok(a.iter().map(|&v| u8::from(v)).collect()),
            Self::I32(a) => {
                let mut bytes = Vec::with_capacity(a.len() * element.size());
                for &value in a {
                    bytes.extend(integer_bytes(value, element)?);
                }
                Ok(bytes)
            }
        }
    }

    /// A tensor from stored bytes: row-major, little-endian.
    ///
    /// # Errors
    /// When the bytes do not fit the shape, or an integer does not fit 32 bits.
    pub fn from_literal_bytes(element: ElementType, shape: &[usize], bytes: &[u8]) -> Result<Self> {
        let words = bytes.chunks_exact(element.size());
        match element {
            ElementType::Bool => Self::truths(shape, bytes.iter().map(|&b| b != 0).collect()),
            ElementType::I8 => shaped(shape, bytes.iter().map(|&b| b as i8).collect()).map(Self::I8),
            element if element.is_float() => Self::floats(shape, words.map(|w| float_of(w, element)).collect()),
            _ => Self::integers(shape, words.map(|w| integer_of(w, element)).collect::<Result<_>>()?),
        }
    }

    /// The error that other elements were expected.
    #[cold]
    pub(super) fn wrong_kind(&self, expected: impl std::fmt::Display) -> Error {
        let kind = match self {
            Self::F32(_) => "floating-point numbers",
            Self::I32(_) => "integers",
            Self::I8(_) => "si8",
            Self::Bool(_) => "i1",
        };
        Error::input("a tensor has the wrong elements").found(kind).expected(expected)
    }
}

/// An array from row-major elements.
pub(super) fn shaped<T>(shape: &[usize], values: Vec<T>) -> Result<Array<T>> {
    let found = values.len();
    Array::from_shape_vec(shape, values)
        .map_err(|_| Error::input("the values do not fit the shape").found(found).expected(format!("{shape:?}")))
}

/// Rounds numbers to those a floating-point type can hold.
pub(super) fn round_slice(values: &mut [f32], element: ElementType) {
    use half::slice::HalfFloatSliceExt;
    /// Conversions go through a buffer that stays in the first-level cache.
    const CHUNK: usize = 2048;
    for chunk in values.chunks_mut(CHUNK) {
        match element {
            ElementType::F16 => {
                let mut halves = [f16::ZERO; CHUNK];
                let halves = &mut halves[..chunk.len()];
                halves.convert_from_f32_slice(chunk);
                halves.convert_to_f32_slice(chunk);
            }
            ElementType::BF16 => chunk.iter_mut().for_each(|v| *v = bf16::from_f32(*v).to_f32()),
            _ => {}
        }
    }
}

fn float_bytes(value: f32, element: ElementType) -> Vec<u8> {
    match element {
        ElementType::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
        ElementType::BF16 => bf16::from_f32(value).to_le_bytes().to_vec(),
        ElementType::F64 => f64::from(value).to_le_bytes().to_vec(),
        _ => value.to_le_bytes().to_vec(),
    }
}

fn float_of(word: &[u8], element: ElementType) -> f32 {
    match (element, word) {
        (ElementType::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
        (ElementType::BF16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
        (_, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
        (_, &[a, b, c, d, e, f, g, h]) => f64::from_le_bytes([a, b, c, d, e, f, g, h]) as f32,
        _ => f32::NAN,
    }
}

fn integer_bytes(value: i32, element: ElementType) -> Result<Vec<u8>> {
    if element == ElementType::U32 {
        return Ok(value.to_le_bytes().to_vec());
    }
    let wide = i64::from(value);
    if narrow(wide, element) != wide || (element == ElementType::U64 && wide < 0) {
        return Err(Error::input("an integer does not fit its type").found(value).expected(element));
    }
    let mut bytes = wide.to_le_bytes().to_vec();
    bytes.truncate(element.size());
    Ok(bytes)
}

fn integer_of(word: &[u8], element: ElementType) -> Result<i32> {
    let value = match (element, word) {
        (ElementType::U8, &[a]) => i64::from(a),
        (ElementType::I16, &[a, b]) => i64::from(i16::from_le_bytes([a, b])),
        (ElementType::U16, &[a, b]) => i64::from(u16::from_le_bytes([a, b])),
        (_, &[a, b, c, d]) => i64::from(i32::from_le_bytes([a, b, c, d])),
        (_, &[a, b, c, d, e, f, g, h]) => i64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => return Err(Error::input("not an integer type").found(element)),
    };
    i32::try_from(value)
        .map_err(|_| Error::input("an integer is out of range").found(value).expected("at most 32 bits"))
}

/// The integer that `element` holds after the bits that do not fit are dropped; `ui32` as the `i32` of its bits.
pub(super) fn narrow(value: i64, element: ElementType) -> i64 {
    match element {
        ElementType::I8 => i64::from(value as i8),
        ElementType::U8 => i64::from(value as u8),
        ElementType::I16 => i64::from(value as i16),
        ElementType::U16 => i64::from(value as u16),
        _ => i64::from(value as i32),
    }
}
