//! Manifests: what each exportable model is, in TOML, compiled into the program.

use serde::Deserialize;

use crate::checkpoint::Json;
use crate::quant::Scheme;
use crate::{Error, Result};

/// The manifests, in the order they are listed.
const SOURCES: &[(&str, &str)] =
    &[("manifests/unlimited-ocr.toml", include_str!("../../manifests/unlimited-ocr.toml"))];

/// A model that can be exported.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The name on the command line.
    pub name: String,
    /// Which code builds its graphs.
    pub family: Family,
    /// What it does, in one line.
    pub description: String,
    /// Its id on the Hugging Face Hub.
    pub hub: String,
    /// The `model_type`s of its config.json.
    pub model_types: Vec<String>,
    /// The `architectures` of its config.json.
    pub architectures: Vec<String>,
    schemes: Vec<String>,
    /// What an export uses where nothing is asked for.
    pub defaults: Defaults,
    /// From a page to pixels.
    pub image: ImageSettings,
    /// What surrounds the image.
    pub prompt: PromptSettings,
    /// How tokens are chosen.
    pub decoding: DecodingSettings,
    /// Ordered passes by asset.
    pub passes: PassLists,
}

/// Code that builds the graphs of one or more models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// DeepEncoder and a DeepseekV2 decoder.
    UnlimitedOcr,
}

/// What an export uses where nothing is asked for.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Defaults {
    scheme: String,
    /// Side of the page image in pixels.
    pub image_size: usize,
    /// Positions of the key/value cache.
    pub cache_length: usize,
    /// Text of the prompt after the image.
    pub prompt: String,
}

/// From a page to pixels.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageSettings {
    /// Up to this side the page is stretched, beyond it padded.
    pub stretch_up_to: usize,
    /// Colour of the padding.
    pub fill: [u8; 3],
    /// Mean of each channel.
    pub mean: [f32; 3],
    /// Standard deviation of each channel.
    pub std: [f32; 3],
}

/// What surrounds the image.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromptSettings {
    /// The tokenizer's token for a visual position.
    pub image_token: String,
    /// Its id where neither config.json nor the tokenizer says.
    pub image_token_id: u32,
}

/// How tokens are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecodingSettings {
    /// No n-gram occurs twice in a window.
    pub no_repeat_ngram: Ngram,
    /// A token is not repeated this often in a row.
    pub run_cap: usize,
}

/// The n-gram rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ngram {
    /// Tokens of an n-gram.
    pub size: usize,
    /// Tokens looked back at.
    pub window: usize,
}

/// Ordered passes by asset.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PassLists {
    /// Of the vision asset.
    pub vision: Vec<String>,
    /// Of the decoder asset.
    pub decoder: Vec<String>,
}

impl Manifest {
    /// Every manifest.
    ///
    /// # Errors
    /// When one does not parse, which a test rules out.
    pub fn all() -> Result<Vec<Self>> {
        SOURCES.iter().map(|(file, text)| Self::parse(file, text)).collect()
    }

    /// The manifest of this name.
    ///
    /// # Errors
    /// When there is none; the error lists those there are.
    pub fn find(name: &str) -> Result<Self> {
        let mut all = Self::all()?;
        match all.iter().position(|manifest| manifest.name == name) {
            Some(index) => Ok(all.swap_remove(index)),
            None => {
                let names: Vec<String> = all.iter().map(|manifest| format!("`{}`", manifest.name)).collect();
                let error = Error::input("unknown model").found(format!("`{name}`")).expected(names.join(" or "));
                Err(error.hint("`aimodel models` lists them"))
            }
        }
    }

    fn parse(file: &str, text: &str) -> Result<Self> {
        let manifest: Self = toml::from_str(text).map_err(|e| Error::input(e.to_string()).at(file))?;
        manifest.schemes()?;
        manifest.default_scheme()?;
        Ok(manifest)
    }

    /// How its weights can be stored.
    ///
    /// # Errors
    /// When the manifest names an unknown scheme.
    pub fn schemes(&self) -> Result<Vec<Scheme>> {
        self.schemes.iter().map(|name| name.parse()).collect()
    }

    /// How its weights are stored where nothing is asked for.
    ///
    /// # Errors
    /// When the manifest names an unknown scheme.
    pub fn default_scheme(&self) -> Result<Scheme> {
        self.defaults.scheme.parse()
    }

    /// Checks that a checkpoint is of this model.
    ///
    /// # Errors
    /// When config.json names another model type or architecture.
    pub fn accept(&self, config: &Json<'_>) -> Result<()> {
        let model_type = config.field("model_type")?;
        expect_one_of(&model_type, &self.model_types)?;
        match config.optional("architectures") {
            Some(list) => list.as_list()?.iter().try_for_each(|name| expect_one_of(name, &self.architectures)),
            None => Ok(()),
        }
    }
}

fn expect_one_of(json: &Json<'_>, known: &[String]) -> Result<()> {
    let found = json.as_str()?;
    if known.iter().any(|name| name == found) {
        return Ok(());
    }
    let known: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
    Err(json.error("a checkpoint of another model").found(format!("`{found}`")).expected(known.join(" or ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_manifest_parses_and_is_found_by_its_name() {
        for manifest in Manifest::all().unwrap() {
            assert_eq!(Manifest::find(&manifest.name).unwrap(), manifest);
            assert!(manifest.schemes().unwrap().contains(&manifest.default_scheme().unwrap()));
        }
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = Manifest::find("gpt").unwrap_err();
        assert!(error.to_string().contains("expected `unlimited-ocr`"), "{error}");
    }

    #[test]
    fn a_misspelt_key_is_refused() {
        let text = SOURCES[0].1.replace("run_cap", "runcap");
        assert!(Manifest::parse("x.toml", &text).unwrap_err().to_string().starts_with("x.toml: "));
    }
}
