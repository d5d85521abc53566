//! Tensors of a checkpoint by name, with what became of each.

use std::collections::BTreeSet;

use crate::checkpoint::Checkpoint;
use crate::storage::StoredTensor;
use crate::{Error, Result};

/// A tensor the model does not run, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unused {
    /// Name in the checkpoint.
    pub tensor: String,
    /// The pass that drops it.
    pub pass: &'static str,
    /// Why it is not needed.
    pub reason: &'static str,
}

/// Hands out tensors and remembers which.
#[derive(Debug)]
pub struct Loader<'c> {
    checkpoint: &'c Checkpoint,
    requested: BTreeSet<String>,
    unused: Vec<Unused>,
}

impl<'c> Loader<'c> {
    /// A loader nothing was asked of yet.
    #[must_use]
    pub fn new(checkpoint: &'c Checkpoint) -> Self {
        Self { checkpoint, requested: BTreeSet::new(), unused: Vec::new() }
    }

    /// Path or name of the checkpoint, for messages.
    #[must_use]
    pub fn location(&self) -> &'c str {
        self.checkpoint.location()
    }

    /// Whether the checkpoint has a tensor of this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// The tensor `name`, if there is one, without asking for it.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'c StoredTensor> {
        self.checkpoint.tensor(name)
    }

    /// The names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &'c str> + use<'c> {
        self.checkpoint.tensors().map(|tensor| &*tensor.name)
    }

    /// The tensor `name`, which must have this shape.
    ///
    /// # Errors
    /// When it is missing, of another shape, or not of floating-point numbers.
    pub fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<&'c StoredTensor> {
        let missing = || {
            Error::input(format!("tensor `{name}` is missing"))
                .at(self.checkpoint.location())
                .hint("is the download complete, and is the checkpoint of this model?")
        };
        let tensor = self.checkpoint.tensor(name).ok_or_else(missing)?;
        let place = || format!("{}: tensor `{name}`", tensor.source.name());
        if tensor.shape != shape {
            let wrong = Error::input("the shape does not fit config.json");
            return Err(wrong.at(place()).found(format!("{:?}", tensor.shape)).expected(format!("{shape:?}")));
        }
        if !tensor.element.is_float() {
            let wrong = Error::input("not a floating-point tensor");
            return Err(wrong.at(place()).found(tensor.element).expected("bf16, f16 or f32"));
        }
        self.requested.insert(name.to_owned());
        Ok(tensor)
    }

    /// Declares a tensor that the model never runs; it may be missing.
    pub fn unused(&mut self, unused: Unused) {
        if self.has(&unused.tensor) {
            self.requested.insert(unused.tensor.clone());
            self.unused.push(unused);
        }
    }

    /// The tensors declared unused that are there.
    #[must_use]
    pub fn dropped(&self) -> &[Unused] {
        &self.unused
    }

    /// Checks that nothing in the checkpoint was left unasked for.
    ///
    /// # Errors
    /// Names the first tensor that neither the model uses nor a pass drops, and how many more there are.
    pub fn finish(&self) -> Result<()> {
        let mut extra = self.checkpoint.tensors().filter(|t| !self.requested.contains(&*t.name));
        let Some(first) = extra.next() else {
            return Ok(());
        };
        let more = match extra.count() {
            0 => String::new(),
            n => format!(" (and {n} more)"),
        };
        Err(Error::input(format!("tensor `{}` is not part of the model{more}", first.name))
            .at(first.source.name())
            .hint("a tensor that nothing uses means that the checkpoint is of another model or was saved differently"))
    }
}
