//! The intermediate representation: modules, functions, nodes, types.
//!
//! A [`Module`] is a list of functions over one table of [weights](crate::weights::Weights). A function is a list of
//! nodes in program order; each node has one result, so a [`ValueId`] is the index of a node. States are values too:
//! a state parameter is its contents on entry, and a function returns the contents on return, so the graph is pure
//! and reads and writes of the buffer exist only in the lowered form.

mod builder;
mod extents;
mod function;
mod infer;
mod op;
mod print;
mod rewrite;
mod types;
mod verify;

#[cfg(test)]
mod tests;

pub use builder::Builder;
pub use function::{
    Composite, CompositeAttribute, Function, FunctionResult, FunctionRole, Node, Parameter, ParameterKind, ValueId,
};
pub use op::{Binary, Op, Reduction, Unary, Window};
pub use rewrite::{Returned, Rewriter, Rules, rewrite, rewrite_by};
pub use types::{Dim, Symbol, TensorType};

use crate::weights::Weights;

/// Functions over one table of weights; what becomes one asset.
#[derive(Debug, Clone, Default)]
pub struct Module {
    /// Composites and entries; a callee may follow its callers.
    pub functions: Vec<Function>,
    /// Stored weights and tables that constants refer to.
    pub weights: Weights,
}

impl Module {
    /// The function with this name.
    #[must_use]
    pub fn function(&self, name: &str) -> Option<&Function> {
        self.functions.iter().find(|f| f.name == name)
    }

    /// The functions callers may call, in order.
    pub fn entries(&self) -> impl Iterator<Item = &Function> {
        self.functions.iter().filter(|f| matches!(f.role, FunctionRole::Entry))
    }
}
