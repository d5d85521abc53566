//! The metadata of a bundle, version 0.2: what it is, made of what, and how it is stored.
//!
//! Everything in it is derived from what was written; nothing is typed in by hand.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Longest metadata that is read, in bytes.
pub(super) const MAX_BYTES: u64 = 1 << 20;

/// The version written and read.
const VERSION: &str = "0.2";

/// How `producer` begins in every bundle of ours; a version follows.
const PRODUCER_PREFIX: &str = "aimodel ";

/// The contents of `metadata.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    metadata_version: String,
    producer: String,
    /// What the main asset does.
    pub kind: Kind,
    /// Name of the bundle.
    pub name: String,
    /// Path of each asset in the bundle by its part: `main`, `vision`.
    pub assets: BTreeMap<String, String>,
    /// The language side; only of [`Kind::Llm`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<Language>,
    /// How the functions of the main asset are called; only of [`Kind::Llm`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decoder: Option<Decoder>,
    /// What it was made from.
    pub source: Source,
    /// How weights are stored; null only when every weight is a plain float.
    pub compression: Option<Compression>,
    /// When and for what it was made.
    pub compilation: Compilation,
    /// Whether it returns values besides its results, for looking into it; such bundles are not for use.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub debug: bool,
}

/// What the main asset of a bundle does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Tokens to tokens.
    Llm,
    /// Pixels to visual tokens.
    VisionEncoder,
}

/// The language side of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Language {
    /// Path of the tokenizer in the bundle, or the id of its model.
    pub tokenizer: String,
    /// Width of the logits.
    pub vocab_size: usize,
    /// Positions of the key/value cache.
    pub max_context_length: usize,
    /// Whether the tokenizer is in the bundle.
    pub embedded_tokenizer: bool,
    /// The functions of each asset.
    pub function_map: BTreeMap<String, Vec<String>>,
}

/// How the functions of a decoder are called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decoder {
    /// The form of its key/value cache: `indexed`.
    pub kv_form: String,
    /// What each function takes, keeps and gives, by its name: `(pos: si32[1]; states ..) -> (logits: f16[1,1,512])`.
    pub functions: BTreeMap<String, String>,
    /// What the host does at each step, as sentences.
    pub host: Vec<String>,
}

/// What a bundle was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// The manifest: `unlimited-ocr`.
    pub model_definition: String,
    /// The id of the model on the Hub, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hf_model_id: Option<String>,
    /// The commit on the Hub, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hf_revision: Option<String>,
}

/// How weights are stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compression {
    /// The scheme: `sym8`.
    pub scheme: String,
    /// Number of weights stored as codes.
    pub quantised_weights: usize,
}

/// When and for what a bundle was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compilation {
    /// From `SOURCE_DATE_EPOCH`; never from the clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub date: Option<SourceDate>,
    /// Where it is meant to run.
    pub targets: Vec<String>,
}

impl Metadata {
    /// Metadata of a bundle made by this version of the program; the optional parts are empty.
    #[must_use]
    pub fn new(kind: Kind, name: impl Into<String>, source: Source) -> Self {
        Self {
            metadata_version: VERSION.to_owned(),
            producer: format!("{PRODUCER_PREFIX}{}", env!("CARGO_PKG_VERSION")),
            kind,
            name: name.into(),
            assets: BTreeMap::new(),
            language: None,
            decoder: None,
            source,
            compression: None,
            compilation: Compilation { date: None, targets: Vec::new() },
            debug: false,
        }
    }

    /// Reads the metadata of a bundle of ours.
    ///
    /// # Errors
    /// When it is not JSON of this form, has another version, or was made by another program.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        serde_json::from_slice::<IgnoredAny>(bytes)
            .map_err(|e| Error::input(format!("not JSON: {e}")).hint("copy the bundle again, or export it again"))?;
        if !is_marked(bytes) {
            return Err(Error::input("the bundle was not made by aimodel")
                .at("producer")
                .expected(format!("a name that begins with `{}`", PRODUCER_PREFIX.trim_end()))
                .hint("only bundles made by `aimodel export` can be read"));
        }
        let metadata: Self = serde_json::from_slice(bytes).map_err(|e| Error::input(e.to_string()))?;
        if metadata.metadata_version != VERSION {
            return Err(Error::input("another version of the format")
                .at("metadata_version")
                .found(format!("`{}`", metadata.metadata_version))
                .expected(format!("`{VERSION}`"))
                .hint("export the bundle again with this version of aimodel"));
        }
        Ok(metadata)
    }

    /// Who made the bundle: `aimodel 0.1.0`.
    #[must_use]
    pub fn producer(&self) -> &str {
        &self.producer
    }
}

impl Compression {
    /// What is true of a bundle exported with `scheme` in which so many weights are codes: where no weight is, there
    /// is no compression, whatever was asked for.
    #[must_use]
    pub fn of(scheme: impl Into<String>, quantised_weights: usize) -> Option<Self> {
        (quantised_weights > 0).then(|| Self { scheme: scheme.into(), quantised_weights })
    }
}

/// Whether these are the first words of a bundle of ours, of any version.
pub(super) fn is_marked(bytes: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Mark {
        producer: String,
    }
    serde_json::from_slice::<Mark>(bytes).is_ok_and(|mark| mark.producer.starts_with(PRODUCER_PREFIX))
}

/// A date that is given, not looked up: the value of `SOURCE_DATE_EPOCH`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SourceDate(Timestamp);

impl SourceDate {
    /// Reads whole seconds since 1970-01-01 00:00 UTC.
    ///
    /// # Errors
    /// When `text` is not a number of seconds up to the end of the year 9999.
    pub fn from_epoch(text: &str) -> Result<Self> {
        let seconds = text.trim().parse::<i64>().ok().filter(|&seconds| seconds >= 0);
        match seconds.and_then(|seconds| Timestamp::from_second(seconds).ok()) {
            Some(date) => Ok(Self(date)),
            None => Err(Error::input("not a date")
                .at("SOURCE_DATE_EPOCH")
                .found(format!("`{text}`"))
                .expected("whole seconds since 1970-01-01, up to the year 9999")),
        }
    }

    /// The short form used in assets: `20260625T000000Z`.
    #[must_use]
    pub fn compact(self) -> String {
        self.to_string().replace(['-', ':'], "")
    }
}

impl std::fmt::Display for SourceDate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl From<SourceDate> for String {
    fn from(date: SourceDate) -> Self {
        date.to_string()
    }
}

impl TryFrom<String> for SourceDate {
    type Error = jiff::Error;

    fn try_from(text: String) -> Result<Self, jiff::Error> {
        text.parse().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Metadata {
        let source = Source { model_definition: "unlimited-ocr".into(), hf_model_id: None, hf_revision: None };
        Metadata::new(Kind::Llm, "unlimited-ocr-sym8", source)
    }

    #[test]
    fn the_json_has_the_fields_of_version_0_2() {
        let mut metadata = sample();
        metadata.assets.insert("main".into(), "unlimited-ocr.aimodel".into());
        metadata.language = Some(Language {
            tokenizer: "tokenizer".into(),
            vocab_size: 129_280,
            max_context_length: 2048,
            embedded_tokenizer: true,
            function_map: BTreeMap::from([("main".into(), vec!["prefill".into(), "decode".into()])]),
        });
        metadata.decoder = Some(Decoder {
            kv_form: "indexed".into(),
            functions: BTreeMap::from([("decode".into(), "(pos: si32[1]) -> (logits: f16[1,1,2])".into())]),
            host: vec!["hand in the position".into()],
        });
        metadata.compression = Compression::of("sym8", 33);
        metadata.compilation.date = Some(SourceDate::from_epoch("1782345600").unwrap());
        let json = serde_json::to_value(&metadata).unwrap();
        let expected = serde_json::json!({
            "metadata_version": "0.2",
            "producer": concat!("aimodel ", env!("CARGO_PKG_VERSION")),
            "kind": "llm",
            "name": "unlimited-ocr-sym8",
            "assets": {"main": "unlimited-ocr.aimodel"},
            "language": {
                "tokenizer": "tokenizer", "vocab_size": 129_280, "max_context_length": 2048,
                "embedded_tokenizer": true, "function_map": {"main": ["prefill", "decode"]},
            },
            "decoder": {
                "kv_form": "indexed", "functions": {"decode": "(pos: si32[1]) -> (logits: f16[1,1,2])"},
                "host": ["hand in the position"],
            },
            "source": {"model_definition": "unlimited-ocr"},
            "compression": {"scheme": "sym8", "quantised_weights": 33},
            "compilation": {"date": "2026-06-25T00:00:00Z", "targets": []},
        });
        assert_eq!(json, expected);
        assert_eq!(Metadata::parse(json.to_string().as_bytes()).unwrap(), metadata);
    }

    #[test]
    fn a_probed_bundle_says_that_it_is_for_debugging_and_no_other_does() {
        let mut metadata = sample();
        assert!(!serde_json::to_string(&metadata).unwrap().contains("debug"));
        metadata.debug = true;
        let json = serde_json::to_string(&metadata).unwrap();
        assert!(json.contains(r#""debug":true"#));
        assert!(Metadata::parse(json.as_bytes()).unwrap().debug);
    }

    #[test]
    fn a_scheme_that_found_nothing_to_quantise_is_no_compression() {
        assert_eq!(Compression::of("sym8", 0), None);
        assert_eq!(Compression::of("sym8", 1).map(|c| c.quantised_weights), Some(1));
    }

    #[test]
    fn metadata_of_others_is_told_apart() {
        let other = r#"{"metadata_version": "0.2", "producer": "coreai-models", "kind": "llm"}"#;
        let error = Metadata::parse(other.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("producer: the bundle was not made by aimodel"), "{error}");
        let json = serde_json::to_string(&sample()).unwrap().replace("\"0.2\"", "\"0.9\"");
        let error = Metadata::parse(json.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("found `0.9`, expected `0.2`"), "{error}");
        let error = Metadata::parse(b"{\"producer\": \"aim").unwrap_err().to_string();
        assert!(error.starts_with("not JSON: EOF while parsing"), "{error}");
        let error = Metadata::parse(&[b'['; 200_000]).unwrap_err().to_string();
        assert!(error.starts_with("not JSON: "), "{error}");
        let error = Metadata::parse(br#"{"producer": "aimodel 9"}"#).unwrap_err().to_string();
        assert!(error.contains("missing field `metadata_version`"), "{error}");
    }

    #[test]
    fn dates_come_from_seconds_and_nothing_else() {
        let date = SourceDate::from_epoch("1782345600").unwrap();
        assert_eq!((date.to_string().as_str(), date.compact().as_str()), ("2026-06-25T00:00:00Z", "20260625T000000Z"));
        assert_eq!(SourceDate::from_epoch("0").unwrap().to_string(), "1970-01-01T00:00:00Z");
        for text in ["", "-1", "1.5", "today", "99999999999999", "253402300800"] {
            let error = SourceDate::from_epoch(text).unwrap_err().to_string();
            assert!(error.starts_with("SOURCE_DATE_EPOCH: not a date"), "{text}: {error}");
        }
    }
}
