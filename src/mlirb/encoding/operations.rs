//! Operations, regions and blocks.

use super::container::{SectionId, nested_section, put_section};
use super::cursor::Cursor;
use super::tables::{Interner, Tables};
use super::varint::put_count;
use crate::mlirb::attributes::Attribute;
use crate::mlirb::ir::{Argument, Block, Operation, Properties, Region, ValueId};
use crate::mlirb::properties::{PropertyField, property_fields};
use crate::{Error, Result};

/// Bits of an operation's mask: what follows.
mod mask {
    pub(super) const ATTRIBUTES: u8 = 0x01;
    pub(super) const RESULTS: u8 = 0x02;
    pub(super) const OPERANDS: u8 = 0x04;
    pub(super) const REGIONS: u8 = 0x10;
    pub(super) const PROPERTIES: u8 = 0x40;
    pub(super) const SUPPORTED: u8 = RESULTS | OPERANDS | REGIONS | PROPERTIES;
}

/// Most levels of regions; bounds recursion on outside data.
const MAX_DEPTH: usize = 64;

/// The section of operations: a block without arguments that holds `operation`.
pub(in crate::mlirb) fn ir_section(operation: &Operation, interner: &mut Interner) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    put_count(&mut out, 1 << 1);
    put_operation(&mut out, operation, interner)?;
    Ok(out)
}

/// Reads what [`ir_section`] wrote.
pub(in crate::mlirb) fn top_operation<'a>(mut cursor: Cursor<'a>, tables: &mut Tables<'a>) -> Result<Operation> {
    let at = cursor.clone();
    let tag = cursor.unsigned()?;
    if tag != 1 << 1 {
        return Err(at.error("not one operation at the top").found(tag >> 1).expected(1));
    }
    let mut scope = Scope::default();
    let operation = operation(&mut cursor, tables, &mut scope)?;
    cursor.finish("the section of operations")?;
    Ok(operation)
}

/// Values of a region that have been defined so far, and how deep the region is.
#[derive(Debug, Clone, Copy, Default)]
struct Scope {
    values: usize,
    depth: usize,
}

fn put_operation(out: &mut Vec<u8>, operation: &Operation, interner: &mut Interner) -> Result<()> {
    let properties = properties_entry(operation, interner)?;
    let parts = [
        (mask::PROPERTIES, properties.is_none()),
        (mask::RESULTS, operation.results.is_empty()),
        (mask::OPERANDS, operation.operands.is_empty()),
        (mask::REGIONS, operation.regions.is_empty()),
    ];
    put_count(out, interner.operation(&operation.name));
    out.push(parts.into_iter().filter(|(_, empty)| !empty).fold(0, |mask, (bit, _)| mask | bit));
    put_count(out, interner.attribute(&operation.location)?);
    if let Some(entry) = properties {
        put_count(out, entry);
    }
    if !operation.results.is_empty() {
        put_count(out, operation.results.len());
        for ty in &operation.results {
            put_count(out, interner.ty(ty)?);
        }
    }
    if !operation.operands.is_empty() {
        put_count(out, operation.operands.len());
        operation.operands.iter().for_each(|operand| put_count(out, operand.index()));
    }
    if !operation.regions.is_empty() {
        put_count(out, operation.regions.len() << 1 | 1);
        for region in &operation.regions {
            put_section(out, SectionId::Ir, &region_bytes(region, interner)?);
        }
    }
    Ok(())
}

fn operation<'a>(cursor: &mut Cursor<'a>, tables: &mut Tables<'a>, scope: &mut Scope) -> Result<Operation> {
    let name = tables.operation(cursor)?;
    let mask = operation_mask(cursor)?;
    let location = tables.attribute(cursor)?;
    let properties = if mask & mask::PROPERTIES == 0 {
        Properties::NONE
    } else {
        let entry = tables.property(cursor)?;
        decode_properties(entry, tables, &name)?
    };
    let results = if mask & mask::RESULTS == 0 { Vec::new() } else { list(cursor, |cursor| tables.ty(cursor))? };
    let operands =
        if mask & mask::OPERANDS == 0 { Vec::new() } else { list(cursor, |cursor| operand(cursor, scope.values))? };
    let regions = if mask & mask::REGIONS == 0 { Vec::new() } else { decode_regions(cursor, tables, scope.depth)? };
    scope.values = scope.values.saturating_add(results.len());
    Ok(Operation { name, location, properties, operands, results, regions })
}

fn operation_mask(cursor: &mut Cursor<'_>) -> Result<u8> {
    let at = cursor.clone();
    let mask = cursor.byte()?;
    if mask & mask::ATTRIBUTES != 0 {
        return Err(at.error("an operation with a dictionary of attributes is not supported"));
    }
    if mask & !mask::SUPPORTED != 0 {
        return Err(at.error("an operation with successors or use lists is not supported").found(mask));
    }
    Ok(mask)
}

fn list<'a, T>(cursor: &mut Cursor<'a>, mut item: impl FnMut(&mut Cursor<'a>) -> Result<T>) -> Result<Vec<T>> {
    let count = cursor.count()?;
    (0..count).map(|_| item(cursor)).collect()
}

fn operand(cursor: &mut Cursor<'_>, defined: usize) -> Result<ValueId> {
    let at = cursor.clone();
    let index = cursor.index()?;
    let id = u32::try_from(index).ok().filter(|_| index < defined);
    id.map(ValueId).ok_or_else(|| {
        at.error("an operand that is not defined before its use").found(index).expected(format!("less than {defined}"))
    })
}

fn properties_entry(operation: &Operation, interner: &mut Interner) -> Result<Option<usize>> {
    let values = match &operation.properties {
        Properties::Known(values) if values.is_empty() => return Ok(None),
        Properties::Known(values) => values,
        Properties::Unknown(_) => return Err(not_writable(&operation.name)),
    };
    let fields = property_fields(&operation.name).unwrap_or(&[]);
    if fields.len() != values.len() {
        let error = Error::input(format!("wrong number of properties of `{}`", operation.name));
        return Err(error.found(values.len()).expected(fields.len()));
    }
    let mut bytes = Vec::new();
    for (field, value) in fields.iter().zip(values) {
        put_property(&mut bytes, *field, value.as_ref(), interner)?;
    }
    Ok(Some(interner.property(bytes)))
}

fn put_property(
    out: &mut Vec<u8>,
    field: PropertyField,
    value: Option<&Attribute>,
    interner: &mut Interner,
) -> Result<()> {
    match (value, field.optional) {
        (Some(value), false) => put_count(out, interner.attribute(value)?),
        (Some(value), true) => put_count(out, interner.attribute(value)? << 1 | 1),
        (None, true) => put_count(out, 0),
        (None, false) => return Err(Error::input(format!("property `{}` is missing", field.name))),
    }
    Ok(())
}

fn decode_properties<'a>(mut entry: Cursor<'a>, tables: &mut Tables<'a>, operation: &str) -> Result<Properties> {
    let Some(fields) = property_fields(operation) else {
        return Ok(Properties::Unknown(entry.rest().to_vec()));
    };
    let mut values = Vec::with_capacity(fields.len());
    for field in fields {
        let at = entry.clone();
        let index = entry.index()?;
        values.push(match (field.optional, index & 1) {
            (false, _) => Some(tables.attribute_at(index, &at)?),
            (true, 1) => Some(tables.attribute_at(index >> 1, &at)?),
            (true, _) => None,
        });
    }
    entry.finish(&format!("the properties of `{operation}`"))?;
    Ok(Properties::Known(values))
}

#[cold]
fn not_writable(operation: &str) -> Error {
    Error::input(format!("`{operation}` has properties that cannot be written"))
        .hint("the fields of this operation are not known")
}

fn decode_regions<'a>(cursor: &mut Cursor<'a>, tables: &mut Tables<'a>, depth: usize) -> Result<Vec<Region>> {
    let at = cursor.clone();
    if depth >= MAX_DEPTH {
        return Err(at.error("regions are nested too deeply").expected(format!("at most {MAX_DEPTH}")));
    }
    let tag = cursor.index()?;
    if tag & 1 == 0 {
        return Err(at.error("a region that sees the values around it is not supported"));
    }
    let mut regions = Vec::new();
    for _ in 0..tag >> 1 {
        let mut section = nested_section(cursor, SectionId::Ir)?;
        regions.push(region(&mut section, tables, depth + 1)?);
        section.finish("a region")?;
    }
    Ok(regions)
}

fn region_bytes(region: &Region, interner: &mut Interner) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let Some(block) = &region.block else {
        put_count(&mut out, 0);
        return Ok(out);
    };
    put_count(&mut out, 1);
    put_count(&mut out, value_count(block));
    put_count(&mut out, block.operations.len() << 1 | usize::from(!block.arguments.is_empty()));
    if !block.arguments.is_empty() {
        put_count(&mut out, block.arguments.len());
        for argument in &block.arguments {
            put_count(&mut out, interner.ty(&argument.ty)? << 1 | 1);
            put_count(&mut out, interner.attribute(&argument.location)?);
        }
        out.push(0);
    }
    for operation in &block.operations {
        put_operation(&mut out, operation, interner)?;
    }
    Ok(out)
}

fn region<'a>(cursor: &mut Cursor<'a>, tables: &mut Tables<'a>, depth: usize) -> Result<Region> {
    let at = cursor.clone();
    match cursor.unsigned()? {
        0 => return Ok(Region::default()),
        1 => {}
        blocks => return Err(at.error("a region of several blocks is not supported").found(blocks).expected(1)),
    }
    let at = cursor.clone();
    let values = cursor.index()?;
    let block = block(cursor, tables, depth)?;
    let found = value_count(&block);
    if found == values {
        Ok(block.into())
    } else {
        Err(at.error("a region announces the wrong number of values").found(values).expected(found))
    }
}

fn block<'a>(cursor: &mut Cursor<'a>, tables: &mut Tables<'a>, depth: usize) -> Result<Block> {
    let tag = cursor.index()?;
    let arguments = if tag & 1 == 0 { Vec::new() } else { arguments(cursor, tables)? };
    let mut scope = Scope { values: arguments.len(), depth };
    let mut operations = Vec::new();
    for _ in 0..tag >> 1 {
        operations.push(operation(cursor, tables, &mut scope)?);
    }
    Ok(Block { arguments, operations })
}

fn arguments<'a>(cursor: &mut Cursor<'a>, tables: &mut Tables<'a>) -> Result<Vec<Argument>> {
    let arguments = list(cursor, |cursor| {
        let at = cursor.clone();
        let tag = cursor.index()?;
        if tag & 1 == 0 {
            return Err(at.error("a block argument without a location is not supported"));
        }
        let ty = tables.type_at(tag >> 1, &at)?;
        Ok(Argument { ty, location: tables.attribute(cursor)? })
    })?;
    let at = cursor.clone();
    match cursor.byte()? {
        0 => Ok(arguments),
        other => Err(at.error("use lists of block arguments are not supported").found(other)),
    }
}

fn value_count(block: &Block) -> usize {
    block
        .operations
        .iter()
        .fold(block.arguments.len(), |count, operation| count.saturating_add(operation.results.len()))
}
