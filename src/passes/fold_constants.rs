use super::{Outcome, Pass, rewrite_entries};
use crate::Result;
use crate::eval;
use crate::graph::{Function, FunctionRole, Module, Node, Op, Rewriter, TensorType, ValueId};
use crate::weights::{Recipe, WeightId, Weights};

/// `fold-constants`: what depends on constants alone becomes a constant. Tables known at export (positions, masks,
/// angles) are computed by the executor; weights of the checkpoint stay recipes and are not read.
///
/// ```text
/// %1 = constant "w" : bf16[8,4]             %1 = constant cast("w") : f16[8,4]
/// %2 = cast to=f16 %1
/// ```
#[derive(Debug, Clone, Copy)]
pub struct FoldConstants;

/// Tables larger than this are computed at run time instead of being stored.
const LARGEST_TABLE: usize = 1 << 22;

impl Pass for FoldConstants {
    fn name(&self) -> &'static str {
        "fold-constants"
    }

    fn run(&self, module: &mut Module) -> Result<Outcome> {
        let sites = fold_nodes(module, fold)?;
        Ok(Outcome::of(sites, "nothing depends on constants alone"))
    }
}

fn fold(rewriter: &mut Rewriter<'_, '_>, node: &Node, inputs: &[WeightId]) -> Result<Option<WeightId>> {
    match as_table(rewriter, node, inputs)? {
        Some(table) => Ok(Some(table)),
        None => as_recipe(rewriter, node, inputs),
    }
}

/// Puts the weight that `fold` gives in the place of each node whose inputs are all constants; returns how many there
/// were.
pub(super) fn fold_nodes(
    module: &mut Module,
    fold: fn(&mut Rewriter<'_, '_>, &Node, &[WeightId]) -> Result<Option<WeightId>>,
) -> Result<usize> {
    rewrite_entries(module, |rewriter, node| {
        let inputs = rewriter.inputs(node);
        let constants: Option<Vec<WeightId>> = inputs.iter().map(|&input| rewriter.constant(input)).collect();
        match constants {
            Some(constants) if !constants.is_empty() => {
                let folded = fold(rewriter, node, &constants)?;
                Ok(folded.map(|weight| rewriter.builder.constant(weight)))
            }
            _ => Ok(None),
        }
    })
}

/// The value computed now, if all inputs are literals.
pub(super) fn as_table(rewriter: &mut Rewriter<'_, '_>, node: &Node, inputs: &[WeightId]) -> Result<Option<WeightId>> {
    let weights = rewriter.builder.weights();
    let literals = inputs.iter().all(|&id| matches!(weights.recipe(id), Recipe::Literal { .. }));
    let Some(shape) = node.ty.fixed_shape() else {
        return Ok(None);
    };
    if !literals || !eval::folds(&node.op) || shape.iter().product::<usize>() > LARGEST_TABLE {
        return Ok(None);
    }
    let (function, value) = alone(node, inputs, weights);
    let bytes = eval::evaluate_constants(&function, weights, value)?.to_literal_bytes(node.ty.element)?;
    weights.literal(node.ty.element, &shape, bytes).map(Some)
}

/// A function of nothing but the node and its constants.
fn alone(node: &Node, inputs: &[WeightId], weights: &Weights) -> (Function, ValueId) {
    let mut function = Function::new("fold", FunctionRole::Entry);
    let constants = inputs.iter().map(|&id| Node {
        op: Op::Constant(id),
        inputs: Vec::new(),
        ty: TensorType::new(weights.element(id), weights.shape(id)),
        label: None,
    });
    let inputs = constants.map(|constant| function.push(constant)).collect();
    let value = function.push(Node { inputs, label: None, ..node.clone() });
    (function, value)
}

/// The value as a recipe of stored weights, where there is one.
fn as_recipe(rewriter: &mut Rewriter<'_, '_>, node: &Node, inputs: &[WeightId]) -> Result<Option<WeightId>> {
    let weights = rewriter.builder.weights();
    let of = inputs[0];
    if !weights.element(of).is_float() {
        return Ok(None);
    }
    Ok(Some(match &node.op {
        Op::Cast(to) if to.is_float() => weights.cast(of, *to)?,
        Op::Reshape(shape) => weights.reshape(of, shape)?,
        Op::Slice { begin, end } if whole_rows(begin, end, weights.shape(of)) => weights.rows(of, begin[0], end[0])?,
        Op::Concat { axis: 0 } => weights.concat(inputs.to_vec())?,
        Op::Gather => match row_numbers(weights.recipe(inputs[1]), weights.shape(inputs[1])) {
            Some((rows, shape)) => weights.take(of, rows, &shape)?,
            None => return Ok(None),
        },
        _ => return Ok(None),
    }))
}

/// Whether a slice keeps every axis but the first whole.
fn whole_rows(begin: &[usize], end: &[usize], shape: &[usize]) -> bool {
    !shape.is_empty() && begin[1..].iter().all(|b| *b == 0) && end[1..] == shape[1..]
}

/// The row numbers of a literal index `[.., 1]`, and its shape without the last axis.
fn row_numbers(index: &Recipe, shape: &[usize]) -> Option<(Vec<u32>, Vec<usize>)> {
    let (Recipe::Literal { bytes, .. }, [places @ .., 1]) = (index, shape) else {
        return None;
    };
    let rows = bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    Some((rows, places.to_vec()))
}
