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

/// A run-time extent, or a multiple of one. Two symbols are equal when all they are made of is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Symbol {
    /// The name, as the host contract uses it.
    pub name: Arc<str>,
    /// Smallest extent the host may choose.
    pub min: usize,
    /// Largest extent the host may choose.
    pub max: usize,
    /// The axis is this many times as long as the host chose.
    pub times: usize,
}

impl Symbol {
    /// An extent that the host chooses from `min` to `max`.
    pub fn new(name: impl Into<Arc<str>>, min: usize, max: usize) -> Self {
        Self { name: name.into(), min, max, times: 1 }
    }

    /// An extent of which a program says nothing but that it is chosen at run time.
    #[must_use]
    pub fn unknown() -> Self {
        Self::new("?", 0, usize::MAX)
    }

    /// Whether nothing is known of the extent.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        *self.name == *"?"
    }

    /// The symbol this is a multiple of; itself where it is not one.
    #[must_use]
    pub fn base(&self) -> Self {
        Self { times: 1, ..self.clone() }
    }

    /// An axis `times` as long. Multiples of what is unknown are unknown.
    #[must_use]
    pub fn multiple(&self, times: usize) -> Self {
        if self.is_unknown() { self.clone() } else { Self { times: self.times * times, ..self.clone() } }
    }
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

    /// An axis `times` as long.
    #[must_use]
    pub fn multiple(&self, times: usize) -> Self {
        match self {
            Self::Fixed(n) => Self::Fixed(n * times),
            Self::Symbol(symbol) => Self::Symbol(symbol.multiple(times)),
        }
    }

    /// The extent of two axes laid end to end, if it is a number or a symbol, too.
    #[must_use]
    pub fn joined(&self, other: &Self) -> Option<Self> {
        match (self, other) {
            (Self::Fixed(a), Self::Fixed(b)) => Some(Self::Fixed(a + b)),
            (Self::Symbol(a), Self::Symbol(b)) if a.base() == b.base() => {
                Some(Self::Symbol(a.base().multiple(a.times + b.times)))
            }
            _ => None,
        }
    }
}

/// Whether the two shapes have as many elements as each other, whatever the host chooses.
pub(super) fn same_elements(one: &[Dim], other: &[Dim]) -> bool {
    let product = |shape: &[Dim]| {
        let mut symbols: Vec<Symbol> = Vec::new();
        let mut factor = 1_usize;
        for dim in shape {
            match dim {
                Dim::Fixed(n) => factor *= n,
                Dim::Symbol(symbol) => {
                    factor *= symbol.times;
                    symbols.push(symbol.base());
                }
            }
        }
        symbols.sort_by(|a, b| (&a.name, a.min, a.max).cmp(&(&b.name, b.min, b.max)));
        (factor, symbols)
    };
    product(one) == product(other)
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
            Self::Symbol(s) if s.is_unknown() => f.write_str("?"),
            Self::Symbol(s) => {
                if s.times != 1 {
                    write!(f, "{}*", s.times)?;
                }
                write!(f, "{}:{}..{}", s.name, s.min, s.max)
            }
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
