use super::{Outcome, Pass, rewrite_entries};
use crate::Result;
use crate::graph::{Module, Node, Op, Rewriter, ValueId};

/// `cancel-transposes`: a transpose of a transpose becomes one transpose, or nothing where they cancel; a reshape of
/// a reshape becomes one reshape.
#[derive(Debug, Clone, Copy)]
pub struct CancelTransposes;

impl Pass for CancelTransposes {
    fn name(&self) -> &'static str {
        "cancel-transposes"
    }

    fn run(&self, module: &mut Module) -> Result<Outcome> {
        let sites = rewrite_entries(module, |rewriter, node| Ok(cancel(rewriter, node)))?;
        Ok(Outcome::of(sites, "no two in a row"))
    }
}

fn cancel(rewriter: &mut Rewriter<'_, '_>, node: &Node) -> Option<ValueId> {
    let input = rewriter.mapped(*node.inputs.first()?);
    let before = rewriter.builder.function().node(input).clone();
    let source = *before.inputs.first()?;
    match (&node.op, &before.op) {
        (Op::Transpose(outer), Op::Transpose(inner)) => {
            let both: Vec<usize> = outer.iter().map(|&axis| inner[axis]).collect();
            let same = both.iter().enumerate().all(|(i, axis)| i == *axis);
            Some(if same { source } else { rewriter.builder.transpose(source, &both) })
        }
        (Op::Reshape(shape), Op::Reshape(_)) => Some(rewriter.builder.reshape(source, shape)),
        _ => None,
    }
}
