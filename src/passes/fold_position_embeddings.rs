use super::fold_constants::{as_table, fold_nodes};
use super::{Outcome, Pass};
use crate::Result;
use crate::graph::{Module, Node, Op, Rewriter};
use crate::weights::WeightId;

/// `fold-position-embeddings`: a table of positions becomes a stored table, resampled to the export's fixed size or
/// computed from the grid alone.
///
/// ```text
/// %1 = constant "pos_embed" : f32[64,64,768]      %1 = constant resample("pos_embed") : f32[40,40,768]
/// %2 = resample Bicubic to=[40, 40] %1
///
/// %1 = constant [rows and columns] : si32[2728,2]  %1 = constant table : f16[1,1,2728,64]
/// ...
/// %9 = cos %8
/// ```
#[derive(Debug, Clone, Copy)]
pub struct FoldPositionEmbeddings;

impl Pass for FoldPositionEmbeddings {
    fn name(&self) -> &'static str {
        "fold-position-embeddings"
    }

    fn run(&self, module: &mut Module) -> Result<Outcome> {
        let sites = fold_nodes(module, fold)?;
        Ok(Outcome::of(sites, "every table is stored and has the size of the image"))
    }
}

fn fold(rewriter: &mut Rewriter<'_, '_>, node: &Node, inputs: &[WeightId]) -> Result<Option<WeightId>> {
    match &node.op {
        Op::Resample { kind, to } => rewriter.builder.weights().resample(inputs[0], *kind, to).map(Some),
        _ => as_table(rewriter, node, inputs),
    }
}
