//! What integration tests share: golden data and comparisons.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stdout, reason = "shown with --nocapture")]

pub mod bundles;
pub mod checkpoint;
pub mod process;
pub mod python;
pub mod stages;

use std::path::{Path, PathBuf};

use aimodel::eval::{Tensor, Tensors};
use aimodel::host::image::{self, Normalisation};
use aimodel::runtime::TensorData;
use safetensors::SafeTensors;

/// A file or folder of the golden data.
pub fn golden(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(path)
}

/// Reference tensors of one stage.
pub struct Reference {
    bytes: Vec<u8>,
}

impl Reference {
    /// `golden/structure/MODEL/reference/STAGE.safetensors`.
    pub fn open(model: &str, stage: &str) -> Self {
        let path = golden(&format!("structure/{model}/reference/{stage}.safetensors"));
        Self { bytes: std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())) }
    }

    fn tensors(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.bytes).unwrap()
    }

    /// The names of all tensors.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.tensors().names().iter().map(ToString::to_string).collect();
        names.sort();
        names
    }

    /// Shape and elements of an f32 tensor.
    pub fn floats(&self, name: &str) -> (Vec<usize>, Vec<f32>) {
        let tensors = self.tensors();
        let view = tensors.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(view.dtype(), safetensors::Dtype::F32, "{name}");
        let values = view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        (view.shape().to_vec(), values)
    }

    /// Elements of an i32 tensor.
    pub fn ints(&self, name: &str) -> Vec<i32> {
        let tensors = self.tensors();
        let view = tensors.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(view.dtype(), safetensors::Dtype::I32, "{name}");
        view.data().chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect()
    }
}

/// The largest absolute difference; the lengths are equal.
pub fn largest_difference(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len(), "lengths");
    got.iter()
        .zip(want)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |worst, d| if d.is_nan() { f32::INFINITY } else { f32::max(worst, d) })
}

/// Checks `got` against a reference tensor: within `tolerance`, times the reference's magnitude where that is above 1.
pub fn check_close(name: &str, got: &[f32], want: &[f32], tolerance: f32) {
    let magnitude = want.iter().fold(1.0_f32, |most, v| most.max(v.abs()));
    let difference = largest_difference(got, want);
    assert!(difference <= tolerance * magnitude, "{name}: differs by {difference:e}, magnitude {magnitude}");
}

/// A golden page, 8-bit, normalised as the model sees it: `[1, 3, side, side]`.
pub fn pixels(path: &str) -> Tensor {
    let image = image::open(golden(path)).unwrap();
    let normalisation = Normalisation { mean: [0.5; 3], std: [0.5; 3] };
    let (shape, data) = normalisation.to_nchw(&image).unwrap().into_parts();
    let TensorData::Floats(values) = data else { panic!("pixels are floats") };
    Tensor::floats(&shape, values).unwrap()
}

/// Named tensors.
pub fn tensors<const N: usize>(list: [(&str, Tensor); N]) -> Tensors {
    list.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect()
}
