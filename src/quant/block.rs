//! Blocks of weights: the grid of a scheme, and the two loops all schemes share.

use std::fmt::Debug;

use half::f16;
use half::slice::HalfFloatSliceExt;
use multiversion::multiversion;

use super::reject::{Unstorable, is_unstorable, magnitude_bits};

/// Weights that share one scale, consecutive along the last axis.
pub const BLOCK: usize = 32;

/// Blocks worked on at a time: their weights (8 KiB), codes and scales stay in the first-level cache.
const TILE: usize = 64;

/// The scale of one block, as stored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BlockScale(pub f16);

/// The codes a scheme uses and the scale at which they span a block's range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Grid {
    /// `scale = absmax / divisor`, in f32, then rounded to f16.
    pub divisor: f32,
    /// Lowest code: -127 or -128.
    pub lowest: i8,
    /// Highest code.
    pub highest: i8,
    /// Smallest scale stored.
    pub smallest_scale: f16,
    /// Largest scale stored: the largest whose product with every code is finite in f16.
    pub largest_scale: f16,
}

/// One way to store a block of weights: pure arithmetic on rows.
pub trait BlockScheme: Debug + Sync {
    /// The codes, and the range of scales.
    fn grid(&self) -> Grid;

    /// Chooses the scale of each block of `weights`; `absmax` has each block's largest magnitude.
    ///
    /// The slices agree in length: `weights` is [`BLOCK`] times as long as the other two.
    fn choose_scales(&self, weights: &[f32], absmax: &[f32], scales: &mut [f16]) {
        let _ = weights;
        self.grid().nearest_scales(absmax, scales);
    }

    /// Encodes consecutive blocks: one code for each weight and one scale for each block.
    ///
    /// Meant for chunks of 1 to 4 MB; the result does not depend on how rows are cut into chunks.
    ///
    /// # Errors
    /// [`Unstorable`] for the first weight that f16 cannot hold; `codes` and `scales` are then unspecified.
    ///
    /// # Panics
    /// When `weights` is not a whole number of blocks or the lengths do not agree.
    fn encode_rows(&self, weights: &[f32], codes: &mut [i8], scales: &mut [f16]) -> Result<(), Unstorable> {
        assert_eq!(weights.len(), scales.len() * BLOCK, "one scale for each block of weights");
        assert_eq!(weights.len(), codes.len(), "one code for each weight");
        let tiles =
            weights.chunks(TILE * BLOCK).zip(codes.chunks_mut(TILE * BLOCK)).zip(scales.chunks_mut(TILE)).enumerate();
        for (tile, ((weights, codes), scales)) in tiles {
            encode_tile(self, weights, codes, scales).map_err(|bad| bad.offset_by(tile * TILE * BLOCK))?;
        }
        Ok(())
    }

    /// Encodes one block.
    ///
    /// # Errors
    /// [`Unstorable`] for the first weight that f16 cannot hold.
    fn encode(&self, block: &[f32; BLOCK], codes: &mut [i8; BLOCK]) -> Result<BlockScale, Unstorable> {
        let mut scale = [f16::ZERO];
        self.encode_rows(block, codes, &mut scale)?;
        Ok(BlockScale(scale[0]))
    }
}

impl Grid {
    /// The f16 nearest to `absmax / divisor`, ties to even, kept within the range of scales.
    pub(super) fn nearest_scales(&self, absmax: &[f32], scales: &mut [f16]) {
        let (smallest, largest) = (self.smallest_scale.to_f32(), self.largest_scale.to_f32());
        let mut exact = [0.0; TILE];
        for (absmax, scales) in absmax.chunks(TILE).zip(scales.chunks_mut(TILE)) {
            let exact = &mut exact[..absmax.len()];
            for (exact, absmax) in exact.iter_mut().zip(absmax) {
                *exact = (absmax / self.divisor).clamp(smallest, largest);
            }
            scales.convert_from_f32_slice(exact);
        }
    }
}

fn encode_tile<S: BlockScheme + ?Sized>(
    scheme: &S,
    weights: &[f32],
    codes: &mut [i8],
    scales: &mut [f16],
) -> Result<(), Unstorable> {
    let mut absmax = [0.0; TILE];
    let absmax = &mut absmax[..scales.len()];
    find_absmax(weights, absmax);
    if absmax.iter().any(|&absmax| is_unstorable(magnitude_bits(absmax)))
        && let Some(bad) = Unstorable::first_of(weights)
    {
        return Err(bad);
    }
    scheme.choose_scales(weights, absmax, scales);
    let mut stored = [0.0; TILE];
    let stored = &mut stored[..scales.len()];
    scales.convert_to_f32_slice(stored);
    choose_codes(weights, stored, scheme.grid(), codes);
    Ok(())
}

/// Largest magnitude of each block, NaN above all: a maximum of bit patterns, so no order can change it.
#[multiversion(targets = "simd")]
fn find_absmax(weights: &[f32], absmax: &mut [f32]) {
    let (blocks, _) = weights.as_chunks::<BLOCK>();
    for (block, absmax) in blocks.iter().zip(absmax) {
        let largest = block.iter().fold(0, |largest: u32, &weight| largest.max(magnitude_bits(weight)));
        *absmax = f32::from_bits(largest);
    }
}

/// The nearest code of each weight, ties to even.
#[multiversion(targets = "simd")]
fn choose_codes(weights: &[f32], scales: &[f32], grid: Grid, codes: &mut [i8]) {
    let (lowest, highest) = (f32::from(grid.lowest), f32::from(grid.highest));
    let (weights, _) = weights.as_chunks::<BLOCK>();
    let (codes, _) = codes.as_chunks_mut::<BLOCK>();
    for ((weights, codes), &scale) in weights.iter().zip(codes).zip(scales) {
        for (code, weight) in codes.iter_mut().zip(weights) {
            *code = nearest_code((weight / scale).clamp(lowest, highest));
        }
    }
}

/// Rounds a value within [-128, 127] to the nearest integer, ties to even.
///
/// Adding 1.5 * 2^23 moves the value into [2^23, 2^24), where f32 has exactly the integers: the addition itself
/// rounds, and the low byte of the sum is the integer in two's complement. Exact for magnitudes up to 2^22, needs no
/// rounding instruction, and vectorises everywhere.
///
/// For a weight and a scale that is an f16, this is the true nearest code although the quotient was rounded to f32
/// first: `weight - (n + 1/2) * scale`, unless zero, is at least one unit in the last place of the weight, which is
/// more than the rounding of the quotient can hide.
#[inline(always)]
pub(super) fn nearest_code(value: f32) -> i8 {
    const INTEGERS: f32 = 12_582_912.0;
    (value + INTEGERS).to_bits() as u8 as i8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::BlockCode;
    use crate::quant::testing::{Noise, encode, many_weights, plain_codes};

    #[test]
    fn the_fast_path_is_the_plain_arithmetic_bit_for_bit() {
        let weights = many_weights();
        for code in BlockCode::ALL {
            let scheme = code.scheme();
            let (codes, scales) = encode(scheme, &weights);
            for (block, weights) in weights.chunks(BLOCK).enumerate() {
                let absmax = weights.iter().fold(0.0, |absmax: f32, weight| absmax.max(weight.abs()));
                let mut scale = [f16::ZERO];
                scheme.choose_scales(weights, &[absmax], &mut scale);
                assert_eq!(scales[block].to_bits(), scale[0].to_bits(), "{code}: scale of block {block}");
                assert_eq!(
                    codes[block * BLOCK..][..BLOCK],
                    plain_codes(weights, scale[0], scheme.grid()),
                    "{code}: codes of block {block}"
                );
            }
        }
    }

    #[test]
    fn codes_are_nearest_in_exact_arithmetic() {
        let weights = many_weights();
        for code in BlockCode::ALL {
            let grid = code.scheme().grid();
            let (codes, scales) = encode(code.scheme(), &weights);
            for (at, (&weight, &chosen)) in weights.iter().zip(&codes).enumerate() {
                let (weight, scale) = (f64::from(weight), f64::from(scales[at / BLOCK]));
                let off = |code: i8| (weight - f64::from(code) * scale).abs();
                let neighbours =
                    [chosen.saturating_sub(1).max(grid.lowest), chosen.saturating_add(1).min(grid.highest)];
                assert!(neighbours.into_iter().all(|other| off(chosen) <= off(other)), "{code}: {weight:e}, {scale:e}");
            }
        }
    }

    #[test]
    fn stored_scales_are_finite_and_positive_and_products_are_finite_in_f16() {
        for code in BlockCode::ALL {
            let (codes, scales) = encode(code.scheme(), &many_weights());
            for (codes, scale) in codes.chunks(BLOCK).zip(&scales) {
                assert!(scale.is_finite() && *scale > f16::ZERO, "{code}: {scale}");
                assert!(codes.iter().all(|&code| f16::from_f32(f32::from(code) * scale.to_f32()).is_finite()));
            }
            let grid = code.scheme().grid();
            let next = f16::from_bits(grid.largest_scale.to_bits() + 1).to_f32();
            assert!(
                !f16::from_f32(f32::from(grid.lowest) * next).is_finite(),
                "{code}: the limit is no lower than need be"
            );
        }
    }

    #[test]
    fn rounding_to_a_code_is_ties_to_even_over_the_whole_range() {
        for quarter in -4 * 128..=4 * 127 {
            let value = quarter as f32 / 4.0;
            assert_eq!(nearest_code(value), value.round_ties_even() as i8, "{value}");
        }
    }

    #[test]
    fn rows_cut_anywhere_give_the_same_bytes_as_one_block_at_a_time() {
        let weights = many_weights();
        for code in BlockCode::ALL {
            let (codes, scales) = encode(code.scheme(), &weights);
            for (block, weights) in weights.as_chunks::<BLOCK>().0.iter().enumerate() {
                let mut alone = [0; BLOCK];
                let BlockScale(scale) = code.scheme().encode(weights, &mut alone).unwrap();
                assert_eq!((scale.to_bits(), &alone[..]), (scales[block].to_bits(), &codes[block * BLOCK..][..BLOCK]));
            }
        }
    }

    #[test]
    fn a_weight_that_f16_cannot_hold_is_refused_with_its_position() {
        let mut noise = Noise::new(3);
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 65520.0, -1e7] {
            for code in BlockCode::ALL {
                let mut weights: Vec<f32> = (0..200 * BLOCK).map(|_| noise.normal()).collect();
                let at = noise.bits() as usize % weights.len();
                weights[at] = bad;
                let (mut codes, mut scales) = (vec![0; weights.len()], vec![f16::ZERO; 200]);
                let error = code.scheme().encode_rows(&weights, &mut codes, &mut scales).unwrap_err();
                assert_eq!((error.index, error.weight.to_bits()), (at, bad.to_bits()));
            }
        }
        let error = Unstorable { index: 70, weight: f32::NAN };
        assert_eq!(error.to_string(), "element 70 is NaN, which f16 cannot hold");
    }
}
