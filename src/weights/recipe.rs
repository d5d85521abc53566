//! One stored weight, as instructions.

use std::sync::Arc;

use super::Resampling;
use crate::ElementType;
use crate::quant::Coding;

/// An interned recipe of a [`Weights`](super::Weights) table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub(super) u32);

impl WeightId {
    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A stored tensor of a [`Weights`](super::Weights) table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorIndex(pub(super) u32);

/// How a weight is made. The type of the result follows from the recipe.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Recipe {
    /// A tensor of a checkpoint or asset as it is stored.
    Read(TensorIndex),
    /// Bytes known at export: row-major, little-endian.
    Literal {
        /// Type of one element.
        element: ElementType,
        /// Extents.
        shape: Vec<usize>,
        /// The elements.
        bytes: Arc<[u8]>,
    },
    /// `begin..end` of the first axis.
    Rows {
        /// The weight taken from.
        of: WeightId,
        /// First row.
        begin: usize,
        /// One past the last row.
        end: usize,
    },
    /// The same elements in another shape.
    Reshape {
        /// The weight reshaped.
        of: WeightId,
        /// The new shape.
        shape: Vec<usize>,
    },
    /// Weights of one type joined along the first axis.
    Concat(Vec<WeightId>),
    /// Zeros appended to an axis.
    Pad {
        /// The weight padded.
        of: WeightId,
        /// The axis.
        axis: usize,
        /// The new extent.
        to: usize,
    },
    /// Another floating-point type; overflow and non-finite values are errors when the bytes are made.
    Cast {
        /// The weight cast.
        of: WeightId,
        /// The new element type.
        to: ElementType,
    },
    /// A table of positions resampled, `[n.., c]` to `[to.., c]`, in f32.
    Resample {
        /// The table.
        of: WeightId,
        /// Which resampler.
        kind: Resampling,
        /// New extent of each leading axis.
        to: Vec<usize>,
    },
    /// Rows `indices` of `of [n, rest..]`, shaped `[shape.., rest..]`.
    Take {
        /// The table.
        of: WeightId,
        /// Row numbers, row-major over `shape`.
        indices: Arc<[u32]>,
        /// Shape of the index.
        shape: Vec<usize>,
    },
    /// Quantised codes (`si8`) of `of`, blocks along the last axis.
    Codes {
        /// The weight quantised.
        of: WeightId,
        /// Code and size of the blocks.
        coding: Coding,
    },
    /// Block scales (`f16`) of `of`: one for each block of the last axis.
    Scales {
        /// The weight quantised.
        of: WeightId,
        /// Code and size of the blocks.
        coding: Coding,
    },
    /// The same bytes as elements of another type, the last axis shrunk or grown to fit.
    View {
        /// The weight viewed.
        of: WeightId,
        /// The element type seen.
        element: ElementType,
    },
}

impl Recipe {
    /// The weights this one is made of.
    #[must_use]
    pub fn inputs(&self) -> &[WeightId] {
        match self {
            Self::Read(_) | Self::Literal { .. } => &[],
            Self::Concat(parts) => parts,
            Self::Rows { of, .. }
            | Self::Reshape { of, .. }
            | Self::Pad { of, .. }
            | Self::Cast { of, .. }
            | Self::Resample { of, .. }
            | Self::Take { of, .. }
            | Self::Codes { of, .. }
            | Self::Scales { of, .. }
            | Self::View { of, .. } => std::slice::from_ref(of),
        }
    }
}
