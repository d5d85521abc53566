use serde_json::{Value, json};

use super::*;
use crate::checkpoint::JsonDocument;

const CONFIG: &[u8] = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/golden/structure/glm-ocr/config.json"));

/// The structural checkpoint's settings with a field of `vision_config` replaced.
fn read(change: Option<(&str, Value)>) -> Result<Config> {
    let mut settings: Value = serde_json::from_slice(CONFIG).unwrap();
    if let Some((name, value)) = change {
        settings["vision_config"][name] = value;
    }
    let document = JsonDocument::parse("config.json", settings.to_string().as_bytes()).unwrap();
    Config::read(&document.root())
}

#[test]
fn settings_are_read_and_constants_stand_in() {
    let config = read(None).unwrap();
    assert_eq!((config.channels, config.rope_theta, config.epsilon), (3, 10_000.0, 1e-5));
    assert_eq!((config.patch_elements(), config.token_pixels(), config.head_width()), (1176, 28, 16));
    assert_eq!(config.patches(Grid::new(4, 5).unwrap()), 80);
    let spelt = json!({"rope_type": "default", "rope_theta": 500.0});
    assert_eq!(read(Some(("rope_parameters", spelt))).unwrap().rope_theta, 500.0);
}

#[test]
fn what_is_wrong_or_not_implemented_is_refused_by_name() {
    let cases = [
        ("model_type", json!("glm4v_vision"), "model_type: not supported"),
        ("hidden_act", json!("gelu"), "hidden_act: not supported"),
        ("attention_bias", json!(false), "attention_bias: not supported"),
        ("num_heads", json!(3), "num_heads: heads do not divide"),
        ("num_heads", json!(32), "num_heads: heads do not divide"),
        ("depth", Value::Null, "depth: unexpected value"),
        ("patch_size", json!(257), "patch_size: out of range"),
        ("spatial_merge_size", json!(0), "spatial_merge_size: out of range"),
        ("out_hidden_size", json!(64), "out_hidden_size: visual tokens are not as wide as the decoder"),
        ("rms_norm_eps", json!(2), "rms_norm_eps: out of range"),
        ("rope_parameters", json!({"rope_type": "yarn"}), "rope_type: not supported"),
    ];
    for (name, value, expected) in cases {
        let error = read(Some((name, value))).unwrap_err().to_string();
        assert!(error.starts_with("config.json: vision_config") && error.contains(expected), "{name}: {error}");
    }
}

#[test]
fn patches_of_a_token_are_neighbours() {
    let grid = Grid::new(1, 2).unwrap();
    assert_eq!(patch_positions(grid, 2), [0, 0, 0, 1, 1, 0, 1, 1, 0, 2, 0, 3, 1, 2, 1, 3]);
}

#[test]
fn a_grid_has_two_sides() {
    for (rows, columns) in [(0, 1), (1, 0), (Grid::MAX_SIDE + 1, 1), (usize::MAX, usize::MAX)] {
        assert!(Grid::new(rows, columns).is_err(), "{rows} x {columns}");
    }
}
