//! Types of values: tensors, functions, handles to state, tokens.

use std::fmt;
use std::sync::Arc;

use super::attributes::{Attribute, RawEntry};
use crate::ElementType;

/// The extent of one axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dim {
    /// A number of elements.
    Fixed(u64),
    /// Known at run time only.
    Dynamic,
}

impl From<u64> for Dim {
    fn from(extent: u64) -> Self {
        Self::Fixed(extent)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(extent) => write!(f, "{extent}"),
            Self::Dynamic => f.write_str("?"),
        }
    }
}

macro_rules! scalars {
    ($($(#[$doc:meta])* $variant:ident = $code:literal, $name:literal, $bits:expr;)+) => {
        /// The type of one element of a tensor.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ScalarType { $($(#[$doc])* $variant,)+ }

        impl ScalarType {
            /// Every scalar type.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Its code in the type table.
            pub(super) const fn code(self) -> u64 {
                match self { $(Self::$variant => $code,)+ }
            }

            pub(super) const fn from_code(code: u64) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)+ _ => None }
            }

            /// The name used in texts, such as `f16` or `si4`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// Bits one element takes in a resource; `None` where the stored form is not known.
            #[must_use]
            pub const fn resource_bits(self) -> Option<u64> {
                match self { $(Self::$variant => $bits,)+ }
            }
        }
    };
}

scalars! {
    /// One byte, 0 or 1.
    Bool = 4, "i1", Some(8);
    /// IEEE double precision.
    F64 = 5, "f64", Some(64);
    /// IEEE single precision.
    F32 = 6, "f32", Some(32);
    /// IEEE half precision.
    F16 = 7, "f16", Some(16);
    /// bfloat16.
    BF16 = 8, "bf16", Some(16);
    /// 8-bit float, 5 exponent bits.
    F8E5M2 = 9, "f8e5m2", Some(8);
    /// 8-bit float, 4 exponent bits, finite.
    F8E4M3FN = 10, "f8e4m3fn", Some(8);
    /// Pair of doubles.
    ComplexF64 = 11, "complex<f64>", Some(128);
    /// Pair of singles.
    ComplexF32 = 12, "complex<f32>", Some(64);
    /// Pair of halves.
    ComplexF16 = 13, "complex<f16>", Some(32);
    /// Pair of bfloat16.
    ComplexBF16 = 14, "complex<bf16>", Some(32);
    /// The first of the two pairs of 8-bit floats.
    ComplexF8A = 15, "complex<f8#15>", None;
    /// The second of the two pairs of 8-bit floats.
    ComplexF8B = 16, "complex<f8#16>", None;
    /// 64-bit signed integer.
    SI64 = 17, "si64", Some(64);
    /// 32-bit signed integer.
    SI32 = 18, "si32", Some(32);
    /// 16-bit signed integer.
    SI16 = 19, "si16", Some(16);
    /// 8-bit signed integer.
    SI8 = 20, "si8", Some(8);
    /// 4-bit signed integer.
    SI4 = 21, "si4", Some(4);
    /// 2-bit signed integer.
    SI2 = 22, "si2", Some(2);
    /// 64-bit unsigned integer.
    UI64 = 23, "ui64", Some(64);
    /// 32-bit unsigned integer.
    UI32 = 24, "ui32", Some(32);
    /// 16-bit unsigned integer.
    UI16 = 25, "ui16", Some(16);
    /// 8-bit unsigned integer.
    UI8 = 26, "ui8", Some(8);
    /// 4-bit unsigned integer.
    UI4 = 27, "ui4", Some(4);
    /// 2-bit unsigned integer.
    UI2 = 28, "ui2", Some(2);
    /// 1-bit unsigned integer.
    UI1 = 29, "ui1", Some(1);
    /// 6-bit unsigned integer.
    UI6 = 36, "ui6", Some(6);
    /// 3-bit unsigned integer.
    UI3 = 37, "ui3", Some(3);
    /// TensorFloat-32.
    TF32 = 38, "tf32", None;
    /// 4-bit float.
    F4E2M1FN = 46, "f4e2m1fn", None;
    /// 8-bit power of two, used as a scale.
    F8E8M0FN = 47, "f8e8m0fn", Some(8);
}

impl ScalarType {
    /// Bits one element takes in an inline constant: as in a resource, but elements of 2 to 6 bits have a byte each.
    #[must_use]
    pub const fn inline_bits(self) -> Option<u64> {
        match self.resource_bits() {
            Some(2..=7) => Some(8),
            bits => bits,
        }
    }

    /// The same type among those of checkpoints and graphs, if it is one of them.
    #[must_use]
    pub const fn element_type(self) -> Option<ElementType> {
        Some(match self {
            Self::Bool => ElementType::Bool,
            Self::SI8 => ElementType::I8,
            Self::SI16 => ElementType::I16,
            Self::SI32 => ElementType::I32,
            Self::SI64 => ElementType::I64,
            Self::UI8 => ElementType::U8,
            Self::UI16 => ElementType::U16,
            Self::UI32 => ElementType::U32,
            Self::UI64 => ElementType::U64,
            Self::F16 => ElementType::F16,
            Self::BF16 => ElementType::BF16,
            Self::F32 => ElementType::F32,
            Self::F64 => ElementType::F64,
            _ => return None,
        })
    }
}

impl From<ElementType> for ScalarType {
    fn from(element: ElementType) -> Self {
        match element {
            ElementType::Bool => Self::Bool,
            ElementType::I8 => Self::SI8,
            ElementType::I16 => Self::SI16,
            ElementType::I32 => Self::SI32,
            ElementType::I64 => Self::SI64,
            ElementType::U8 => Self::UI8,
            ElementType::U16 => Self::UI16,
            ElementType::U32 => Self::UI32,
            ElementType::U64 => Self::UI64,
            ElementType::F16 => Self::F16,
            ElementType::BF16 => Self::BF16,
            ElementType::F32 => Self::F32,
            ElementType::F64 => Self::F64,
        }
    }
}

impl fmt::Display for ScalarType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A tensor: its shape, the type of its elements, and where the hardware wants it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Extent of each axis, outermost first; empty for a scalar.
    pub shape: Vec<Dim>,
    /// Type of one element.
    pub element: ScalarType,
    /// Memory constraints, an [`Attribute::HwConstraints`]; on operands and results of Metal kernels only.
    pub encoding: Option<Attribute>,
}

impl TensorType {
    /// A tensor without memory constraints.
    pub fn new(shape: impl IntoIterator<Item = impl Into<Dim>>, element: impl Into<ScalarType>) -> Self {
        Self { shape: shape.into_iter().map(Into::into).collect(), element: element.into(), encoding: None }
    }

    /// Number of elements; `None` when an axis is dynamic or the product exceeds 64 bits.
    #[must_use]
    pub fn elements(&self) -> Option<u64> {
        self.shape.iter().try_fold(1u64, |product, dim| match dim {
            Dim::Fixed(extent) => product.checked_mul(*extent),
            Dim::Dynamic => None,
        })
    }

    /// Bytes of a constant of this type in a resource; `None` when dynamic or of a form that is not known.
    #[must_use]
    pub fn resource_bytes(&self) -> Option<u64> {
        Some(self.elements()?.checked_mul(self.element.resource_bits()?)?.div_ceil(8))
    }

    /// Bytes of a constant of this type inline; `None` when dynamic or of a form that is not known.
    #[must_use]
    pub fn inline_bytes(&self) -> Option<u64> {
        Some(self.elements()?.checked_mul(self.element.inline_bits()?)?.div_ceil(8))
    }
}

/// What a graph takes and gives.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FunctionType {
    /// Types of the arguments.
    pub operands: Vec<Type>,
    /// Types of the results.
    pub results: Vec<Type>,
}

/// The type of a value. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Type {
    /// A bare element type.
    Scalar(ScalarType),
    /// A tensor.
    Tensor(Arc<TensorType>),
    /// The type of a graph.
    Function(Arc<FunctionType>),
    /// State that is read and written in place; holds the type of its contents.
    Handle(Arc<Type>),
    /// The type of a function in debug information, as it was before lowering.
    Unresolved(Arc<Type>),
    /// Orders reads and writes of state.
    Token,
    /// The type of a symbol used as a parameter.
    ParamSymbol,
    /// The type of a type used as a parameter.
    ParamType,
    /// An entry stored as assembly text.
    Text(Arc<str>),
    /// A type this reader does not model, as its bytes.
    Raw(Arc<RawEntry>),
}

impl Type {
    /// A tensor without memory constraints.
    pub fn tensor(shape: impl IntoIterator<Item = impl Into<Dim>>, element: impl Into<ScalarType>) -> Self {
        TensorType::new(shape, element).into()
    }

    /// A handle to state of type `contents`.
    #[must_use]
    pub fn handle(contents: Self) -> Self {
        Self::Handle(Arc::new(contents))
    }

    /// The type of a graph.
    #[must_use]
    pub fn function(operands: Vec<Self>, results: Vec<Self>) -> Self {
        Self::Function(Arc::new(FunctionType { operands, results }))
    }

    /// The tensor type, if it is one.
    #[must_use]
    pub fn as_tensor(&self) -> Option<&TensorType> {
        match self {
            Self::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }
}

impl From<TensorType> for Type {
    fn from(tensor: TensorType) -> Self {
        Self::Tensor(Arc::new(tensor))
    }
}
