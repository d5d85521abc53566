//! Makes programs: a [`ProgramBuilder`] holds resources and graphs, a [`GraphBuilder`] one graph, a
//! [`RegionBuilder`] the operations of its body.
//!
//! ```
//! use aimodel::ElementType::F16;
//! use aimodel::mlirb::build::{GraphBuilder, Input, NewOperation, ProgramBuilder};
//! use aimodel::mlirb::{TensorType, Type};
//!
//! // y = x + w
//! let mut program = ProgramBuilder::new("example");
//! let weight = program.resource("w", 4)?;
//! let ty = TensorType::new([2], F16);
//! let mut graph = GraphBuilder::new("main", vec![Input::tensor("x", ty.clone())]);
//! let x = graph.input(0)?;
//! let w = graph.body().resource_constant(ty.clone(), weight)?;
//! let y = graph.body().value(NewOperation::new("primitive.add_v1").operands([x, w]).result(ty))?;
//! program.add(graph.finish(&[("y", y)])?);
//! let program = program.finish();
//! assert_eq!(program.graphs().next().map(|graph| graph.name()), Some("main"));
//! # Ok::<(), aimodel::Error>(())
//! ```

mod composite;
mod graph;
mod region;

use std::collections::BTreeSet;
use std::sync::Arc;

pub use composite::Composite;
pub use graph::{GraphBuilder, Input};
pub use region::{NewOperation, RegionBuilder, overwriting_region};

use super::attributes::{Attribute, Integer};
use super::ir::{Block, Operation, Program, Properties, Resource, ResourceId};
use super::names;
use crate::{Error, Result};

/// The feature level of programs without Metal kernels: that of the youngest operation this crate writes.
pub const FEATURE_LEVEL: u32 = 20_260_317;
/// The feature level of programs with Metal kernels.
pub const METAL_FEATURE_LEVEL: u32 = 20_260_409;

/// Makes a program.
#[derive(Debug)]
pub struct ProgramBuilder {
    producer: String,
    level: u32,
    graphs: Vec<Operation>,
    resources: Vec<Resource>,
    keys: BTreeSet<Arc<str>>,
}

impl ProgramBuilder {
    /// An empty program of level [`FEATURE_LEVEL`].
    pub fn new(producer: impl Into<String>) -> Self {
        Self {
            producer: producer.into(),
            level: FEATURE_LEVEL,
            graphs: Vec::new(),
            resources: Vec::new(),
            keys: BTreeSet::new(),
        }
    }

    /// Sets the feature level, a date as a decimal number.
    #[must_use]
    pub fn level(mut self, level: u32) -> Self {
        self.level = level;
        self
    }

    /// Declares a resource of `bytes` bytes. Resources are written in the order of their declaration.
    ///
    /// # Errors
    /// When the key is taken.
    pub fn resource(&mut self, key: impl Into<Arc<str>>, bytes: u64) -> Result<ResourceId> {
        let key = key.into();
        if !self.keys.insert(key.clone()) {
            return Err(Error::input("two resources have the same key").at(format!("resource `{key}`")));
        }
        let index = u32::try_from(self.resources.len()).map_err(|_| Error::input("too many resources"))?;
        self.resources.push(Resource::new(key, bytes));
        Ok(ResourceId::new(index))
    }

    /// Adds a graph made by a [`GraphBuilder`].
    pub fn add(&mut self, graph: Operation) {
        self.graphs.push(graph);
    }

    /// The program.
    #[must_use]
    pub fn finish(self) -> Program {
        let block = Block { arguments: Vec::new(), operations: self.graphs };
        let version = Attribute::Integer(Integer::u32(self.level));
        let asset = Operation {
            name: names::ASSET.into(),
            location: Attribute::nowhere(),
            properties: Properties::Known(vec![None, Some(version)]),
            operands: Vec::new(),
            results: Vec::new(),
            regions: vec![block.into()],
        };
        Program { producer: self.producer, asset, resources: self.resources }
    }
}
