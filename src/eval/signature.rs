//! Arguments against the types of parameters; run-time extents.

use std::collections::BTreeMap;

use super::Tensor;
use crate::graph::{Dim, TensorType};
use crate::{Error, Result};

/// The extents of the symbols of a call.
#[derive(Debug, Default)]
pub(super) struct Bindings<'f> {
    extents: BTreeMap<&'f str, usize>,
}

impl<'f> Bindings<'f> {
    /// Checks an argument and binds the symbols of its type.
    pub(super) fn bind(&mut self, ty: &'f TensorType, tensor: &Tensor) -> Result<()> {
        let fail = || Error::input("an argument does not fit").found(describe(tensor)).expected(ty);
        if !tensor.holds(ty.element) || tensor.shape().len() != ty.rank() {
            return Err(fail());
        }
        for (dim, &extent) in ty.shape.iter().zip(tensor.shape()) {
            match dim {
                Dim::Fixed(n) if *n == extent => {}
                Dim::Fixed(_) => return Err(fail()),
                Dim::Symbol(symbol) if symbol.is_unknown() => {}
                Dim::Symbol(symbol) => {
                    let bound = *self.extents.entry(&symbol.name).or_insert(extent);
                    if bound != extent {
                        return Err(fail().hint(format!("another argument has `{}` = {bound}", symbol.name)));
                    }
                    if extent < symbol.min || extent > symbol.max {
                        return Err(fail().hint(format!("`{}` is out of bounds", symbol.name)));
                    }
                }
            }
        }
        Ok(())
    }

    /// Checks that a computed value has the type the graph says.
    pub(super) fn check(&self, ty: &TensorType, tensor: &Tensor) -> Result<()> {
        let fits = |(dim, extent): (&Dim, &usize)| match dim {
            Dim::Fixed(n) => n == extent,
            Dim::Symbol(symbol) => {
                let bound = self.extents.get(&*symbol.name);
                bound.is_none_or(|bound| bound.checked_mul(symbol.times) == Some(*extent))
            }
        };
        let same_rank = tensor.shape().len() == ty.rank();
        if tensor.holds(ty.element) && same_rank && ty.shape.iter().zip(tensor.shape()).all(fits) {
            return Ok(());
        }
        Err(Error::input("a value has another type than the graph says").found(describe(tensor)).expected(ty))
    }
}

fn describe(tensor: &Tensor) -> String {
    let elements = match tensor {
        Tensor::F32(_) => "floating-point numbers",
        Tensor::I32(_) => "integers",
        Tensor::I8(_) => "si8",
        Tensor::Bool(_) => "i1",
    };
    format!("{elements} {:?}", tensor.shape())
}
