//! The table of operations that differ in nothing but their name.

use crate::graph::{Binary, Op, Reduction, Unary};
use crate::mlirb::{Approximation, Attribute};

/// Dialect names of elementwise functions of one value, besides the GELU family.
const UNARY: &[(&str, Unary)] = &[
    ("primitive.exp_v1", Unary::Exp),
    ("primitive.sin_v1", Unary::Sin),
    ("primitive.cos_v1", Unary::Cos),
    ("primitive.tanh_v1", Unary::Tanh),
    ("primitive.sqrt_v1", Unary::Sqrt),
    ("primitive.rsqrt_v1", Unary::Rsqrt),
    ("sigmoid_v1", Unary::Sigmoid),
    ("silu_v1", Unary::Silu),
    ("primitive.not_v1", Unary::Not),
];

/// GELU is one operation with an attribute.
const GELU: &[(Approximation, Unary)] = &[
    (Approximation::None, Unary::GeluErf),
    (Approximation::Tanh, Unary::GeluTanh),
    (Approximation::Sigmoid, Unary::QuickGelu),
];

const GELU_NAME: &str = "primitive.gelu_v1";

/// Dialect names of elementwise functions of two values; the first of each function is the one written.
const BINARY: &[(&str, Binary)] = &[
    ("broadcasting_add_v1", Binary::Add),
    ("broadcasting_sub_v1", Binary::Sub),
    ("broadcasting_mul_v1", Binary::Mul),
    ("broadcasting_divide_v1", Binary::Div),
    ("broadcasting_maximum_v1", Binary::Max),
    ("broadcasting_minimum_v1", Binary::Min),
    ("broadcasting_greater_v1", Binary::Greater),
    ("broadcasting_equal_v1", Binary::Equal),
    ("broadcasting_logical_and_v1", Binary::And),
    ("broadcasting_logical_or_v1", Binary::Or),
    ("broadcasting_floor_divide_v1", Binary::Div),
    ("broadcasting_bitwise_and_v1", Binary::And),
    ("broadcasting_bitwise_or_v1", Binary::Or),
    ("primitive.add_v1", Binary::Add),
    ("primitive.sub_v1", Binary::Sub),
    ("primitive.mul_v1", Binary::Mul),
    ("primitive.divide_v1", Binary::Div),
    ("primitive.maximum_v1", Binary::Max),
    ("primitive.minimum_v1", Binary::Min),
    ("primitive.greater_v1", Binary::Greater),
    ("primitive.equal_v1", Binary::Equal),
    ("primitive.logical_and_v1", Binary::And),
    ("primitive.logical_or_v1", Binary::Or),
];

const REDUCTIONS: &[(&str, Reduction)] = &[
    ("reduce_sum_v1", Reduction::Sum),
    ("reduce_mean_v1", Reduction::Mean),
    ("reduce_max_v1", Reduction::Max),
    ("reduce_min_v1", Reduction::Min),
];

/// The dialect's name of a function of one value, and its attribute if it has one.
pub(super) fn unary_name(f: Unary) -> Option<(&'static str, Option<Attribute>)> {
    let gelu = GELU.iter().find(|(_, g)| *g == f).map(|(form, _)| (GELU_NAME, Some(Attribute::Approximation(*form))));
    gelu.or_else(|| UNARY.iter().find(|(_, g)| *g == f).map(|(name, _)| (*name, None)))
}

/// The dialect's name of a function of two values; integer quotients are rounded down.
pub(super) fn binary_name(f: Binary, of_integers: bool) -> Option<&'static str> {
    if f == Binary::Div && of_integers {
        return Some("broadcasting_floor_divide_v1");
    }
    BINARY.iter().find(|(_, g)| *g == f).map(|(name, _)| *name)
}

/// The dialect's name of a reduction.
pub(super) fn reduction_name(kind: Reduction) -> Option<&'static str> {
    REDUCTIONS.iter().find(|(_, k)| *k == kind).map(|(name, _)| *name)
}

/// The reduction of this name.
pub(super) fn reduction(name: &str) -> Option<Reduction> {
    REDUCTIONS.iter().find(|(n, _)| *n == name).map(|(_, kind)| *kind)
}

/// The elementwise operation of this name and attribute.
pub(super) fn elementwise(name: &str, attribute: Option<&Attribute>) -> Option<Op> {
    if let (GELU_NAME, Some(Attribute::Approximation(form))) = (name, attribute) {
        return GELU.iter().find(|(f, _)| f == form).map(|(_, f)| Op::Unary(*f));
    }
    let unary = UNARY.iter().find(|(n, _)| *n == name).map(|(_, f)| Op::Unary(*f));
    unary.or_else(|| BINARY.iter().find(|(n, _)| *n == name).map(|(_, f)| Op::Binary(*f)))
}
