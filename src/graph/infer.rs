//! The type of a node's result from its operation and the types of its inputs.

use super::{Binary, Dim, Op, TensorType, Unary};
use crate::weights::Weights;
use crate::{ElementType, Error, Result};

/// What inference knows about a result.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Inferred {
    /// The type follows from the inputs.
    Type(TensorType),
    /// The operation declares its result type.
    Declared,
}

/// The result type of `op` on inputs of these types.
///
/// # Errors
/// When number, element types or shapes of the inputs do not fit the operation.
pub(super) fn infer(op: &Op, inputs: &[&TensorType], weights: &Weights) -> Result<Inferred> {
    check_arity(op, inputs)?;
    let ty = match op {
        Op::Parameter | Op::Invoke(_) | Op::SliceAt | Op::ReshapeAt | Op::Range => return Ok(Inferred::Declared),
        Op::ShapeOf => TensorType::new(ElementType::I32, &[inputs[0].rank()]),
        Op::Constant(id) => TensorType::new(weights.element(*id), weights.shape(*id)),
        Op::Unary(f) => unary(*f, inputs[0])?,
        Op::Softmax { axis } | Op::Sort { axis, .. } => with_axis(inputs[0], *axis)?.clone(),
        Op::RmsNorm { .. } | Op::LayerNorm { .. } => norm(inputs)?,
        Op::Binary(f) => {
            let ty = broadcast(inputs[0], inputs[1])?;
            if matches!(f, Binary::And | Binary::Or) && ty.element != ElementType::Bool {
                return Err(misfit("a logical function").found(ty).expected("i1"));
            }
            if f.is_predicate() { ty.with_element(ElementType::Bool) } else { ty }
        }
        Op::Select => select(inputs)?,
        Op::Cast(element) => inputs[0].with_element(*element),
        Op::ArgSort { axis, .. } => with_axis(inputs[0], *axis)?.with_element(ElementType::I32),
        Op::ArgMax { axis } => keep_one(inputs[0], &[*axis])?.with_element(ElementType::U32),
        Op::Reduce { axes, .. } => keep_one(inputs[0], axes)?,
        Op::MatMul => matmul(inputs[0], inputs[1])?,
        Op::Conv2d { stride, groups } => conv2d(inputs[0], inputs[1], *stride, *groups)?,
        Op::Conv3d { stride } => conv3d(inputs[0], inputs[1], *stride)?,
        Op::Transpose(perm) => transpose(inputs[0], perm)?,
        Op::Reshape(shape) => reshape(inputs[0], shape)?,
        Op::BroadcastTo(shape) => {
            let to = inputs[0].with_shape(shape);
            if broadcast(inputs[0], &to)? != to {
                return Err(misfit("a broadcast").found(inputs[0]).expected(to));
            }
            to
        }
        Op::Concat { axis } => concat(inputs, *axis)?,
        Op::Slice { begin, end } => slice(inputs[0], begin, end)?,
        Op::SliceUpdate => slice_update(inputs)?,
        Op::Pad { before, after } => pad(inputs[0], before, after)?,
        Op::Gather => gather(inputs[0], inputs[1])?,
        Op::GatherAlongAxis { axis } => gather_along_axis(inputs[0], inputs[1], *axis)?,
        Op::BlockScale => block_scale(inputs[0], inputs[1])?,
        Op::GatherQmm => gather_qmm(inputs)?,
        Op::Linear => linear(inputs)?,
        Op::Resample { kind, to } => {
            if inputs[0].rank() != to.len() + 1 || to.len() != kind.axes() {
                return Err(misfit("a resampling").found(format!("{} to {to:?}", inputs[0])));
            }
            let shape = to.iter().map(|&n| Dim::Fixed(n)).chain(inputs[0].shape.last().cloned()).collect();
            TensorType { element: inputs[0].element, shape }
        }
        Op::RoutedExperts { .. } | Op::StackedExperts => experts(inputs)?,
        Op::KvAppend { layer } => kv_append(inputs, *layer)?,
        Op::CachedAttention { layer, .. } => cached_attention(inputs, *layer)?,
        Op::Attention { .. } => attention(inputs)?,
    };
    Ok(Inferred::Type(ty))
}

fn check_arity(op: &Op, inputs: &[&TensorType]) -> Result<()> {
    let (least, most) = match op {
        Op::Parameter | Op::Constant(_) => (0, 0),
        Op::Binary(_)
        | Op::MatMul
        | Op::Conv2d { .. }
        | Op::Conv3d { .. }
        | Op::Gather
        | Op::GatherAlongAxis { .. }
        | Op::BlockScale
        | Op::ReshapeAt
        | Op::Range
        | Op::RmsNorm { .. } => (2, 2),
        Op::Select | Op::LayerNorm { .. } | Op::KvAppend { .. } | Op::SliceAt | Op::Attention { .. } => (3, 3),
        Op::SliceUpdate | Op::GatherQmm | Op::CachedAttention { .. } => (4, 4),
        Op::Linear => (2, 3),
        Op::Concat { .. } => (1, usize::MAX),
        Op::Invoke(_) => (0, usize::MAX),
        Op::RoutedExperts { experts } => (3 + 3 * experts, 3 + 3 * experts),
        Op::StackedExperts => (6, 6),
        _ => (1, 1),
    };
    if inputs.len() < least || inputs.len() > most {
        return Err(misfit("the number of inputs").found(inputs.len()).expected(least));
    }
    Ok(())
}

fn misfit(what: &str) -> Error {
    Error::input(format!("the types of {what} do not fit"))
}

fn axis_of(ty: &TensorType, axis: usize) -> Result<Dim> {
    ty.shape.get(axis).cloned().ok_or_else(|| misfit("an axis").found(ty).expected(format!("an axis {axis}")))
}

fn unary(f: Unary, x: &TensorType) -> Result<TensorType> {
    let fits = if f == Unary::Not { x.element == ElementType::Bool } else { x.element.is_float() };
    if fits { Ok(x.clone()) } else { Err(misfit("a function").found(format!("`{}` of {x}", f.name()))) }
}

/// `x [t, h]`, `probability f32 [t, k]`, `expert si32 [t, k]`, whatever form the matrices have.
fn experts(inputs: &[&TensorType]) -> Result<TensorType> {
    let (x, probability, expert) = (inputs[0], inputs[1], inputs[2]);
    let ranks_fit = x.rank() == 2 && probability.rank() == 2 && probability.shape == expert.shape;
    let elements_fit = probability.element == ElementType::F32 && expert.element == ElementType::I32;
    if !ranks_fit || !elements_fit || x.shape[0] != expert.shape[0] {
        let found = format!("{x}, {probability} and {expert}");
        return Err(misfit("experts").found(found).expected("[t, h], f32[t, k] and si32[t, k]"));
    }
    Ok(x.with_element(ElementType::F32))
}

/// `a [slots, k]`, `codes ui32 [e, n, k/4]`, `scales [e, n, k/block]`, `expert si32 [slots]`.
fn gather_qmm(inputs: &[&TensorType]) -> Result<TensorType> {
    let [a, codes, scales, expert] = inputs else {
        return Err(misfit("quantised experts"));
    };
    let fail = || {
        let expected = "[slots, k], ui32[e, n, k/4], [e, n, k/block] and si32[slots]";
        misfit("quantised experts").found(format!("{a}, {codes}, {scales} and {expert}")).expected(expected)
    };
    let ([slots, Dim::Fixed(k)], [e, n, Dim::Fixed(words)]) = (a.shape.as_slice(), codes.shape.as_slice()) else {
        return Err(fail());
    };
    let scales_fit = matches!(scales.shape.as_slice(), [e2, n2, Dim::Fixed(blocks @ 1..)]
        if e2 == e && n2 == n && k.is_multiple_of(*blocks));
    let elements_fit = codes.element == ElementType::U32 && expert.element == ElementType::I32;
    if !scales_fit || !elements_fit || *k != 4 * words || expert.shape != [slots.clone()] {
        return Err(fail());
    }
    Ok(TensorType { element: a.element, shape: vec![slots.clone(), n.clone()] })
}

fn with_axis(ty: &TensorType, axis: usize) -> Result<&TensorType> {
    axis_of(ty, axis).map(|_| ty)
}

/// `x` and weights of its element type, one for each element of the last axis.
fn norm(inputs: &[&TensorType]) -> Result<TensorType> {
    let x = inputs[0];
    let last = x.shape.last();
    match inputs[1..].iter().find(|w| w.element != x.element || w.rank() != 1 || w.shape.first() != last) {
        Some(weight) => Err(misfit("a norm").found(format!("{x} and {weight}")).expected("[.., c] and [c]")),
        None => Ok(x.clone()),
    }
}

fn slice_update(inputs: &[&TensorType]) -> Result<TensorType> {
    let (x, update) = (inputs[0], inputs[3]);
    let bounds = TensorType::new(ElementType::I32, &[x.rank()]);
    if *inputs[1] != bounds || *inputs[2] != bounds {
        return Err(misfit("bounds").found(format!("{} and {}", inputs[1], inputs[2])).expected(bounds));
    }
    if update.element != x.element || update.rank() != x.rank() {
        return Err(misfit("an update").found(update).expected(format!("a box of {x}")));
    }
    Ok(x.clone())
}

fn gather_along_axis(x: &TensorType, indices: &TensorType, axis: usize) -> Result<TensorType> {
    let others_equal = x.rank() == indices.rank()
        && axis < x.rank()
        && (0..x.rank()).all(|i| i == axis || x.shape[i] == indices.shape[i]);
    if !others_equal || indices.element.is_float() {
        return Err(misfit("a gather").found(format!("{indices} of {x}")).expected("equal extents beside the axis"));
    }
    Ok(TensorType { element: x.element, shape: indices.shape.clone() })
}

fn block_scale(codes: &TensorType, scales: &TensorType) -> Result<TensorType> {
    let fail = || misfit("a block scale").found(format!("{codes} and {scales}")).expected("[.., k] and [.., k/block]");
    let ([rest @ .., k], [rest_of_scales @ .., blocks]) = (codes.shape.as_slice(), scales.shape.as_slice()) else {
        return Err(fail());
    };
    match (k.fixed(), blocks.fixed()) {
        (Some(k), Some(blocks @ 1..)) if k.is_multiple_of(blocks) && rest == rest_of_scales => {
            Ok(TensorType { element: scales.element, shape: codes.shape.clone() })
        }
        _ => Err(fail()),
    }
}

/// The columns `[1, heads, length, d]` of a layer of a cache `[l, 1, heads, length, d]`.
fn cache_layer(cache: &TensorType, layer: usize) -> Result<&[Dim]> {
    match cache.shape.as_slice() {
        [Dim::Fixed(layers), columns @ ..] if columns.len() == 4 && columns[0] == Dim::Fixed(1) && layer < *layers => {
            Ok(columns)
        }
        _ => Err(misfit("a cache").found(format!("layer {layer} of {cache}")).expected("[l, 1, heads, length, d]")),
    }
}

fn kv_append(inputs: &[&TensorType], layer: usize) -> Result<TensorType> {
    let (cache, columns, start) = (inputs[0], inputs[1], inputs[2]);
    let slots = cache_layer(cache, layer)?;
    let alike = columns.rank() == 4 && [0, 1, 3].iter().all(|&axis| columns.shape[axis] == slots[axis]);
    if !alike || columns.element != cache.element || *start != TensorType::new(ElementType::I32, &[1]) {
        let found = format!("{columns} at {start} into {cache}");
        return Err(misfit("columns").found(found).expected("[1, heads, q, d] at si32[1]"));
    }
    Ok(cache.clone())
}

/// `q [1, heads, n, d]`, `k` and `v [1, groups, keys, d]`.
fn attention(inputs: &[&TensorType]) -> Result<TensorType> {
    let [q, k, v] = inputs else {
        return Err(misfit("attention"));
    };
    let fits = matches!((q.shape.as_slice(), k.shape.as_slice()),
        ([Dim::Fixed(1), Dim::Fixed(heads), _, d], [Dim::Fixed(1), Dim::Fixed(groups @ 1..), _, d2])
            if d == d2 && heads.is_multiple_of(*groups));
    if !fits || k != v || q.element != k.element || !q.element.is_float() {
        let found = format!("{q}, {k} and {v}");
        return Err(misfit("attention").found(found).expected("[1, heads, n, d] and twice [1, groups, keys, d]"));
    }
    Ok((*q).clone())
}

/// `q [1, heads, n, d]`, twice `[l, 1, groups, length, d]`, `si32 [1]`.
fn cached_attention(inputs: &[&TensorType], layer: usize) -> Result<TensorType> {
    let columns = |cache: &TensorType| -> Result<TensorType> {
        Ok(TensorType { element: cache.element, shape: cache_layer(cache, layer)?.to_vec() })
    };
    if *inputs[3] != TensorType::new(ElementType::I32, &[1]) {
        return Err(misfit("a position").found(inputs[3]).expected("si32[1]"));
    }
    attention(&[inputs[0], &columns(inputs[1])?, &columns(inputs[2])?])
}

fn broadcast_dims(a: &[Dim], b: &[Dim]) -> Option<Vec<Dim>> {
    let rank = a.len().max(b.len());
    let one = Dim::Fixed(1);
    (0..rank)
        .map(|i| {
            let x = (i + a.len()).checked_sub(rank).map_or(&one, |i| &a[i]);
            let y = (i + b.len()).checked_sub(rank).map_or(&one, |i| &b[i]);
            match (x, y) {
                (x, y) if x == y => Some(x.clone()),
                (x, Dim::Fixed(1)) => Some(x.clone()),
                (Dim::Fixed(1), y) => Some(y.clone()),
                _ => None,
            }
        })
        .collect()
}

fn broadcast(a: &TensorType, b: &TensorType) -> Result<TensorType> {
    match broadcast_dims(&a.shape, &b.shape) {
        Some(shape) if a.element == b.element => Ok(TensorType { element: a.element, shape }),
        _ => Err(misfit("a broadcast").found(format!("{a} and {b}")).expected("equal elements, shapes that broadcast")),
    }
}

fn select(inputs: &[&TensorType]) -> Result<TensorType> {
    let ty = broadcast(inputs[1], inputs[2])?;
    match broadcast_dims(&inputs[0].shape, &ty.shape) {
        Some(shape) if inputs[0].element == ElementType::Bool => Ok(TensorType { element: ty.element, shape }),
        _ => Err(misfit("a selection").found(inputs[0]).expected("i1 of a shape that broadcasts")),
    }
}

fn keep_one(ty: &TensorType, axes: &[usize]) -> Result<TensorType> {
    let mut reduced = ty.clone();
    for &axis in axes {
        let extent = reduced.shape.get_mut(axis).ok_or_else(|| misfit("a reduction").found(ty))?;
        *extent = Dim::Fixed(1);
    }
    Ok(reduced)
}

fn matmul(a: &TensorType, b: &TensorType) -> Result<TensorType> {
    let fail = || misfit("a matrix product").found(format!("{a} and {b}")).expected("[.., m, k] and [.., k, n]");
    let ([batch_a @ .., m, k], [batch_b @ .., k2, n]) = (a.shape.as_slice(), b.shape.as_slice()) else {
        return Err(fail());
    };
    if k != k2 || a.element != b.element {
        return Err(fail());
    }
    let mut shape = broadcast_dims(batch_a, batch_b).ok_or_else(fail)?;
    shape.extend([m.clone(), n.clone()]);
    Ok(TensorType { element: a.element, shape })
}

fn linear(inputs: &[&TensorType]) -> Result<TensorType> {
    let (x, weight) = (inputs[0], inputs[1]);
    let fail = || misfit("a linear layer").found(format!("{x} and {weight}")).expected("[.., in] and [out, in]");
    let ([rest @ .., k], [out, k2]) = (x.shape.as_slice(), weight.shape.as_slice()) else {
        return Err(fail());
    };
    let bias_fits = inputs.get(2).is_none_or(|bias| bias.shape == [out.clone()] && bias.element == x.element);
    if k != k2 || x.element != weight.element || !bias_fits {
        return Err(fail());
    }
    let shape = rest.iter().chain([out]).cloned().collect();
    Ok(TensorType { element: x.element, shape })
}

fn conv2d(x: &TensorType, w: &TensorType, stride: [usize; 2], groups: usize) -> Result<TensorType> {
    let fail = || misfit("a convolution").found(format!("{x} and {w}")).expected("[n,c,h,w] and [o,c,kh,kw]");
    let (Some([n, c, height, width]), Some([o, c2, kh, kw])) = (fixed_axes::<4>(x), fixed_axes::<4>(w)) else {
        return Err(fail());
    };
    if c != c2 * groups || kh > height || kw > width || stride.contains(&0) || x.element != w.element {
        return Err(fail());
    }
    Ok(x.with_shape(&[n, o, (height - kh) / stride[0] + 1, (width - kw) / stride[1] + 1]))
}

fn conv3d(x: &TensorType, w: &TensorType, stride: [usize; 3]) -> Result<TensorType> {
    let fail = || misfit("a convolution").found(format!("{x} and {w}")).expected("[n,c,d,h,w] and [o,c,kd,kh,kw]");
    let (Some([n, c, image @ ..]), Some([o, c2, kernel @ ..])) = (fixed_axes::<5>(x), fixed_axes::<5>(w)) else {
        return Err(fail());
    };
    let fits = image.iter().zip(&kernel).all(|(extent, taps)| (1..=*extent).contains(taps));
    if c != c2 || !fits || stride.contains(&0) || x.element != w.element {
        return Err(fail());
    }
    let out = [0, 1, 2].map(|axis| (image[axis] - kernel[axis]) / stride[axis] + 1);
    Ok(x.with_shape(&[n, o, out[0], out[1], out[2]]))
}

fn fixed_axes<const N: usize>(ty: &TensorType) -> Option<[usize; N]> {
    ty.fixed_shape()?.try_into().ok()
}

fn transpose(ty: &TensorType, perm: &[usize]) -> Result<TensorType> {
    let mut sorted = perm.to_vec();
    sorted.sort_unstable();
    if sorted != (0..ty.rank()).collect::<Vec<_>>() {
        return Err(misfit("a permutation").found(format!("{perm:?} of {ty}")));
    }
    Ok(TensorType { element: ty.element, shape: perm.iter().map(|&axis| ty.shape[axis].clone()).collect() })
}

fn reshape(ty: &TensorType, shape: &[usize]) -> Result<TensorType> {
    let elements: Option<usize> = ty.fixed_shape().map(|shape| shape.iter().product());
    if elements != Some(shape.iter().product()) {
        return Err(misfit("a reshape").found(ty).expected(format!("the elements of {shape:?}")));
    }
    Ok(ty.with_shape(shape))
}

fn concat(inputs: &[&TensorType], axis: usize) -> Result<TensorType> {
    let mut joined = (*inputs[0]).clone();
    for ty in &inputs[1..] {
        let fail = || misfit("a concatenation").found(ty).expected(inputs[0]);
        let others_equal =
            ty.rank() == joined.rank() && (0..ty.rank()).all(|i| i == axis || ty.shape[i] == joined.shape[i]);
        let (Some(before), Some(next)) = (joined.shape.get(axis), ty.shape.get(axis)) else {
            return Err(fail());
        };
        let extent = before.joined(next).filter(|_| others_equal && ty.element == joined.element);
        joined.shape[axis] = extent.ok_or_else(fail)?;
    }
    with_axis(&joined, axis)?;
    Ok(joined)
}

fn slice(ty: &TensorType, begin: &[usize], end: &[usize]) -> Result<TensorType> {
    let fail = || misfit("a slice").found(format!("{begin:?}..{end:?} of {ty}"));
    if begin.len() != ty.rank() || end.len() != ty.rank() {
        return Err(fail());
    }
    let extent = |(dim, (&begin, &end)): (&Dim, (&usize, &usize))| match dim {
        Dim::Fixed(n) if begin <= end && end <= *n => Ok(Dim::Fixed(end - begin)),
        Dim::Symbol(_) if begin == 0 && end == Op::TO_END => Ok(dim.clone()),
        _ => Err(fail()),
    };
    let shape = ty.shape.iter().zip(begin.iter().zip(end)).map(extent).collect::<Result<_>>()?;
    Ok(TensorType { element: ty.element, shape })
}

fn pad(ty: &TensorType, before: &[usize], after: &[usize]) -> Result<TensorType> {
    let fail = || misfit("a padding").found(format!("{before:?} and {after:?} around {ty}"));
    if before.len() != ty.rank() || after.len() != ty.rank() {
        return Err(fail());
    }
    let extent = |(dim, (&before, &after)): (&Dim, (&usize, &usize))| match dim {
        Dim::Fixed(n) => Ok(Dim::Fixed(before + n + after)),
        Dim::Symbol(_) if before == 0 && after == 0 => Ok(dim.clone()),
        Dim::Symbol(_) => Err(fail()),
    };
    let shape = ty.shape.iter().zip(before.iter().zip(after)).map(extent).collect::<Result<_>>()?;
    Ok(TensorType { element: ty.element, shape })
}

fn gather(ty: &TensorType, indices: &TensorType) -> Result<TensorType> {
    let fail = || misfit("a gather").found(format!("{indices} of {ty}")).expected("indices [.., k]");
    let [places @ .., depth] = indices.shape.as_slice() else {
        return Err(fail());
    };
    let depth = depth.fixed().filter(|depth| *depth <= ty.rank() && !indices.element.is_float()).ok_or_else(fail)?;
    let shape = places.iter().chain(&ty.shape[depth..]).cloned().collect();
    Ok(TensorType { element: ty.element, shape })
}
