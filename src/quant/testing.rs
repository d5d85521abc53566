//! Seeded weights and golden files for the tests of this module.

use half::f16;

use super::{BLOCK, BlockScheme, Grid};

/// A splitmix64 generator: the same sequence on every machine.
pub(super) struct Noise(u64);

impl Noise {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn bits(&mut self) -> u32 {
        (self.next() >> 32) as u32
    }

    /// Uniform in [-1, 1).
    pub(super) fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / 8_388_608.0 - 1.0
    }

    /// Near enough to a standard normal: the sum of 12 uniforms, scaled.
    pub(super) fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum::<f32>() / 2.0
    }
}

/// A golden safetensors file that is part of the test program.
pub(super) struct Golden {
    header: serde_json::Value,
    data: &'static [u8],
}

impl Golden {
    pub(super) fn new(bytes: &'static [u8]) -> Self {
        let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
        let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
        Self { header: serde_json::from_slice(header).unwrap(), data }
    }

    fn bytes(&self, tensor: &str) -> &'static [u8] {
        let offset = |end: usize| self.header[tensor]["data_offsets"][end].as_u64().unwrap() as usize;
        &self.data[offset(0)..offset(1)]
    }

    pub(super) fn i8(&self, tensor: &str) -> Vec<i8> {
        self.bytes(tensor).iter().map(|&byte| byte as i8).collect()
    }

    pub(super) fn f16(&self, tensor: &str) -> Vec<f16> {
        self.bytes(tensor).as_chunks().0.iter().map(|&bytes| f16::from_le_bytes(bytes)).collect()
    }

    pub(super) fn f32(&self, tensor: &str) -> Vec<f32> {
        self.bytes(tensor).as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
    }
}

/// Codes and scales of `weights`, by the fast path.
pub(super) fn encode(scheme: &dyn BlockScheme, weights: &[f32]) -> (Vec<i8>, Vec<f16>) {
    let mut codes = vec![0; weights.len()];
    let mut scales = vec![f16::ZERO; weights.len() / BLOCK];
    scheme.encode_rows(weights, &mut codes, &mut scales).unwrap();
    (codes, scales)
}

/// Codes of one block against a stored scale, one weight after the other, with the library's own rounding.
pub(super) fn plain_codes(block: &[f32], scale: f16, grid: Grid) -> Vec<i8> {
    let (lowest, highest) = (f32::from(grid.lowest), f32::from(grid.highest));
    block.iter().map(|weight| (weight / scale.to_f32()).round_ties_even().clamp(lowest, highest) as i8).collect()
}

/// Blocks worth trying: noise of each size f16 can hold, bf16 noise, and the corners.
pub(super) fn many_weights() -> Vec<f32> {
    let mut noise = Noise::new(1);
    let mut weights = Vec::new();
    for exponent in -40..16 {
        for _ in 0..40 {
            let size = 2_f32.powi(exponent) * (1.0 + noise.uniform().abs());
            weights.extend((0..BLOCK).map(|_| (noise.normal() * size * 0.3).clamp(-65519.0, 65519.0)));
        }
    }
    weights.extend((0..200 * BLOCK).map(|_| half::bf16::from_f32(noise.normal() * 0.02).to_f32()));
    for block in corner_blocks() {
        weights.extend(block);
    }
    weights
}

/// Zeros, ties, lone outliers, magnitudes around every threshold.
fn corner_blocks() -> Vec<[f32; BLOCK]> {
    let ties = std::array::from_fn(|i| i as f32 * 4.0 - 63.5);
    let mut outlier = [0.01; BLOCK];
    outlier[31] = -1000.0;
    let mut blocks = vec![[0.0; BLOCK], [-0.0; BLOCK], ties, outlier, [65504.0; BLOCK], [-65519.0; BLOCK]];
    for steps in 0..600 {
        let absmax = 127.0 * 2_f32.powi(-24) * steps as f32 / 4.0;
        blocks.push(std::array::from_fn(|i| absmax * (1.0 - i as f32 / 16.0)));
    }
    for bits in [1, 0x7f_ffff, 0x80_0000, 0x80_0001] {
        blocks.push([f32::from_bits(bits); BLOCK]);
    }
    blocks
}
