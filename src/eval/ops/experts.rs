//! Mixtures of experts, plain and quantised.

use std::collections::BTreeMap;

use ndarray::{Array2, ArrayView2, Axis, s};

use super::elementwise::silu;
use super::misfit;
use super::movement::contiguous;
use super::parallel::each_row;
use super::product::{matrix, multiply};
use crate::eval::operands::{Operands, typed};
use crate::eval::tensor::shaped;
use crate::eval::{Array, Tensor};
use crate::{Error, Result};

/// Which inputs hold the three matrices of an expert.
trait Matrices {
    /// `[gate [f, h..], up [f, h..], down [h, f..]]`; last axes may be padded.
    fn of(&self, operands: &Operands<'_>, expert: usize) -> Result<[Array<f32>; 3]>;
}

/// Inputs after the third: all gates, all ups, all downs.
struct Separate {
    experts: usize,
}

impl Matrices for Separate {
    fn of(&self, operands: &Operands<'_>, expert: usize) -> Result<[Array<f32>; 3]> {
        let of_kind = |kind: usize| typed(operands.get(3 + kind * self.experts + expert)?);
        Ok([of_kind(0)?, of_kind(1)?, of_kind(2)?])
    }
}

/// Inputs after the third: stacked gates, ups, downs.
struct Stacked;

impl Matrices for Stacked {
    fn of(&self, operands: &Operands<'_>, expert: usize) -> Result<[Array<f32>; 3]> {
        let of_kind = |kind: usize| typed(operands.row(3 + kind, expert)?);
        Ok([of_kind(0)?, of_kind(1)?, of_kind(2)?])
    }
}

pub(super) fn routed(operands: &mut Operands<'_>, experts: usize) -> Result<Tensor> {
    mixture(operands, experts, &Separate { experts })
}

pub(super) fn stacked(operands: &mut Operands<'_>) -> Result<Tensor> {
    let experts = operands.shape(3)?.first().copied().unwrap_or(0);
    mixture(operands, experts, &Stacked)
}

fn mixture(operands: &mut Operands<'_>, experts: usize, matrices: &dyn Matrices) -> Result<Tensor> {
    let (x, probability, expert) = (operands.array::<f32>(0)?, operands.array::<f32>(1)?, operands.array::<i32>(2)?);
    let x = matrix(x.view())?;
    if probability.shape() != expert.shape() || expert.ndim() != 2 || expert.shape()[0] != x.nrows() {
        return Err(misfit("probability [t, k] and expert [t, k] for x [t, h]"));
    }
    let choices = expert.shape()[1];
    let probability: Vec<f32> = probability.iter().copied().collect();
    let mut out = Array2::<f32>::zeros(x.raw_dim());
    for (expert, slots) in slots_by_expert(&expert, experts)? {
        let tokens: Vec<usize> = slots.iter().map(|slot| slot / choices).collect();
        let [gate, up, down] = matrices.of(operands, expert)?;
        let made = run_expert(
            x.select(Axis(0), &tokens).view(),
            [matrix(gate.view())?, matrix(up.view())?, matrix(down.view())?],
        )?;
        for ((slot, token), row) in slots.iter().zip(tokens).zip(made.rows()) {
            out.row_mut(token).scaled_add(probability[*slot], &row);
        }
    }
    Ok(Tensor::F32(out.into_dyn().into_shared()))
}

/// `down(silu(gate x) * up x)` for each row of `x`.
fn run_expert(x: ArrayView2<'_, f32>, [gate, up, down]: [ArrayView2<'_, f32>; 3]) -> Result<Array2<f32>> {
    let mut hidden = times_transposed(x, gate)?;
    let up = times_transposed(x, up)?;
    if hidden.dim() != up.dim() || down.nrows() != x.ncols() {
        return Err(misfit("gate [f, h], up [f, h] and down [h, f]"));
    }
    hidden.zip_mut_with(&up, |gate, up| *gate = silu(*gate) * up);
    times_transposed(hidden.view(), down)
}

/// `x [m, k] x w [n, k..]^T`; columns of `w` beyond `k` are padding.
fn times_transposed(x: ArrayView2<'_, f32>, w: ArrayView2<'_, f32>) -> Result<Array2<f32>> {
    if w.ncols() < x.ncols() {
        return Err(misfit("matrices at least as wide as their operand").found(format!("{:?}", w.dim())));
    }
    let mut out = vec![0.0; x.nrows() * w.nrows()];
    multiply(x, w.slice(s![.., ..x.ncols()]).reversed_axes(), &mut out);
    Array2::from_shape_vec((x.nrows(), w.nrows()), out).map_err(|_| misfit("a matrix"))
}

/// The places that chose each expert, by expert.
fn slots_by_expert(chosen: &Array<i32>, experts: usize) -> Result<BTreeMap<usize, Vec<usize>>> {
    let mut slots: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (slot, &expert) in chosen.iter().enumerate() {
        let known = usize::try_from(expert).ok().filter(|expert| *expert < experts);
        let known = known.ok_or_else(|| {
            Error::input("no such expert").found(expert).expected(format!("0 to {}", experts.saturating_sub(1)))
        })?;
        slots.entry(known).or_default().push(slot);
    }
    Ok(slots)
}

/// Inputs `a [slots, k]`, `codes ui32 [e, n, k/4]`, `scales [e, n, k/block]`, `expert [slots]`. Only the experts
/// chosen are touched.
pub(super) fn gather_qmm(operands: &mut Operands<'_>) -> Result<Tensor> {
    let (a, expert) = (operands.array::<f32>(0)?, operands.array::<i32>(3)?);
    let a = matrix(a.view())?;
    let [experts, n, _] = *operands.shape(1)? else {
        return Err(misfit("codes [e, n, k/4]"));
    };
    if expert.shape() != [a.nrows()] {
        return Err(misfit("an expert for each row"));
    }
    let mut out = Array2::<f32>::zeros((a.nrows(), n));
    for (expert, slots) in slots_by_expert(&expert, experts)? {
        let codes = unpack(&typed(operands.row(1, expert)?)?)?;
        let weight = scaled(codes, typed(operands.row(2, expert)?)?)?;
        let made = times_transposed(a.select(Axis(0), &slots).view(), matrix(weight.view())?)?;
        for (slot, row) in slots.iter().zip(made.rows()) {
            out.row_mut(*slot).assign(&row);
        }
    }
    Ok(Tensor::F32(out.into_dyn().into_shared()))
}

/// Four signed bytes a word along the last axis, the first in the low byte.
fn unpack(words: &Array<i32>) -> Result<Array<f32>> {
    let mut shape = words.shape().to_vec();
    if let Some(last) = shape.last_mut() {
        *last *= 4;
    }
    shaped(&shape, words.iter().flat_map(|word| word.to_le_bytes()).map(|byte| f32::from(byte as i8)).collect())
}

/// `codes x scale` with one scale for each block of the last axis.
pub(super) fn block_scale(codes: Tensor, scales: Array<f32>) -> Result<Tensor> {
    let codes = match codes {
        Tensor::I8(codes) => codes.mapv(f32::from).into_shared(),
        Tensor::I32(codes) => codes.mapv(|code| code as f32).into_shared(),
        other => return Err(other.wrong_kind("codes")),
    };
    scaled(codes, scales).map(Tensor::F32)
}

fn scaled(codes: Array<f32>, scales: Array<f32>) -> Result<Array<f32>> {
    let fail = || misfit("one scale for each block of the last axis");
    let ([rest @ .., k], [rest_of_scales @ .., blocks]) = (codes.shape(), scales.shape()) else {
        return Err(fail());
    };
    if rest != rest_of_scales || *blocks == 0 || k % blocks != 0 {
        return Err(fail().found(format!("{:?} and {:?}", codes.shape(), scales.shape())));
    }
    let block = k / blocks;
    let (mut codes, scales) = (contiguous(codes), contiguous(scales));
    let scales = scales.as_slice().unwrap_or_default();
    each_row(codes.as_slice_mut().ok_or_else(fail)?, block, |index, row| {
        row.iter_mut().for_each(|code| *code *= scales[index]);
    });
    Ok(codes)
}
