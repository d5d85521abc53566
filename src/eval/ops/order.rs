//! Sorting and searching along an axis.

use std::cmp::Ordering;

use super::misfit;
use super::movement::{contiguous, move_last};
use crate::Result;
use crate::eval::tensor::{Element, shaped};
use crate::eval::{Array, Tensor};

pub(super) fn sort(x: Tensor, axis: usize, descending: bool) -> Result<Tensor> {
    match x {
        Tensor::F32(x) => sort_elements(x, axis, descending, compare_floats).map(Tensor::F32),
        Tensor::I32(x) => sort_elements(x, axis, descending, i32::cmp).map(Tensor::I32),
        other => Err(other.wrong_kind("numbers")),
    }
}

pub(super) fn arg_sort(x: Tensor, axis: usize, descending: bool) -> Result<Tensor> {
    let indices = match x {
        Tensor::F32(x) => sort_indices(x, axis, descending, compare_floats)?,
        Tensor::I32(x) => sort_indices(x, axis, descending, i32::cmp)?,
        other => return Err(other.wrong_kind("numbers")),
    };
    Ok(Tensor::I32(indices))
}

pub(super) fn arg_max(x: Tensor, axis: usize) -> Result<Tensor> {
    let indices = match x {
        Tensor::F32(x) => along(x, axis, |row| vec![first_largest(row, compare_floats)])?,
        Tensor::I32(x) => along(x, axis, |row| vec![first_largest(row, i32::cmp)])?,
        other => return Err(other.wrong_kind("numbers")),
    };
    Ok(Tensor::I32(indices))
}

/// The order of numbers, with everything that is not a number above them; `-0` and `0` are equal.
fn compare_floats(a: &f32, b: &f32) -> Ordering {
    a.partial_cmp(b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

fn first_largest<T>(row: &[T], compare: impl Fn(&T, &T) -> Ordering) -> i32 {
    let mut best = 0;
    for (index, value) in row.iter().enumerate().skip(1) {
        if compare(value, &row[best]).is_gt() {
            best = index;
        }
    }
    best as i32
}

/// Indices in sorted order, ties in index order whichever way the sort goes.
fn order<T>(row: &[T], descending: bool, compare: impl Fn(&T, &T) -> Ordering) -> Vec<usize> {
    let mut indices: Vec<usize> = (0..row.len()).collect();
    indices.sort_by(|&a, &b| {
        let order = compare(&row[a], &row[b]);
        if descending { order.reverse() } else { order }
    });
    indices
}

type Compare<T> = fn(&T, &T) -> Ordering;

fn sort_elements<T: Element>(x: Array<T>, axis: usize, descending: bool, compare: Compare<T>) -> Result<Array<T>> {
    along(x, axis, |row| order(row, descending, compare).into_iter().map(|index| row[index]).collect())
}

fn sort_indices<T: Element>(x: Array<T>, axis: usize, descending: bool, compare: Compare<T>) -> Result<Array<i32>> {
    along(x, axis, |row| order(row, descending, compare).into_iter().map(|index| index as i32).collect())
}

/// `f` of each row along `axis`; all results have one length, which `axis` gets.
fn along<T: Element, U: Element>(x: Array<T>, axis: usize, f: impl Fn(&[T]) -> Vec<U>) -> Result<Array<U>> {
    let rows = contiguous(move_last(x, &[axis])?);
    let elements = rows.as_slice().ok_or_else(|| misfit("a contiguous operand"))?;
    let length = rows.shape().last().copied().unwrap_or(0);
    if length == 0 {
        return Err(misfit("an axis with elements"));
    }
    let made: Vec<U> = elements.chunks_exact(length).flat_map(f).collect();
    let mut shape = rows.shape().to_vec();
    let count = elements.len() / length;
    if let Some(last) = shape.last_mut() {
        *last = made.len() / count.max(1);
    }
    let mut back: Vec<usize> = (0..shape.len() - 1).collect();
    back.insert(axis, shape.len() - 1);
    Ok(shaped(&shape, made)?.permuted_axes(back))
}
