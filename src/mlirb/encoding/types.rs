//! Fields of each kind of type.

use super::entry::{Decoder, Encoder};
use crate::mlirb::types::{Dim, FunctionType, ScalarType, TensorType, Type};
use crate::{Error, Result};

const TENSOR: u64 = 2;
const TENSOR_WITH_ENCODING: u64 = 3;
const FUNCTION: u64 = 30;
const HANDLE: u64 = 31;
const TOKEN: u64 = 32;
const PARAM_SYMBOL: u64 = 33;
const PARAM_TYPE: u64 = 34;
const UNRESOLVED: u64 = 41;

/// How a dynamic extent is stored.
const DYNAMIC: i64 = i64::MIN;

pub(super) fn encode(ty: &Type, to: &mut Encoder<'_>) -> Result<()> {
    match ty {
        Type::Scalar(scalar) => to.unsigned(scalar.code()),
        Type::Tensor(tensor) => encode_tensor(tensor, to)?,
        Type::Function(function) => {
            to.unsigned(FUNCTION);
            to.list(&function.results, |to, ty| to.ty(ty))?;
            to.list(&function.operands, |to, ty| to.ty(ty))?;
        }
        Type::Handle(contents) => {
            to.unsigned(HANDLE);
            to.ty(contents)?;
        }
        Type::Unresolved(inner) => {
            to.unsigned(UNRESOLVED);
            to.ty(inner)?;
        }
        Type::Token => to.unsigned(TOKEN),
        Type::ParamSymbol => to.unsigned(PARAM_SYMBOL),
        Type::ParamType => to.unsigned(PARAM_TYPE),
        Type::Text(_) | Type::Raw(_) => return Err(Error::input("a type without fields was asked for them")),
    }
    Ok(())
}

/// `None` for a kind that is not modelled.
pub(super) fn decode(from: &mut Decoder<'_, '_>) -> Result<Option<Type>> {
    let kind = from.unsigned()?;
    Ok(Some(match kind {
        TENSOR | TENSOR_WITH_ENCODING => return decode_tensor(kind, from),
        FUNCTION => {
            let results = from.list(Decoder::ty)?;
            let operands = from.list(Decoder::ty)?;
            Type::Function(FunctionType { operands, results }.into())
        }
        HANDLE => Type::handle(from.ty()?),
        UNRESOLVED => Type::Unresolved(from.ty()?.into()),
        TOKEN => Type::Token,
        PARAM_SYMBOL => Type::ParamSymbol,
        PARAM_TYPE => Type::ParamType,
        code => return Ok(ScalarType::from_code(code).map(Type::Scalar)),
    }))
}

fn encode_tensor(tensor: &TensorType, to: &mut Encoder<'_>) -> Result<()> {
    to.unsigned(if tensor.encoding.is_some() { TENSOR_WITH_ENCODING } else { TENSOR });
    to.list(&tensor.shape, |to, dim| {
        to.signed(match dim {
            Dim::Dynamic => DYNAMIC,
            Dim::Fixed(extent) => i64::try_from(*extent)
                .map_err(|_| Error::input("a tensor's extent does not fit in 63 bits").found(extent))?,
        });
        Ok(())
    })?;
    to.ty(&Type::Scalar(tensor.element))?;
    tensor.encoding.as_ref().map_or(Ok(()), |encoding| to.attribute(encoding))
}

fn decode_tensor(kind: u64, from: &mut Decoder<'_, '_>) -> Result<Option<Type>> {
    let shape = from.list(decode_dim)?;
    let Type::Scalar(element) = from.ty()? else { return Ok(None) };
    let encoding = if kind == TENSOR_WITH_ENCODING { Some(from.attribute()?) } else { None };
    Ok(Some(TensorType { shape, element, encoding }.into()))
}

fn decode_dim(from: &mut Decoder<'_, '_>) -> Result<Dim> {
    let at = from.cursor.clone();
    match from.signed()? {
        DYNAMIC => Ok(Dim::Dynamic),
        extent => {
            let extent = u64::try_from(extent).map_err(|_| at.error("a negative extent").found(extent))?;
            Ok(Dim::Fixed(extent))
        }
    }
}
