//! Weights as tensors, made on use and kept while the cache has room.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use super::Tensor;
use super::ops::reshape;
use super::tensor::shaped;
use crate::weights::{Recipe, WeightId, Weights, produce, read_floats};
use crate::{ElementType, Result};

/// Elements made by one task; a multiple of every block, so that it may divide codes and scales.
const CHUNK: usize = 1 << 20;

/// The weights of a module with a cache of those made so far.
#[derive(Debug)]
pub(super) struct Constants<'m> {
    weights: &'m Weights,
    limit: usize,
    cache: Mutex<Cache>,
}

#[derive(Debug, Default)]
struct Cache {
    tensors: BTreeMap<WeightId, Tensor>,
    bytes: usize,
}

impl<'m> Constants<'m> {
    /// At most `limit` bytes of tensors are kept.
    pub(super) fn new(weights: &'m Weights, limit: usize) -> Self {
        Self { weights, limit, cache: Mutex::default() }
    }

    pub(super) fn shape(&self, id: WeightId) -> &[usize] {
        self.weights.shape(id)
    }

    /// The whole weight. It is kept if the cache has room for it.
    pub(super) fn whole(&self, id: WeightId) -> Result<Tensor> {
        if let Recipe::Reshape { of, .. } = self.weights.recipe(id) {
            return reshape(self.whole(*of)?, self.weights.shape(id));
        }
        if let Some(tensor) = self.cached(id) {
            return Ok(tensor);
        }
        let tensor = self.make(id, 0..self.weights.elements(id), self.weights.shape(id))?;
        let bytes = self.held_bytes(id);
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.bytes + bytes <= self.limit && cache.tensors.insert(id, tensor.clone()).is_none() {
            cache.bytes += bytes;
        }
        Ok(tensor)
    }

    /// Entry `row` of the first axis, which is dropped. Only that row is made where the whole would not be kept.
    pub(super) fn row(&self, id: WeightId, row: usize) -> Result<Tensor> {
        let [rows, shape @ ..] = self.weights.shape(id) else {
            return super::ops::row(self.whole(id)?, row);
        };
        if row >= *rows || self.keeps(id) {
            return super::ops::row(self.whole(id)?, row);
        }
        let length: usize = shape.iter().product();
        self.make(id, row * length..(row + 1) * length, shape)
    }

    /// Whether [`Constants::whole`] keeps the weight.
    fn keeps(&self, id: WeightId) -> bool {
        let stored = match self.weights.recipe(id) {
            Recipe::Reshape { of, .. } => *of,
            _ => id,
        };
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.tensors.contains_key(&stored) || cache.bytes + self.held_bytes(stored) <= self.limit
    }

    fn cached(&self, id: WeightId) -> Option<Tensor> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner).tensors.get(&id).cloned()
    }

    /// Bytes of the tensor that holds the weight.
    fn held_bytes(&self, id: WeightId) -> usize {
        let size = match self.weights.element(id) {
            ElementType::I8 | ElementType::Bool => 1,
            _ => 4,
        };
        self.weights.elements(id).saturating_mul(size)
    }

    fn make(&self, id: WeightId, range: Range<usize>, shape: &[usize]) -> Result<Tensor> {
        if !self.weights.element(id).is_float() {
            return self.make_integers(id, range, shape);
        }
        let mut values = vec![0.0; range.len()];
        let made: Vec<Result<()>> = values
            .par_chunks_mut(CHUNK)
            .enumerate()
            .map(|(i, out)| read_floats(self.weights, id, range.start + i * CHUNK, out))
            .collect();
        made.into_iter().collect::<Result<()>>()?;
        shaped(shape, values).map(Tensor::F32)
    }

    fn make_integers(&self, id: WeightId, range: Range<usize>, shape: &[usize]) -> Result<Tensor> {
        let chunks: Vec<Range<usize>> =
            range.clone().step_by(CHUNK).map(|start| start..(start + CHUNK).min(range.end)).collect();
        let made: Vec<Result<Vec<u8>>> =
            chunks.into_par_iter().map(|chunk| Ok(produce(self.weights, id, chunk)?.bytes)).collect();
        let bytes = made.into_iter().collect::<Result<Vec<_>>>()?.concat();
        Tensor::from_literal_bytes(self.weights.element(id), shape, &bytes)
    }
}
