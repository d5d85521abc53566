mod arguments;
mod blend;
mod dynamic;
mod form;
mod host;
mod indexed;
mod shift;
#[cfg(test)]
mod tests;
mod visibility;

use std::collections::BTreeMap;

pub use form::{KvForm, names};

use self::form::{Append, Form, Keys, Seen};
use self::visibility::mask;
use super::attention::{attend, for_groups};
use super::{Arguments, Call, Outcome, Pass, rewrite_entries_by};
use crate::error::At;
use crate::graph::{
    Builder, Dim, Function, Module, Node, Op, Parameter, ParameterKind, Returned, Rewriter, Rules, TensorType, ValueId,
    Window, rewrite_by,
};
use crate::{ElementType, Error, Result};

/// `static-kv`: the abstract cache takes one of the forms that runtimes run. A form says how the position of the call
/// is handed in, how columns get into the cache, and what attention reads; see [`KvForm`].
///
/// ```text
/// kv_append layer=3 %cache, %columns [1,h,q,d], %start
/// cached_attention layer=3 %q, %keys, %values, %start
///
/// slice_update %cache, [3,0,0,start,0], [4,1,h,start+q,d], reshape %columns       (in the form `indexed`)
/// softmax(%q x transpose(slice %keys) + mask) x slice %values
/// ```
///
/// A call that starts at position 0 attends to its own columns, which are all there are, in every form.
#[derive(Debug, Clone, Copy)]
pub struct StaticKv {
    /// The form.
    pub form: KvForm,
}

impl Pass for StaticKv {
    fn name(&self) -> &'static str {
        "static-kv"
    }

    fn run(&self, module: &mut Module) -> Result<Outcome> {
        let sites = rewrite_entries_by(module, &mut |function, weights| {
            let Some(cached) = Cached::of(function) else {
                return Ok((function.clone(), 0));
            };
            let mut rules = cached.at(|| format!("function `{}`", function.name))?.rules(self.form);
            rewrite_by(function, weights, &mut rules)
        })?;
        Ok(Outcome::of(sites, "the functions have no cache"))
    }

    fn calls_after(&self, before: &Function, arguments: Arguments) -> Result<Vec<Call>> {
        Ok(vec![Call::of(before, self.arguments(before, arguments)?)])
    }

    /// [`KvForm::Shift`] has them elsewhere, [`KvForm::Host`] has none.
    fn keeps_states(&self) -> bool {
        !matches!(self.form, KvForm::Shift | KvForm::Host)
    }
}

/// What a function says of its cache.
#[derive(Debug)]
struct Cached {
    /// Where the columns of a call start.
    start: ValueId,
    /// Whether that is position 0.
    from_zero: bool,
    /// Tokens fed.
    queries: Dim,
    /// Type of each cache.
    ty: TensorType,
}

impl Cached {
    fn of(function: &Function) -> Option<Result<Self>> {
        let mut appends = function.nodes.iter().filter(|node| matches!(node.op, Op::KvAppend { .. }));
        let first = appends.next()?;
        let start = first.inputs[2];
        if appends.any(|node| node.inputs[2] != start) {
            return Some(Err(Error::input("the layers do not append at one position")));
        }
        let ty = function.ty(first.inputs[0]).clone();
        let queries = function.ty(first.inputs[1]).shape[2].clone();
        let from_zero = function.node(start).op != Op::Parameter;
        Some(Ok(Self { start, from_zero, queries, ty }))
    }

    fn rules(self, form: KvForm) -> CachedRules {
        CachedRules { form: form.rules(), columns: BTreeMap::new(), mask: None, cached: self }
    }
}

/// The rewrite of one function.
struct CachedRules {
    cached: Cached,
    form: Box<dyn Form>,
    /// The columns of this call, by the cache as it is after them, and the layer.
    columns: BTreeMap<(ValueId, usize), ValueId>,
    /// What is added to the scores of every layer, once it is made.
    mask: Option<ValueId>,
}

impl Rules for CachedRules {
    fn parameter(&mut self, rewriter: &mut Rewriter<'_, '_>, parameter: &Parameter) -> Result<ValueId> {
        let b = &mut rewriter.builder;
        if parameter.kind == ParameterKind::State {
            return Ok(self.form.cache(b, &parameter.name, &self.cached));
        }
        if parameter.value == self.cached.start {
            return self.form.start(b, &parameter.name, &self.cached);
        }
        Ok(rewriter.copy_parameter(parameter))
    }

    fn node(&mut self, rewriter: &mut Rewriter<'_, '_>, node: &Node) -> Result<Option<ValueId>> {
        let inputs = rewriter.inputs(node);
        Ok(match (&node.op, inputs.as_slice()) {
            (Op::KvAppend { layer }, &[cache, columns, start]) => {
                let append = Append { cache, columns, start, layer: *layer };
                let after = self.form.append(&mut rewriter.builder, append, &self.cached);
                self.columns.insert((after, *layer), columns);
                Some(after)
            }
            (Op::CachedAttention { layer, window }, &[q, keys, values, start]) => {
                Some(self.attend(rewriter, q, [keys, values], (start, *layer, *window))?)
            }
            _ => None,
        })
    }

    fn returned(&mut self, rewriter: &mut Rewriter<'_, '_>) -> Result<Returned> {
        let mut returned = rewriter.returned();
        self.form.returned(&mut rewriter.builder, &mut returned, &self.cached);
        Ok(returned)
    }
}

impl CachedRules {
    fn attend(
        &mut self,
        rewriter: &mut Rewriter<'_, '_>,
        q: ValueId,
        caches: [ValueId; 2],
        (start, layer, window): (ValueId, usize, Option<Window>),
    ) -> Result<ValueId> {
        let missing = || Error::input("a layer is attended to before its columns are appended").found(layer);
        let own = caches.map(|cache| self.columns.get(&(cache, layer)).copied());
        let [Some(own_keys), Some(own_values)] = own else { return Err(missing()) };
        let b = &mut rewriter.builder;
        let [k, v] = if self.cached.from_zero {
            [own_keys, own_values]
        } else {
            let mut seen = |cache, columns| self.form.seen(b, Seen { cache, columns, layer }, &self.cached);
            [seen(caches[0], own_keys), seen(caches[1], own_values)]
        };
        let window = window.filter(|window| !self.all_in_prefix(*window));
        let keys = if self.cached.from_zero { Keys::Sequence } else { self.form.keys(b, start, &self.cached) };
        if matches!(keys, Keys::Sequence) && window.is_none() {
            return Ok(b.attention([q, k, v], true));
        }
        let mask = match self.mask {
            Some(mask) => mask,
            None => {
                let keys = positions_of(b, keys, k);
                let mask = mask(b, keys, start, (&self.cached, window));
                *self.mask.insert(for_groups(b, mask, [q, k]))
            }
        };
        Ok(attend(b, [q, k, v], Some(mask)))
    }

    /// Whether no query of a call from position 0 is beyond the prefix that is always seen.
    fn all_in_prefix(&self, window: Window) -> bool {
        self.cached.from_zero && self.cached.queries.fixed().is_some_and(|queries| queries <= window.prefix)
    }
}

/// The positions of the keys `k [1, groups, keys, d]`, `si32 [1, keys]`.
fn positions_of(b: &mut Builder<'_>, keys: Keys, k: ValueId) -> ValueId {
    match keys {
        Keys::At(positions) => positions,
        Keys::Sequence => {
            let extent = b.dims(k)[2].clone();
            let positions = b.iota(&extent);
            b.reshape_to(positions, &[Dim::Fixed(1), extent])
        }
    }
}

impl Cached {
    /// Positions of the cache.
    fn length(&self) -> usize {
        self.ty.shape.get(3).and_then(Dim::fixed).unwrap_or(0)
    }

    /// The position as an input, for forms that need to know how many tokens are fed.
    fn fixed_start(&self, b: &mut Builder<'_>, name: &str) -> Result<ValueId> {
        match self.queries {
            Dim::Fixed(_) => Ok(b.input(name, Self::position())),
            Dim::Symbol(_) => Err(Error::input("the form does not take a number of tokens chosen at run time")
                .hint("functions for any number of tokens need the form `dynamic`")),
        }
    }

    /// The type of a position.
    fn position() -> TensorType {
        TensorType::new(ElementType::I32, &[1])
    }

    /// The shape of one layer's columns of this call, in the layout of the cache: `[1, 1, groups, n, d]`.
    fn box_of_columns(&self) -> Vec<Dim> {
        let mut shape = self.ty.shape.clone();
        (shape[0], shape[3]) = (Dim::Fixed(1), self.queries.clone());
        shape
    }
}
