//! The reference executor: runs the functions of a module on the processor, at any point of the pipeline.
//!
//! It favours being right over being fast: floating-point values are held in single precision whatever type the graph
//! stores them in ([`Rounding`] says whether they are rounded to that type), and sums of means, norms and softmax run
//! in double precision. Transposes and slices are views; a weight is made once and shared.
//!
//! Results do not depend on the number of threads. `exp`, `sin`, `cos`, `tanh` and `erf` come from the `libm` crate,
//! which is the same code on every platform, and square roots are exact; so everything [`folds`] accepts has the same
//! bits everywhere. Matrix products may differ in the last bits between processors with and without fused
//! multiply-add.

mod constants;
mod executor;
mod flips;
mod fold;
mod machine;
mod operands;
mod ops;
mod plan;
mod signature;
mod tensor;

#[cfg(test)]
mod tests;

pub use executor::{Executor, Options, Outputs, Tensors};
pub use flips::{StepComparison, compare_steps};
pub use fold::{evaluate_constants, folds};
pub use machine::Rounding;
pub use tensor::{Array, Tensor};
