use std::collections::{BTreeMap, BTreeSet};

use super::{Outcome, Pass, rewrite_entries_with};
use crate::Result;
use crate::graph::{Function, Module, Node, Op, Rewriter, ValueId};
use crate::quant::{BlockCode, Fit, IndivisiblePolicy, Part, Scheme};

/// `quantise-linears`: the weight of a linear layer is stored as codes with a scale for each block of a row.
///
/// ```text
/// %3 = linear %x, constant "q_proj.weight" : f16[1,1,2048]
///
/// %c = constant codes("q_proj.weight") : si8[2048,1536]
/// %s = constant scales("q_proj.weight") : f16[2048,48]
/// %w = block_scale %c, %s : f16[2048,1536]
/// %3 = linear %x, %w : f16[1,1,2048]
/// ```
///
/// The head has a code of its own. It is the layer whose value is a result of the function and goes nowhere else, so
/// that a head that is the embedding table becomes a weight of its own, and the table stays. Embeddings, norms, biases,
/// convolutions (which `bake-conv` turns into layers over reshaped weights) and routers stay floats.
///
/// Rows that blocks do not divide follow the policy; those that are padded meet activations padded with zeros. The
/// weight has a remark then.
///
/// Runs after `split-gate-up`, before `metalize-moe` and `gather-moe`, which hide what a router is, and before
/// `lower-linear`.
#[derive(Debug, Clone)]
pub struct QuantiseLinears {
    /// Says how layers and the head are stored.
    pub scheme: Scheme,
    /// What becomes of rows that blocks do not divide.
    pub indivisible: IndivisiblePolicy,
}

impl Pass for QuantiseLinears {
    fn name(&self) -> &'static str {
        "quantise-linears"
    }

    fn run(&self, module: &mut Module) -> Result<Outcome> {
        if self.scheme.code_for(Part::Linear).or(self.scheme.code_for(Part::Head)).is_none() {
            return Ok(Outcome::Nothing("the scheme keeps linear layers as floats"));
        }
        let codes = |function: &Function| self.codes(function);
        let sites = rewrite_entries_with(module, codes, |rewriter, node, codes| match codes.get(&rewriter.value()) {
            Some(code) => self.quantise(rewriter, node, *code),
            None => Ok(None),
        })?;
        Ok(Outcome::of(sites, "no linear layer has a weight that blocks fit"))
    }

    fn keeps_numbers(&self) -> bool {
        false
    }
}

impl QuantiseLinears {
    /// How the weight of each linear layer is to be stored; layers that stay floats are left out.
    fn codes(&self, function: &Function) -> BTreeMap<ValueId, BlockCode> {
        let (heads, routers) = (heads(function), routers(function));
        let part = |layer: &ValueId| match (heads.contains(layer), routers.contains(layer)) {
            (_, true) => Part::Other,
            (true, false) => Part::Head,
            (false, false) => Part::Linear,
        };
        let layers = function.iter().filter(|(_, node)| node.op == Op::Linear).map(|(layer, _)| layer);
        layers.filter_map(|layer| Some((layer, self.scheme.code_for(part(&layer))?))).collect()
    }

    fn quantise(&self, rewriter: &mut Rewriter<'_, '_>, node: &Node, code: BlockCode) -> Result<Option<ValueId>> {
        let mut inputs = rewriter.inputs(node);
        let Some(weight) = rewriter.constant(inputs[1]) else {
            return Ok(None);
        };
        let b = &mut rewriter.builder;
        let (element, weights) = (b.element(inputs[1]), b.weights());
        let &[_, columns] = weights.shape(weight) else {
            return Ok(None);
        };
        if weights.storage(weight) != weight {
            return Ok(None);
        }
        let name = weights.parameter_name(weight).unwrap_or_default();
        let Fit { coding, columns, remark } = self.indivisible.fit(name, code, columns);
        let Some(coding) = coding else {
            weights.set_remark(weight, remark);
            return Ok(None);
        };
        let padded = weights.pad(weight, 1, columns)?;
        let (codes, scales) = weights.quantise(padded, coding)?;
        weights.set_remark(codes, remark);
        let (codes, scales) = (b.constant(codes), b.constant(scales));
        let scales = b.cast(scales, element);
        inputs[1] = b.node(Op::BlockScale, &[codes, scales]);
        let last = b.ty(inputs[0]).rank() - 1;
        inputs[0] = b.pad_axis(inputs[0], last, columns);
        Ok(Some(b.node(Op::Linear, &inputs)))
    }
}

/// The linear layers whose values are results and go nowhere else. A value that is a result only because somebody
/// looks at it is used within the function, too.
fn heads(function: &Function) -> BTreeSet<ValueId> {
    let mut uses = vec![0; function.nodes.len()];
    for input in function.nodes.iter().flat_map(|node| &node.inputs) {
        uses[input.index()] += 1;
    }
    function.results.iter().filter_map(|result| head(function, &uses, result.value)).collect()
}

/// The linear layer that a result is a cast, a part or another shape of, if nothing on the way is used otherwise.
fn head(function: &Function, uses: &[usize], result: ValueId) -> Option<ValueId> {
    let (mut value, mut expected) = (result, 0);
    while uses[value.index()] == expected {
        let node = function.node(value);
        value = match node.op {
            Op::Linear => return Some(value),
            Op::Cast(_) | Op::Reshape(_) | Op::Transpose(_) | Op::Slice { .. } => *node.inputs.first()?,
            _ => return None,
        };
        expected = 1;
    }
    None
}

/// The linear layers that choose experts: the last ones before the choice.
fn routers(function: &Function) -> BTreeSet<ValueId> {
    let chooses = |node: &&Node| matches!(node.op, Op::RoutedExperts { .. } | Op::StackedExperts);
    let mut pending: Vec<ValueId> =
        function.nodes.iter().filter(chooses).flat_map(|node| node.inputs[1..3].iter().copied()).collect();
    let (mut found, mut seen) = (BTreeSet::new(), BTreeSet::new());
    while let Some(value) = pending.pop() {
        let node = function.node(value);
        if node.op == Op::Linear {
            found.insert(value);
        } else if seen.insert(value) {
            pending.extend_from_slice(&node.inputs);
        }
    }
    found
}
