//! Evaluates values that depend on constants only.

use super::constants::Constants;
use super::machine::{Call, Machine};
use super::plan::Plan;
use super::{Rounding, Tensor};
use crate::Result;
use crate::graph::{Function, Op, ValueId};
use crate::weights::Weights;

/// Whether [`evaluate_constants`] of the operation gives the same bits on every platform. Matrix products do not:
/// their last bits depend on the instructions of the processor.
#[must_use]
pub fn folds(op: &Op) -> bool {
    !matches!(
        op,
        Op::Parameter
            | Op::MatMul
            | Op::Conv2d { .. }
            | Op::Conv3d { .. }
            | Op::Linear
            | Op::Attention { .. }
            | Op::CachedAttention { .. }
            | Op::RoutedExperts { .. }
            | Op::StackedExperts
            | Op::GatherQmm
            | Op::Invoke(_)
    )
}

/// Evaluates one value that depends on constants only, rounded to its type after each node.
///
/// # Errors
/// When the value depends on a parameter or a composite, a weight cannot be read, or an operation fails.
pub fn evaluate_constants(function: &Function, weights: &Weights, value: ValueId) -> Result<Tensor> {
    let machine =
        Machine { functions: &[], constants: Constants::new(weights, usize::MAX), rounding: Rounding::AsStored };
    let (plan, wanted) = (Plan::new(function, [value]), [value]);
    let call = Call { function, plan: &plan, wanted: &wanted, depth: 0 };
    let mut values = machine.call(&call, Vec::new())?;
    values.pop().ok_or_else(|| crate::Error::input("nothing was evaluated"))
}
