use super::{Outcome, Pass, rewrite_entries};
use crate::Result;
use crate::graph::{Module, Op};

/// `fold-position-embeddings`: a table of positions resampled to the export's fixed size becomes a stored table.
///
/// ```text
/// %1 = constant "pos_embed" : f32[64,64,768]      %1 = constant resample("pos_embed") : f32[40,40,768]
/// %2 = resample Bicubic to=[40, 40] %1
/// ```
#[derive(Debug, Clone, Copy)]
pub struct FoldPositionEmbeddings;

impl Pass for FoldPositionEmbeddings {
    fn name(&self) -> &'static str {
        "fold-position-embeddings"
    }

    fn run(&self, module: &mut Module) -> Result<Outcome> {
        let sites = rewrite_entries(module, |rewriter, node| {
            let Op::Resample { kind, to } = &node.op else {
                return Ok(None);
            };
            let Some(table) = rewriter.constant(rewriter.mapped(node.inputs[0])) else {
                return Ok(None);
            };
            let folded = rewriter.builder.weights().resample(table, *kind, to)?;
            Ok(Some(rewriter.builder.constant(folded)))
        })?;
        Ok(Outcome::of(sites, "every table has the size of the image already"))
    }
}
