//! What a function is called with in each form, for what the source graph is called with.

use super::form::{KvForm, names};
use super::{Cached, StaticKv};
use crate::eval::Tensor;
use crate::graph::{Dim, Function};
use crate::passes::Arguments;
use crate::passes::proof::extent;
use crate::{Error, Result};

impl StaticKv {
    pub(super) fn arguments(self, before: &Function, mut arguments: Arguments) -> Result<Arguments> {
        let Some(cached) = Cached::of(before) else { return Ok(arguments) };
        let cached = cached?;
        let call = Call { fed: extent(&cached.queries), start: start(before, &cached, &arguments)?, cached };
        match self.form {
            KvForm::Indexed => {}
            KvForm::Dynamic => call.grow_positions(before, &mut arguments)?,
            KvForm::Blend | KvForm::BlendWhole => call.hand_in_mask(&mut arguments)?,
            KvForm::Shift => call.move_to_the_end(&mut arguments)?,
            KvForm::Host => call.hand_in_past(&mut arguments),
        }
        Ok(arguments)
    }
}

/// One call of a function with a cache.
struct Call {
    /// Tokens fed.
    fed: usize,
    /// Position of the first of them.
    start: usize,
    cached: Cached,
}

/// The position that the source graph is called with.
fn start(before: &Function, cached: &Cached, arguments: &Arguments) -> Result<usize> {
    if cached.from_zero {
        return Ok(0);
    }
    let name = &position(before, cached)?;
    match arguments.inputs.get(name) {
        Some(Tensor::I32(value)) => value.iter().next().and_then(|start| usize::try_from(*start).ok()),
        _ => None,
    }
    .ok_or_else(|| Error::input("no position is given").at(name.clone()))
}

/// The name of the input that the source graph takes its position from.
fn position(before: &Function, cached: &Cached) -> Result<String> {
    let parameter = before.parameters.iter().find(|parameter| parameter.value == cached.start);
    parameter.map(|parameter| parameter.name.clone()).ok_or_else(|| Error::input("the position is not an input"))
}

impl Call {
    fn grow_positions(&self, before: &Function, arguments: &mut Arguments) -> Result<()> {
        if !self.cached.from_zero {
            arguments.inputs.remove(&position(before, &self.cached)?);
            let total = self.start + self.fed;
            let positions = Tensor::integers(&[1, total], (0..total as i32).collect())?;
            arguments.inputs.insert(names::POSITION_IDS.to_owned(), positions);
        }
        Ok(())
    }

    fn hand_in_mask(&self, arguments: &mut Arguments) -> Result<()> {
        if !self.cached.from_zero {
            let (length, fed) = (self.cached.length(), self.fed);
            let mut mask = vec![0.0; length * fed];
            for column in 0..fed {
                mask[(self.start + column) * fed + column] = 1.0;
            }
            arguments.inputs.insert(names::WRITE_MASK.to_owned(), Tensor::floats(&[length, fed], mask)?);
        }
        Ok(())
    }

    /// Position 0 of the sequence is as far from the end of the cache as the sequence is long.
    fn move_to_the_end(&self, arguments: &mut Arguments) -> Result<()> {
        let width = self.cached.ty.shape.last().and_then(Dim::fixed).unwrap_or(1);
        let (length, start) = (self.cached.length() * width, self.start * width);
        for tensor in arguments.states.values_mut() {
            let mut values = tensor.to_floats()?;
            for rows in values.chunks_exact_mut(length) {
                rows.rotate_right(length - start);
            }
            *tensor = Tensor::floats(tensor.shape(), values)?;
        }
        Ok(())
    }

    fn hand_in_past(&self, arguments: &mut Arguments) {
        let states = std::mem::take(&mut arguments.states);
        if !self.cached.from_zero {
            let past = states.into_iter().map(|(name, tensor)| (format!("{}{name}", names::PAST), tensor));
            arguments.inputs.extend(past);
        }
    }
}
