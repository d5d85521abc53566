//! The tokenizer of a bundle: the checkpoint's own files, and what an application should know of them.

use super::chat_template;
use super::end_of_turn::{self, EndOfTurn};
use crate::checkpoint::Checkpoint;
use crate::error::At;
use crate::host::recipe::StopToken;
use crate::host::tokenizer::Tokenizer;
use crate::{Error, Result};

/// Path of the tokenizer in a bundle.
pub(super) const TOKENIZER: &str = "tokenizer/tokenizer.json";

/// Files copied where they are there; the first one has to be.
const FILES: &[&str] = &[
    "tokenizer.json",
    CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "processor_config.json",
    "preprocessor_config.json",
    "chat_template.jinja",
];

const CONFIG: &str = "tokenizer_config.json";
/// Name of the checkpoint's own tokenizer_config.json beside one that was changed.
const CONFIG_SOURCE: &str = "tokenizer_config.source.json";

/// Files of a bundle's `tokenizer/`.
#[derive(Debug, Default)]
pub(super) struct TokenizerFiles {
    /// Path in the bundle and contents.
    pub(super) files: Vec<(String, Vec<u8>)>,
    /// What an application should know of them, as sentences.
    pub(super) notes: Vec<String>,
}

/// Opens the checkpoint's tokenizer.json.
///
/// # Errors
/// When it is missing or is not a tokenizer.
pub(super) fn open(checkpoint: &Checkpoint) -> Result<Tokenizer> {
    match checkpoint.side_file("tokenizer.json")? {
        Some(bytes) => Tokenizer::from_bytes(format!("{}/tokenizer.json", checkpoint.location()), &bytes),
        None => Err(Error::input("tokenizer.json is missing")
            .at(checkpoint.location())
            .hint("applications on the device load this file; a slow tokenizer has to be converted to it first")),
    }
}

/// The files, byte for byte, but for an `eos_token` at which no answer would end.
///
/// # Errors
/// When a file cannot be read.
pub(super) fn read(checkpoint: &Checkpoint, tokenizer: &Tokenizer, stop: &[StopToken]) -> Result<TokenizerFiles> {
    let mut all = TokenizerFiles::default();
    for name in FILES {
        if let Some(bytes) = checkpoint.side_file(name)? {
            all.files.push((path(name), bytes));
        }
    }
    all.notes.extend(class_note(checkpoint)?);
    let stop: Vec<String> = stop.iter().filter_map(|token| tokenizer.token(token.id)).collect();
    if let Some(template) = chat_template::find(checkpoint)? {
        // A template that takes no page is known by its source alone.
        let prompt = template.page_prompt("").unwrap_or_default();
        all.mend_end_of_turn(&[&template.text, &prompt], &stop).at(|| format!("{}/{CONFIG}", checkpoint.location()))?;
    }
    Ok(all)
}

impl TokenizerFiles {
    fn mend_end_of_turn(&mut self, template: &[&str], stop: &[String]) -> Result<()> {
        let Some((_, config)) = self.files.iter_mut().find(|(name, _)| *name == path(CONFIG)) else {
            return Ok(());
        };
        match end_of_turn::examine(config, template, stop)? {
            EndOfTurn::Written => {}
            EndOfTurn::Replaced { bytes, from, to } => {
                let source = std::mem::replace(config, bytes);
                self.files.push((path(CONFIG_SOURCE), source));
                self.notes.push(format!(
                    "tokenizer/{CONFIG}: eos_token is `{to}`, which the chat template ends turns with, in place of \
                     `{from}`, which it never writes: an application that stops at this token alone would not stop; \
                     the checkpoint's own file is tokenizer/{CONFIG_SOURCE}"
                ));
            }
            EndOfTurn::Unclear { eos } => self.notes.push(format!(
                "tokenizer/{CONFIG}: eos_token is `{eos}`, which the chat template never writes: an application must \
                 stop at every token that recipe.json names"
            )),
        }
        Ok(())
    }
}

fn path(name: &str) -> String {
    format!("tokenizer/{name}")
}

/// The class that transformers 5 writes is the name of something inside it, which readers of other makes may not know.
fn class_note(checkpoint: &Checkpoint) -> Result<Option<String>> {
    let config = checkpoint.side_json(CONFIG)?;
    let class = config.as_ref().and_then(|config| config.root().optional("tokenizer_class"));
    let class = class.map(|class| class.as_str()).transpose()?;
    Ok(class.filter(|class| class.starts_with("TokenizersBackend")).map(|class| {
        format!(
            "tokenizer/{CONFIG}: tokenizer_class is `{class}`, as transformers 5 writes it: versions of \
             swift-transformers that do not know it refuse the tokenizer"
        )
    }))
}
