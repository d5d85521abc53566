//! Text to token ids and back, by the checkpoint's own `tokenizer.json`.

use std::path::Path;

use crate::{Error, Result};

/// A loaded `tokenizer.json`.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    name: String,
    inner: tokenizers::Tokenizer,
}

impl Tokenizer {
    /// Reads a `tokenizer.json` file.
    ///
    /// # Errors
    /// When the file cannot be read or is not a tokenizer.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(|e| Error::io(path, &e))?;
        Self::from_bytes(path.display().to_string(), &bytes)
    }

    /// Reads the content of a `tokenizer.json`; `name` is shown in errors.
    ///
    /// # Errors
    /// When the bytes are not a tokenizer.
    pub fn from_bytes(name: impl Into<String>, bytes: &[u8]) -> Result<Self> {
        let name = name.into();
        match tokenizers::Tokenizer::from_bytes(bytes) {
            Ok(inner) => Ok(Self { name, inner }),
            Err(e) => Err(Error::input(format!("not a tokenizer that can be read: {e}")).at(name)),
        }
    }

    /// The ids of `text`, without any token that a template would add.
    ///
    /// # Errors
    /// When the tokenizer cannot represent the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self
            .inner
            .encode_fast(text, false)
            .map_err(|e| Error::input(format!("cannot encode {text:?}: {e}")).at(self.name.clone()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The id of a token, if the tokenizer has it.
    #[must_use]
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The token of an id, if the tokenizer has it.
    #[must_use]
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The text of `ids`; special tokens, and ids the tokenizer does not have, give nothing.
    ///
    /// # Errors
    /// When the decoder of the tokenizer fails.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.inner
            .decode(ids, true)
            .map_err(|e| Error::input(format!("cannot decode token ids: {e}")).at(self.name.clone()))
    }
}

#[cfg(test)]
mod tests;
