//! Elements picked by index.

use super::misfit;
use super::movement::{contiguous, move_last};
use crate::eval::operands::{Operands, typed};
use crate::eval::tensor::{Element, shaped, with_element};
use crate::eval::{Array, Tensor};
use crate::{Error, Result};

/// `gather_nd`: each `k` numbers along the last axis of the indices pick one box of `x.shape[k..]`.
pub(super) fn gather(operands: &mut Operands<'_>) -> Result<Tensor> {
    let indices = contiguous(operands.array::<i32>(1)?);
    let [places @ .., depth] = indices.shape() else {
        return Err(misfit("indices [.., k]"));
    };
    let picked = indices.as_slice().unwrap_or_default();
    if *depth == 1 && operands.is_constant(0) {
        return gather_rows(operands, places, picked);
    }
    let x = operands.take(0)?;
    with_element!(&x, T => gather_boxes::<T>(&contiguous(typed(x)?), places, *depth, picked))
}

/// Rows of a weight, which may be too large to make whole.
fn gather_rows(operands: &Operands<'_>, places: &[usize], picked: &[i32]) -> Result<Tensor> {
    let shape: Vec<usize> = places.iter().chain(&operands.shape(0)?[1..]).copied().collect();
    let mut rows = Vec::with_capacity(picked.len());
    for &index in picked {
        let index = usize::try_from(index).map_err(|_| out_of_range(index, operands.shape(0).map_or(0, |s| s[0])))?;
        rows.push(operands.row(0, index)?);
    }
    match rows.first() {
        Some(first) => with_element!(first, T => join_rows::<T>(rows, &shape)),
        None => Err(misfit("indices")),
    }
}

fn join_rows<T: Element>(rows: Vec<Tensor>, shape: &[usize]) -> Result<Tensor> {
    let mut elements = Vec::with_capacity(shape.iter().product());
    for row in rows {
        elements.extend_from_slice(contiguous(typed::<T>(row)?).as_slice().unwrap_or_default());
    }
    shaped(shape, elements).map(T::wrap)
}

fn gather_boxes<T: Element>(x: &Array<T>, places: &[usize], depth: usize, picked: &[i32]) -> Result<Tensor> {
    let (elements, Some((outer, inner))) = (x.as_slice().unwrap_or_default(), x.shape().split_at_checked(depth)) else {
        return Err(misfit("at most as many indices as axes"));
    };
    let length: usize = inner.iter().product();
    let shape: Vec<usize> = places.iter().chain(inner).copied().collect();
    let mut gathered = Vec::with_capacity(shape.iter().product());
    for tuple in 0..places.iter().product() {
        let mut offset = 0;
        for (&index, &extent) in picked[tuple * depth..(tuple + 1) * depth].iter().zip(outer) {
            offset = offset * extent + checked(index, extent)?;
        }
        gathered.extend_from_slice(&elements[offset * length..(offset + 1) * length]);
    }
    shaped(&shape, gathered).map(T::wrap)
}

pub(super) fn gather_along_axis(x: Tensor, indices: Array<i32>, axis: usize) -> Result<Tensor> {
    with_element!(&x, T => gather_in_rows::<T>(typed(x)?, indices, axis))
}

fn gather_in_rows<T: Element>(x: Array<T>, indices: Array<i32>, axis: usize) -> Result<Tensor> {
    let others_match = x.ndim() == indices.ndim()
        && axis < x.ndim()
        && (0..x.ndim()).all(|i| i == axis || x.shape()[i] == indices.shape()[i]);
    if !others_match {
        return Err(misfit("equal extents beside the axis").found(format!("{:?}, {:?}", x.shape(), indices.shape())));
    }
    let (x, indices) = (contiguous(move_last(x, &[axis])?), contiguous(move_last(indices, &[axis])?));
    let (extent, count) = (last(&x), last(&indices));
    let (elements, picked) = (x.as_slice().unwrap_or_default(), indices.as_slice().unwrap_or_default());
    let pick = |(place, &index): (usize, &i32)| Ok(elements[place / count * extent + checked(index, extent)?]);
    let gathered: Vec<T> = picked.iter().enumerate().map(pick).collect::<Result<_>>()?;
    let mut back: Vec<usize> = (0..x.ndim() - 1).collect();
    back.insert(axis, x.ndim() - 1);
    Ok(T::wrap(shaped(indices.shape(), gathered)?.permuted_axes(back)))
}

fn last<T>(x: &Array<T>) -> usize {
    x.shape().last().copied().unwrap_or(1)
}

fn checked(index: i32, extent: usize) -> Result<usize> {
    usize::try_from(index).ok().filter(|index| *index < extent).ok_or_else(|| out_of_range(index, extent))
}

#[cold]
fn out_of_range(index: i32, extent: usize) -> Error {
    Error::input("an index is out of range").found(index).expected(format!("0 to {}", extent.saturating_sub(1)))
}
