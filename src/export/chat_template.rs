//! The chat template of a checkpoint, wherever it is.

use crate::checkpoint::{Checkpoint, Json};
use crate::error::At;
use crate::host::chat_template::ChatTemplate;
use crate::{Error, Result};

const FILE: &str = "chat_template.jinja";

/// A chat template as the checkpoint has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SourceTemplate {
    pub(super) text: String,
    /// Where it is: a file, or a field of one.
    pub(super) origin: &'static str,
    /// The folder of the file.
    location: String,
}

impl SourceTemplate {
    /// The prompt of a page with this instruction.
    ///
    /// # Errors
    /// When the template is none, fails, or takes no page.
    pub(super) fn page_prompt(&self, instruction: &str) -> Result<String> {
        let name = format!("{}/{}", self.location, self.origin);
        ChatTemplate::new(name, self.text.as_str())?.page_prompt(instruction)
    }
}

/// The template of the file made for it, else the one in tokenizer_config.json; there may be none.
///
/// # Errors
/// When it cannot be read, or there are several and none of them is the default.
pub(super) fn find(checkpoint: &Checkpoint) -> Result<Option<SourceTemplate>> {
    let location = checkpoint.location().to_owned();
    if let Some(bytes) = checkpoint.side_file(FILE)? {
        let text = String::from_utf8(bytes).map_err(|e| Error::input(format!("not UTF-8 text: {e}")));
        let text = text.at(|| format!("{location}/{FILE}"))?;
        return Ok(Some(SourceTemplate { text, origin: FILE, location }));
    }
    let config = checkpoint.side_json("tokenizer_config.json")?;
    let Some(field) = config.as_ref().and_then(|config| config.root().optional("chat_template")) else {
        return Ok(None);
    };
    let text = match field.as_list() {
        Ok(named) => default_of(&field, &named)?,
        Err(_) => field.as_str()?,
    };
    let origin = "tokenizer_config.json: chat_template";
    Ok(Some(SourceTemplate { text: text.to_owned(), origin, location }))
}

/// The template named `default` of a list of named ones.
fn default_of<'j>(field: &Json<'j>, named: &[Json<'j>]) -> Result<&'j str> {
    for template in named {
        if template.field("name")?.as_str()? == "default" {
            return template.field("template")?.as_str();
        }
    }
    Err(field.error("no template is the default").found(format!("{} templates", named.len())).expected("one `default`"))
}
