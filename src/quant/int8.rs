//! int8 as coreai-opt 0.4.0 makes it, bit for bit: `scale = f16(absmax / divisor)`, at least 2^-23.
//!
//! coreai-opt computes the scale in the model's f16: absmax, divided in f32 and rounded once. The floor is f32's
//! epsilon, which f16 holds as a subnormal.

use half::f16;

use super::block::{BlockScheme, Grid};

/// f32's epsilon, 2^-23.
const COREAI_OPT_FLOOR: f16 = f16::from_bits(2);

/// Codes -127 to 127 (`symmetric_with_clipping`): the linears of `int8lin` and `int8hu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Int8Clipped;

impl BlockScheme for Int8Clipped {
    fn grid(&self) -> Grid {
        Grid {
            divisor: 127.0,
            lowest: -127,
            highest: 127,
            smallest_scale: COREAI_OPT_FLOOR,
            largest_scale: f16::from_f32_const(515.5),
        }
    }
}

/// Codes -128 to 127 (`symmetric`): the large-vocabulary head of `int8hu`.
///
/// Dividing by 127.5 lets the most negative weight reach -128, and the most positive one loses up to half a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Int8Symmetric;

impl BlockScheme for Int8Symmetric {
    fn grid(&self) -> Grid {
        Grid {
            divisor: 127.5,
            lowest: -128,
            highest: 127,
            smallest_scale: COREAI_OPT_FLOOR,
            largest_scale: f16::from_f32_const(511.75),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::testing::{Golden, encode, many_weights};
    use crate::quant::{BLOCK, measure};

    /// Stored by coreai-opt 0.4.0; `golden/quant/make_int8.py` makes it.
    fn golden() -> Golden {
        Golden::new(include_bytes!("../../golden/quant/int8.safetensors"))
    }

    fn assert_equals_coreai_opt(scheme: &dyn BlockScheme, name: &str) {
        let golden = golden();
        let weights: Vec<f32> = golden.f16("weights").iter().map(|weight| weight.to_f32()).collect();
        let (codes, scales) = encode(scheme, &weights);
        let (their_codes, their_scales) = (golden.i8(&format!("{name}.codes")), golden.f16(&format!("{name}.scales")));
        let largest = scheme.grid().largest_scale;
        let mut compared = 0;
        for block in (0..scales.len()).filter(|&block| their_scales[block] <= largest) {
            let range = block * BLOCK..(block + 1) * BLOCK;
            assert_eq!(scales[block].to_bits(), their_scales[block].to_bits(), "scale of block {block}");
            assert_eq!(codes[range.clone()], their_codes[range], "codes of block {block}");
            compared += 1;
        }
        assert!(compared + 3 >= scales.len(), "only {compared} of {} blocks compared", scales.len());
    }

    #[test]
    fn linears_equal_coreai_opt_element_for_element() {
        assert_equals_coreai_opt(&Int8Clipped, "clipped");
    }

    #[test]
    fn the_head_equals_coreai_opt_element_for_element() {
        assert_equals_coreai_opt(&Int8Symmetric, "symmetric");
    }

    #[test]
    fn only_the_head_uses_the_code_minus_128() {
        let mut block = [0.25; BLOCK];
        block[0] = -1.0;
        assert_eq!(encode(&Int8Symmetric, &block).0[0], -128);
        assert!(encode(&Int8Symmetric, &many_weights()).0.contains(&-128));
        assert!(!encode(&Int8Clipped, &many_weights()).0.contains(&-128));
    }

    #[test]
    fn a_block_loses_at_most_half_a_step_a_weight_where_f16_holds_the_scale_well() {
        let weights: Vec<f32> = many_weights();
        for scheme in [&Int8Clipped as &dyn BlockScheme, &Int8Symmetric] {
            let (codes, scales) = encode(scheme, &weights);
            let held_well = f16::MIN_POSITIVE..scheme.grid().largest_scale;
            for block in (0..scales.len()).filter(|&block| held_well.contains(&scales[block])) {
                let range = block * BLOCK..(block + 1) * BLOCK;
                let error = measure(&weights[range.clone()], &codes[range], &scales[block..=block]);
                assert!(error.largest <= 0.57 * f64::from(scales[block]), "block {block}: {error:?}");
            }
        }
    }
}
