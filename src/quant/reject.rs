//! Weights that cannot be stored.

use std::fmt;

use crate::Error;

/// Bits of 65520, the smallest magnitude that rounds to an infinity in f16. Magnitudes order like their bits.
const F16_OVERFLOW: u32 = 65520_f32.to_bits();

/// The sign bit off: what is left orders like the magnitude, infinities and NaN last.
#[inline(always)]
pub(super) fn magnitude_bits(weight: f32) -> u32 {
    weight.to_bits() & 0x7fff_ffff
}

/// Whether a weight of this magnitude is NaN, infinite, or becomes infinite in f16.
#[inline(always)]
pub(super) fn is_unstorable(magnitude: u32) -> bool {
    magnitude >= F16_OVERFLOW
}

/// A weight that f16 cannot hold: NaN, an infinity, or a magnitude of 65520 and up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unstorable {
    /// Its position in the slice that was handed in.
    pub index: usize,
    /// The weight itself.
    pub weight: f32,
}

impl Unstorable {
    /// The first unstorable weight of `weights`.
    pub(super) fn first_of(weights: &[f32]) -> Option<Self> {
        let index = weights.iter().position(|&weight| is_unstorable(magnitude_bits(weight)))?;
        weights.get(index).map(|&weight| Self { index, weight })
    }

    /// The same weight seen from a slice that starts `offset` elements earlier.
    #[must_use]
    pub fn offset_by(self, offset: usize) -> Self {
        Self { index: self.index + offset, ..self }
    }
}

impl fmt::Display for Unstorable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "element {} is {:e}, which f16 cannot hold", self.index, self.weight)
    }
}

impl std::error::Error for Unstorable {}

impl From<Unstorable> for Error {
    fn from(bad: Unstorable) -> Self {
        Error::input("a weight is not storable")
            .at(format!("element {}", bad.index))
            .found(format!("{:e}", bad.weight))
            .expected("a finite value of magnitude below 65520")
    }
}
