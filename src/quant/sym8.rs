//! sym8, the scheme of routed experts: codes -127 to 127, the scale that loses least.
//!
//! The Core AI model zoo tries seven clips, `scale = max(absmax * c / 127, 1e-8)` for c = 1, 0.95, ... 0.7, keeps the
//! least squared error, and only then rounds the scale to f16. Measured against the scale as stored, no clip but
//! c = 1 can win, so none is tried here. Let s be the f16 nearest to absmax / 127, and u its unit in the last place.
//!
//! * At s every weight is off by half a step at most if the largest one is: its clip is at most 127 u / 2, which is
//!   below s / 2 from s = 2^-17 on. The squared error of 32 weights is then at most 32 (s/2)^2 = 8 s^2.
//! * At any c <= 0.95 the largest weight alone is clipped by at least 127 (0.05 s - u) > 5 s, and loses 25 s^2.
//!
//! Below 2^-17 f16 has only the multiples of u = 2^-24, and rounding to the nearest may itself clip by many steps.
//! There the two multiples around absmax / 127 are both tried; the same comparison shows that none further down can
//! beat the upper one: it loses at most 8 (absmax / 127 + u)^2, they at least (127 u)^2, and from 19 u on the c <= 0.95
//! are further than that. So no block loses more than the zoo's stored result for it, as long as that result decodes
//! to finite f16 values: near 65504 the zoo's scale of 516 does not.

use half::f16;

use super::block::{BLOCK, BlockScheme, Grid, nearest_code};

/// Below this scale (2^-17), rounding it to f16 can clip the largest weight by more than half a step.
const COARSE: f16 = f16::from_bits(0x80);

/// Codes -127 to 127 against the f16 scale that loses least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sym8;

impl BlockScheme for Sym8 {
    fn grid(&self) -> Grid {
        Grid {
            divisor: 127.0,
            lowest: -127,
            highest: 127,
            smallest_scale: f16::from_bits(1),
            largest_scale: f16::from_f32_const(515.5),
        }
    }

    fn choose_scales(&self, weights: &[f32], absmax: &[f32], scales: &mut [f16]) {
        let grid = self.grid();
        grid.nearest_scales(absmax, scales);
        let (blocks, _) = weights.as_chunks::<BLOCK>();
        for ((block, absmax), scale) in blocks.iter().zip(absmax).zip(scales) {
            if *absmax > 0.0 && scale.to_bits() < COARSE.to_bits() {
                *scale = better_neighbour(block, absmax / grid.divisor, *scale);
            }
        }
    }
}

/// Of the two f16 around `exact`, the one with the lesser squared error; the nearer one when they are equal.
fn better_neighbour(block: &[f32; BLOCK], exact: f32, nearest: f16) -> f16 {
    let other = if nearest.to_f32() < exact {
        f16::from_bits(nearest.to_bits() + 1)
    } else {
        f16::from_bits((nearest.to_bits() - 1).max(1))
    };
    if squared_error(block, other) < squared_error(block, nearest) { other } else { nearest }
}

/// Sum of squared errors in f64, weights in order.
fn squared_error(block: &[f32; BLOCK], scale: f16) -> f64 {
    let scale = scale.to_f32();
    block.iter().map(|weight| error_of(*weight, scale)).fold(0.0, |sum, error| sum + error * error)
}

fn error_of(weight: f32, scale: f32) -> f64 {
    let code = nearest_code((weight / scale).clamp(-127.0, 127.0));
    f64::from(weight) - f64::from(code) * f64::from(scale)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::quant::testing::{Golden, encode, many_weights};
    use crate::quant::{BlockError, measure};

    /// The zoo's arithmetic for one block: codes, scale as stored, index of the clip.
    ///
    /// Squares are added in eight lanes, then lane after lane, as torch does with AVX2.
    fn zoo(block: &[f32]) -> (Vec<i8>, f16, i8) {
        let absmax = block.iter().fold(0.0, |absmax: f32, weight| absmax.max(weight.abs()));
        let mut best: Option<(f32, f32, i8, Vec<f32>)> = None;
        for (index, clip) in [1.0_f32, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7].into_iter().enumerate() {
            let scale = (absmax * clip / 127.0).max(1e-8);
            let codes: Vec<f32> =
                block.iter().map(|weight| (weight / scale).round_ties_even().clamp(-127.0, 127.0)).collect();
            let mut lanes = [0.0_f32; 8];
            for (at, (code, weight)) in codes.iter().zip(block).enumerate() {
                let error = scale * code - weight;
                lanes[at % 8] += error * error;
            }
            let error: f32 = lanes.iter().sum();
            if best.as_ref().is_none_or(|(least, ..)| error < *least) {
                best = Some((error, scale, index as i8, codes));
            }
        }
        let (_, scale, clip, codes) = best.unwrap();
        (codes.into_iter().map(|code| code as i8).collect(), f16::from_f32(scale), clip)
    }

    /// Whether the zoo's result decodes to finite f16 values.
    fn is_finite_in_f16(codes: &[i8], scale: f16) -> bool {
        codes.iter().all(|&code| f16::from_f32(f32::from(code) * scale.to_f32()).is_finite())
    }

    fn errors(block: &[f32]) -> Option<(BlockError, BlockError)> {
        let (their_codes, their_scale, _) = zoo(block);
        let (codes, scales) = encode(&Sym8, block);
        is_finite_in_f16(&their_codes, their_scale)
            .then(|| (measure(block, &codes, &scales), measure(block, &their_codes, &[their_scale])))
    }

    /// Stored by the zoo's arithmetic in torch; `golden/quant/make_sym8.py` makes it.
    fn golden() -> Golden {
        Golden::new(include_bytes!("../../golden/quant/sym8.safetensors"))
    }

    #[test]
    fn the_zoo_as_written_down_here_is_the_zoo_bit_for_bit() {
        let golden = golden();
        let (weights, codes) = (golden.f32("weights"), golden.i8("codes"));
        let (scales, clips) = (golden.f16("scales"), golden.i8("clips"));
        assert!(clips.iter().any(|&clip| clip != 0), "the search is exercised");
        for (block, weights) in weights.chunks(BLOCK).enumerate() {
            let (zoo_codes, zoo_scale, zoo_clip) = zoo(weights);
            assert_eq!(zoo_clip, clips[block], "clip of block {block}");
            assert_eq!(zoo_scale.to_bits(), scales[block].to_bits(), "scale of block {block}");
            assert_eq!(zoo_codes, codes[block * BLOCK..][..BLOCK], "codes of block {block}");
        }
    }

    #[test]
    fn no_block_loses_more_than_the_zoos_stored_result() {
        let golden = golden().f32("weights");
        let weights = many_weights();
        let (mut compared, mut better) = (0, 0);
        for block in weights.chunks(BLOCK).chain(golden.chunks(BLOCK)) {
            if block.iter().any(|weight| weight.abs() >= 65520.0) {
                continue;
            }
            if let Some((ours, theirs)) = errors(block) {
                assert!(ours.squared <= theirs.squared, "{block:?}: ours {ours:?}, theirs {theirs:?}");
                compared += 1;
                better += u32::from(ours.squared < theirs.squared);
            }
        }
        assert!(compared > 4000 && better > 1000, "{better} of {compared} better");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn no_block_whatever_loses_more_than_the_zoos(
            mantissas in prop::array::uniform32(-1.0_f32..1.0),
            exponent in -40_i32..16,
            outlier in 0.0_f32..1.0,
        ) {
            let size = 2_f32.powi(exponent);
            let mut block = mantissas.map(|mantissa| mantissa * mantissa * mantissa * size);
            block[17] = outlier * size;
            if let Some((ours, theirs)) = errors(&block) {
                prop_assert!(ours.squared <= theirs.squared, "ours {ours:?}, theirs {theirs:?}");
            }
        }
    }

    #[test]
    fn no_clip_beats_the_scale_chosen_even_with_codes_chosen_anew() {
        for block in many_weights().as_chunks::<BLOCK>().0 {
            let absmax = block.iter().fold(0.0, |absmax: f32, weight| absmax.max(weight.abs()));
            let (_, scales) = encode(&Sym8, block);
            if scales[0] == Sym8.grid().largest_scale {
                continue;
            }
            for clip in [1.0_f32, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7] {
                let clipped = f16::from_f32(absmax * clip / 127.0);
                if clipped > f16::ZERO {
                    assert!(squared_error(block, scales[0]) <= squared_error(block, clipped), "{block:?}, {clip}");
                }
            }
        }
    }

    #[test]
    fn a_scale_that_f16_holds_coarsely_is_rounded_to_the_side_that_loses_less() {
        // absmax / 127 = 1.4 * 2^-24: the nearest f16 would clip 178 steps to 127.
        let mut block = [0.0; BLOCK];
        block[3] = 127.0 * 1.4 * 2_f32.powi(-24);
        let (codes, scales) = encode(&Sym8, &block);
        assert_eq!((codes[3], scales[0].to_bits()), (89, 2));
        // absmax / 127 = 2.003 * 2^-24: the one clipped weight loses less than all the others would at 3 * 2^-24.
        let block: [f32; BLOCK] =
            std::array::from_fn(|i| 2_f32.powi(-24) * if i == 0 { 127.0 * 2.003 } else { 2.0 * i as f32 });
        assert_eq!(encode(&Sym8, &block).1[0].to_bits(), 2);
    }

    #[test]
    fn corner_blocks_have_defined_results() {
        let smallest = f16::from_bits(1);
        assert_eq!(encode(&Sym8, &[0.0; BLOCK]), (vec![0; BLOCK], vec![smallest]));
        assert_eq!(encode(&Sym8, &[-0.0; BLOCK]), (vec![0; BLOCK], vec![smallest]));
        assert_eq!(encode(&Sym8, &[3e-6; BLOCK]), (vec![50; BLOCK], vec![smallest]));
        assert_eq!(encode(&Sym8, &[1e-12; BLOCK]), (vec![0; BLOCK], vec![smallest]));
        assert_eq!(encode(&Sym8, &[-65519.0; BLOCK]), (vec![-127; BLOCK], vec![f16::from_f32(515.5)]));
        let ties: Vec<f32> = (0..BLOCK).map(|i| if i == 0 { 127.0 } else { i as f32 - 15.5 }).collect();
        let (codes, scales) = encode(&Sym8, &ties);
        assert_eq!(scales, [f16::ONE]);
        assert_eq!(codes[14..18], [-2, 0, 0, 2], "halves go to the even code");
    }
}
