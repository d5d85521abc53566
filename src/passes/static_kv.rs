use super::{Outcome, Pass, rewrite_entries};
use crate::Result;
use crate::graph::{Builder, Module, Op, ValueId};

/// `static-kv`: the abstract cache takes the `indexed` form: columns are written by a slice update whose bounds are
/// computed from the position, so no shape ever changes.
///
/// ```text
/// kv_append layer=3 %cache, %columns [1,h,q,d], %start
/// kv_layer layer=3 %cache
///
/// slice_update %cache, [3,0,0,start,0], [4,1,h,start+q,d], reshape %columns
/// reshape (slice begin=[3,0,0,0,0] end=[4,1,h,n,d] %cache)
/// ```
#[derive(Debug, Clone, Copy)]
pub struct StaticKv;

impl Pass for StaticKv {
    fn name(&self) -> &'static str {
        "static-kv"
    }

    fn run(&self, module: &mut Module) -> Result<Outcome> {
        let sites = rewrite_entries(module, |rewriter, node| {
            let inputs = rewriter.inputs(node);
            let b = &mut rewriter.builder;
            Ok(match node.op {
                Op::KvAppend { layer } => Some(append(b, &inputs, layer)),
                Op::KvLayer { layer } => Some(read(b, inputs[0], layer)),
                _ => None,
            })
        })?;
        Ok(Outcome::of(sites, "the functions have no cache"))
    }
}

fn append(b: &mut Builder<'_>, inputs: &[ValueId], layer: usize) -> ValueId {
    let (cache, columns, start) = (inputs[0], inputs[1], inputs[2]);
    let extent: Vec<usize> = std::iter::once(1).chain(b.shape(columns)).collect();
    let columns = b.reshape(columns, &extent);
    let layer = b.integers(&[3], &[layer as i32, 0, 0]);
    let zero = b.integers(&[1], &[0]);
    let begin = b.concat(&[layer, start, zero], 0);
    let extent: Vec<i32> = extent.into_iter().map(|n| n as i32).collect();
    let extent = b.integers(&[5], &extent);
    let end = b.add(begin, extent);
    b.node(Op::SliceUpdate, &[cache, begin, end, columns])
}

fn read(b: &mut Builder<'_>, cache: ValueId, layer: usize) -> ValueId {
    let shape = b.shape(cache);
    let columns = b.slice_axis(cache, 0, layer, layer + 1);
    b.reshape(columns, &shape[1..])
}
