//! JSON documents of a checkpoint, read so that every error names the file and the path in it.
//!
//! The JSON that Python writes is accepted: a byte-order mark, and `NaN`, `Infinity` and `-Infinity` as values.
//! Those three are kept apart from `null`, so that a field nobody reads can hold them and a field that is read is
//! refused instead of taking its default.

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{Error, Result};

use super::disguise;

/// Largest JSON document that is read, in bytes; the index of a model of a million tensors is about this size.
pub const MAX_JSON_BYTES: u64 = 128 << 20;

/// Characters of a faulty line that an error shows.
const EXCERPT_CHARS: usize = 100;

/// Values that Python writes and JSON does not have.
const NON_FINITE: [&str; 3] = ["NaN", "Infinity", "-Infinity"];

/// Inside the parsed document a non-finite value is a string of this character, as often as the place of its name in
/// [`NON_FINITE`]. The string is no longer than the name, so no byte of the text moves and positions stay true. A
/// document that holds such a string itself gains nothing: it could have said `NaN`.
const NON_FINITE_MARK: char = '\u{7f}';

/// A parsed JSON file. Of two equal keys in one object the last counts, as in Python.
#[derive(Debug, Clone)]
pub struct JsonDocument {
    file: String,
    value: Value,
}

impl JsonDocument {
    /// Parses `bytes`, named `file` in errors.
    ///
    /// # Errors
    /// When they are not JSON; the error shows the line and points at the fault.
    pub fn parse(file: impl Into<String>, bytes: &[u8]) -> Result<Self> {
        let file = file.into();
        let value = from_bytes(&file, bytes)?;
        Ok(Self { file, value })
    }

    /// The outermost value.
    #[must_use]
    pub fn root(&self) -> Json<'_> {
        Json { value: &self.value, file: &self.file, path: String::new() }
    }
}

/// A value in a JSON document that knows where it is.
#[derive(Debug, Clone)]
pub struct Json<'a> {
    value: &'a Value,
    file: &'a str,
    path: String,
}

impl<'a> Json<'a> {
    /// Path of the value: `language_config.layers[2]`; empty for the outermost value.
    #[must_use]
    pub fn path(&self) -> String {
        self.path.clone()
    }

    /// File the value is in.
    #[must_use]
    pub fn file(&self) -> &'a str {
        self.file
    }

    /// An input error at this value, for what only the caller can judge.
    #[must_use]
    pub fn error(&self, problem: impl Into<String>) -> Error {
        let error = Error::input(problem);
        if self.path.is_empty() { error.at(self.file) } else { error.at(self.path.as_str()).at(self.file) }
    }

    /// The field `name` of this object; it may be null.
    ///
    /// # Errors
    /// When it is missing, or this is not an object.
    pub fn field(&self, name: &str) -> Result<Json<'a>> {
        let fields = self.value.as_object().ok_or_else(|| self.unexpected("an object"))?;
        let path = self.path_of(name);
        match fields.get(name) {
            Some(value) => Ok(Json { value, file: self.file, path }),
            None => Err(Json { path, ..self.clone() }.error("the field is missing")),
        }
    }

    /// The field `name` of this object; `None` when it is missing or null.
    #[must_use]
    pub fn optional(&self, name: &str) -> Option<Json<'a>> {
        let value = self.value.get(name).filter(|value| !value.is_null())?;
        Some(Json { value, file: self.file, path: self.path_of(name) })
    }

    /// Whether the value is null.
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.value.is_null()
    }

    /// Whether the value is an object.
    #[must_use]
    pub fn is_object(&self) -> bool {
        self.value.is_object()
    }

    /// The value as a count.
    ///
    /// # Errors
    /// When it is not an integer from 0 on that fits the address space.
    pub fn as_usize(&self) -> Result<usize> {
        usize::try_from(self.as_u64()?).map_err(|_| self.unexpected("a smaller integer"))
    }

    /// The value as an integer from 0 on.
    ///
    /// # Errors
    /// When it is something else.
    pub fn as_u64(&self) -> Result<u64> {
        self.value.as_u64().ok_or_else(|| self.unexpected("an integer from 0 on"))
    }

    /// The value as a finite number; an integer will do.
    ///
    /// # Errors
    /// When it is something else.
    pub fn as_f64(&self) -> Result<f64> {
        self.value.as_f64().filter(|number| number.is_finite()).ok_or_else(|| self.unexpected("a finite number"))
    }

    /// The value as a truth value.
    ///
    /// # Errors
    /// When it is something else.
    pub fn as_bool(&self) -> Result<bool> {
        self.value.as_bool().ok_or_else(|| self.unexpected("true or false"))
    }

    /// The value as a text.
    ///
    /// # Errors
    /// When it is something else.
    pub fn as_str(&self) -> Result<&'a str> {
        let text = self.value.as_str().filter(|text| non_finite(text).is_none());
        text.ok_or_else(|| self.unexpected("a string"))
    }

    /// The elements of the list.
    ///
    /// # Errors
    /// When the value is not a list.
    pub fn as_list(&self) -> Result<Vec<Json<'a>>> {
        let elements = self.value.as_array().ok_or_else(|| self.unexpected("a list"))?;
        let element = |(i, value)| Json { value, file: self.file, path: format!("{}[{i}]", self.path) };
        Ok(elements.iter().enumerate().map(element).collect())
    }

    /// The elements of a list of counts.
    ///
    /// # Errors
    /// When the value is not a list, or an element is not a count.
    pub fn as_usize_list(&self) -> Result<Vec<usize>> {
        self.as_list()?.iter().map(Json::as_usize).collect()
    }

    /// The names of the fields, sorted; none when the value is not an object.
    #[must_use]
    pub fn keys(&self) -> Vec<&'a str> {
        let keys: BTreeSet<_> = self.value.as_object().into_iter().flat_map(|fields| fields.keys()).collect();
        keys.into_iter().map(String::as_str).collect()
    }

    fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    fn unexpected(&self, expected: &str) -> Error {
        self.error("unexpected value").found(describe(self.value)).expected(expected)
    }
}

/// The value, or its kind where it is long.
fn describe(value: &Value) -> String {
    match value {
        Value::Array(elements) => format!("a list of {}", elements.len()),
        Value::Object(fields) => format!("an object of {} fields", fields.len()),
        Value::String(text) => match non_finite(text) {
            Some(name) => name.to_owned(),
            None if text.chars().count() > EXCERPT_CHARS => format!("a string of {} bytes", text.len()),
            None => format!("{text:?}"),
        },
        scalar => scalar.to_string(),
    }
}

/// The name of a non-finite value, if the parsed string stands for one.
fn non_finite(text: &str) -> Option<&'static str> {
    let marks = text.chars().all(|c| c == NON_FINITE_MARK).then_some(text.len())?;
    NON_FINITE.get(marks.checked_sub(1)?).copied()
}

/// Parses a JSON file of any type; errors name `file`, line and column and show the line.
pub(super) fn from_bytes<T: DeserializeOwned>(file: &str, bytes: &[u8]) -> Result<T> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    disguise::refuse_pointer(bytes).and_then(|()| disguise::refuse_page(bytes)).map_err(|e| e.at(file))?;
    let text = std::str::from_utf8(bytes).map_err(|e| {
        Error::input("not UTF-8 text").at(format!("byte {}", e.valid_up_to())).at(file).hint("save the file as UTF-8")
    })?;
    serde_json::from_str(&mark_non_finite(text)).map_err(|e| syntax_error(text, &e).at(file))
}

/// Replaces the non-finite values of Python outside strings by strings that stand for them, moving nothing.
fn mark_non_finite(text: &str) -> String {
    let mut marked = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let (token, kept) = match next {
            '"' => (string_length(rest), None),
            c if is_word(c) => word(rest),
            c => (c.len_utf8(), None),
        };
        let (token, after) = rest.split_at(token);
        match kept {
            Some(marks) if !after.trim_start().starts_with(':') => marked.push_str(&mark(marks, token.len())),
            _ => marked.push_str(token),
        }
        rest = after;
    }
    marked
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '-' | '+' | '.' | '_')
}

/// Length of the word `rest` begins with, and the marks to write if it is a non-finite value.
fn word(rest: &str) -> (usize, Option<usize>) {
    let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
    let place = NON_FINITE.iter().position(|name| rest.get(..length) == Some(name));
    (length, place.map(|place| place + 1))
}

fn mark(marks: usize, length: usize) -> String {
    let string = format!("\"{}\"", NON_FINITE_MARK.to_string().repeat(marks));
    format!("{string:length$}")
}

/// Length of the string literal `rest` begins with; all of `rest` when it does not end.
fn string_length(rest: &str) -> usize {
    let mut escaped = false;
    for (i, byte) in rest.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return i + 1,
            _ => {}
        }
    }
    rest.len()
}

fn syntax_error(text: &str, error: &serde_json::Error) -> Error {
    let message = error.to_string();
    let problem = message.rsplit_once(" at line ").map_or(message.as_str(), |(problem, _)| problem);
    let (line, column) = (error.line(), error.column());
    let source = text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
    let (excerpt, caret) = excerpt(source, column);
    Error::input(format!("not valid JSON: {problem}\n  {excerpt}\n  {:caret$}^", ""))
        .at(format!("line {line}, column {column}"))
}

/// The part of `line` around the one-based byte `column`, on which no character is a control character, and the
/// number of characters before the caret.
fn excerpt(line: &str, column: usize) -> (String, usize) {
    let before = line.char_indices().take_while(|(i, _)| i + 1 < column).count();
    let start = before.saturating_sub(EXCERPT_CHARS / 2);
    let shown = line.chars().skip(start).take(EXCERPT_CHARS);
    (shown.map(|c| if c.is_control() { ' ' } else { c }).collect(), before - start)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> JsonDocument {
        JsonDocument::parse("config.json", text.as_bytes()).unwrap()
    }

    fn refusal<T: std::fmt::Debug>(result: Result<T>) -> String {
        let error = result.unwrap_err();
        assert_eq!(error.class(), crate::error::ErrorClass::Input);
        error.to_string()
    }

    #[test]
    fn errors_name_file_path_found_and_expected() {
        let document = parse(r#"{"a": {"b": ["x", -1, 2.5, true, null, {"c": 1}]}, "d": "e"}"#);
        let root = document.root();
        let list = root.field("a").unwrap().field("b").unwrap();
        let at = |i: usize| list.as_list().unwrap()[i].clone();
        let cases = [
            (refusal(at(0).as_usize()), r#"a.b[0]: unexpected value: found "x", expected an integer from 0 on"#),
            (refusal(at(1).as_u64()), "a.b[1]: unexpected value: found -1, expected an integer from 0 on"),
            (refusal(at(2).as_usize()), "a.b[2]: unexpected value: found 2.5, expected an integer from 0 on"),
            (refusal(at(2).as_str()), "a.b[2]: unexpected value: found 2.5, expected a string"),
            (refusal(at(3).as_f64()), "a.b[3]: unexpected value: found true, expected a finite number"),
            (refusal(at(4).as_bool()), "a.b[4]: unexpected value: found null, expected true or false"),
            (refusal(at(5).as_list()), "a.b[5]: unexpected value: found an object of 1 fields, expected a list"),
            (refusal(list.as_usize_list()), r#"a.b[0]: unexpected value: found "x", expected an integer from 0 on"#),
            (refusal(list.field("x")), "a.b: unexpected value: found a list of 6, expected an object"),
            (refusal(root.field("f")), "f: the field is missing"),
            (refusal(at(5).field("d")), "a.b[5].d: the field is missing"),
            (refusal(root.as_list()), "unexpected value: found an object of 2 fields, expected a list"),
        ];
        for (found, expected) in cases {
            assert_eq!(found, format!("config.json: {expected}"));
        }
    }

    #[test]
    fn values_are_read() {
        let document = parse(r#"{"n": 7, "f": 1e-6, "t": true, "s": "x", "l": [1, 2], "z": null, "a": {}}"#);
        let root = document.root();
        assert_eq!(root.field("n").unwrap().as_usize().unwrap(), 7);
        assert_eq!(root.field("n").unwrap().as_f64().unwrap(), 7.0);
        assert_eq!(root.field("f").unwrap().as_f64().unwrap(), 1e-6);
        assert!(root.field("t").unwrap().as_bool().unwrap());
        assert_eq!(root.field("s").unwrap().as_str().unwrap(), "x");
        assert_eq!(root.field("l").unwrap().as_usize_list().unwrap(), [1, 2]);
        assert!(root.field("z").unwrap().is_null());
        assert!(root.optional("z").is_none() && root.optional("missing").is_none());
        assert_eq!(root.optional("l").unwrap().path(), "l");
        assert_eq!(root.keys(), ["a", "f", "l", "n", "s", "t", "z"]);
    }

    #[test]
    fn python_json_is_accepted() {
        let document = parse(
            "\u{feff}{\r\n\"a\": NaN, \"b\": [Infinity,-Infinity], \"c\": \"NaN, \\\"Infinity\",\r\n\"d\": 1}\r\n",
        );
        let root = document.root();
        assert_eq!(root.field("c").unwrap().as_str().unwrap(), "NaN, \"Infinity");
        assert_eq!(root.field("d").unwrap().as_usize().unwrap(), 1);
    }

    #[test]
    fn a_non_finite_value_that_is_read_is_refused_and_takes_no_default() {
        let document = parse(r#"{"a": NaN, "b": Infinity, "c": -Infinity}"#);
        for (field, name) in [("a", "NaN"), ("b", "Infinity"), ("c", "-Infinity")] {
            let value = document.root().optional(field).unwrap();
            let expected = format!("config.json: {field}: unexpected value: found {name}, expected");
            assert!(refusal(value.as_f64()).starts_with(&expected));
            assert!(refusal(value.as_str()).starts_with(&expected));
            assert!(refusal(value.as_usize()).starts_with(&expected));
        }
    }

    #[test]
    fn faults_are_pointed_at() {
        let cases = [
            (
                "{\n  \"x\": NaN, \"a\": 1,\n}",
                "config.json: line 3, column 1: not valid JSON: trailing comma\n  }\n  ^",
            ),
            (
                "{\"é\": NaN, \"a\": nope}",
                "config.json: line 1, column 19: not valid JSON: expected ident\n\
                 \x20 {\"é\": NaN, \"a\": nope}\n                   ^",
            ),
            ("", "config.json: line 1, column 0: not valid JSON: EOF while parsing a value\n  \n  ^"),
        ];
        for (text, expected) in cases {
            assert_eq!(refusal(JsonDocument::parse("config.json", text.as_bytes())), expected);
        }
    }

    #[test]
    fn no_other_word_is_taken_for_a_non_finite_value() {
        for text in ["{\"a\": NaNs}", "{NaN: 1}", "[+Infinity]", "[nan]", "[1 NaN]", "[\"a]"] {
            refusal(JsonDocument::parse("config.json", text.as_bytes()));
        }
    }

    #[test]
    fn deep_nesting_is_an_error() {
        for text in ["[".repeat(200_000), "{\"a\":".repeat(200_000)] {
            let message = refusal(JsonDocument::parse("config.json", text.as_bytes()));
            assert!(message.contains("recursion limit exceeded"), "{message}");
            assert!(message.len() < 500, "an excerpt, not the whole line");
        }
    }

    #[test]
    fn files_that_are_not_json_text_are_recognised() {
        let cases: [(&[u8], &str); 3] = [
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "config.json: a Git-LFS pointer"),
            (b"\n<!DOCTYPE html><html>", "config.json: a web page"),
            (b"{\"a\": \"\xff\"}", "config.json: byte 7: not UTF-8 text"),
        ];
        for (bytes, expected) in cases {
            let message = refusal(JsonDocument::parse("config.json", bytes));
            assert!(message.starts_with(expected), "{message}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "[\\[\\]{}\",:\\\\ \nNaInfity.0-9é\u{7f}-]{0,60}") {
            // The marks take the place of the names byte for byte, so that positions stay true.
            prop_assert_eq!(mark_non_finite(&text).len(), text.len());
            let _ = JsonDocument::parse("config.json", text.as_bytes());
        }

        #[test]
        fn plain_json_is_read_as_serde_json_reads_it(
            words in prop::collection::vec("[NaInfity\" \\\\:,]{0,12}", 0..5),
        ) {
            let value = serde_json::json!({ "words": words, "n": 1.5 });
            prop_assert_eq!(parse(&value.to_string()).value, value);
        }
    }
}
