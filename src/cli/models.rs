//! `aimodel models`.

use std::fmt;

use clap::Args;
use serde::Serialize;

use super::failure::Failure;
use super::help;
use super::options::OutputOptions;
use super::output::Output;
use crate::Result;
use crate::export::Manifest;

/// List the models that can be exported
#[derive(Debug, Args)]
#[command(after_help = help::with_exit_status(EXAMPLES))]
pub(super) struct Options {
    #[command(flatten)]
    pub output: OutputOptions,
}

const EXAMPLES: &str = "\
Examples:
  aimodel models
  aimodel models --json";

/// The models that can be exported.
#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Models(Vec<Model>);

/// One of them.
#[derive(Debug, Serialize)]
struct Model {
    name: String,
    hf_model_id: String,
    description: String,
    schemes: Vec<String>,
    /// Forms of the key/value cache.
    kv: Vec<String>,
}

impl fmt::Display for Models {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.0.iter().map(|model| model.name.len()).max().unwrap_or(0);
        for Model { name, hf_model_id, description, schemes, kv } in &self.0 {
            writeln!(f, "{name:<width$}  {hf_model_id} ({})", schemes.join(", "))?;
            writeln!(f, "{:<width$}  {description}", "")?;
            writeln!(f, "{:<width$}  key/value cache: {}", "", kv.join(", "))?;
        }
        Ok(())
    }
}

pub(super) fn run(_options: &Options, output: &mut Output) -> Result<(), Failure> {
    Ok(output.answer(&Models(models()?))?)
}

/// The models that have a manifest.
fn models() -> Result<Vec<Model>> {
    let model = |manifest: Manifest| {
        Ok(Model {
            schemes: manifest.schemes()?.iter().map(ToString::to_string).collect(),
            kv: manifest.kv.iter().map(ToString::to_string).collect(),
            name: manifest.name,
            hf_model_id: manifest.hub,
            description: manifest.description,
        })
    };
    Manifest::all()?.into_iter().map(model).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_in_a_column() {
        let model = |name: &str| Model {
            name: name.into(),
            hf_model_id: "a/b".into(),
            description: "reads".into(),
            schemes: vec!["fp16".into(), "sym8".into()],
            kv: vec!["indexed".into(), "host".into()],
        };
        let text = Models(vec![model("ocr"), model("unlimited-ocr")]).to_string();
        let expected = "\
ocr            a/b (fp16, sym8)
               reads
               key/value cache: indexed, host
unlimited-ocr  a/b (fp16, sym8)
               reads
               key/value cache: indexed, host
";
        assert_eq!(text, expected);
    }
}
