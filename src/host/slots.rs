//! Prompts whose visual tokens are ids beyond the vocabulary, and what the decoder needs to count positions past them.

use crate::grid::Grid;
use crate::{Error, Result};

/// How text after an image is counted: from `start` on, positions are moved back by `amount`, because an image takes
/// as many as its longer side has visual tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RopeShift {
    /// Position of the first token after the image.
    pub start: i32,
    /// What is taken off from there on.
    pub amount: i32,
}

impl RopeShift {
    /// For a prompt without an image: no position is reached.
    pub const NONE: Self = Self { start: 1 << 30, amount: 0 };
}

/// A prompt as the decoder takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlottedPrompt {
    /// Token ids; one from the vocabulary size on is the visual token of that number.
    pub ids: Vec<u32>,
    /// How text after the image is counted.
    pub shift: RopeShift,
}

/// Where visual tokens go in a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    /// Token that stands for an image.
    pub placeholder: u32,
    /// Rows of the embedding table: the id of the first visual token.
    pub vocabulary: u32,
    /// Visual tokens of the image.
    pub grid: Grid,
}

impl Slots {
    /// The prompt with the visual tokens in the place of its one placeholder.
    ///
    /// # Errors
    /// When there is no placeholder or more than one, an id is beyond the vocabulary, or the prompt grows too long to
    /// be counted.
    pub fn fill(&self, ids: &[u32]) -> Result<SlottedPrompt> {
        if let Some(id) = ids.iter().find(|id| **id >= self.vocabulary) {
            let error = Error::input("the prompt has a token beyond the vocabulary");
            return Err(error.found(id).expected(format!("less than {}", self.vocabulary)));
        }
        let (before, after) = self.split(ids)?;
        let tokens = self.grid.tokens();
        let too_long = || Error::input("the prompt is too long").found(format!("{} + {tokens} tokens", ids.len()));
        let end = i32::try_from(before.len() + tokens).map_err(|_| too_long())?;
        let longer = self.grid.rows().max(self.grid.columns());
        let amount = i32::try_from(tokens - longer).map_err(|_| too_long())?;
        let slots = (0..tokens as u32).map(|slot| self.vocabulary.checked_add(slot));
        let text = |ids: &[u32]| ids.iter().copied().map(Some).collect::<Vec<_>>();
        let all = text(before).into_iter().chain(slots).chain(text(after)).collect::<Option<Vec<u32>>>();
        Ok(SlottedPrompt { ids: all.ok_or_else(too_long)?, shift: RopeShift { start: end, amount } })
    }

    /// The ids before and after the placeholder.
    fn split<'a>(&self, ids: &'a [u32]) -> Result<(&'a [u32], &'a [u32])> {
        let mut parts = ids.split(|id| *id == self.placeholder);
        match (parts.next(), parts.next(), parts.next()) {
            (Some(before), Some(after), None) => Ok((before, after)),
            _ => Err(Error::input("the prompt does not have one image")
                .found(format!("{} placeholders", ids.iter().filter(|id| **id == self.placeholder).count()))
                .expected(format!("token {} once", self.placeholder))
                .hint("does the chat template write the image token that config.json names?")),
        }
    }
}

#[cfg(test)]
mod tests;
