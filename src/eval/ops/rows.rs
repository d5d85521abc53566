//! Reductions, softmax and norms: functions of the elements along axes.

use super::misfit;
use super::movement::{contiguous, move_last};
use super::parallel::each_row;
use crate::Result;
use crate::eval::tensor::{Element, shaped};
use crate::eval::{Array, Tensor};
use crate::graph::Reduction;

pub(super) fn reduce(kind: Reduction, axes: &[usize], x: Tensor) -> Result<Tensor> {
    match x {
        Tensor::F32(x) => Ok(Tensor::F32(match kind {
            Reduction::Sum => fold_axes(x, axes, |row| sum(row) as f32)?,
            Reduction::Mean => fold_axes(x, axes, |row| (sum(row) / row.len() as f64) as f32)?,
            Reduction::Max => fold_axes(x, axes, |row| row.iter().copied().fold(f32::NEG_INFINITY, f32::max))?,
            Reduction::Min => fold_axes(x, axes, |row| row.iter().copied().fold(f32::INFINITY, f32::min))?,
        })),
        Tensor::I32(x) => Ok(Tensor::I32(match kind {
            Reduction::Sum => fold_axes(x, axes, |row| row.iter().copied().fold(0, i32::wrapping_add))?,
            Reduction::Max => fold_axes(x, axes, |row| row.iter().copied().fold(i32::MIN, i32::max))?,
            Reduction::Min => fold_axes(x, axes, |row| row.iter().copied().fold(i32::MAX, i32::min))?,
            Reduction::Mean => return Err(misfit("floating-point numbers")),
        })),
        other => Err(other.wrong_kind("floating-point numbers or integers")),
    }
}

fn sum(row: &[f32]) -> f64 {
    row.iter().map(|&value| f64::from(value)).sum()
}

/// `f` of the elements along `axes`, which stay as extent 1.
fn fold_axes<T: Element>(x: Array<T>, axes: &[usize], f: impl Fn(&[T]) -> T + Sync) -> Result<Array<T>> {
    let mut shape = x.shape().to_vec();
    let mut length = 1;
    for &axis in axes {
        let extent = shape.get_mut(axis).ok_or_else(|| misfit("axes of the operand"))?;
        length *= std::mem::replace(extent, 1);
    }
    let rows = contiguous(move_last(x, axes)?);
    let elements = rows.as_slice().ok_or_else(|| misfit("a contiguous operand"))?;
    let mut folded = vec![T::default(); shape.iter().product()];
    each_row(&mut folded, 1, |index, out| out[0] = f(&elements[index * length..(index + 1) * length]));
    shaped(&shape, folded)
}

pub(super) fn softmax(x: Array<f32>, axis: usize) -> Result<Tensor> {
    let rank = x.ndim();
    if axis >= rank {
        return Err(misfit("an axis of the operand"));
    }
    let mut last: Vec<usize> = (0..rank).filter(|&other| other != axis).collect();
    last.push(axis);
    let mut back = vec![0; rank];
    last.iter().enumerate().for_each(|(place, &axis)| back[axis] = place);
    let soft = over_last(x.permuted_axes(last), softmax_row)?;
    Ok(Tensor::F32(soft.permuted_axes(back)))
}

fn softmax_row(row: &mut [f32]) {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut total = 0.0;
    for value in &mut *row {
        *value = libm::expf(*value - largest);
        total += f64::from(*value);
    }
    let scale = (1.0 / total) as f32;
    row.iter_mut().for_each(|value| *value *= scale);
}

pub(super) fn rms_norm(x: Array<f32>, gamma: Array<f32>, epsilon: f32) -> Result<Tensor> {
    let gamma = contiguous(gamma);
    let gamma = last_axis_weights(&x, &gamma)?;
    let normed = over_last(x, |row| {
        let square: f64 = row.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
        let scale = (1.0 / (square / row.len() as f64 + f64::from(epsilon)).sqrt()) as f32;
        row.iter_mut().zip(gamma).for_each(|(v, g)| *v = *v * scale * g);
    })?;
    Ok(Tensor::F32(normed))
}

pub(super) fn layer_norm(x: Array<f32>, [gamma, beta]: [Array<f32>; 2], epsilon: f32) -> Result<Tensor> {
    let (gamma, beta) = (contiguous(gamma), contiguous(beta));
    let (gamma, beta) = (last_axis_weights(&x, &gamma)?, last_axis_weights(&x, &beta)?);
    let normed = over_last(x, |row| {
        let mean = sum(row) / row.len() as f64;
        let square: f64 = row.iter().map(|&v| f64::from(v) - mean).map(|difference| difference * difference).sum();
        let scale = 1.0 / (square / row.len() as f64 + f64::from(epsilon)).sqrt();
        for ((v, g), b) in row.iter_mut().zip(gamma).zip(beta) {
            *v = ((f64::from(*v) - mean) * scale) as f32 * g + b;
        }
    })?;
    Ok(Tensor::F32(normed))
}

/// The elements of a weight that has one for each element of the last axis of `x`.
fn last_axis_weights<'w>(x: &Array<f32>, weight: &'w Array<f32>) -> Result<&'w [f32]> {
    match weight.as_slice() {
        Some(slice) if x.shape().last() == Some(&slice.len()) => Ok(slice),
        _ => Err(misfit("as many weights as the last axis is long")),
    }
}

/// Calls `f` on each row of the last axis.
fn over_last(x: Array<f32>, f: impl Fn(&mut [f32]) + Sync) -> Result<Array<f32>> {
    let mut x = contiguous(x);
    let row = x.shape().last().copied().unwrap_or(1);
    let elements = x.as_slice_mut().ok_or_else(|| misfit("a contiguous operand"))?;
    each_row(elements, row, |_, row| f(row));
    Ok(x)
}
