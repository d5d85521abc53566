//! Operations of one region, in order.

use std::sync::Arc;

use crate::error::At;
use crate::mlirb::attributes::{Attribute, DenseElements, ParamConstant};
use crate::mlirb::ir::{Argument, Block, Operation, Properties, Region, ResourceId, ValueId, is_decomposable};
use crate::mlirb::names;
use crate::mlirb::types::{ScalarType, TensorType, Type};
use crate::{Error, Result};

/// An operation that is to be added to a region.
#[derive(Debug, Clone)]
pub struct NewOperation {
    name: Arc<str>,
    operands: Vec<ValueId>,
    results: Vec<Type>,
    properties: Vec<Option<Attribute>>,
    regions: Vec<Region>,
}

impl NewOperation {
    /// An operation without operands, results and properties.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self {
            name: name.into(),
            operands: Vec::new(),
            results: Vec::new(),
            properties: Vec::new(),
            regions: Vec::new(),
        }
    }

    /// Adds operands.
    #[must_use]
    pub fn operands(mut self, operands: impl IntoIterator<Item = ValueId>) -> Self {
        self.operands.extend(operands);
        self
    }

    /// Adds a result.
    #[must_use]
    pub fn result(mut self, ty: impl Into<Type>) -> Self {
        self.results.push(ty.into());
        self
    }

    /// Adds results.
    #[must_use]
    pub fn results(mut self, types: impl IntoIterator<Item = Type>) -> Self {
        self.results.extend(types);
        self
    }

    /// Adds the next property, in the order of [`property_fields`](crate::mlirb::property_fields).
    #[must_use]
    pub fn property(mut self, value: Attribute) -> Self {
        self.properties.push(Some(value));
        self
    }

    /// Adds a region. A decomposable operation is given one that is not looked at, unless it has one here.
    #[must_use]
    pub fn region(mut self, region: Region) -> Self {
        self.regions.push(region);
        self
    }
}

/// Makes a region.
#[derive(Debug)]
pub struct RegionBuilder {
    block: Block,
    types: Vec<Type>,
    location: Attribute,
}

impl RegionBuilder {
    /// A region with arguments of these types.
    pub fn new(arguments: impl IntoIterator<Item = Type>) -> Self {
        let location = Attribute::nowhere();
        let types: Vec<Type> = arguments.into_iter().collect();
        let argument = |ty: &Type| Argument { ty: ty.clone(), location: location.clone() };
        let block = Block { arguments: types.iter().map(argument).collect(), operations: Vec::new() };
        Self { block, types, location }
    }

    /// The argument at `index`.
    ///
    /// # Errors
    /// When there are fewer.
    pub fn argument(&self, index: usize) -> Result<ValueId> {
        let count = self.block.arguments.len();
        let id = u32::try_from(index).ok().filter(|_| index < count);
        id.map(ValueId)
            .ok_or_else(|| Error::input("no such argument").found(index).expected(format!("less than {count}")))
    }

    /// The type of a value.
    ///
    /// # Errors
    /// When the region has no such value.
    pub fn type_of(&self, value: ValueId) -> Result<&Type> {
        let count = self.types.len();
        self.types.get(value.index()).ok_or_else(|| {
            Error::input("no such value in this region")
                .found(format!("%{}", value.index()))
                .expected(format!("less than %{count}"))
        })
    }

    /// Adds an operation and gives its results.
    ///
    /// # Errors
    /// When an operand is not a value of this region, or a decomposable operation has no operands.
    pub fn add(&mut self, operation: NewOperation) -> Result<Vec<ValueId>> {
        let NewOperation { name, operands, results, properties, mut regions } = operation;
        let types = operands.iter().map(|operand| self.type_of(*operand).cloned());
        let types = types.collect::<Result<Vec<Type>>>().at(|| format!("`{name}`"))?;
        if is_decomposable(&name) && regions.is_empty() {
            regions.push(stub_region(types).at(|| format!("`{name}`"))?);
        }
        let first = self.types.len();
        self.types.extend(results.iter().cloned());
        let ids = (first..self.types.len()).map(|index| u32::try_from(index).map(ValueId));
        let ids = ids.collect::<Result<_, _>>().map_err(|_| Error::input("a region has too many values"))?;
        let (location, properties) = (self.location.clone(), Properties::Known(properties));
        self.block.operations.push(Operation { name, location, properties, operands, results, regions });
        Ok(ids)
    }

    /// Adds an operation that has one result and gives it.
    ///
    /// # Errors
    /// As [`add`](Self::add), and when it has not one result.
    pub fn value(&mut self, operation: NewOperation) -> Result<ValueId> {
        let name = operation.name.clone();
        match self.add(operation)?.as_slice() {
            [value] => Ok(*value),
            values => Err(Error::input("not one result").at(format!("`{name}`")).found(values.len()).expected(1)),
        }
    }

    /// Adds a constant whose elements lie in the program; see [`TensorType::inline_bytes`] for their form. Elements
    /// that are all equal are stored once.
    ///
    /// # Errors
    /// When the number of bytes is not that of the type.
    pub fn constant(&mut self, ty: TensorType, bytes: &[u8]) -> Result<ValueId> {
        if ty.inline_bytes() != Some(bytes.len() as u64) {
            return Err(Error::input(format!("a constant of type {ty} has the wrong length"))
                .found(format!("{} bytes", bytes.len()))
                .expected(ty.inline_bytes().map_or("a static shape".to_owned(), |bytes| format!("{bytes} bytes"))));
        }
        let elements = dense_elements(ty.element, bytes);
        self.value(constant(ty, Attribute::DenseElements(elements)))
    }

    /// Adds a constant whose elements are all `element`, stored once.
    ///
    /// # Errors
    /// When the bytes are not one element of the type.
    pub fn splat(&mut self, ty: TensorType, element: &[u8]) -> Result<ValueId> {
        if ty.element.inline_bits() != Some(8 * element.len() as u64) {
            return Err(Error::input(format!("not one element of {ty}")).found(format!("{} bytes", element.len())));
        }
        self.value(constant(ty, Attribute::DenseElements(DenseElements { splat: true, bytes: element.into() })))
    }

    /// Adds a constant whose elements lie in a resource; see [`TensorType::resource_bytes`] for their form.
    ///
    /// # Errors
    /// As [`value`](Self::value). That the lengths agree is checked when the program is written.
    pub fn resource_constant(&mut self, ty: TensorType, resource: ResourceId) -> Result<ValueId> {
        self.value(constant(ty, Attribute::DenseResource(resource)))
    }

    /// Adds a call of the graph `callee`, whose signature has to be exactly that of the call.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn invoke(
        &mut self,
        callee: &str,
        operands: impl IntoIterator<Item = ValueId>,
        results: impl IntoIterator<Item = Type>,
    ) -> Result<Vec<ValueId>> {
        let callee = ParamConstant { value: Attribute::symbol(callee), ty: Type::ParamSymbol };
        let none = Attribute::array([]);
        let operation = NewOperation::new(names::INVOKE)
            .operands(operands)
            .results(results)
            .property(none.clone())
            .property(Attribute::ParamConstant(Arc::new(callee)))
            .property(none);
        self.add(operation)
    }

    /// The region.
    #[must_use]
    pub fn finish(self) -> Region {
        self.block.into()
    }
}

fn constant(ty: TensorType, value: Attribute) -> NewOperation {
    NewOperation::new(names::CONSTANT).result(ty).property(value)
}

fn dense_elements(element: ScalarType, bytes: &[u8]) -> DenseElements {
    let width = element.inline_bits().filter(|bits| bits.is_multiple_of(8)).unwrap_or(0) / 8;
    let first = usize::try_from(width).ok().filter(|width| *width > 0).and_then(|width| bytes.get(..width));
    match first {
        Some(first) if bytes.chunks(first.len()).all(|element| element == first) => {
            DenseElements { splat: true, bytes: first.into() }
        }
        _ => DenseElements { splat: false, bytes: bytes.into() },
    }
}

/// The least region a decomposable operation may have: it yields its first argument. The loader requires a region
/// but derives the decomposition from the operation itself.
fn stub_region(operand_types: Vec<Type>) -> Result<Region> {
    if operand_types.is_empty() {
        return Err(Error::input("a decomposable operation needs an operand"));
    }
    Ok(yielding_region(operand_types, ValueId(0)))
}

/// The region of a scatter of elements of this type in which new elements replace old ones.
#[must_use]
pub fn overwriting_region(element: ScalarType) -> Region {
    let scalar = Type::tensor([0u64; 0], element);
    yielding_region(vec![scalar.clone(), scalar], ValueId(1))
}

/// A region that yields one of its arguments.
fn yielding_region(arguments: Vec<Type>, yielded: ValueId) -> Region {
    let mut builder = RegionBuilder::new(arguments);
    builder.block.operations.push(Operation {
        name: names::YIELD.into(),
        location: builder.location.clone(),
        properties: Properties::NONE,
        operands: vec![yielded],
        results: Vec::new(),
        regions: Vec::new(),
    });
    builder.finish()
}
