//! Operations that move elements about.

use ndarray::{Axis, IxDyn, Slice};

use super::{elementwise, misfit};
use crate::eval::operands::typed;
use crate::eval::tensor::{Element, shaped, with_element};
use crate::eval::{Array, Tensor};
use crate::graph::Op;
use crate::weights::Resampling;
use crate::{Error, Result};

/// Most integers of a range: positions of a sequence are fewer.
const MAX_RANGE: i64 = 1 << 26;

/// The same elements in row-major order without gaps; copied only if they are not.
pub(super) fn contiguous<T: Element>(x: Array<T>) -> Array<T> {
    if x.is_standard_layout() { x } else { x.as_standard_layout().into_owned().into_shared() }
}

/// `axes` (ascending) moved to the end.
pub(super) fn move_last<T: Element>(x: Array<T>, axes: &[usize]) -> Result<Array<T>> {
    let kept = (0..x.ndim()).filter(|axis| !axes.contains(axis));
    let perm: Vec<usize> = kept.chain(axes.iter().copied()).collect();
    permute(x, &perm)
}

fn permute<T: Element>(x: Array<T>, perm: &[usize]) -> Result<Array<T>> {
    let mut sorted = perm.to_vec();
    sorted.sort_unstable();
    if !sorted.into_iter().eq(0..x.ndim()) {
        return Err(misfit("a permutation of the axes").found(format!("{perm:?}")));
    }
    Ok(x.permuted_axes(perm))
}

pub(super) fn transpose(x: Tensor, perm: &[usize]) -> Result<Tensor> {
    with_element!(&x, T => permute::<T>(typed(x)?, perm).map(T::wrap))
}

/// The same elements in another shape; shared if they are contiguous.
pub(in crate::eval) fn reshape(x: Tensor, shape: &[usize]) -> Result<Tensor> {
    with_element!(&x, T => reshaped::<T>(typed(x)?, shape).map(T::wrap))
}

/// As [`reshape`], with a run-time shape; one extent of -1 follows from the number of elements.
pub(super) fn reshape_at(x: Tensor, shape: Array<i32>) -> Result<Tensor> {
    let elements: usize = x.shape().iter().product();
    let known: Option<usize> = shape.iter().filter(|extent| **extent != -1).map(|&n| usize::try_from(n).ok()).product();
    let known = known.ok_or_else(|| misfit("extents, one of them perhaps -1").found(format!("{shape}")))?;
    let extent = |&extent: &i32| usize::try_from(extent).unwrap_or(elements / known.max(1));
    let shape: Vec<usize> = shape.iter().map(extent).collect();
    reshape(x, &shape)
}

/// The extents as integers.
pub(super) fn shape_of(shape: &[usize]) -> Result<Tensor> {
    let extent = |&extent: &usize| i32::try_from(extent).map_err(|_| misfit("extents of 31 bits").found(extent));
    Tensor::integers(&[shape.len()], shape.iter().map(extent).collect::<Result<_>>()?)
}

/// The integers `begin..end`.
pub(super) fn range(begin: Array<i32>, end: Array<i32>) -> Result<Tensor> {
    match (begin.iter().collect::<Vec<_>>().as_slice(), end.iter().collect::<Vec<_>>().as_slice()) {
        (&[&begin], &[&end]) if i64::from(end) - i64::from(begin) <= MAX_RANGE => {
            let numbers: Vec<i32> = (begin..end).collect();
            Tensor::integers(&[numbers.len()], numbers)
        }
        bounds => Err(misfit("two bounds of a range").found(format!("{bounds:?}"))),
    }
}

pub(super) fn reshaped<T: Element>(x: Array<T>, shape: &[usize]) -> Result<Array<T>> {
    let found = format!("{:?}", x.shape());
    let fitted = contiguous(x).into_shape_with_order(IxDyn(shape));
    fitted.map_err(|_| misfit("a shape with as many elements").found(found))
}

/// Entry `index` of the first axis, which is dropped; a view.
pub(in crate::eval) fn row(x: Tensor, index: usize) -> Result<Tensor> {
    with_element!(&x, T => first_axis_entry::<T>(typed(x)?, index).map(T::wrap))
}

fn first_axis_entry<T: Element>(x: Array<T>, index: usize) -> Result<Array<T>> {
    match x.shape().first() {
        Some(&rows) if index < rows => Ok(x.index_axis_move(Axis(0), index)),
        rows => Err(Error::input("an index is out of range").found(index).expected(format!("less than {rows:?}"))),
    }
}

pub(super) fn broadcast_to(x: Tensor, shape: &[usize]) -> Result<Tensor> {
    with_element!(&x, T => elementwise::broadcast::<T>(&typed(x)?, shape).map(T::wrap))
}

pub(super) fn concat(parts: Vec<Tensor>, axis: usize) -> Result<Tensor> {
    let first = parts.first().ok_or_else(|| misfit("something to join"))?;
    with_element!(first, T => concat_elements::<T>(parts, axis))
}

fn concat_elements<T: Element>(parts: Vec<Tensor>, axis: usize) -> Result<Tensor> {
    let arrays = parts.into_iter().map(typed::<T>).collect::<Result<Vec<_>>>()?;
    if axis >= arrays[0].ndim() {
        return Err(misfit("an axis of the operands"));
    }
    let views: Vec<_> = arrays.iter().map(|array| array.view()).collect();
    let joined = ndarray::concatenate(Axis(axis), &views).map_err(|_| misfit("shapes that differ along one axis"))?;
    Ok(T::wrap(contiguous(joined.into_shared())))
}

pub(super) fn slice(x: Tensor, begin: &[usize], end: &[usize]) -> Result<Tensor> {
    with_element!(&x, T => slice_elements::<T>(typed(x)?, begin, end).map(T::wrap))
}

fn slice_elements<T: Element>(mut x: Array<T>, begin: &[usize], end: &[usize]) -> Result<Array<T>> {
    let to_end = |(&end, &extent): (&usize, &usize)| if end == Op::TO_END { extent } else { end };
    let end: Vec<usize> = end.iter().zip(x.shape()).map(to_end).collect();
    check_box(x.shape(), begin, &end)?;
    x.slice_each_axis_inplace(|axis| slice_of(begin, &end, axis.axis.index()));
    Ok(x)
}

fn slice_of(begin: &[usize], end: &[usize], axis: usize) -> Slice {
    Slice::from(begin[axis]..end[axis])
}

fn check_box(shape: &[usize], begin: &[usize], end: &[usize]) -> Result<()> {
    let ranks_fit = begin.len() == shape.len() && end.len() == shape.len();
    if ranks_fit && begin.iter().zip(end).zip(shape).all(|((b, e), extent)| b <= e && e <= extent) {
        return Ok(());
    }
    Err(misfit("a box inside the operand").found(format!("{begin:?}..{end:?} of {shape:?}")))
}

/// Run-time bounds as indices: negative ones count from the end of their axis, and all are clamped to it.
fn resolve(bounds: &Array<i32>, shape: &[usize]) -> Result<Vec<usize>> {
    if bounds.shape() != [shape.len()] {
        return Err(misfit("a bound for each axis").found(format!("{:?}", bounds.shape())));
    }
    let index = |(&bound, &extent): (&i32, &usize)| {
        let from_start = if bound < 0 { bound as isize + extent as isize } else { bound as isize };
        from_start.clamp(0, extent as isize) as usize
    };
    Ok(bounds.iter().zip(shape).map(index).collect())
}

pub(super) fn slice_at(x: Tensor, begin: Array<i32>, end: Array<i32>) -> Result<Tensor> {
    let (begin, end) = (resolve(&begin, x.shape())?, resolve(&end, x.shape())?);
    slice(x, &begin, &end)
}

pub(super) fn slice_update(x: Tensor, [begin, end]: [Array<i32>; 2], update: Tensor) -> Result<Tensor> {
    let (begin, end) = (resolve(&begin, x.shape())?, resolve(&end, x.shape())?);
    write_box(x, &begin, &end, update)
}

/// `x` with the box `begin..end` replaced by `update`; in place if nothing else holds the elements of `x`.
pub(super) fn write_box(x: Tensor, begin: &[usize], end: &[usize], update: Tensor) -> Result<Tensor> {
    with_element!(&x, T => write_elements::<T>(typed(x)?, begin, end, &typed(update)?).map(T::wrap))
}

fn write_elements<T: Element>(mut x: Array<T>, begin: &[usize], end: &[usize], update: &Array<T>) -> Result<Array<T>> {
    check_box(x.shape(), begin, end)?;
    let mut target = x.slice_each_axis_mut(|axis| slice_of(begin, end, axis.axis.index()));
    if target.shape() != update.shape() {
        let found = format!("{:?} into {:?}", update.shape(), target.shape());
        return Err(misfit("an update of the shape of its box").found(found));
    }
    target.assign(update);
    Ok(x)
}

pub(super) fn pad(x: Tensor, before: &[usize], after: &[usize]) -> Result<Tensor> {
    let shape = x.shape();
    if before.len() != shape.len() || after.len() != shape.len() {
        return Err(misfit("a padding for each axis"));
    }
    let end: Vec<usize> = before.iter().zip(shape).map(|(b, extent)| b + extent).collect();
    let padded: Vec<usize> = end.iter().zip(after).map(|(e, a)| e + a).collect();
    let zeros = with_element!(&x, T => T::wrap(Array::<T>::default(padded)));
    write_box(zeros, before, &end, x)
}

pub(super) fn resample(x: Array<f32>, kind: Resampling, to: &[usize]) -> Result<Tensor> {
    let table = contiguous(x);
    let (shape, elements) = (table.shape().to_vec(), table.as_slice().unwrap_or_default());
    match shape.split_at_checked(to.len()) {
        Some((from, [channels])) if to.len() == kind.axes() && !from.contains(&0) && !to.contains(&0) => {
            let new_shape: Vec<usize> = to.iter().chain([channels]).copied().collect();
            shaped(&new_shape, crate::weights::resample(kind, elements, from, to)).map(Tensor::F32)
        }
        _ => Err(misfit("a table of positions").found(format!("{shape:?}"))),
    }
}
