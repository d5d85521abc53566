//! Loops over elements and rows, divided among threads where there is enough to do.
//!
//! Each element or row is computed by itself, so results do not depend on the division.

use rayon::prelude::*;

use crate::eval::Array;
use crate::eval::tensor::Element;

/// Elements worth a task of their own.
const TASK: usize = 1 << 14;

/// Calls `f` on slices that make up `array` in any order. Copies the elements first if others share them.
pub(in crate::eval) fn each_slice(array: &mut Array<f32>, f: impl Fn(&mut [f32]) + Sync + Send) {
    match array.as_slice_memory_order_mut() {
        Some(slice) if slice.len() > TASK => slice.par_chunks_mut(TASK).for_each(f),
        Some(slice) => f(slice),
        None => array.map_inplace(|value| f(std::slice::from_mut(value))),
    }
}

/// Calls `f` on each `row` elements of `data` with the number of the row.
pub(super) fn each_row<T: Element>(data: &mut [T], row: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    let row = row.max(1);
    if data.len() > TASK {
        let rows = data.par_chunks_mut(row).with_min_len(TASK.div_ceil(row));
        rows.enumerate().for_each(|(index, row)| f(index, row));
    } else {
        data.chunks_mut(row).enumerate().for_each(|(index, row)| f(index, row));
    }
}
