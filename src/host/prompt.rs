//! The token ids that are fed before the first generated token.

use super::tokenizer::Tokenizer;
use crate::Result;
use crate::grid::Grid;

/// The parts of a plain prompt: no roles, no template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prompt<'a> {
    /// Token that begins every sequence.
    pub bos: u32,
    /// Token that stands for one visual position.
    pub image_token: u32,
    /// Grid of visual tokens.
    pub grid: Grid,
    /// The instruction, such as `document parsing.`.
    pub text: &'a str,
}

impl Prompt<'_> {
    /// `[bos]`, one image token per [visual position](Grid::positions), then the ids of the text.
    ///
    /// # Errors
    /// When the text cannot be encoded.
    pub fn ids(&self, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
        let mut ids = vec![self.bos];
        ids.resize(1 + self.grid.positions(), self.image_token);
        ids.extend(tokenizer.encode(self.text)?);
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_the_prompt_transformers_was_given() {
        let tokenizer =
            Tokenizer::open(concat!(env!("CARGO_MANIFEST_DIR"), "/golden/trained/unlimited-ocr-tiny/tokenizer.json"))
                .unwrap();
        let expected: serde_json::Value =
            serde_json::from_str(include_str!("../../golden/pages/expected.json")).unwrap();
        let grid = Grid::new(10, 10).unwrap();
        let prompt = Prompt { bos: 0, image_token: 476, grid, text: "document parsing." };
        let ids = prompt.ids(&tokenizer).unwrap();
        assert_eq!(serde_json::json!(ids), expected["prompt_ids"]);
    }
}
