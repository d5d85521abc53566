//! Back from codes to weights, and what was lost.

use half::f16;

use super::block::BLOCK;

/// What a stored block, row or tensor differs by from its weights.
///
/// Measured in f64 against `code * scale` with the scale as stored. Chunks merged in order give the same sums each
/// time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct BlockError {
    /// Sum of squared differences.
    pub squared: f64,
    /// Largest difference.
    pub largest: f64,
    /// Sum of squared weights, to put `squared` in relation to.
    pub energy: f64,
    /// Number of weights.
    pub weights: u64,
}

impl BlockError {
    /// Adds what another chunk lost.
    pub fn merge(&mut self, other: &Self) {
        self.squared += other.squared;
        self.largest = self.largest.max(other.largest);
        self.energy += other.energy;
        self.weights += other.weights;
    }

    /// Root of the mean squared difference; 0 for no weights.
    #[must_use]
    pub fn rms(&self) -> f64 {
        if self.weights == 0 { 0.0 } else { (self.squared / self.weights as f64).sqrt() }
    }

    /// `|difference| / |weights|`, both as Euclidean norms; 0 for weights that are all zero and kept.
    #[must_use]
    pub fn relative(&self) -> f64 {
        if self.squared == 0.0 { 0.0 } else { (self.squared / self.energy).sqrt() }
    }

    fn add(&mut self, weight: f32, decoded: f32) {
        let (weight, decoded) = (f64::from(weight), f64::from(decoded));
        let difference = (weight - decoded).abs();
        self.squared += difference * difference;
        self.largest = self.largest.max(difference);
        self.energy += weight * weight;
        self.weights += 1;
    }
}

/// `weights = codes * scales`, exact in f32.
///
/// # Panics
/// When the lengths do not agree: one code for each weight, one scale for each [`BLOCK`] of codes.
pub fn decode(codes: &[i8], scales: &[f16], weights: &mut [f32]) {
    assert_eq!(codes.len(), scales.len() * BLOCK, "one scale for each block of codes");
    assert_eq!(codes.len(), weights.len(), "one code for each weight");
    let blocks = codes.as_chunks::<BLOCK>().0.iter().zip(weights.as_chunks_mut::<BLOCK>().0);
    for ((codes, weights), scale) in blocks.zip(scales) {
        let scale = scale.to_f32();
        for (weight, &code) in weights.iter_mut().zip(codes) {
            *weight = f32::from(code) * scale;
        }
    }
}

/// What the stored codes and scales differ by from `weights`.
///
/// # Panics
/// When the lengths do not agree, as for [`decode`].
#[must_use]
pub fn measure(weights: &[f32], codes: &[i8], scales: &[f16]) -> BlockError {
    assert_eq!(weights.len(), codes.len(), "one code for each weight");
    assert_eq!(codes.len(), scales.len() * BLOCK, "one scale for each block of codes");
    let mut error = BlockError::default();
    let blocks = weights.as_chunks::<BLOCK>().0.iter().zip(codes.as_chunks::<BLOCK>().0);
    for ((weights, codes), scale) in blocks.zip(scales) {
        let scale = scale.to_f32();
        for (&weight, &code) in weights.iter().zip(codes) {
            error.add(weight, f32::from(code) * scale);
        }
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_multiplies_each_block_by_its_own_scale() {
        let mut codes = [1_i8; 2 * BLOCK];
        codes[BLOCK] = -128;
        let mut weights = [0.0; 2 * BLOCK];
        decode(&codes, &[f16::from_f32(0.5), f16::from_bits(1)], &mut weights);
        assert_eq!(weights[0], 0.5);
        assert_eq!(weights[BLOCK], -(2_f32.powi(-17)));
        assert_eq!(weights[BLOCK + 1], 2_f32.powi(-24));
    }

    #[test]
    fn measures_add_up_over_chunks() {
        let weights: Vec<f32> = (0..2 * BLOCK as i16).map(f32::from).collect();
        let codes: Vec<i8> = (0..2 * BLOCK as i8).map(|code| code / 2).collect();
        let scales = [f16::from_f32(2.0); 2];
        let whole = measure(&weights, &codes, &scales);
        let mut parts = measure(&weights[..BLOCK], &codes[..BLOCK], &scales[..1]);
        parts.merge(&measure(&weights[BLOCK..], &codes[BLOCK..], &scales[1..]));
        assert_eq!(whole, parts);
        assert_eq!((whole.squared, whole.largest, whole.weights), (32.0, 1.0, 64));
        assert_eq!(whole.rms(), 0.5_f64.sqrt());
    }

    #[test]
    fn nothing_lost_is_zero_even_of_nothing() {
        let error = measure(&[0.0; BLOCK], &[0; BLOCK], &[f16::from_bits(1)]);
        assert_eq!((error.relative(), error.rms()), (0.0, 0.0));
        assert_eq!(BlockError::default().rms(), 0.0);
    }
}
