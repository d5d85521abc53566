//! A block code with the size of its blocks.

use std::fmt;

use half::f16;

use super::block::BLOCK;
use super::reject::Unstorable;
use super::scheme::BlockCode;

/// How a weight is coded: the arithmetic of a block, and how many weights of a row share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Coding {
    code: BlockCode,
    block: usize,
}

impl Coding {
    /// Sizes of blocks for rows that [`BLOCK`] does not divide.
    pub const SMALLER: [usize; 3] = [16, 8, 4];

    /// Blocks of the largest size below [`BLOCK`] that divides a row of `columns` weights, if one does.
    #[must_use]
    pub fn smaller(code: BlockCode, columns: usize) -> Option<Self> {
        let block = Self::SMALLER.into_iter().find(|&block| columns.is_multiple_of(block))?;
        Some(Self { code, block })
    }

    /// The arithmetic.
    #[must_use]
    pub const fn code(self) -> BlockCode {
        self.code
    }

    /// Weights that share a scale, along the last axis.
    #[must_use]
    pub const fn block(self) -> usize {
        self.block
    }

    /// Encodes consecutive blocks: one code for each weight and one scale for each block.
    ///
    /// A smaller block is encoded as a whole one with zeros behind it, which add nothing to the largest magnitude nor
    /// to the error.
    ///
    /// # Errors
    /// [`Unstorable`] for the first weight that f16 cannot hold; `codes` and `scales` are then unspecified.
    ///
    /// # Panics
    /// When `weights` is not a whole number of blocks or the lengths do not agree.
    pub fn encode_rows(self, weights: &[f32], codes: &mut [i8], scales: &mut [f16]) -> Result<(), Unstorable> {
        let scheme = self.code.scheme();
        if self.block == BLOCK {
            return scheme.encode_rows(weights, codes, scales);
        }
        assert_eq!(weights.len(), scales.len() * self.block, "one scale for each block of weights");
        assert_eq!(weights.len(), codes.len(), "one code for each weight");
        let mut whole = vec![0.0; scales.len() * BLOCK];
        for (whole, block) in whole.chunks_exact_mut(BLOCK).zip(weights.chunks_exact(self.block)) {
            whole[..self.block].copy_from_slice(block);
        }
        let mut whole_codes = vec![0; whole.len()];
        scheme.encode_rows(&whole, &mut whole_codes, scales).map_err(|bad| Unstorable {
            index: bad.index / BLOCK * self.block + bad.index % BLOCK,
            weight: bad.weight,
        })?;
        for (codes, whole) in codes.chunks_exact_mut(self.block).zip(whole_codes.chunks_exact(BLOCK)) {
            codes.copy_from_slice(&whole[..self.block]);
        }
        Ok(())
    }
}

/// Blocks of [`BLOCK`].
impl From<BlockCode> for Coding {
    fn from(code: BlockCode) -> Self {
        Self { code, block: BLOCK }
    }
}

/// `int8-clipped`, with the size of smaller blocks: `int8-clipped/16`.
impl fmt::Display for Coding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.block {
            BLOCK => write!(f, "{}", self.code),
            block => write!(f, "{}/{block}", self.code),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::testing::{many_weights, plain_codes};

    #[test]
    fn the_largest_block_that_divides_is_taken() {
        let block = |columns| Coding::smaller(BlockCode::Sym8, columns).map(Coding::block);
        assert_eq!([48, 40, 36, 34, 33].map(block), [Some(16), Some(8), Some(4), None, None]);
        assert_eq!(Coding::smaller(BlockCode::Int8Clipped, 48).unwrap().to_string(), "int8-clipped/16");
        assert_eq!(Coding::from(BlockCode::Int8Clipped).to_string(), "int8-clipped");
    }

    #[test]
    fn smaller_blocks_are_the_plain_arithmetic_on_their_own_largest_weight() {
        let weights = many_weights();
        for (code, block) in BlockCode::ALL.into_iter().flat_map(|code| Coding::SMALLER.map(|block| (code, block))) {
            let (mut codes, mut scales) = (vec![0; weights.len()], vec![f16::ZERO; weights.len() / block]);
            Coding { code, block }.encode_rows(&weights, &mut codes, &mut scales).unwrap();
            let grid = code.scheme().grid();
            for ((weights, codes), scale) in weights.chunks(block).zip(codes.chunks(block)).zip(&scales) {
                assert_eq!(codes, plain_codes(weights, *scale, grid));
                let absmax = weights.iter().fold(0.0, |absmax: f32, weight| absmax.max(weight.abs()));
                let mut nearest = [f16::ZERO];
                grid.nearest_scales(&[absmax], &mut nearest);
                // sym8 may take the neighbour where f16 is coarse.
                assert!(nearest[0].to_bits().abs_diff(scale.to_bits()) <= u16::from(code == BlockCode::Sym8));
            }
        }
    }

    #[test]
    fn a_weight_that_cannot_be_stored_is_found_in_a_smaller_block() {
        let mut weights = [0.5; 40];
        weights[21] = f32::INFINITY;
        let coding = Coding::smaller(BlockCode::Int8Symmetric, 40).unwrap();
        let bad = coding.encode_rows(&weights, &mut [0; 40], &mut [f16::ZERO; 5]).unwrap_err();
        assert_eq!((bad.index, bad.weight), (21, f32::INFINITY));
    }
}
