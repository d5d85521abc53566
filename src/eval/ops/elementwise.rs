//! Elementwise functions, broadcasting, casts.

use ndarray::Zip;

use super::{each_slice, misfit};
use crate::eval::operands::typed;
use crate::eval::tensor::{Element, narrow, with_element};
use crate::eval::{Array, Tensor};
use crate::graph::{Binary, Unary};
use crate::{ElementType, Error, Result};

pub(super) fn unary(f: Unary, x: Tensor) -> Result<Tensor> {
    match (f, x) {
        (Unary::Not, Tensor::Bool(mut x)) => {
            x.mapv_inplace(|value| !value);
            Ok(Tensor::Bool(x))
        }
        (f, Tensor::F32(mut x)) if f != Unary::Not => {
            let f = float_function(f);
            each_slice(&mut x, |slice| slice.iter_mut().for_each(|value| *value = f(*value)));
            Ok(Tensor::F32(x))
        }
        (_, x) => Err(x.wrong_kind("elements the function is defined on")),
    }
}

fn float_function(f: Unary) -> fn(f32) -> f32 {
    match f {
        Unary::Exp => libm::expf,
        Unary::Sin => libm::sinf,
        Unary::Cos => libm::cosf,
        Unary::Tanh => libm::tanhf,
        Unary::Sqrt => f32::sqrt,
        Unary::Rsqrt => |x| 1.0 / x.sqrt(),
        Unary::Sigmoid => sigmoid,
        Unary::Silu => silu,
        Unary::GeluErf => |x| 0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2)),
        Unary::GeluTanh => gelu_tanh,
        Unary::QuickGelu => |x| x * sigmoid(1.702 * x),
        Unary::Not => |x| if x == 0.0 { 1.0 } else { 0.0 },
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + libm::expf(-x))
}

/// `x * sigmoid(x)`.
pub(super) fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

fn gelu_tanh(x: f32) -> f32 {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    0.5 * x * (1.0 + libm::tanhf(SQRT_2_OVER_PI * (x + 0.044_715 * x * x * x)))
}

pub(super) fn binary(f: Binary, a: Tensor, b: Tensor) -> Result<Tensor> {
    match (a, b) {
        (Tensor::F32(a), Tensor::F32(b)) => floats(f, a, b),
        (Tensor::I32(a), Tensor::I32(b)) => integers(f, a, b),
        (Tensor::Bool(a), Tensor::Bool(b)) => truths(f, &a, &b),
        (a, _) => Err(a.wrong_kind("two operands of one kind that the function is defined on")),
    }
}

fn floats(f: Binary, a: Array<f32>, b: Array<f32>) -> Result<Tensor> {
    let computed = match f {
        Binary::Add => combine(a, b, |x, y| x + y)?,
        Binary::Sub => combine(a, b, |x, y| x - y)?,
        Binary::Mul => combine(a, b, |x, y| x * y)?,
        Binary::Div => combine(a, b, |x, y| x / y)?,
        Binary::Max => combine(a, b, f32::max)?,
        Binary::Min => combine(a, b, f32::min)?,
        Binary::Greater => return compare(&a, &b, |x, y| x > y),
        Binary::Equal => return compare(&a, &b, |x, y| x == y),
        Binary::And | Binary::Or => return Err(Tensor::F32(a).wrong_kind("i1")),
    };
    Ok(Tensor::F32(computed))
}

fn integers(f: Binary, a: Array<i32>, b: Array<i32>) -> Result<Tensor> {
    let computed = match f {
        Binary::Add => combine(a, b, i32::wrapping_add)?,
        Binary::Sub => combine(a, b, i32::wrapping_sub)?,
        Binary::Mul => combine(a, b, i32::wrapping_mul)?,
        Binary::Div if b.iter().any(|&divisor| divisor == 0) => {
            return Err(Error::input("an integer division by zero"));
        }
        Binary::Div => combine(a, b, floor_div)?,
        Binary::Max => combine(a, b, i32::max)?,
        Binary::Min => combine(a, b, i32::min)?,
        Binary::Greater => return compare(&a, &b, |x, y| x > y),
        Binary::Equal => return compare(&a, &b, |x, y| x == y),
        Binary::And | Binary::Or => return Err(Tensor::I32(a).wrong_kind("i1")),
    };
    Ok(Tensor::I32(computed))
}

fn floor_div(a: i32, b: i32) -> i32 {
    let quotient = a.wrapping_div(b);
    let inexact = a.wrapping_rem(b) != 0;
    if inexact && (a < 0) != (b < 0) { quotient - 1 } else { quotient }
}

fn truths(f: Binary, a: &Array<bool>, b: &Array<bool>) -> Result<Tensor> {
    match f {
        Binary::And => compare(a, b, |x, y| x && y),
        Binary::Or => compare(a, b, |x, y| x || y),
        Binary::Equal => compare(a, b, |x, y| x == y),
        _ => Err(misfit("and, or, equal of i1")),
    }
}

/// `f(a, b)` in place of an operand that has the shape of the result.
fn combine<T: Element>(mut a: Array<T>, mut b: Array<T>, f: impl Fn(T, T) -> T) -> Result<Array<T>> {
    let shape = broadcast_shape(a.shape(), b.shape())?;
    if a.shape() != shape && b.shape() == shape {
        b.zip_mut_with(&a, |y, x| *y = f(*x, *y));
        return Ok(b);
    }
    if a.shape() != shape {
        a = broadcast(&a, &shape)?;
    }
    a.zip_mut_with(&b, |x, y| *x = f(*x, *y));
    Ok(a)
}

fn compare<T: Element>(a: &Array<T>, b: &Array<T>, f: impl Fn(T, T) -> bool) -> Result<Tensor> {
    let shape = broadcast_shape(a.shape(), b.shape())?;
    let (Some(a), Some(b)) = (a.broadcast(shape.as_slice()), b.broadcast(shape.as_slice())) else {
        return Err(misfit("shapes that broadcast"));
    };
    Ok(Tensor::Bool(Zip::from(a).and(b).map_collect(|x, y| f(*x, *y)).into_shared()))
}

pub(super) fn select(condition: Array<bool>, a: Tensor, b: Tensor) -> Result<Tensor> {
    with_element!(&a, T => choose::<T>(&condition, &typed(a)?, &typed(b)?))
}

fn choose<T: Element>(condition: &Array<bool>, a: &Array<T>, b: &Array<T>) -> Result<Tensor> {
    let shape = broadcast_shape(condition.shape(), &broadcast_shape(a.shape(), b.shape())?)?;
    let views = (condition.broadcast(&*shape), a.broadcast(&*shape), b.broadcast(&*shape));
    let (Some(condition), Some(a), Some(b)) = views else {
        return Err(misfit("shapes that broadcast"));
    };
    let chosen = Zip::from(condition).and(a).and(b).map_collect(|&c, &x, &y| if c { x } else { y });
    Ok(T::wrap(chosen.into_shared()))
}

/// The elements of `x` repeated to a shape.
pub(super) fn broadcast<T: Element>(x: &Array<T>, shape: &[usize]) -> Result<Array<T>> {
    let view = x.broadcast(shape).ok_or_else(|| misfit("a shape that broadcasts to the result"))?;
    Ok(view.to_owned().into_shared())
}

/// The shape that two shapes broadcast to.
pub(super) fn broadcast_shape(a: &[usize], b: &[usize]) -> Result<Vec<usize>> {
    let rank = a.len().max(b.len());
    let extent = |shape: &[usize], axis: usize| (axis + shape.len()).checked_sub(rank).map_or(1, |i| shape[i]);
    (0..rank)
        .map(|axis| match (extent(a, axis), extent(b, axis)) {
            (x, y) if x == y || y == 1 => Ok(x),
            (1, y) => Ok(y),
            _ => Err(misfit("shapes that broadcast").found(format!("{a:?} and {b:?}"))),
        })
        .collect()
}

/// Floating-point numbers become integers by dropping the fraction, clamped to the type; integers drop bits that do
/// not fit; `i1` is 0 or 1, and everything but zero is true.
pub(super) fn cast(x: Tensor, to: ElementType) -> Result<Tensor> {
    if x.holds(to) && to.is_float() {
        return Ok(x);
    }
    Ok(match x {
        Tensor::F32(x) if to == ElementType::Bool => Tensor::Bool(map(&x, |v| v != 0.0)),
        Tensor::F32(x) => integer_tensor(map(&x, |v| truncate(v, to)), to),
        Tensor::I32(x) => cast_integers(&x, to),
        Tensor::I8(x) => cast_integers(&map(&x, i32::from), to),
        Tensor::Bool(x) if to == ElementType::Bool => Tensor::Bool(x),
        Tensor::Bool(x) => cast_integers(&map(&x, i32::from), to),
    })
}

fn cast_integers(x: &Array<i32>, to: ElementType) -> Tensor {
    match to {
        ElementType::Bool => Tensor::Bool(map(x, |v| v != 0)),
        to if to.is_float() => Tensor::F32(map(x, |v| v as f32)),
        to => integer_tensor(map(x, |v| narrow(i64::from(v), to) as i32), to),
    }
}

fn integer_tensor(x: Array<i32>, to: ElementType) -> Tensor {
    if to == ElementType::I8 { Tensor::I8(map(&x, |v| v as i8)) } else { Tensor::I32(x) }
}

fn truncate(value: f32, to: ElementType) -> i32 {
    match to {
        ElementType::I8 => i32::from(value as i8),
        ElementType::U8 => i32::from(value as u8),
        ElementType::I16 => i32::from(value as i16),
        ElementType::U16 => i32::from(value as u16),
        ElementType::U32 => (value as u32) as i32,
        _ => value as i32,
    }
}

fn map<T: Element, U: Element>(x: &Array<T>, f: impl Fn(T) -> U) -> Array<U> {
    x.mapv(f).into_shared()
}
