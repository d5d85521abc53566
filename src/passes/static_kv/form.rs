//! The forms of a cache, and what each of them has to say.

use std::fmt;
use std::str::FromStr;

use super::{Cached, blend, dynamic, host, indexed, shift};
use crate::graph::{Builder, Returned, ValueId};
use crate::{Error, Result};

/// How a decoder writes the columns of a call and reads those of the past. All forms compute the same; which of them a
/// runtime runs is another matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KvForm {
    /// A slice update at a position that is an input. No shape ever changes.
    Indexed,
    /// A slice update at a position that follows from the length of `position_ids`, which grows. Attention reads the
    /// sequence and no more.
    Dynamic,
    /// `cache x (1 - mask) + column x mask`, layer by layer; the host hands in the mask, 1 where a column goes.
    Blend,
    /// As [`KvForm::Blend`], the whole state in one go.
    BlendWhole,
    /// The columns are appended at the end, and what is there moves towards the front.
    Shift,
    /// There is no state: the past is an input, the columns are an output, and the host puts them in their place.
    Host,
}

impl KvForm {
    /// Every form.
    pub const ALL: [Self; 6] = [Self::Indexed, Self::Dynamic, Self::Blend, Self::BlendWhole, Self::Shift, Self::Host];

    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Indexed => "indexed",
            Self::Dynamic => "dynamic",
            Self::Blend => "blend",
            Self::BlendWhole => "blend-whole",
            Self::Shift => "shift",
            Self::Host => "host",
        }
    }

    pub(super) fn rules(self) -> Box<dyn Form> {
        match self {
            Self::Indexed => Box::new(indexed::Indexed),
            Self::Dynamic => Box::new(dynamic::Dynamic),
            Self::Blend => Box::new(blend::Blend::new(blend::Extent::Layer)),
            Self::BlendWhole => Box::new(blend::Blend::new(blend::Extent::Whole)),
            Self::Shift => Box::new(shift::Shift),
            Self::Host => Box::new(host::Host::default()),
        }
    }
}

impl fmt::Display for KvForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for KvForm {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|form| form.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(|form| format!("`{form}`")).join(", ");
            Error::input("unknown form of the key/value cache")
                .found(format!("`{name}`"))
                .expected(format!("one of {known}"))
        })
    }
}

/// Names of the inputs and outputs that forms add; part of the host contract.
pub mod names {
    /// Positions of the sequence up to the tokens fed, of which only the number counts: `si32 [1, total]`.
    pub const POSITION_IDS: &str = "position_ids";
    /// Run-time extent: tokens of the sequence, those fed included.
    pub const TOTAL: &str = "total";
    /// 1 where column `i` of the call goes, 0 elsewhere: `[positions, tokens fed]`.
    pub const WRITE_MASK: &str = "write_mask";
    /// What the name of a cache is preceded by where the past is an input.
    pub const PAST: &str = "past_";
    /// What the name of a cache is preceded by where the columns of the call are an output.
    pub const NEW: &str = "new_";
}

/// Columns `[1, groups, n, d]` to be appended to a cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct Append {
    pub(super) cache: ValueId,
    pub(super) columns: ValueId,
    pub(super) start: ValueId,
    pub(super) layer: usize,
}

/// A layer of a cache after the columns of the call were appended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub(super) cache: ValueId,
    pub(super) columns: ValueId,
    pub(super) layer: usize,
}

/// At which positions the keys are that attention reads.
#[derive(Debug, Clone)]
pub(super) enum Keys {
    /// At 0, 1, 2, ..; the last of them is that of the last token fed.
    Sequence,
    /// At these, `si32 [1, keys]`; later than every query where there is nothing.
    At(ValueId),
}

/// One form.
pub(super) trait Form {
    /// The position of the first token fed, where the source graph has it as an input of this name.
    fn start(&mut self, b: &mut Builder<'_>, name: &str, _cached: &Cached) -> Result<ValueId> {
        Ok(b.input(name, Cached::position()))
    }

    /// The cache on entry, a state of the source graph.
    fn cache(&mut self, b: &mut Builder<'_>, name: &str, cached: &Cached) -> ValueId {
        b.state(name, cached.ty.clone())
    }

    /// The cache with the columns of one layer.
    fn append(&mut self, b: &mut Builder<'_>, append: Append, cached: &Cached) -> ValueId;

    /// What attention reads of a layer: `[1, groups, keys, d]`.
    fn seen(&mut self, b: &mut Builder<'_>, seen: Seen, cached: &Cached) -> ValueId;

    /// Where what [`Form::seen`] gives is.
    fn keys(&mut self, b: &mut Builder<'_>, start: ValueId, cached: &Cached) -> Keys;

    /// What the function returns, if not what the caches became.
    fn returned(&mut self, _b: &mut Builder<'_>, _returned: &mut Returned, _cached: &Cached) {}
}
