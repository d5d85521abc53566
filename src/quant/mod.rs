//! Block quantisation: the arithmetic of every scheme, as pure functions on rows of weights.
//!
//! A row is cut along its last axis (K) into blocks of [`BLOCK`] weights, or smaller ones where these do not divide it
//! ([`IndivisiblePolicy`]). Each block is stored as signed bytes, the codes, and one f16 scale: `weight ≈ code * scale`.
//! Every scheme keeps these promises:
//!
//! * A scale is chosen from the block's absmax in f32 and rounded to f16; the codes are then chosen against the scale
//!   *as stored*: `code = clamp(rint(weight / scale))`, `rint` rounding halves to even.
//! * A stored scale is finite and above zero, also for a block of zeros (whose codes are all 0), so that whoever
//!   divides by it is safe.
//! * `code * scale` is exact in f32 (8 + 11 significant bits) and finite in f16.
//! * A weight that f16 itself could not hold (NaN, an infinity, magnitude 65520 and up) is refused, with its position:
//!   no code stands for it.
//! * The bytes are the same on every CPU: only correctly rounded operations, no fused multiply-add, no sum whose order
//!   could change a code.
//!
//! | corner | `sym8` | `int8lin`, head of `int8hu` |
//! | --- | --- | --- |
//! | absmax so small that f16 rounds the scale to 0 | scale 2^-24, the smallest f16 | scale 2^-23, coreai-opt's floor |
//! | f16 scale is coarse (below 2^-17) | the better of the two f16 neighbours | nearest f16, as coreai-opt |
//! | absmax near 65504 | scale 515.5 at most, so that `code * scale` stays finite | 515.5; head 511.75 |
//! | code -128 | never | only in the head |

mod block;
mod coding;
pub mod fp16;
mod indivisible;
pub mod int8;
mod measure;
mod reject;
mod scheme;
pub mod sym8;

pub use block::{BLOCK, BlockScale, BlockScheme, Grid};
pub use coding::Coding;
pub use indivisible::{Fit, Indivisible, IndivisibleOverride, IndivisiblePolicy};
pub use measure::{BlockError, decode, measure};
pub use reject::Unstorable;
pub use scheme::{BlockCode, Part, Scheme};

#[cfg(test)]
mod testing;
