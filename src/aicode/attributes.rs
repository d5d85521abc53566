//! Graph types and composite declarations as the dialect has them, both ways.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::graph::{Composite, CompositeAttribute, Dim, Function, Symbol, TensorType};
use crate::mlirb::{self, Attribute, Float, build};
use crate::{Error, Result};

/// A tensor type of the dialect; a symbol is a dynamic extent there.
pub(super) fn lower_type(ty: &TensorType) -> mlirb::TensorType {
    let shape = ty.shape.iter().map(|dim| match dim {
        Dim::Fixed(n) => mlirb::Dim::Fixed(*n as u64),
        Dim::Symbol(_) => mlirb::Dim::Dynamic,
    });
    mlirb::TensorType::new(shape, ty.element)
}

/// A tensor type of the graph; of a dynamic extent nothing is known.
pub(super) fn raise_type(ty: &mlirb::TensorType) -> Result<TensorType> {
    let unsupported = || Error::input("a type that the graph does not have").found(ty.to_string());
    let element = ty.element.element_type().ok_or_else(unsupported)?;
    let extent = |dim: &mlirb::Dim| match dim {
        mlirb::Dim::Fixed(n) => usize::try_from(*n).ok().map(Dim::Fixed),
        mlirb::Dim::Dynamic => Some(Dim::Symbol(Symbol::unknown())),
    };
    let shape = ty.shape.iter().map(extent).collect::<Option<Vec<Dim>>>().ok_or_else(unsupported)?;
    Ok(TensorType { element, shape })
}

/// The declaration of a composite function.
pub(super) fn lower_composite(function: &Function, composite: &Composite) -> build::Composite {
    let attributes = composite.attributes.iter().map(|(name, value)| (Arc::from(name.as_str()), lower_value(value)));
    build::Composite {
        name: composite.operation.as_str().into(),
        inputs: function.parameters.iter().map(|p| p.name.as_str().into()).collect(),
        outputs: function.results.iter().map(|r| r.name.as_str().into()).collect(),
        attributes: attributes.collect::<BTreeMap<_, _>>(),
    }
}

fn lower_value(value: &CompositeAttribute) -> Attribute {
    match value {
        CompositeAttribute::Integer(v) => Attribute::s64(*v),
        CompositeAttribute::Integers(list) => Attribute::array(list.iter().map(|v| Attribute::s64(*v))),
        CompositeAttribute::Float(v) => Attribute::Float(Float::from(*v)),
        CompositeAttribute::Bool(v) => Attribute::Integer(mlirb::Integer::s1(*v)),
        CompositeAttribute::Text(text) => Attribute::string(text.as_str()),
    }
}
