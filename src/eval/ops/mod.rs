//! One function for each operation, by kind.

mod attention;
mod cache;
mod elementwise;
mod experts;
mod indexing;
mod movement;
mod order;
mod parallel;
mod product;
mod rows;

pub(super) use movement::{reshape, row};
pub(super) use parallel::each_slice;

use super::Tensor;
use super::operands::{Operands, typed};
use crate::graph::Op;
use crate::{Error, Result};

/// The result of a node whose operation needs no other function.
pub(super) fn apply(op: &Op, mut operands: Operands<'_>) -> Result<Tensor> {
    let x = &mut operands;
    match op {
        Op::Parameter | Op::Constant(_) | Op::Invoke(_) => Err(Error::input("not an operation on tensors")),
        Op::Unary(f) => elementwise::unary(*f, x.take(0)?),
        Op::Binary(f) => elementwise::binary(*f, x.take(0)?, x.take(1)?),
        Op::Select => elementwise::select(x.array(0)?, x.take(1)?, x.take(2)?),
        Op::Cast(element) => elementwise::cast(x.take(0)?, *element),
        Op::Reduce { kind, axes } => rows::reduce(*kind, axes, x.take(0)?),
        Op::Softmax { axis } => rows::softmax(x.array(0)?, *axis),
        Op::RmsNorm { epsilon } => rows::rms_norm(x.array(0)?, x.array(1)?, *epsilon),
        Op::LayerNorm { epsilon } => rows::layer_norm(x.array(0)?, [x.array(1)?, x.array(2)?], *epsilon),
        Op::Sort { axis, descending } => order::sort(x.take(0)?, *axis, *descending),
        Op::ArgSort { axis, descending } => order::arg_sort(x.take(0)?, *axis, *descending),
        Op::ArgMax { axis } => order::arg_max(x.take(0)?, *axis),
        Op::MatMul => product::matmul(x.array(0)?, x.array(1)?),
        Op::Linear => {
            let bias = if x.len() == 3 { Some(x.array(2)?) } else { None };
            product::linear(x.array(0)?, x.array(1)?, bias)
        }
        Op::Conv2d { stride, groups } => product::conv2d(x.array(0)?, x.array(1)?, *stride, *groups),
        Op::Conv3d { stride } => product::conv3d(x.array(0)?, x.array(1)?, *stride),
        Op::Transpose(perm) => movement::transpose(x.take(0)?, perm),
        Op::Reshape(shape) => reshape(x.take(0)?, shape),
        Op::ReshapeAt => movement::reshape_at(x.take(0)?, x.array(1)?),
        Op::ShapeOf => movement::shape_of(x.shape(0)?),
        Op::Range => movement::range(x.array(0)?, x.array(1)?),
        Op::BroadcastTo(shape) => movement::broadcast_to(x.take(0)?, shape),
        Op::Concat { axis } => movement::concat(x.rest()?, *axis),
        Op::Slice { begin, end } => movement::slice(x.take(0)?, begin, end),
        Op::SliceAt => movement::slice_at(x.take(0)?, x.array(1)?, x.array(2)?),
        Op::SliceUpdate => movement::slice_update(x.take(0)?, [x.array(1)?, x.array(2)?], x.take(3)?),
        Op::Pad { before, after } => movement::pad(x.take(0)?, before, after),
        Op::Resample { kind, to } => movement::resample(x.array(0)?, *kind, to),
        Op::Gather => indexing::gather(x),
        Op::GatherAlongAxis { axis } => indexing::gather_along_axis(x.take(0)?, x.array(1)?, *axis),
        Op::BlockScale => experts::block_scale(x.take(0)?, x.array(1)?),
        Op::GatherQmm => experts::gather_qmm(x),
        Op::RoutedExperts { experts } => experts::routed(x, *experts),
        Op::StackedExperts => experts::stacked(x),
        Op::KvAppend { layer } => cache::append(x.take(0)?, x.take(1)?, x.array(2)?, *layer),
        Op::CachedAttention { layer, window } => {
            let [keys, values] = [x.take(1)?, x.take(2)?].map(|cache| cache::layer(cache, *layer));
            attention::cached(x.array(0)?, [typed(keys?)?, typed(values?)?], x.array(3)?, *window)
        }
        Op::Attention { causal } => attention::plain(x.array(0)?, [x.array(1)?, x.array(2)?], *causal),
    }
}

/// Whether the elements of the result are elements of its inputs or zeros, so that rounding them again is idle.
pub(super) const fn only_moves(op: &Op) -> bool {
    matches!(
        op,
        Op::Transpose(_)
            | Op::Reshape(_)
            | Op::ReshapeAt
            | Op::BroadcastTo(_)
            | Op::Concat { .. }
            | Op::Slice { .. }
            | Op::SliceAt
            | Op::SliceUpdate
            | Op::Pad { .. }
            | Op::Gather
            | Op::GatherAlongAxis { .. }
            | Op::Select
            | Op::Sort { .. }
            | Op::KvAppend { .. }
    )
}

/// The error that arguments reached an operation which do not fit it; a verified graph does not get here.
#[cold]
fn misfit(expected: &str) -> Error {
    Error::input("the arguments do not fit the operation").expected(expected)
}
