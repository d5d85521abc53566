//! Attention as a composite.

use super::shape_name;
use crate::Result;
use crate::graph::{
    Builder, Composite, CompositeAttribute, Dim, Function, FunctionRole, Node, Op, TensorType, ValueId,
};
use crate::passes::attention::{attend, for_groups, not_later};
use crate::weights::Weights;

/// Attention of queries to keys of these types, causal or to all.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Attention {
    causal: bool,
    query: TensorType,
    keys: TensorType,
}

impl Attention {
    pub(super) fn of(function: &Function, node: &Node) -> Option<Self> {
        let Op::Attention { causal } = node.op else { return None };
        let ty = |input: usize| function.ty(node.inputs[input]).clone();
        Some(Self { causal, query: ty(0), keys: ty(1) })
    }

    pub(super) fn name(&self) -> String {
        let kind = if self.causal { "causal" } else { "full" };
        format!("sdpa_{kind}_{}_{}", shape_name(&self.query), shape_name(&self.keys))
    }

    /// The declaration as coreai-torch writes it; a window of 0 is none.
    fn declaration(&self) -> Composite {
        let attributes = vec![
            ("is_causal".to_owned(), CompositeAttribute::Bool(self.causal)),
            ("version".to_owned(), CompositeAttribute::Integer(1)),
            ("window_size".to_owned(), CompositeAttribute::Integer(0)),
        ];
        Composite { operation: "scaled_dot_product_attention".to_owned(), attributes }
    }

    pub(super) fn function(&self, weights: &mut Weights) -> Result<Function> {
        let mut b = Builder::new(self.name(), FunctionRole::Composite(self.declaration()), weights);
        let q = b.input("query", self.query.clone());
        let k = b.input("key", self.keys.clone());
        let v = b.input("value", self.keys.clone());
        let mask = self.mask(&mut b).map(|mask| for_groups(&mut b, mask, [q, k]));
        let output = attend(&mut b, [q, k, v], mask);
        b.result("output", output);
        b.finish()
    }

    /// What is added to the scores, `f32 [n, keys]`. A single query is the last of the sequence and sees all keys.
    fn mask(&self, b: &mut Builder<'_>) -> Option<ValueId> {
        let (n, keys) = (&self.query.shape[2], &self.keys.shape[2]);
        if !self.causal || *n == Dim::Fixed(1) {
            return None;
        }
        let (count, end) = (b.extents(std::slice::from_ref(n)), b.extents(std::slice::from_ref(keys)));
        let first = b.sub(end, count);
        // Not the sum of a range and `first`: Apple's CPU runtime fails on it once a composite is called four times.
        let (i, j) = (b.range(first, end, n), b.iota(keys));
        let i = b.reshape_to(i, &[n.clone(), Dim::Fixed(1)]);
        let j = b.reshape_to(j, &[Dim::Fixed(1), keys.clone()]);
        let seen = not_later(b, i, j);
        Some(b.additive_mask(seen))
    }
}
