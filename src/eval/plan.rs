//! Which values of a function are needed, and until when.

use crate::graph::{Function, ValueId};

/// The last use of each value.
#[derive(Debug)]
pub(super) struct Plan {
    last_use: Vec<LastUse>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LastUse {
    /// Nothing needs it: it is not computed.
    Never,
    /// The node with this index.
    Node(usize),
    /// It is returned.
    Returned,
}

impl Plan {
    /// What it takes to compute `wanted`.
    pub(super) fn new(function: &Function, wanted: impl IntoIterator<Item = ValueId>) -> Self {
        let mut last_use = vec![LastUse::Never; function.nodes.len()];
        for value in wanted {
            last_use[value.index()] = LastUse::Returned;
        }
        for (index, node) in function.nodes.iter().enumerate().rev() {
            if last_use[index] != LastUse::Never {
                for input in &node.inputs {
                    let known = &mut last_use[input.index()];
                    *known = (*known).max(LastUse::Node(index));
                }
            }
        }
        Self { last_use }
    }

    /// What it takes to compute the results and states of `function`.
    pub(super) fn of_results(function: &Function) -> Self {
        Self::new(function, function.results.iter().chain(&function.states).map(|r| r.value))
    }

    /// Whether the value has to be computed.
    pub(super) fn needs(&self, value: ValueId) -> bool {
        self.last_use[value.index()] != LastUse::Never
    }

    /// Whether nothing after node `user` needs the value.
    pub(super) fn ends_at(&self, value: ValueId, user: ValueId) -> bool {
        self.last_use[value.index()] == LastUse::Node(user.index())
    }
}
