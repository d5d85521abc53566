//! Graphs that stand for one operation of a higher level.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::mlirb::attributes::Attribute;

/// What a private graph stands for, such as `rms_norm`, so that a compiler may replace it by its own implementation.
/// The graph's body computes the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Composite {
    /// Name of the operation.
    pub name: Arc<str>,
    /// Names of its inputs, in the order of the graph's.
    pub inputs: Vec<Arc<str>>,
    /// Names of its outputs.
    pub outputs: Vec<Arc<str>>,
    /// Its attributes: integers of 64 bits, floats of 32, booleans of one signed bit, strings, and lists of these.
    pub attributes: BTreeMap<Arc<str>, Attribute>,
}

impl From<Composite> for Attribute {
    fn from(composite: Composite) -> Self {
        let names = |names: Vec<Arc<str>>| vec![Self::strings(names)];
        Self::opaque(
            composite.name,
            vec![
                Self::opaque("input_names", names(composite.inputs)),
                Self::opaque("op_attrs", vec![Self::dictionary(composite.attributes)]),
                Self::opaque("output_names", names(composite.outputs)),
            ],
        )
    }
}
