//! Resampling of position tables to another image size, as transformers does it.

/// A resampler of position tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Resampling {
    /// Two axes; bicubic with antialiasing, `align_corners=False`, kernel a = -0.5
    /// (`torch.nn.functional.interpolate(mode="bicubic", antialias=True)`).
    Bicubic,
    /// One axis; linear, half-pixel centres, clamped at the ends (`interpolate(mode="linear")`).
    Linear,
}

impl Resampling {
    /// How many leading axes are resampled.
    #[must_use]
    pub const fn axes(self) -> usize {
        match self {
            Self::Bicubic => 2,
            Self::Linear => 1,
        }
    }

    /// The taps of each output position: first source index and weights that sum to one.
    fn taps(self, from: usize, to: usize) -> Vec<(usize, Vec<f64>)> {
        (0..to)
            .map(|i| match self {
                Self::Bicubic => bicubic_taps(from, to, i),
                Self::Linear => linear_taps(from, to, i),
            })
            .collect()
    }
}

/// `table [from.., channels]` resampled to `[to.., channels]`, row-major. `from` and `to` have the resampler's axes.
#[must_use]
pub fn resample(kind: Resampling, table: &[f32], from: &[usize], to: &[usize]) -> Vec<f32> {
    let mut shape: Vec<usize> = from.to_vec();
    let inner = table.len() / from.iter().product::<usize>().max(1);
    let mut values: Vec<f64> = table.iter().map(|&v| f64::from(v)).collect();
    for axis in 0..from.len() {
        let outer: usize = shape[..axis].iter().product();
        let after: usize = shape[axis + 1..].iter().product::<usize>() * inner;
        values = resample_axis(&values, outer, after, &kind.taps(from[axis], to[axis]), from[axis]);
        shape[axis] = to[axis];
    }
    values.into_iter().map(|v| v as f32).collect()
}

fn resample_axis(values: &[f64], outer: usize, after: usize, taps: &[(usize, Vec<f64>)], from: usize) -> Vec<f64> {
    let mut out = vec![0.0; outer * taps.len() * after];
    for (row, target) in out.chunks_exact_mut(after.max(1)).enumerate() {
        let (first, weights) = &taps[row % taps.len()];
        let base = (row / taps.len()) * from + first;
        for (k, weight) in weights.iter().enumerate() {
            let source = &values[(base + k) * after..(base + k + 1) * after];
            for (t, s) in target.iter_mut().zip(source) {
                *t += weight * s;
            }
        }
    }
    out
}

fn bicubic_taps(from: usize, to: usize, i: usize) -> (usize, Vec<f64>) {
    let scale = from as f64 / to as f64;
    let stretch = scale.max(1.0);
    let centre = scale * (i as f64 + 0.5);
    let low = (centre - 2.0 * stretch + 0.5).max(0.0) as usize;
    let high = ((centre + 2.0 * stretch + 0.5) as usize).min(from);
    let weights: Vec<f64> = (low..high).map(|j| cubic((j as f64 - centre + 0.5) / stretch)).collect();
    let total: f64 = weights.iter().sum();
    (low, weights.into_iter().map(|w| w / total).collect())
}

/// Keys' cubic kernel with a = -0.5, which Pillow and torch use when antialiasing.
fn cubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

fn linear_taps(from: usize, to: usize, i: usize) -> (usize, Vec<f64>) {
    let centre = ((i as f64 + 0.5) * (from as f64 / to as f64) - 0.5).max(0.0);
    let low = (centre as usize).min(from - 1);
    let t = centre - low as f64;
    if low + 1 < from { (low, vec![1.0 - t, t]) } else { (low, vec![1.0]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_table_stays_constant() {
        for (kind, from, to) in
            [(Resampling::Bicubic, vec![16, 16], vec![10, 10]), (Resampling::Linear, vec![127], vec![79])]
        {
            let table = vec![2.5; from.iter().product::<usize>() * 3];
            let out = resample(kind, &table, &from, &to);
            assert_eq!(out.len(), to.iter().product::<usize>() * 3);
            assert!(out.iter().all(|v| (v - 2.5).abs() < 1e-6));
        }
    }

    #[test]
    fn linear_hits_half_pixel_centres_and_clamps() {
        let out = resample(Resampling::Linear, &[0.0, 1.0, 2.0, 3.0], &[4], &[2]);
        assert_eq!(out, [0.5, 2.5]);
        let out = resample(Resampling::Linear, &[0.0, 1.0], &[2], &[4]);
        assert_eq!(out, [0.0, 0.25, 0.75, 1.0]);
    }

    #[test]
    fn bicubic_keeps_axes_apart() {
        // Values depend on x only, so every output row is the same.
        let table: Vec<f32> = (0..64).map(|i| (i % 8) as f32).collect();
        let out = resample(Resampling::Bicubic, &table, &[8, 8], &[5, 5]);
        for row in out.chunks(5) {
            for (a, b) in row.iter().zip(&out[..5]) {
                assert!((a - b).abs() < 1e-6);
            }
        }
        assert!(out[0] < out[1] && out[3] < out[4]);
    }
}
