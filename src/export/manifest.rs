//! Manifests: what each exportable model is, in TOML, compiled into the program.

use std::fmt::Display;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};

use crate::checkpoint::Json;
use crate::grid::Grid;
use crate::host::recipe::{NgramRecipe, Variant};
use crate::passes::KvForm;
use crate::quant::{IndivisiblePolicy, Scheme};
use crate::{Error, Result};

/// The manifests, in the order they are listed.
const SOURCES: &[(&str, &str)] = &[
    ("manifests/unlimited-ocr.toml", include_str!("../../manifests/unlimited-ocr.toml")),
    ("manifests/glm-ocr.toml", include_str!("../../manifests/glm-ocr.toml")),
];

/// A model that can be exported.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The name on the command line.
    pub name: String,
    /// What it does, in one line.
    pub description: String,
    /// Its id on the Hugging Face Hub.
    pub hub: String,
    /// The `model_type`s of its config.json.
    pub model_types: Vec<String>,
    /// The `architectures` of its config.json.
    pub architectures: Vec<String>,
    schemes: Vec<String>,
    /// The forms its key/value cache can have.
    #[serde(deserialize_with = "list_from_text")]
    pub kv: Vec<KvForm>,
    /// What an export uses where nothing is asked for.
    pub defaults: Defaults,
    /// Which code builds its graphs, and what only that code asks.
    pub family: Family,
    /// How tokens are chosen.
    pub decoding: DecodingSettings,
    /// What becomes of linear layers that blocks do not fit; of models that have such codes.
    pub quant: Option<IndivisiblePolicy>,
    /// Ordered passes by asset.
    pub passes: PassLists,
}

/// Code that builds the graphs of one or more models, with its own settings: `[family.NAME]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// DeepEncoder and a DeepseekV2 decoder.
    UnlimitedOcr(UnlimitedOcrSettings),
    /// CogViT and a GLM decoder.
    GlmOcr(GlmOcrSettings),
}

/// What an export uses where nothing is asked for.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Defaults {
    scheme: String,
    kv: String,
    /// Positions of the key/value cache.
    pub max_context: usize,
    /// Text of the prompt after the image.
    pub prompt: String,
}

/// What only Unlimited-OCR asks.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnlimitedOcrSettings {
    /// From a page to pixels.
    pub image: SquareImage,
    /// What surrounds the image.
    pub prompt: ImageToken,
}

/// From a page to a square image.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SquareImage {
    /// Its side in pixels where nothing is asked for.
    pub side: usize,
    /// Up to this side the page is stretched, beyond it padded.
    pub stretch_up_to: usize,
    /// Colour of the padding.
    pub fill: [u8; 3],
    /// Mean of each channel.
    pub mean: [f32; 3],
    /// Standard deviation of each channel.
    pub std: [f32; 3],
}

/// The token of a visual position.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageToken {
    /// The tokenizer's token for a visual position.
    pub image_token: String,
    /// Its id where neither config.json nor the tokenizer says.
    pub image_token_id: u32,
}

/// What only GLM-OCR asks. Pixels and prompt are said by files of the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GlmOcrSettings {
    /// The grid of visual tokens where nothing is asked for.
    #[serde(deserialize_with = "from_text")]
    pub grid: Grid,
    /// The variants of the decoder where nothing is asked for.
    #[serde(deserialize_with = "list_from_text")]
    pub functions: Vec<Variant>,
    /// Tokens of the prompt that are read at once where nothing is asked for.
    pub prefill_chunk: usize,
    /// Colour beside a page that does not fill its grid.
    pub fill: [u8; 3],
}

/// How tokens are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecodingSettings {
    /// No n-gram occurs twice in a window.
    pub no_repeat_ngram: Option<Ngram>,
    /// A token is not repeated this often in a row.
    pub run_cap: Option<usize>,
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

impl From<Ngram> for NgramRecipe {
    fn from(Ngram { size, window }: Ngram) -> Self {
        Self { size, window }
    }
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
        manifest.default_kv()?;
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

    /// The form of its key/value cache where nothing is asked for.
    ///
    /// # Errors
    /// When the manifest names an unknown form.
    pub fn default_kv(&self) -> Result<KvForm> {
        self.defaults.kv.parse()
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

/// Reads a value that is written as text.
fn from_text<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(from: D) -> Result<T, D::Error> {
    String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
}

fn list_from_text<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(from: D) -> Result<Vec<T>, D::Error> {
    let texts = Vec::<String>::deserialize(from)?;
    texts.iter().map(|text| text.parse().map_err(serde::de::Error::custom)).collect()
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
            assert!(manifest.kv.contains(&manifest.default_kv().unwrap()));
        }
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = Manifest::find("gpt").unwrap_err();
        assert!(error.to_string().contains("expected `unlimited-ocr` or `glm-ocr`"), "{error}");
    }

    #[test]
    fn a_misspelt_key_is_refused_in_every_table() {
        let [(_, unlimited), (_, glm)] = SOURCES else { panic!("two models") };
        for (text, key) in [
            (unlimited, "run_cap"),
            (unlimited, "hub"),
            (unlimited, "stretch_up_to"),
            (unlimited, "image_token_id"),
            (glm, "max_context"),
            (glm, "prefill_chunk"),
            (glm, "glm-ocr]"),
            (glm, "pf64"),
            (glm, "indivisible"),
        ] {
            let misspelt = text.replacen(key, &format!("x{key}"), 1);
            let error = Manifest::parse("x.toml", &misspelt).unwrap_err().to_string();
            assert!(
                error.starts_with("x.toml: ") && error.contains(&format!("`x{}`", key.trim_end_matches(']'))),
                "{error}"
            );
        }
    }

    #[test]
    fn the_table_of_another_family_is_refused() {
        let [(_, unlimited), (_, glm)] = SOURCES else { panic!("two models") };
        let both = format!("{glm}\n[family.unlimited-ocr.prompt]\nimage_token = \"x\"\nimage_token_id = 1\n");
        assert!(Manifest::parse("x.toml", &both).is_err());
        let other = unlimited.replace("[family.unlimited-ocr.", "[family.glm-ocr.");
        let error = Manifest::parse("x.toml", &other).unwrap_err().to_string();
        assert!(error.contains("unknown field `image`"), "{error}");
    }

    #[test]
    fn a_grid_that_is_none_is_refused() {
        let [_, (_, glm)] = SOURCES else { panic!("two models") };
        let error = Manifest::parse("x.toml", &glm.replace("22x31", "22")).unwrap_err().to_string();
        assert!(error.contains("not a grid of visual tokens: found `22`"), "{error}");
    }
}
