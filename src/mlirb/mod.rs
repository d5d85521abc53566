//! MLIR bytecode, version 6, in Apple's versioned dialect `aicode`: reader and writer side by side.
//!
//! A [`Program`] is what a `main.mlirb` holds: a tree of operations and a list of resources, of which only the
//! lengths are kept in memory. [`ProgramFile`] reads one, leaving the resources' bytes where they are;
//! [`Writer`] writes one, its resources streamed through; [`build`] makes one; its `Display` text is the
//! disassembly. The numbers of the format live in `encoding`, one file per kind of thing, encoder and decoder
//! beside each other.
//!
//! Nothing here knows what an operation computes; only its name, its properties and whether it carries a region.

mod attributes;
pub mod build;
mod check;
mod encoding;
mod graph_view;
mod ir;
mod print;
mod properties;
mod read;
#[cfg(test)]
mod tests;
mod types;
mod write;

pub use attributes::{
    Approximation, Attribute, Backing, CompileUnit, DenseElements, Float, HwConstraints, Integer, Interpolation,
    Location, Metadata, Opaque, PaddingMode, ParamConstant, ParamDeclaration, RawEntry, ScanCombiner, ScatterMode,
    SourceFile, SourceRange, Subprogram,
};
pub use check::check;
pub use graph_view::{GraphPort, GraphView};
pub use ir::{Argument, Block, Operation, Program, Properties, Region, Resource, ResourceId, ValueId, is_decomposable};
pub use properties::{PropertyField, property_fields};
pub use read::ProgramFile;
pub use types::{Dim, FunctionType, ScalarType, TensorType, Type};
pub use write::{Layout, Writer, layout};

/// Alignment of resources in bytes. Apple's serializer uses it, and it loads whether or not the file is mapped.
pub const RESOURCE_ALIGNMENT: u64 = 16;

/// Names of the operations this module itself has to know.
pub mod names {
    /// The one operation at the top.
    pub const ASSET: &str = "serialization.asset";
    /// A function of the program.
    pub const GRAPH: &str = "dataflow.graph_v1";
    /// Ends a graph.
    pub const OUTPUT: &str = "dataflow.output_v1";
    /// Ends any other region.
    pub const YIELD: &str = "dataflow.yield_v1";
    /// Calls a graph.
    pub const INVOKE: &str = "dataflow.invoke_v1";
    /// A constant tensor, inline or in a resource.
    pub const CONSTANT: &str = "primitive.constant_v1";
    /// The attribute that names an argument or a result.
    pub const NAME_ATTRIBUTE: &str = "aicode.name";
    /// The attribute that marks an argument as state that is written in place.
    pub const MUTATION_ATTRIBUTE: &str = "MutableBuffers.buffer_mutation";
}
