//! Which values of a function are versions of a state's contents.

use std::collections::HashMap;

use crate::graph::{Function, Op, ParameterKind, ValueId};

/// The chain of updates of each state, from its contents on entry to those on return.
#[derive(Debug)]
pub(super) struct StateVersions {
    /// Value to (index of the state parameter among the states).
    by_value: HashMap<ValueId, usize>,
}

impl StateVersions {
    /// Walks back from what each state is on return through updates in place.
    pub(super) fn of(function: &Function) -> Self {
        let mut by_value = HashMap::new();
        let parameters = function.parameters_of(ParameterKind::State);
        for (index, (parameter, result)) in parameters.zip(&function.states).enumerate() {
            let mut value = result.value;
            while value != parameter.value {
                by_value.insert(value, index);
                match function.node(value) {
                    node if node.op == Op::SliceUpdate => value = node.inputs[0],
                    _ => break,
                }
            }
        }
        Self { by_value }
    }

    /// The state that `value` is a new version of.
    pub(super) fn state_of(&self, value: ValueId) -> Option<usize> {
        self.by_value.get(&value).copied()
    }
}
