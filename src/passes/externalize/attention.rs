//! Attention as a composite.

use crate::graph::{
    Binary, Builder, Composite, CompositeAttribute, Dim, Function, FunctionRole, Node, Op, TensorType, Unary, ValueId,
};
use crate::weights::Weights;
use crate::{ElementType, Result};

use super::shape_name;

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
        let output = self.body(&mut b, [q, k, v]);
        b.result("output", output);
        b.finish()
    }

    /// The heads that read one group are more rows of one product, so that keys and values are not repeated.
    fn body(&self, b: &mut Builder<'_>, [q, k, v]: [ValueId; 3]) -> ValueId {
        let (query, groups) = (&self.query.shape, &self.keys.shape[1]);
        let together = query[1].fixed().unwrap_or(1) / groups.fixed().unwrap_or(1);
        let width = query[3].fixed().unwrap_or(1);
        let q = b.scale(q, 1.0 / (width as f32).sqrt());
        let rows = [Dim::Fixed(1), groups.clone(), query[2].multiple(together), query[3].clone()];
        let q = b.reshape_to(q, &rows);
        let keys = b.transpose_last(k);
        let scores = b.matmul(q, keys);
        let mut scores = b.cast(scores, ElementType::F32);
        if let Some(mask) = self.mask(b) {
            let mask = if together == 1 { mask } else { b.concat(&vec![mask; together], 0) };
            scores = b.add(scores, mask);
        }
        let weights = b.softmax_f32(scores);
        let weights = b.cast(weights, self.query.element);
        let y = b.matmul(weights, v);
        b.reshape_to(y, query)
    }

    /// What is added to the scores, `f32 [n, keys]`. A single query is the last of the sequence and sees all keys.
    fn mask(&self, b: &mut Builder<'_>) -> Option<ValueId> {
        let (n, keys) = (&self.query.shape[2], &self.keys.shape[2]);
        if !self.causal || *n == Dim::Fixed(1) {
            return None;
        }
        let zero = b.integers(&[1], &[0]);
        let (count, end) = (b.extents(&[n.clone()]), b.extents(&[keys.clone()]));
        let first = b.sub(end, count);
        let (i, j) = (b.range(first, end, n), b.range(zero, end, keys));
        let i = b.reshape_to(i, &[n.clone(), Dim::Fixed(1)]);
        let j = b.reshape_to(j, &[Dim::Fixed(1), keys.clone()]);
        let later = b.binary(Binary::Greater, j, i);
        let seen = b.unary(Unary::Not, later);
        Some(b.additive_mask(seen))
    }
}
