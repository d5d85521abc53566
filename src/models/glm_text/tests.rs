use serde_json::{Value, json};

use super::*;
use crate::checkpoint::JsonDocument;

const CONFIG: &[u8] = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/golden/structure/glm-ocr/config.json"));

/// The structural checkpoint's settings with the values at some JSON pointers replaced.
fn read(changes: &[(&str, Value)]) -> Result<Config> {
    let mut settings: Value = serde_json::from_slice(CONFIG).unwrap();
    for (pointer, value) in changes {
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        settings.pointer_mut(parent).unwrap()[name] = value.clone();
    }
    let document = JsonDocument::parse("config.json", settings.to_string().as_bytes()).unwrap();
    Config::read(&document.root())
}

#[test]
fn settings_are_read() {
    let config = read(&[]).unwrap();
    assert_eq!((config.layers, config.prediction_layers, config.heads, config.kv_heads), (2, 1, 6, 2));
    assert_eq!((config.head_width, config.sections), (32, [4, 6, 6]));
    assert_eq!(config.image, ImageTokens { begin: 480, placeholder: 504, end: 481 });
    assert_eq!(config.stop, [470, 477]);
}

#[test]
fn the_rotary_base_is_taken_from_wherever_it_is() {
    let outer = ("/text_config/rope_theta", json!(1e6));
    let inner = ("/text_config/rope_parameters/rope_theta", json!(1e6));
    let missing = ("/text_config/rope_parameters/rope_theta", Value::Null);
    assert_eq!(read(&[outer.clone(), inner.clone()]).unwrap().rope_theta, 1e6);
    assert_eq!(read(&[outer.clone(), missing.clone()]).unwrap().rope_theta, 1e6);
    assert_eq!(read(&[inner]).unwrap().rope_theta, 1e6);
    assert_eq!(read(&[missing]).unwrap().rope_theta, 10_000.0);
    let error = read(&[outer]).unwrap_err().to_string();
    assert!(error.contains("disagrees with text_config.rope_theta"), "{error}");
}

#[test]
fn one_stop_token_may_stand_alone() {
    assert_eq!(read(&[("/text_config/eos_token_id", json!(3))]).unwrap().stop, [3]);
}

#[test]
fn what_is_wrong_or_not_implemented_is_refused_by_name() {
    let cases = [
        ("/model_type", json!("glm4v"), "model_type: not supported"),
        ("/text_config", json!({}), "text_config.hidden_size: the field is missing"),
        ("/text_config/model_type", json!("glm4"), "text_config.model_type: not supported"),
        ("/text_config/hidden_act", json!("gelu"), "hidden_act"),
        ("/text_config/attention_bias", json!(true), "attention_bias"),
        ("/text_config/rope_parameters/rope_type", json!("longrope"), "rope_type: not supported: found \"longrope\""),
        ("/text_config/rope_scaling", json!({"type": "linear"}), "rope_scaling.type: not supported"),
        ("/text_config/rope_parameters/partial_rotary_factor", json!(0.5), "partial_rotary_factor"),
        ("/text_config/rope_parameters/rope_theta", json!(1), "rotary base"),
        ("/text_config/rope_parameters/mrope_section", json!([8, 8]), "three sections"),
        (
            "/text_config/rope_parameters/mrope_section",
            json!([4, 6, 5]),
            "mrope_section: the rotary sections do not make up half a head: found [4, 6, 5], 15 in all",
        ),
        ("/text_config/rope_parameters/mrope_section", Value::Null, "a setting is missing"),
        ("/text_config/rope_scaling", json!({"mrope_section": [6, 6, 4]}), "disagrees"),
        ("/text_config/num_key_value_heads", json!(4), "num_key_value_heads: groups"),
        ("/text_config/num_attention_heads", json!(0), "num_attention_heads: out of range"),
        ("/text_config/vocab_size", json!(1 << 25), "vocab_size: out of range"),
        ("/text_config/vocab_size", json!(504), "not in the vocabulary: found 504"),
        ("/text_config/rms_norm_eps", json!(0), "rms_norm_eps: out of range"),
        ("/text_config/num_nextn_predict_layers", json!(3), "num_nextn_predict_layers"),
        ("/text_config/eos_token_id", json!([]), "no token ends the text"),
        ("/text_config/eos_token_id", json!("</s>"), "eos_token_id: unexpected value"),
        ("/image_token_id", json!(4_294_967_296_u64), "image_token_id: not a token id"),
    ];
    for (pointer, value, expected) in cases {
        let error = read(&[(pointer, value)]).unwrap_err().to_string();
        assert!(error.starts_with("config.json: ") && error.contains(expected), "{pointer}: {error}");
    }
}

#[test]
fn the_cache_holds_a_chunk_and_no_more_than_the_model_can_count() {
    let config = read(&[]).unwrap();
    let grid = Grid::new(1, 1).unwrap();
    let check = |cache, query| check_lengths(&config, &[Call { name: "f".to_owned(), grid, query }], cache);
    for (cache, query) in [(0, Query::Any), (4097, Query::Any), (8, Query::Tokens(9)), (8, Query::Tokens(0))] {
        assert!(check(cache, query).is_err(), "{cache}, {query:?}");
    }
    assert!(check(4096, Query::Tokens(4096)).is_ok());
    assert!(check(1, Query::Any).is_ok());
}
