use super::{Outcome, Pass, rewrite_entries};
use crate::Result;
use crate::graph::{Builder, Dim, Module, Op, ValueId};

/// `static-kv`: the abstract cache becomes a state of fixed size: columns are written by a slice update from their
/// start on, and read whole, or up to the length that the sequence has.
///
/// ```text
/// kv_append layer=3 %cache, %columns [1,h,q,d], %start
/// kv_layer layer=3 %cache
/// kv_prefix layer=3 %cache, %length
///
/// slice_update %cache, [3,0,0,start,0], [4,1,h,start+q,d], reshape %columns
/// reshape (slice begin=[3,0,0,0,0] end=[4,1,h,n,d] %cache)
/// reshape (slice_at %cache, [3,0,0,0,0], [4,1,h,length,d])
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
            Ok(match &node.op {
                Op::KvAppend { layer } => Some(append(b, &inputs, *layer)),
                Op::KvLayer { layer } => Some(read(b, inputs[0], *layer)),
                Op::KvPrefix { layer, .. } => Some(read_prefix(b, &inputs, *layer, &node.ty.shape)),
                _ => None,
            })
        })?;
        Ok(Outcome::of(sites, "the functions have no cache"))
    }
}

fn append(b: &mut Builder<'_>, inputs: &[ValueId], layer: usize) -> ValueId {
    let (cache, columns, start) = (inputs[0], inputs[1], inputs[2]);
    let shape: Vec<Dim> = std::iter::once(Dim::Fixed(1)).chain(b.dims(columns)).collect();
    let columns = b.reshape_to(columns, &shape);
    let layer = b.integers(&[3], &[layer as i32, 0, 0]);
    let zero = b.integers(&[1], &[0]);
    let begin = b.concat(&[layer, start, zero], 0);
    let extents = b.extents(&shape);
    let end = b.add(begin, extents);
    b.node(Op::SliceUpdate, &[cache, begin, end, columns])
}

fn read(b: &mut Builder<'_>, cache: ValueId, layer: usize) -> ValueId {
    let shape = b.shape(cache);
    let columns = b.slice_axis(cache, 0, layer, layer + 1);
    b.reshape(columns, &shape[1..])
}

/// `columns` is the shape `[1, heads, length, d]` of the result.
fn read_prefix(b: &mut Builder<'_>, inputs: &[ValueId], layer: usize, columns: &[Dim]) -> ValueId {
    let (cache, length) = (inputs[0], inputs[1]);
    let shape = b.shape(cache);
    let begin = b.integers(&[5], &[layer as i32, 0, 0, 0, 0]);
    let before = b.integers(&[3], &[layer as i32 + 1, 1, shape[2] as i32]);
    let after = b.integers(&[1], &[shape[4] as i32]);
    let end = b.concat(&[before, length, after], 0);
    let prefix = std::iter::once(&Dim::Fixed(1)).chain(columns).cloned().collect();
    let prefix = b.slice_at(cache, [begin, end], prefix);
    b.reshape_to(prefix, columns)
}
