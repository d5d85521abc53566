//! f32 and bf16 to f16, round to nearest even, counting what does not survive.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use multiversion::multiversion;

use super::reject::{Unstorable, is_unstorable, magnitude_bits};
use crate::Error;

/// Values worked on at a time: 8 KiB of f32.
const TILE: usize = 2048;

/// Whether values that f16 cannot hold end a conversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nonfinite {
    /// NaN, infinities and values that become infinite are an error.
    Refuse,
    /// They are converted as IEEE 754 says, and counted.
    Allow,
}

/// What a cast to f16 met, by the value's fate.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CastStats {
    /// Values cast.
    pub values: u64,
    /// NaN or infinite already in the source.
    pub nonfinite: u64,
    /// Finite, of magnitude 65520 and up: an infinity in f16.
    pub overflowed: u64,
    /// Not zero, but zero in f16: magnitude 2^-25 at most.
    pub flushed: u64,
    /// Not zero and below 2^-14 in f16: a subnormal, of fewer than 11 significant bits.
    pub subnormal: u64,
    /// The first value counted as `nonfinite` or `overflowed`.
    pub first_bad: Option<Unstorable>,
}

impl CastStats {
    /// Adds what the next chunk met; positions of `next` count from the end of this one.
    pub fn append(&mut self, next: &Self) {
        let offset = self.values as usize;
        self.first_bad = self.first_bad.or(next.first_bad.map(|bad| bad.offset_by(offset)));
        self.values += next.values;
        self.nonfinite += next.nonfinite;
        self.overflowed += next.overflowed;
        self.flushed += next.flushed;
        self.subnormal += next.subnormal;
    }

    /// Refuses, if so asked, values that f16 cannot hold.
    ///
    /// # Errors
    /// Names the first such value and its position, and how many there are.
    pub fn check(&self, nonfinite: Nonfinite) -> Result<(), Error> {
        match self.first_bad {
            Some(bad) if nonfinite == Nonfinite::Refuse => Err(Error::from(bad).hint(format!(
                "{} of {} values are NaN or infinite, {} overflow; allow them, or keep the tensor as f32",
                self.nonfinite, self.values, self.overflowed
            ))),
            _ => Ok(()),
        }
    }
}

/// Casts f32 to f16.
///
/// # Panics
/// When the lengths differ.
pub fn cast_f32(source: &[f32], target: &mut [f16]) -> CastStats {
    assert_eq!(source.len(), target.len(), "one f16 for each f32");
    let mut stats = CastStats::default();
    for (source, target) in source.chunks(TILE).zip(target.chunks_mut(TILE)) {
        stats.append(&cast_tile(source, target));
    }
    stats
}

/// Casts bf16 to f16.
///
/// # Panics
/// When the lengths differ.
pub fn cast_bf16(source: &[bf16], target: &mut [f16]) -> CastStats {
    assert_eq!(source.len(), target.len(), "one f16 for each bf16");
    let mut stats = CastStats::default();
    let mut wide = [0.0; TILE];
    for (source, target) in source.chunks(TILE).zip(target.chunks_mut(TILE)) {
        let wide = &mut wide[..source.len()];
        widen(source, wide);
        stats.append(&cast_tile(wide, target));
    }
    stats
}

fn cast_tile(source: &[f32], target: &mut [f16]) -> CastStats {
    target.convert_from_f32_slice(source);
    let counts = count_fates(source);
    let first_bad = if counts.unstorable > 0 { Unstorable::first_of(source) } else { None };
    CastStats {
        values: source.len() as u64,
        nonfinite: u64::from(counts.nonfinite),
        overflowed: u64::from(counts.unstorable - counts.nonfinite),
        flushed: u64::from(counts.flushed - counts.zero),
        subnormal: u64::from(counts.below_normal - counts.flushed),
        first_bad,
    }
}

/// bf16 is the upper half of an f32.
#[multiversion(targets = "simd")]
fn widen(source: &[bf16], target: &mut [f32]) {
    for (target, source) in target.iter_mut().zip(source) {
        *target = f32::from_bits(u32::from(source.to_bits()) << 16);
    }
}

/// How many magnitudes lie beyond each threshold; the sets are nested.
struct FateCounts {
    zero: u32,
    flushed: u32,
    below_normal: u32,
    unstorable: u32,
    nonfinite: u32,
}

/// Counts by comparing bits, which order like magnitudes: no float operation, so nothing a CPU's modes could change.
#[multiversion(targets = "simd")]
fn count_fates(source: &[f32]) -> FateCounts {
    // 2^-25 lies half-way between 0 and the smallest f16, and goes to the even one, 0.
    const LARGEST_FLUSHED: u32 = (1.0 / 33_554_432.0_f32).to_bits();
    // 2^-14 - 2^-25, half-way between the largest subnormal and the smallest normal, goes to the even one, 2^-14.
    const SMALLEST_NORMAL: u32 = (2047.0 / 33_554_432.0_f32).to_bits();
    const INFINITE: u32 = f32::INFINITY.to_bits();
    let mut counts = FateCounts { zero: 0, flushed: 0, below_normal: 0, unstorable: 0, nonfinite: 0 };
    for &value in source {
        let magnitude = magnitude_bits(value);
        counts.zero += u32::from(magnitude == 0);
        counts.flushed += u32::from(magnitude <= LARGEST_FLUSHED);
        counts.below_normal += u32::from(magnitude < SMALLEST_NORMAL);
        counts.unstorable += u32::from(is_unstorable(magnitude));
        counts.nonfinite += u32::from(magnitude >= INFINITE);
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::testing::Noise;

    fn cast(source: &[f32]) -> (Vec<f16>, CastStats) {
        let mut target = vec![f16::ZERO; source.len()];
        let stats = cast_f32(source, &mut target);
        (target, stats)
    }

    /// The counts, taken from the results instead of the sources.
    fn fates_of_results(source: &[f32], target: &[f16]) -> CastStats {
        let mut stats = CastStats { values: source.len() as u64, ..CastStats::default() };
        for (&from, &to) in source.iter().zip(target) {
            stats.nonfinite += u64::from(!from.is_finite());
            stats.overflowed += u64::from(from.is_finite() && to.is_infinite());
            stats.flushed += u64::from(from != 0.0 && to.to_f32() == 0.0);
            stats.subnormal += u64::from(to.classify() == std::num::FpCategory::Subnormal);
        }
        stats
    }

    #[test]
    fn every_f16_survives_and_the_halfway_points_around_it_are_counted_by_their_result() {
        for bits in 0..=u16::MAX {
            let value = f16::from_bits(bits).to_f32();
            let next = f16::from_bits(bits.wrapping_add(1)).to_f32();
            let halfway = (value + next) / 2.0;
            let source = [value, halfway, f32::from_bits(halfway.to_bits() ^ 1), value * 0.999_9];
            let (target, mut stats) = cast(&source);
            if !value.is_nan() {
                assert_eq!(target[0].to_bits(), bits);
            }
            stats.first_bad = None;
            assert_eq!(stats, fates_of_results(&source, &target), "around {value:e}");
        }
    }

    #[test]
    fn bulk_conversion_is_the_conversion_of_each_value() {
        let mut noise = Noise::new(7);
        let source: Vec<f32> = (0..100_000).map(|_| f32::from_bits(noise.bits())).collect();
        let (target, _) = cast(&source);
        for (from, to) in source.iter().zip(&target) {
            assert!(f16::from_f32_const(*from).to_bits() == to.to_bits() || (from.is_nan() && to.is_nan()));
        }
    }

    #[test]
    fn bf16_is_cast_as_the_f32_it_stands_for() {
        let source: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
        let wide: Vec<f32> = source.iter().map(|value| value.to_f32()).collect();
        let mut target = vec![f16::ZERO; source.len()];
        let stats = cast_bf16(&source, &mut target);
        let (expected, mut expected_stats) = cast(&wide);
        for (got, expected) in target.iter().zip(&expected) {
            assert!(got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan()));
        }
        let (first, expected_first) = (stats.first_bad.unwrap(), expected_stats.first_bad.take().unwrap());
        assert_eq!((first.index, first.weight.to_bits()), (expected_first.index, expected_first.weight.to_bits()));
        assert_eq!(CastStats { first_bad: None, ..stats }, expected_stats);
    }

    #[test]
    fn values_f16_cannot_hold_are_refused_with_the_first_position_unless_allowed() {
        let mut source = vec![1.0_f32; 3 * TILE];
        source[TILE + 3] = 7e4;
        source[TILE + 4] = f32::NAN;
        source[2 * TILE] = f32::NEG_INFINITY;
        source[5] = 1e-8;
        source[6] = 6e-5;
        source[7] = f32::from_bits(1 << 20);
        let (_, stats) = cast(&source);
        assert_eq!((stats.nonfinite, stats.overflowed, stats.flushed, stats.subnormal), (2, 1, 2, 1));
        let error = stats.check(Nonfinite::Refuse).unwrap_err();
        assert_eq!(
            error.to_string(),
            "element 2051: a weight is not storable: found 7e4, expected a finite value of magnitude below 65520"
        );
        assert!(error.hint_text().unwrap().starts_with("2 of 6144 values are NaN or infinite, 1 overflow"));
        stats.check(Nonfinite::Allow).unwrap();
    }

    #[test]
    fn counts_do_not_depend_on_how_a_tensor_is_cut() {
        let mut noise = Noise::new(11);
        let source: Vec<f32> = (0..5000).map(|_| noise.normal() * 1e5).collect();
        let (_, whole) = cast(&source);
        let mut parts = cast(&source[..1234]).1;
        parts.append(&cast(&source[1234..]).1);
        assert_eq!(format!("{whole:?}"), format!("{parts:?}"));
        assert!(whole.overflowed > 0);
    }
}
