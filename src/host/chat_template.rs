//! The prompt as the checkpoint's own chat template writes it.

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, Value, context};

use crate::{Error, Result};

/// Steps a template may take; those of published checkpoints take a few hundred.
const MAX_STEPS: u64 = 1_000_000;

/// Longest template, in bytes.
const MAX_BYTES: usize = 1 << 20;

/// A `chat_template.jinja`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatTemplate {
    name: String,
    source: String,
}

impl ChatTemplate {
    /// A template; `name` is shown in errors.
    ///
    /// # Errors
    /// When it is too long or not a template.
    pub fn new(name: impl Into<String>, source: impl Into<String>) -> Result<Self> {
        let template = Self { name: name.into(), source: source.into() };
        if template.source.len() > MAX_BYTES {
            let error = Error::input("the chat template is too long").at(template.name);
            return Err(error
                .found(format!("{} bytes", template.source.len()))
                .expected(format!("at most {MAX_BYTES}")));
        }
        let parsed = environment().and_then(|e| e.template_from_named_str(&template.name, &template.source).map(drop));
        parsed.map_err(|e| template.error(&e))?;
        Ok(template)
    }

    /// The text before the answer to one message of the user: a page, then an instruction.
    ///
    /// # Errors
    /// When the template fails, refuses the message, or takes too long.
    pub fn page_prompt(&self, instruction: &str) -> Result<String> {
        let page = context! { type => "image" };
        let text = context! { type => "text", text => instruction };
        let message = context! { role => "user", content => [page, text] };
        let context = context! { messages => [message], add_generation_prompt => true };
        let rendered = environment().and_then(|e| e.render_named_str(&self.name, &self.source, context));
        rendered.map_err(|e| self.error(&e))
    }

    fn error(&self, error: &minijinja::Error) -> Error {
        let line = error.line().map_or_else(String::new, |line| format!(" in line {line}"));
        Error::input(format!("the chat template fails{line}: {error}")).at(self.name.clone())
    }
}

/// As transformers sets up Jinja: blocks leave no empty lines, what is missing is empty, values have Python's methods.
fn environment() -> Result<Environment<'static>, minijinja::Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.set_fuel(Some(MAX_STEPS));
    Ok(environment)
}

/// The prompt of GLM-OCR for checkpoints without a template.
#[must_use]
pub fn glm_ocr_page_prompt(instruction: &str) -> String {
    format!("[gMASK]<sop><|user|>\n<|begin_of_image|><|image|><|end_of_image|>{instruction}<|assistant|>\n")
}

#[cfg(test)]
mod tests;
