//! Tensor types: an element type and the extent of each axis.

use std::fmt;
use std::sync::Arc;

use crate::ElementType;

/// The extent of one axis: a number, or a bounded symbol where a contract needs one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Dim {
    /// Known at export.
    Fixed(usize),
    /// Chosen by the host at run time, within bounds.
    Symbol(Symbol),
}

/// A run-time extent. Two symbols are equal when name and bounds are.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Symbol {
    /// The name, as the host contract uses it.
    pub name: Arc<str>,
    /// Smallest extent the host may choose.
    pub min: usize,
    /// Largest extent the host may choose.
    pub max: usize,
}

impl Dim {
    /// The extent, if it is known at export.
    #[must_use]
    pub const fn fixed(&self) -> Option<usize> {
        match self {
            Self::Fixed(n) => Some(*n),
            Self::Symbol(_) => None,
        }
    }
}

impl From<usize> for Dim {
    fn from(extent: usize) -> Self {
        Self::Fixed(extent)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(n) => write!(f, "{n}"),
            Self::Symbol(s) => write!(f, "{}:{}..{}", s.name, s.min, s.max),
        }
    }
}

/// The type of a value: `f16[1,111,1280]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Type of one element.
    pub element: ElementType,
    /// Extents, outermost first; empty for a scalar.
    pub shape: Vec<Dim>,
}

impl TensorType {
    /// A type whose extents are all known.
    #[must_use]
    pub fn new(element: ElementType, shape: &[usize]) -> Self {
        Self { element, shape: shape.iter().copied().map(Dim::Fixed).collect() }
    }

    /// A type with the same shape and another element type.
    #[must_use]
    pub fn with_element(&self, element: ElementType) -> Self {
        Self { element, shape: self.shape.clone() }
    }

    /// A type with the same element type and another shape.
    #[must_use]
    pub fn with_shape(&self, shape: &[usize]) -> Self {
        Self::new(self.element, shape)
    }

    /// Number of axes.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// The extents, if all are known.
    #[must_use]
    pub fn fixed_shape(&self) -> Option<Vec<usize>> {
        self.shape.iter().map(Dim::fixed).collect()
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.element)?;
        for (i, dim) in self.shape.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            write!(f, "{dim}")?;
        }
        f.write_str("]")
    }
}
