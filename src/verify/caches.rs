//! What calls leave in the caches: the rows of their tokens, and nothing else.

use std::ops::Range;

use crate::eval::Tensor;
use crate::host::reader::Session;
use crate::host::recipe::{CacheRecipe, CacheRows, KvCaches};
use crate::runtime::Asset;
use crate::runtime::eval::Eval;
use crate::{Error, Result};

/// The caches at one moment, rows in the order of the positions.
pub(super) struct Caches(Vec<Cache>);

/// One cache `[layers, 1, heads, length, head_dim]`.
struct Cache {
    name: String,
    shape: CacheRecipe,
    values: Vec<f32>,
}

impl Caches {
    /// Of the tokens that `session` was fed on `eval`.
    pub(super) fn of(eval: &Eval<'_>, session: &Session<'_>) -> Result<Self> {
        let recipe = session.recipe();
        let shape = recipe.cache;
        let named = |name: &String, values| Cache { name: name.clone(), shape, values };
        match (&recipe.kv.caches, session.columns()) {
            (KvCaches::States { keys, values, rows }, _) => {
                let mut all = Vec::new();
                for name in [keys, values] {
                    let mut cache = named(name, held(eval, name)?);
                    if *rows == CacheRows::AtTheEnd {
                        cache.bring_forward(session.length());
                    }
                    all.push(cache);
                }
                Ok(Self(all))
            }
            (KvCaches::Host { keys, values }, Some(columns)) => {
                let all = [keys, values].into_iter().zip(columns);
                Ok(Self(all.map(|(cache, values)| named(&cache.new, values)).collect()))
            }
            (KvCaches::Host { .. }, None) => Err(Error::check("the host keeps no caches")),
        }
    }

    /// After the prompt its rows are written, and no others.
    pub(super) fn check_prefill(&self, prompt: usize) -> Result<String> {
        for cache in &self.0 {
            cache.expect_written(0..prompt)?;
            cache.expect(prompt..cache.shape.length, |_, value| value == 0.0)?;
        }
        Ok(format!("rows 0 to {} are written, no others", prompt.saturating_sub(1)))
    }

    /// Each step writes the row of its position, and no others.
    pub(super) fn check_decode(&self, before: &Self, prompt: usize, steps: usize) -> Result<String> {
        let end = prompt.saturating_add(steps);
        for (cache, before) in self.0.iter().zip(&before.0) {
            cache.expect_written(prompt..end)?;
            let unchanged = |index: usize, value: f32| before.values.get(index).is_some_and(|&old| same(old, value));
            cache.expect(0..prompt, unchanged)?;
            cache.expect(end..cache.shape.length, unchanged)?;
        }
        Ok(format!("rows {prompt} to {} are written, no others", end.saturating_sub(1)))
    }
}

/// The contents of a state.
fn held(eval: &Eval<'_>, name: &str) -> Result<Vec<f32>> {
    let tensor: Option<&Tensor> = eval.states(Asset::Decoder).and_then(|held| held.get(name));
    tensor.ok_or_else(|| Error::check("the state is gone").at(format!("`{name}`")))?.to_floats()
}

/// Zero has two signs: what is kept by a product with 1 may change it.
fn same(a: f32, b: f32) -> bool {
    a == b || a.to_bits() == b.to_bits()
}

impl Cache {
    /// Brings the rows of so many tokens, which are the last, to the front.
    fn bring_forward(&mut self, tokens: usize) {
        let CacheRecipe { length, head_dim, .. } = self.shape;
        let before = length.saturating_sub(tokens) * head_dim;
        self.values.chunks_exact_mut(length * head_dim).for_each(|rows| rows.rotate_left(before));
    }

    /// Every value in these rows, of each layer and head, is as it should be.
    fn expect(&self, rows: Range<usize>, holds: impl Fn(usize, f32) -> bool) -> Result<()> {
        let CacheRecipe { length, head_dim, .. } = self.shape;
        for (index, &value) in self.values.iter().enumerate() {
            let row = index / head_dim % length;
            if rows.contains(&row) && !holds(index, value) {
                return Err(Error::check("a row is written that is none of the call's")
                    .at(format!("element {index}, row {row}"))
                    .at(format!("state `{}`", self.name))
                    .found(value));
            }
        }
        Ok(())
    }

    /// Each of these rows has something in it, in each layer and head.
    fn expect_written(&self, rows: Range<usize>) -> Result<()> {
        let CacheRecipe { length, head_dim, .. } = self.shape;
        let written = |row: &[f32]| row.iter().any(|value| *value != 0.0);
        let all = self.values.chunks(head_dim).enumerate().map(|(index, values)| (index % length, values));
        let mut empty = all.filter(|(row, values)| rows.contains(row) && !written(values));
        match empty.next() {
            Some((row, _)) => {
                Err(Error::check("a row was not written").at(format!("row {row}")).at(format!("state `{}`", self.name)))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(rows: &[f32]) -> Cache {
        let shape = CacheRecipe { layers: 1, heads: 2, length: rows.len(), head_dim: 1 };
        Cache { name: "keys".to_owned(), shape, values: rows.repeat(2) }
    }

    #[test]
    fn rows_outside_the_window_are_looked_at() {
        let caches = |rows: &[f32]| Caches(vec![cache(rows)]);
        let before = caches(&[1.0, 2.0, 0.0, 0.0]);
        before.check_prefill(2).unwrap();
        assert!(
            before.check_prefill(3).unwrap_err().to_string().ends_with("state `keys`: row 2: a row was not written")
        );
        assert!(before.check_prefill(1).unwrap_err().to_string().contains("row 1: a row is written"));
        caches(&[1.0, 2.0, 3.0, 0.0]).check_decode(&before, 2, 1).unwrap();
        caches(&[1.0, 2.5, 3.0, 0.0]).check_decode(&before, 2, 1).unwrap_err();
        caches(&[1.0, 2.0, 3.0, 4.0]).check_decode(&before, 2, 1).unwrap_err();
        caches(&[1.0, 2.0, 0.0, 0.0]).check_decode(&before, 2, 1).unwrap_err();
    }

    #[test]
    fn rows_at_the_end_are_brought_to_the_front() {
        let mut cache = cache(&[9.0, 0.0, 1.0, 2.0, 3.0]);
        cache.bring_forward(3);
        assert_eq!(cache.values, [1.0, 2.0, 3.0, 9.0, 0.0].repeat(2));
        cache.bring_forward(6);
        assert_eq!(cache.values[..3], [1.0, 2.0, 3.0]);
    }

    #[test]
    fn a_zero_of_another_sign_is_the_same() {
        let before = Caches(vec![cache(&[-0.0, 1.0])]);
        Caches(vec![cache(&[0.0, 1.0])]).check_decode(&before, 1, 1).unwrap();
    }
}
