//! How many tokens a bundle holds: prompt and answer together.

use super::{ExportRequest, Manifest};
use crate::{Error, Result};

/// Positions of the key/value cache: what is asked for, else the manifest's default or all the model has.
///
/// # Errors
/// When the model does not have so many.
pub(super) fn length(request: &ExportRequest, manifest: &Manifest, positions: usize) -> Result<usize> {
    let length = request.max_context.unwrap_or(manifest.defaults.max_context.min(positions));
    if (1..=positions).contains(&length) {
        return Ok(length);
    }
    let error = Error::input("the model does not have so many positions").at(OPTION);
    Err(error.found(length).expected(format!("1 to {positions}")))
}

/// Refuses a prompt that leaves no room for an answer.
///
/// # Errors
/// When it does.
pub(super) fn check_prompt(tokens: usize, context: usize) -> Result<()> {
    if tokens < context {
        return Ok(());
    }
    let error = Error::input("the prompt leaves no room for an answer").at(OPTION);
    Err(error.found(context).expected(format!("more than the {tokens} tokens of the prompt")))
}

const OPTION: &str = "--max-context";
