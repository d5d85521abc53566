//! The one token at which applications stop that know of no other: `eos_token` of tokenizer_config.json.
//!
//! swift-transformers stops at this token alone. Where the chat template ends turns with another one, an answer runs
//! on to the last token allowed.

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::value::RawValue;

use crate::{Error, Result};

/// What a tokenizer's `eos_token` is to its chat template.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum EndOfTurn {
    /// The template writes it, or there is none.
    Written,
    /// The template never writes it, and one other stop token: this is the file with that token in its place.
    Replaced { bytes: Vec<u8>, from: String, to: String },
    /// The template never writes it, and not one other stop token either, or several.
    Unclear { eos: String },
}

/// Looks at tokenizer_config.json; `stop` are the texts of the tokens that end the text, and `template` is what the
/// chat template writes: its source, and a prompt it gave, since some put the names of tokens together.
///
/// Only the bytes of the one JSON string are replaced.
///
/// # Errors
/// When `config` is not a JSON object.
pub(super) fn examine(config: &[u8], template: &[&str], stop: &[String]) -> Result<EndOfTurn> {
    let text = std::str::from_utf8(config).map_err(|e| Error::input(format!("not UTF-8 text: {e}")))?;
    let Some((place, eos)) = eos_token(text)? else {
        return Ok(EndOfTurn::Written);
    };
    let writes = |token: &str| template.iter().any(|text| text.contains(token));
    // The name stands for the token.
    if writes(&eos) || writes("eos_token") {
        return Ok(EndOfTurn::Written);
    }
    let mut written = stop.iter().filter(|token| !token.is_empty() && writes(token));
    match (written.next(), written.next()) {
        (Some(to), None) => {
            let quoted = serde_json::Value::from(to.as_str()).to_string();
            let (before, after) = (&config[..place.start], &config[place.end..]);
            Ok(EndOfTurn::Replaced { bytes: [before, quoted.as_bytes(), after].concat(), from: eos, to: to.clone() })
        }
        _ => Ok(EndOfTurn::Unclear { eos }),
    }
}

/// Where the text of the token stands with its quotes, and the text. The value is a string, or an object that has it
/// as `content`.
fn eos_token(text: &str) -> Result<Option<(Range<usize>, String)>> {
    let object = text.trim_start_matches('\u{feff}');
    let value = field(object, "eos_token")?;
    let string = match value {
        Some(value) if value.starts_with('{') => field(value, "content")?,
        value => value,
    };
    let Some(string) = string.filter(|value| value.starts_with('"')) else {
        return Ok(None);
    };
    let token = serde_json::from_str(string).map_err(|e| Error::input(e.to_string()).at("eos_token"))?;
    let start = string.as_ptr().addr() - text.as_ptr().addr();
    Ok(Some((start..start + string.len(), token)))
}

/// The field of an object as it is written; of equal keys the last counts, as in Python.
fn field<'t>(object: &'t str, name: &str) -> Result<Option<&'t str>> {
    let fields: BTreeMap<String, &'t RawValue> =
        serde_json::from_str(object).map_err(|e| Error::input(format!("not a JSON object: {e}")))?;
    Ok(fields.get(name).map(|value| value.get()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEMPLATE: &str = "[gMASK]<sop>{% if user %}<|user|>\n{{ text }}{% endif %}<|assistant|>\n";

    fn stop() -> Vec<String> {
        vec!["<|endoftext|>".to_owned(), "<|user|>".to_owned()]
    }

    fn replaced(config: &str) -> String {
        match examine(config.as_bytes(), &[TEMPLATE], &stop()).unwrap() {
            EndOfTurn::Replaced { bytes, from, to } => {
                assert_eq!((from.as_str(), to.as_str()), ("<|endoftext|>", "<|user|>"));
                String::from_utf8(bytes).unwrap()
            }
            other => panic!("{config}: {other:?}"),
        }
    }

    #[test]
    fn only_the_bytes_of_the_value_change() {
        for config in [
            r#"{"eos_token":"<|endoftext|>"}"#,
            "{\r\n\t\"pad_token\" : \"<|endoftext|>\",\r\n\t\"eos_token\" :  \"<|endoftext|>\" ,\"n\":1e30}\r\n\r\n",
            // Of an object only the text, whatever it is written with.
            r#"{"eos_token": {"lstrip": false, "content": "<|endoftext|>", "note": "<|endoftext|>"}, "x": 1}"#,
            // Equal names and texts inside other values, and inside strings.
            r#"{"a": {"eos_token": "<|endoftext|>"}, "b": "\"eos_token\": \"<|endoftext|>\"", "eos_token": "<|endoftext|>"}"#,
            // A number no type holds, letters beyond ASCII, a byte-order mark.
            "\u{feff}{\"model_max_length\": 1000000000000000019884624838656, \"é\": \"本\", \"eos_token\": \"<|endoftext|>\"}",
        ] {
            let end = config.rfind("\"note\"").unwrap_or(config.len());
            let place = config[..end].rfind("\"<|endoftext|>\"").unwrap();
            let expected = [&config[..place], "\"<|user|>\"", &config[place + 15..]].concat();
            assert_eq!(replaced(config), expected);
        }
    }

    #[test]
    fn escapes_in_names_and_texts_are_read() {
        assert_eq!(replaced(r#"{"eos\u005ftoken": "\u003c|endoftext|>"}"#), r#"{"eos\u005ftoken": "<|user|>"}"#);
        assert_eq!(
            replaced(r#"{"eos_token": "<|user|>", "eos_token": "<|endoftext|>"}"#),
            r#"{"eos_token": "<|user|>", "eos_token": "<|user|>"}"#
        );
    }

    #[test]
    fn the_new_value_is_quoted() {
        let stop = ["a\"b\\\n".to_owned()];
        let EndOfTurn::Replaced { bytes, .. } = examine(br#"{"eos_token": "x"}"#, &["a\"b\\\n"], &stop).unwrap() else {
            panic!("not replaced");
        };
        assert_eq!(String::from_utf8(bytes).unwrap(), r#"{"eos_token": "a\"b\\\n"}"#);
    }

    #[test]
    fn a_token_that_the_template_writes_stays() {
        for (config, template) in [
            (r#"{"eos_token": "<|user|>"}"#, TEMPLATE),
            (r#"{"eos_token": "</s>"}"#, "{{ text + eos_token }}<|user|>"),
            (r#"{"eos_token": null}"#, TEMPLATE),
            (r#"{"eos_token": {"content": null}}"#, TEMPLATE),
            ("{}", TEMPLATE),
        ] {
            assert_eq!(examine(config.as_bytes(), &[template], &stop()).unwrap(), EndOfTurn::Written, "{config}");
        }
    }

    #[test]
    fn a_token_that_the_template_puts_together_shows_in_a_prompt() {
        let texts = ["{{ '<|' + role + '|>' }}", "<|user|>\nRead."];
        let found = examine(br#"{"eos_token": "</s>"}"#, &texts, &stop()).unwrap();
        assert!(matches!(found, EndOfTurn::Replaced { to, .. } if to == "<|user|>"));
    }

    #[test]
    fn no_token_is_guessed() {
        let config = br#"{"eos_token": "</s>"}"#;
        for template in ["no token", "<|user|> or <|endoftext|>"] {
            let found = examine(config, &[template], &stop()).unwrap();
            assert_eq!(found, EndOfTurn::Unclear { eos: "</s>".to_owned() }, "{template}");
        }
    }

    #[test]
    fn what_is_no_object_is_an_error() {
        for config in [&b"[]"[..], b"", b"{\"eos_token\": ", b"\xff", b"null"] {
            assert!(examine(config, &[TEMPLATE], &stop()).is_err(), "{config:?}");
        }
        assert!(examine(&[b'['; 100_000], &[TEMPLATE], &[]).is_err());
    }
}
