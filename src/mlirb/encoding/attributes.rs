//! Fields of each kind of attribute.

use std::sync::Arc;

use super::entry::{Decoder, Encoder};
use super::varint::put_bits;
use crate::mlirb::attributes::{
    Approximation, Attribute, Backing, CompileUnit, DenseElements, Float, HwConstraints, Integer, Interpolation,
    Location, Metadata, Opaque, PaddingMode, ParamConstant, ParamDeclaration, ScanCombiner, ScatterMode, SourceFile,
    SourceRange, Subprogram,
};
use crate::mlirb::ir::ResourceId;
use crate::{Error, Result};

const STRING: u64 = 1;
const INTEGER: u64 = 2;
const FLOAT: u64 = 3;
const TYPE: u64 = 4;
const ARRAY: u64 = 5;
const DENSE_ELEMENTS: u64 = 6;
const DENSE_RESOURCE: u64 = 7;
const OPAQUE: u64 = 9;
const PARAM_DECLARATION: u64 = 10;
const PARAM_DECLARATION_WITH_VALUE: u64 = 11;
const HW_CONSTRAINTS: u64 = 12;
const HW_CONSTRAINTS_WITH_BASE: u64 = 13;
const SYMBOL_REF: u64 = 14;
const PARAM_CONSTANT: u64 = 16;
const PADDING_MODE: u64 = 17;
const LIFECYCLE_PHASE: u64 = 18;
const APPROXIMATION: u64 = 19;
const SCATTER_MODE: u64 = 20;
const SCAN_COMBINER: u64 = 25;
const FILE: u64 = 30;
const SOURCE_LOCATION: u64 = 31;
const COMPILE_UNIT: u64 = 32;
const METADATA_DATA: u64 = 33;
const METADATA: u64 = 35;
const SUBPROGRAM: u64 = 36;
const LOCATION: u64 = 40;
const LOCATION_INLINED: u64 = 41;
const METADATA_LOCATION: u64 = 42;
const INTERPOLATION: u64 = 43;
const DICTIONARY: u64 = 45;
const UNIT: u64 = 46;
const OPAQUE_LOCATION: u64 = 47;

pub(super) fn encode(attribute: &Attribute, to: &mut Encoder<'_>) -> Result<()> {
    match attribute {
        Attribute::String(text) => {
            to.unsigned(STRING);
            to.string(text);
        }
        Attribute::Integer(integer) => encode_integer(*integer, to),
        Attribute::Float(float) => encode_float(*float, to),
        Attribute::Type(ty) => {
            to.unsigned(TYPE);
            to.ty(ty)?;
        }
        Attribute::Array(items) => encode_list(ARRAY, items, to)?,
        Attribute::DenseElements(DenseElements { splat, bytes }) => {
            to.unsigned(DENSE_ELEMENTS);
            to.bool(*splat);
            to.unsigned(bytes.len() as u64);
            to.bytes().extend(&**bytes);
        }
        Attribute::DenseResource(resource) => encode_code(DENSE_RESOURCE, resource.index() as u64, to),
        Attribute::Opaque(opaque) => encode_opaque(opaque, to)?,
        Attribute::ParamDeclaration(declaration) => encode_declaration(declaration, to)?,
        Attribute::ParamConstant(constant) => {
            to.unsigned(PARAM_CONSTANT);
            to.attribute(&constant.value)?;
            to.ty(&constant.ty)?;
        }
        Attribute::HwConstraints(constraints) => encode_constraints(constraints, to)?,
        Attribute::SymbolRef(names) => {
            to.unsigned(SYMBOL_REF);
            to.list(names, |to, name| {
                to.string(name);
                Ok(())
            })?;
        }
        Attribute::PaddingMode(mode) => encode_code(PADDING_MODE, mode.code(), to),
        Attribute::LifecyclePhase(phase) => encode_code(LIFECYCLE_PHASE, *phase, to),
        Attribute::Approximation(approximation) => encode_code(APPROXIMATION, approximation.code(), to),
        Attribute::ScatterMode(mode) => encode_code(SCATTER_MODE, mode.code(), to),
        Attribute::ScanCombiner(combiner) => encode_code(SCAN_COMBINER, combiner.code(), to),
        Attribute::Interpolation(mode) => encode_code(INTERPOLATION, mode.code(), to),
        Attribute::Dictionary(entries) => encode_dictionary(entries, to)?,
        Attribute::Unit => to.unsigned(UNIT),
        debug => encode_debug(debug, to)?,
    }
    Ok(())
}

/// `None` for a kind, or a form of a kind, that is not modelled.
pub(super) fn decode(from: &mut Decoder<'_, '_>) -> Result<Option<Attribute>> {
    let kind = from.unsigned()?;
    Ok(match kind {
        STRING => Some(Attribute::String(from.string()?)),
        INTEGER => decode_integer(from)?.map(Attribute::Integer),
        FLOAT => decode_float(from)?.map(Attribute::Float),
        TYPE => Some(Attribute::Type(from.ty()?)),
        ARRAY => Some(Attribute::Array(from.list(Decoder::attribute)?.into())),
        DENSE_ELEMENTS => {
            let splat = from.bool()?;
            Some(Attribute::DenseElements(DenseElements { splat, bytes: from.bytes()?.into() }))
        }
        DENSE_RESOURCE => {
            u32::try_from(from.unsigned()?).ok().map(|index| Attribute::DenseResource(ResourceId::new(index)))
        }
        OPAQUE => Some(Attribute::Opaque(Arc::new(decode_opaque(from)?))),
        PARAM_DECLARATION | PARAM_DECLARATION_WITH_VALUE => Some(decode_declaration(kind, from)?),
        PARAM_CONSTANT => {
            let value = from.attribute()?;
            Some(Attribute::ParamConstant(Arc::new(ParamConstant { value, ty: from.ty()? })))
        }
        HW_CONSTRAINTS | HW_CONSTRAINTS_WITH_BASE => decode_constraints(kind, from)?,
        SYMBOL_REF => Some(Attribute::SymbolRef(from.list(Decoder::string)?.into())),
        PADDING_MODE => PaddingMode::from_code(from.unsigned()?).map(Attribute::PaddingMode),
        LIFECYCLE_PHASE => Some(Attribute::LifecyclePhase(from.unsigned()?)),
        APPROXIMATION => Approximation::from_code(from.unsigned()?).map(Attribute::Approximation),
        SCATTER_MODE => ScatterMode::from_code(from.unsigned()?).map(Attribute::ScatterMode),
        SCAN_COMBINER => ScanCombiner::from_code(from.unsigned()?).map(Attribute::ScanCombiner),
        INTERPOLATION => Interpolation::from_code(from.unsigned()?).map(Attribute::Interpolation),
        DICTIONARY => decode_dictionary(from)?,
        UNIT => Some(Attribute::Unit),
        _ => decode_debug(kind, from)?,
    })
}

fn encode_debug(attribute: &Attribute, to: &mut Encoder<'_>) -> Result<()> {
    match attribute {
        Attribute::File(file) => {
            to.unsigned(FILE);
            [&file.filename, &file.directory, &file.sha256].into_iter().for_each(|text| to.string(text));
        }
        Attribute::SourceLocation(source) => {
            to.unsigned(SOURCE_LOCATION);
            to.attribute(&source.file)?;
            source.range.iter().for_each(|number| to.unsigned(*number));
        }
        Attribute::CompileUnit(unit) => encode_unit(unit, to)?,
        Attribute::Subprogram(subprogram) => encode_subprogram(subprogram, to)?,
        Attribute::MetadataData(data) => {
            to.unsigned(METADATA_DATA);
            to.attribute(data)?;
        }
        Attribute::Metadata(metadata) => {
            to.unsigned(METADATA);
            to.string(&metadata.name);
            to.attribute(&metadata.data)?;
        }
        Attribute::Location(location) => encode_location(location, to)?,
        Attribute::MetadataLocation(metadata) => encode_list(METADATA_LOCATION, metadata, to)?,
        Attribute::OpaqueLocation(inner) => {
            to.unsigned(OPAQUE_LOCATION);
            to.attribute(inner)?;
        }
        _ => return Err(Error::input("an attribute without fields was asked for them")),
    }
    Ok(())
}

fn decode_debug(kind: u64, from: &mut Decoder<'_, '_>) -> Result<Option<Attribute>> {
    Ok(Some(match kind {
        FILE => {
            let (filename, directory, sha256) = (from.string()?, from.string()?, from.string()?);
            Attribute::File(Arc::new(SourceFile { filename, directory, sha256 }))
        }
        SOURCE_LOCATION => {
            let file = from.attribute()?;
            let range = [from.unsigned()?, from.unsigned()?, from.unsigned()?, from.unsigned()?];
            Attribute::SourceLocation(Arc::new(SourceRange { file, range }))
        }
        COMPILE_UNIT => return decode_unit(from),
        SUBPROGRAM => return decode_subprogram(from),
        METADATA_DATA => Attribute::MetadataData(Arc::new(from.attribute()?)),
        METADATA => {
            let name = from.string()?;
            Attribute::Metadata(Arc::new(Metadata { name, data: from.attribute()? }))
        }
        LOCATION | LOCATION_INLINED => decode_location(kind, from)?,
        METADATA_LOCATION => Attribute::MetadataLocation(from.list(Decoder::attribute)?.into()),
        OPAQUE_LOCATION => Attribute::OpaqueLocation(Arc::new(from.attribute()?)),
        _ => return Ok(None),
    }))
}

fn encode_code(kind: u64, code: u64, to: &mut Encoder<'_>) {
    to.unsigned(kind);
    to.unsigned(code);
}

fn encode_list(kind: u64, items: &[Attribute], to: &mut Encoder<'_>) -> Result<()> {
    to.unsigned(kind);
    to.list(items, |to, item| to.attribute(item))
}

fn encode_integer(integer: Integer, to: &mut Encoder<'_>) {
    let width = u64::from(integer.width());
    to.unsigned(INTEGER);
    to.unsigned(width);
    to.bool(integer.is_unsigned());
    put_bits(to.bytes(), width, integer.bits());
}

fn decode_integer(from: &mut Decoder<'_, '_>) -> Result<Option<Integer>> {
    let width = from.unsigned()?;
    let unsigned = from.bool()?;
    if !(1..=64).contains(&width) {
        return Ok(None);
    }
    let at = from.cursor.clone();
    let bits = from.cursor.bits(width)?;
    let integer = Integer::new(width, unsigned, bits);
    integer.map(Some).ok_or_else(|| at.error(format!("an integer does not fit in {width} bits")).found(bits))
}

fn encode_float(float: Float, to: &mut Encoder<'_>) {
    let (width, bits) = match float {
        Float::Bits16(bits) => (16, u64::from(bits)),
        Float::Bits32(bits) => (32, u64::from(bits)),
        Float::Bits64(bits) => (64, bits),
    };
    to.unsigned(FLOAT);
    to.unsigned(width);
    put_bits(to.bytes(), width, bits);
}

fn decode_float(from: &mut Decoder<'_, '_>) -> Result<Option<Float>> {
    let width = from.unsigned()?;
    if !matches!(width, 16 | 32 | 64) {
        return Ok(None);
    }
    let at = from.cursor.clone();
    let bits = from.cursor.bits(width)?;
    let float = match width {
        16 => u16::try_from(bits).map(Float::Bits16),
        32 => u32::try_from(bits).map(Float::Bits32),
        _ => Ok(Float::Bits64(bits)),
    };
    float.map(Some).map_err(|_| at.error(format!("a number does not fit in {width} bits")).found(bits))
}

fn encode_opaque(opaque: &Opaque, to: &mut Encoder<'_>) -> Result<()> {
    to.unsigned(OPAQUE);
    to.string(&opaque.name);
    to.list(&opaque.parameters, |to, parameter| to.attribute(parameter))
}

fn decode_opaque(from: &mut Decoder<'_, '_>) -> Result<Opaque> {
    let name = from.string()?;
    Ok(Opaque { name, parameters: from.list(Decoder::attribute)? })
}

fn encode_declaration(declaration: &ParamDeclaration, to: &mut Encoder<'_>) -> Result<()> {
    to.unsigned(if declaration.value.is_some() { PARAM_DECLARATION_WITH_VALUE } else { PARAM_DECLARATION });
    to.string(&declaration.name);
    to.ty(&declaration.ty)?;
    declaration.value.as_ref().map_or(Ok(()), |value| to.attribute(value))
}

fn decode_declaration(kind: u64, from: &mut Decoder<'_, '_>) -> Result<Attribute> {
    let name = from.string()?;
    let ty = from.ty()?;
    let value = if kind == PARAM_DECLARATION_WITH_VALUE { Some(from.attribute()?) } else { None };
    Ok(Attribute::ParamDeclaration(Arc::new(ParamDeclaration { name, ty, value })))
}

fn encode_constraints(constraints: &HwConstraints, to: &mut Encoder<'_>) -> Result<()> {
    to.unsigned(if constraints.base.is_some() { HW_CONSTRAINTS_WITH_BASE } else { HW_CONSTRAINTS });
    for numbers in [&constraints.alignments, &constraints.interleave] {
        to.list(numbers, |to, number| {
            to.signed(*number);
            Ok(())
        })?;
    }
    to.unsigned(constraints.backing.code());
    constraints.base.as_ref().map_or(Ok(()), |base| to.attribute(base))
}

fn decode_constraints(kind: u64, from: &mut Decoder<'_, '_>) -> Result<Option<Attribute>> {
    let alignments = from.list(Decoder::signed)?;
    let interleave = from.list(Decoder::signed)?;
    let Some(backing) = Backing::from_code(from.unsigned()?) else { return Ok(None) };
    let base = if kind == HW_CONSTRAINTS_WITH_BASE { Some(from.attribute()?) } else { None };
    Ok(Some(Attribute::HwConstraints(Arc::new(HwConstraints { alignments, interleave, backing, base }))))
}

fn encode_location(location: &Location, to: &mut Encoder<'_>) -> Result<()> {
    to.unsigned(if location.inlined_at.is_some() { LOCATION_INLINED } else { LOCATION });
    to.attribute(&location.source)?;
    to.attribute(&location.scope)?;
    if let Some(call) = &location.inlined_at {
        to.attribute(call)?;
    }
    to.list(&location.fused, |to, fused| to.attribute(fused))?;
    to.list(&location.metadata, |to, metadata| to.attribute(metadata))
}

fn decode_location(kind: u64, from: &mut Decoder<'_, '_>) -> Result<Attribute> {
    let source = from.attribute()?;
    let scope = from.attribute()?;
    let inlined_at = if kind == LOCATION_INLINED { Some(from.attribute()?) } else { None };
    let fused = from.list(Decoder::attribute)?;
    let metadata = from.list(Decoder::attribute)?;
    Ok(Attribute::Location(Arc::new(Location { source, scope, fused, metadata, inlined_at })))
}

/// The last field of a compile unit and of a subprogram. No file has been seen in which it is another, so another is
/// not modelled.
const NOTHING_MORE: u64 = 0;

fn encode_unit(unit: &CompileUnit, to: &mut Encoder<'_>) -> Result<()> {
    to.unsigned(COMPILE_UNIT);
    to.string(&unit.language);
    to.attribute(&unit.file)?;
    to.string(&unit.producer);
    to.unsigned(u64::from(unit.optimized));
    to.string(&unit.flags);
    to.unsigned(NOTHING_MORE);
    Ok(())
}

fn decode_unit(from: &mut Decoder<'_, '_>) -> Result<Option<Attribute>> {
    let (language, file, producer) = (from.string()?, from.attribute()?, from.string()?);
    let optimized = from.unsigned()?;
    let flags = from.string()?;
    if optimized > 1 || from.unsigned()? != NOTHING_MORE {
        return Ok(None);
    }
    let unit = CompileUnit { language, file, producer, optimized: optimized == 1, flags };
    Ok(Some(Attribute::CompileUnit(Arc::new(unit))))
}

fn encode_subprogram(subprogram: &Subprogram, to: &mut Encoder<'_>) -> Result<()> {
    to.unsigned(SUBPROGRAM);
    to.ty(&subprogram.ty)?;
    to.attribute(&subprogram.unit)?;
    to.attribute(&subprogram.file)?;
    to.string(&subprogram.name);
    to.string(&subprogram.linkage_name);
    to.unsigned(NOTHING_MORE);
    Ok(())
}

fn decode_subprogram(from: &mut Decoder<'_, '_>) -> Result<Option<Attribute>> {
    let (ty, unit, file) = (from.ty()?, from.attribute()?, from.attribute()?);
    let (name, linkage_name) = (from.string()?, from.string()?);
    if from.unsigned()? != NOTHING_MORE {
        return Ok(None);
    }
    Ok(Some(Attribute::Subprogram(Arc::new(Subprogram { ty, unit, file, name, linkage_name }))))
}

/// A dictionary is a list of opaque attributes, each a key with one parameter.
fn encode_dictionary(entries: &[(Arc<str>, Attribute)], to: &mut Encoder<'_>) -> Result<()> {
    to.unsigned(DICTIONARY);
    to.list(entries, |to, (key, value)| to.attribute(&Attribute::opaque(key.clone(), vec![value.clone()])))
}

fn decode_dictionary(from: &mut Decoder<'_, '_>) -> Result<Option<Attribute>> {
    let entries = from.list(Decoder::attribute)?;
    let pair = |entry: &Attribute| match entry.as_opaque()?.parameters.as_slice() {
        [value] => Some((entry.as_opaque()?.name.clone(), value.clone())),
        _ => None,
    };
    Ok(entries.iter().map(pair).collect::<Option<Vec<_>>>().map(|entries| Attribute::Dictionary(entries.into())))
}
