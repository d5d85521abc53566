//! The inputs of one node while it runs.

use super::constants::Constants;
use super::tensor::{Array, Element};
use super::{Tensor, ops};
use crate::weights::WeightId;
use crate::{Error, Result};

/// Inputs in order. Values are there; weights are made when they are taken, so that an operation which needs a few of
/// many experts makes only those.
#[derive(Debug)]
pub(super) struct Operands<'a> {
    slots: Vec<Slot>,
    constants: &'a Constants<'a>,
}

/// One input.
#[derive(Debug, Clone)]
pub(super) enum Slot {
    Value(Tensor),
    Constant(WeightId),
    Taken,
}

impl<'a> Operands<'a> {
    pub(super) fn new(slots: Vec<Slot>, constants: &'a Constants<'a>) -> Self {
        Self { slots, constants }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Input `index`, moved out: where nothing else holds its elements, they may be changed in place.
    pub(super) fn take(&mut self, index: usize) -> Result<Tensor> {
        match self.slots.get_mut(index).map(|slot| std::mem::replace(slot, Slot::Taken)) {
            Some(Slot::Value(tensor)) => Ok(tensor),
            Some(Slot::Constant(id)) => self.constants.whole(id),
            Some(Slot::Taken) | None => Err(missing(index)),
        }
    }

    /// Input `index` as an array of `T`.
    pub(super) fn array<T: Element>(&mut self, index: usize) -> Result<Array<T>> {
        typed(self.take(index)?)
    }

    /// All inputs not taken yet.
    pub(super) fn rest(&mut self) -> Result<Vec<Tensor>> {
        let left: Vec<usize> = (0..self.len()).filter(|&i| !matches!(self.slots[i], Slot::Taken)).collect();
        left.into_iter().map(|index| self.take(index)).collect()
    }

    /// The extents of input `index`.
    pub(super) fn shape(&self, index: usize) -> Result<&[usize]> {
        match self.slots.get(index) {
            Some(Slot::Value(tensor)) => Ok(tensor.shape()),
            Some(Slot::Constant(id)) => Ok(self.constants.shape(*id)),
            Some(Slot::Taken) | None => Err(missing(index)),
        }
    }

    /// Input `index`, which stays.
    pub(super) fn get(&self, index: usize) -> Result<Tensor> {
        match self.slots.get(index) {
            Some(Slot::Value(tensor)) => Ok(tensor.clone()),
            Some(Slot::Constant(id)) => self.constants.whole(*id),
            Some(Slot::Taken) | None => Err(missing(index)),
        }
    }

    /// Entry `row` of the first axis of input `index`, which stays; the axis is dropped.
    pub(super) fn row(&self, index: usize, row: usize) -> Result<Tensor> {
        match self.slots.get(index) {
            Some(Slot::Value(tensor)) => ops::row(tensor.clone(), row),
            Some(Slot::Constant(id)) => self.constants.row(*id, row),
            Some(Slot::Taken) | None => Err(missing(index)),
        }
    }

    /// Whether input `index` is a weight.
    pub(super) fn is_constant(&self, index: usize) -> bool {
        matches!(self.slots.get(index), Some(Slot::Constant(_)))
    }
}

/// A tensor as an array of `T`.
pub(super) fn typed<T: Element>(tensor: Tensor) -> Result<Array<T>> {
    let error = tensor.wrong_kind(std::any::type_name::<T>());
    T::unwrap(tensor).ok_or(error)
}

#[cold]
fn missing(index: usize) -> Error {
    Error::input("an operation lacks an input").found(format!("no input {index}"))
}
