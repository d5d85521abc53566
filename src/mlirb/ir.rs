//! Programs as trees of operations.

use std::sync::Arc;

use super::attributes::{Attribute, Integer};
use super::properties::property_fields;
use super::types::Type;
use super::{RESOURCE_ALIGNMENT, names};

/// A value inside one region: its arguments come first, then the results of its operations in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub(super) u32);

impl ValueId {
    /// Its number in the region.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A resource of a program: its place in [`Program::resources`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceId(pub(super) u32);

impl ResourceId {
    /// The resource at `index`.
    #[must_use]
    pub const fn new(index: u32) -> Self {
        Self(index)
    }

    /// Its place in the list of resources.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What is known of a resource without its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// Its key, unique in the program.
    pub key: Arc<str>,
    /// Its length in bytes.
    pub bytes: u64,
    /// Alignment of its first byte in the file, a power of two.
    pub alignment: u64,
}

impl Resource {
    /// A resource with the alignment Apple's serializer uses.
    pub fn new(key: impl Into<Arc<str>>, bytes: u64) -> Self {
        Self { key: key.into(), bytes, alignment: RESOURCE_ALIGNMENT }
    }
}

/// Inherent attributes of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Properties {
    /// One entry for each of the operation's [`property_fields`], in that order; absent optional ones are `None`.
    Known(Vec<Option<Attribute>>),
    /// The bytes of an operation whose fields are not known; they can be shown but not written.
    Unknown(Vec<u8>),
}

impl Properties {
    /// No properties.
    pub const NONE: Self = Self::Known(Vec::new());
}

/// One operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// Its name without the dialect, such as `primitive.add_v1`.
    pub name: Arc<str>,
    /// Where it comes from.
    pub location: Attribute,
    /// Its inherent attributes.
    pub properties: Properties,
    /// Values of the enclosing region that it takes.
    pub operands: Vec<ValueId>,
    /// Types of the values it gives.
    pub results: Vec<Type>,
    /// Its regions, each with values of its own.
    pub regions: Vec<Region>,
}

impl Operation {
    /// The property called `name`, if the operation has it.
    #[must_use]
    pub fn property(&self, name: &str) -> Option<&Attribute> {
        let Properties::Known(values) = &self.properties else { return None };
        let index = property_fields(&self.name)?.iter().position(|field| field.name == name)?;
        values.get(index)?.as_ref()
    }
}

/// An argument of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// Its type.
    pub ty: Type,
    /// Where it comes from.
    pub location: Attribute,
}

/// A list of operations with arguments.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Block {
    /// Its arguments.
    pub arguments: Vec<Argument>,
    /// Its operations, in order.
    pub operations: Vec<Operation>,
}

impl Block {
    /// Types of all values of the block, by [`ValueId`].
    #[must_use]
    pub fn value_types(&self) -> Vec<&Type> {
        let arguments = self.arguments.iter().map(|argument| &argument.ty);
        arguments.chain(self.operations.iter().flat_map(|operation| &operation.results)).collect()
    }
}

/// A region: at most one block, as no `aicode` operation has more, and no sight of the values around it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Region {
    /// The block, unless the region is empty.
    pub block: Option<Block>,
}

impl From<Block> for Region {
    fn from(block: Block) -> Self {
        Self { block: Some(block) }
    }
}

/// A whole program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Who wrote it; free text, without NUL.
    pub producer: String,
    /// The operation at the top, [`names::ASSET`]; its region holds the graphs.
    pub asset: Operation,
    /// Its resources, in file order.
    pub resources: Vec<Resource>,
}

impl Program {
    /// The feature level the program asks for, a date as a decimal number, such as 20260317.
    #[must_use]
    pub fn version(&self) -> Option<u64> {
        self.asset.property("version")?.as_integer().map(Integer::bits)
    }

    /// The operations below the top: the graphs.
    #[must_use]
    pub fn operations(&self) -> &[Operation] {
        let block = self.asset.regions.first().and_then(|region| region.block.as_ref());
        block.map_or(&[], |block| &block.operations)
    }

    /// Replaces every location by [`Attribute::nowhere`], so that programs are compared or written without the
    /// places their operations come from.
    pub fn forget_locations(&mut self) {
        forget_locations(&mut self.asset, &Attribute::nowhere());
    }
}

fn forget_locations(operation: &mut Operation, nowhere: &Attribute) {
    operation.location = nowhere.clone();
    for block in operation.regions.iter_mut().filter_map(|region| region.block.as_mut()) {
        block.arguments.iter_mut().for_each(|argument| argument.location = nowhere.clone());
        block.operations.iter_mut().for_each(|inner| forget_locations(inner, nowhere));
    }
}

/// Whether operations of this name carry one region with their decomposition into primitive ones: those without a
/// sub-dialect in their name, such as `softmax_v1`.
#[must_use]
pub fn is_decomposable(name: &str) -> bool {
    !name.contains('.')
}

/// Whether `operation` is a graph.
#[must_use]
pub(super) fn is_graph(operation: &Operation) -> bool {
    &*operation.name == names::GRAPH
}
