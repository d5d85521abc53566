use super::*;
use crate::error::ErrorClass;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/trained/unlimited-ocr-tiny/tokenizer.json");

fn tokenizer() -> Tokenizer {
    Tokenizer::open(FILE).unwrap()
}

#[test]
fn reads_the_ids_that_transformers_generated_as_its_text() {
    let expected: serde_json::Value =
        serde_json::from_str(include_str!("../../../golden/pages/expected.json")).unwrap();
    let pages = expected["pages"].as_array().unwrap();
    assert_eq!(pages.len(), 7);
    for page in pages {
        let ids: Vec<u32> = serde_json::from_value(page["output_ids"].clone()).unwrap();
        assert_eq!(tokenizer().decode(&ids).unwrap(), page["output"].as_str().unwrap());
    }
}

#[test]
fn text_survives_encoding_and_nothing_is_added() {
    for text in ["", "document parsing.", "Total: €67.83\nMüller", "  two  spaces "] {
        let ids = tokenizer().encode(text).unwrap();
        assert_eq!(tokenizer().decode(&ids).unwrap(), text);
    }
    assert_eq!(tokenizer().encode("").unwrap(), [0_u32; 0]);
}

#[test]
fn ids_that_are_not_in_the_vocabulary_give_no_text() {
    assert_eq!(tokenizer().decode(&[511, u32::MAX]).unwrap(), "");
}

/// The real tokenizer with the value at `pointer` replaced.
fn changed(pointer: &str, value: serde_json::Value) -> Vec<u8> {
    let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(FILE).unwrap()).unwrap();
    *json.pointer_mut(pointer).unwrap() = value;
    serde_json::to_vec(&json).unwrap()
}

#[test]
fn what_is_not_a_tokenizer_is_an_input_error_that_names_the_file() {
    let deep = "[".repeat(200_000);
    let cases: [Vec<u8>; 9] = [
        Vec::new(),
        b"hello".to_vec(),
        b"{}".to_vec(),
        b"\xff\xfe".to_vec(),
        deep.clone().into_bytes(),
        format!("{{\"model\": {deep}").into_bytes(),
        changed("/model/merges", serde_json::json!(["no such"])),
        changed("/model/vocab", serde_json::json!({"a": -1})),
        changed(
            "/pre_tokenizer",
            serde_json::json!({"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": false}),
        ),
    ];
    for bytes in cases {
        let error = Tokenizer::from_bytes("tokenizer.json", &bytes).unwrap_err();
        assert!(error.to_string().starts_with("tokenizer.json: "), "{error}");
        assert_eq!(error.class(), ErrorClass::Input);
    }
}

#[test]
fn a_missing_file_is_named() {
    assert!(Tokenizer::open("no/such/tokenizer.json").unwrap_err().to_string().contains("no/such/tokenizer.json"));
}
