//! The prompt of a page: the checkpoint's own chat template around the instruction.

use crate::Result;
use crate::checkpoint::Checkpoint;
use crate::export::chat_template;
use crate::host::chat_template::glm_ocr_page_prompt;

/// The prompt as text, with one placeholder for the page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PagePrompt {
    /// The instruction.
    pub(super) text: String,
    /// The whole of it.
    pub(super) rendered: String,
    /// Where the template is from.
    pub(super) origin: &'static str,
}

impl PagePrompt {
    /// The prompt of this instruction; a checkpoint without a template gets the model's own.
    ///
    /// # Errors
    /// When the template cannot be read, or fails.
    pub(super) fn new(checkpoint: &Checkpoint, text: &str) -> Result<Self> {
        let text = text.to_owned();
        Ok(match chat_template::find(checkpoint)? {
            Some(template) => Self { rendered: template.page_prompt(&text)?, origin: template.origin, text },
            None => Self { rendered: glm_ocr_page_prompt(&text), origin: "built-in", text },
        })
    }
}
