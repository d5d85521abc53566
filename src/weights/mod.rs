//! Weights as recipes: read, rows, reshape, concatenate, pad, cast, resample, take, quantise.
//!
//! A recipe is instructions, not a buffer. Passes rewrite recipes; sizes follow from recipes alone; bytes are made
//! once, in chunks, when the writer asks. Equal recipes are interned as one weight, so functions share weights by
//! construction.

mod produce;
mod recipe;
mod resample;
mod table;

#[cfg(test)]
mod tests;

pub use produce::{Chunk, produce, read_floats};
pub use recipe::{Recipe, TensorIndex, WeightId};
pub use resample::{Resampling, resample};
pub use table::Weights;
