use super::kv::tests as kv;
use super::*;
use crate::error::ErrorClass;

/// A small recipe that holds together: a grid of 2 x 2, prefix 18 (BOS, 7 image, 10 text).
pub(in crate::host) fn small() -> Recipe {
    let float = |file: &str, shape: &[usize]| HostTensorFile {
        file: format!("assets/{file}"),
        element: ElementType::F16,
        shape: shape.to_vec(),
    };
    Recipe {
        format_version: Recipe::FORMAT_VERSION,
        model: "unlimited-ocr".to_owned(),
        element_type: ElementType::F16,
        stop: vec![StopToken { id: 1, origin: "config.json: eos_token_id".to_owned() }],
        hidden_size: 2,
        vocab_size: 512,
        decoding: DecodingRecipe {
            no_repeat_ngram: Some(NgramRecipe { size: 35, window: 128 }),
            run_cap: Some(64),
            max_tokens: 40,
        },
        cache: CacheRecipe { layers: 3, heads: 2, length: 64, head_dim: 8 },
        sliding_window: Some(32),
        kv: kv::indexed(),
        tokenizer: "tokenizer/tokenizer.json".to_owned(),
        contract: Contract::Embeddings(EmbeddingsContract {
            image: ImageRecipe { side: 4, mode: ImageMode::Stretch, fill: [127; 3], mean: [0.5; 3], std: [0.5; 3] },
            visual: VisualRecipe { rows: 2, columns: 2, positions: 7, arrangement: Arrangement::RowsNewlineSeparator },
            prompt: PromptRecipe {
                text: "document parsing.".to_owned(),
                prefix_length: 18,
                bos_token_id: 0,
                image_token_id: 476,
            },
            vision: VisionAsset {
                asset: "vision.aimodel".to_owned(),
                function: "main".to_owned(),
                image: "image".to_owned(),
                visual_tokens: "visual_tokens".to_owned(),
            },
            decoder: DecoderAsset {
                asset: "decoder.aimodel".to_owned(),
                prefill: "prefill".to_owned(),
                decode: "decode".to_owned(),
                inputs_embeds: "inputs_embeds".to_owned(),
                logits: "logits".to_owned(),
            },
            host_tensors: HostTensors {
                embed_tokens: float("embed_tokens.f16", &[512, 2]),
                image_newline: float("image_newline.f16", &[2]),
                view_separator: float("view_seperator.f16", &[2]),
                prompt_input_ids: HostTensorFile {
                    file: "assets/prompt_input_ids.i32".to_owned(),
                    element: ElementType::I32,
                    shape: vec![18],
                },
            },
        }),
        notes: Vec::new(),
    }
}

/// The error of the small recipe with the value at `pointer` replaced.
fn error_with(pointer: &str, value: serde_json::Value) -> Error {
    let mut json = serde_json::to_value(small()).unwrap();
    *json.pointer_mut(pointer).unwrap() = value;
    Recipe::from_json("recipe.json", &serde_json::to_vec(&json).unwrap()).unwrap_err()
}

#[test]
fn is_read_back_as_written() {
    let text = small().to_json().unwrap();
    assert_eq!(Recipe::from_json("recipe.json", text.as_bytes()).unwrap(), small());
    assert!(text.ends_with("}\n"));
}

#[test]
fn unknown_keys_are_ignored() {
    let mut json = serde_json::to_value(small()).unwrap();
    json["a_later_key"] = serde_json::json!({"x": 1});
    assert_eq!(Recipe::from_json("recipe.json", &serde_json::to_vec(&json).unwrap()).unwrap(), small());
}

#[test]
fn another_format_version_is_said_before_anything_else() {
    let error = Recipe::from_json("recipe.json", b"{\"format_version\": 2}").unwrap_err();
    assert_eq!(
        error.to_string(),
        "recipe.json: format_version: the recipe has another format version: found 2, expected 1"
    );
    assert!(error.hint_text().is_some());
}

#[test]
fn values_of_the_wrong_type_name_file_and_json_path() {
    for (pointer, value, place) in [
        (
            "/contract/embeddings/visual/rows",
            serde_json::json!("ten"),
            "recipe.json: contract.embeddings.visual.rows: ",
        ),
        ("/stop/0/id", serde_json::json!(-1), "recipe.json: stop[0].id: "),
        ("/contract/embeddings/image/mode", serde_json::json!("crop"), "recipe.json: contract.embeddings.image.mode: "),
        ("/element_type", serde_json::json!("f8"), "recipe.json: element_type: "),
        (
            "/contract/embeddings/visual/arrangement",
            serde_json::json!("columns"),
            "recipe.json: contract.embeddings.visual.arrangement: ",
        ),
    ] {
        let error = error_with(pointer, value);
        assert!(error.to_string().starts_with(place), "{error}");
        assert_eq!(error.class(), ErrorClass::Input);
    }
}

#[test]
fn contradictions_name_the_json_path() {
    for (pointer, value, place) in [
        ("/contract/embeddings/visual/positions", serde_json::json!(8), "contract.embeddings.visual.positions"),
        ("/contract/embeddings/visual/rows", serde_json::json!(0), "contract.embeddings.visual"),
        ("/contract/embeddings/prompt/prefix_length", serde_json::json!(7), "contract.embeddings.prompt.prefix_length"),
        (
            "/contract/embeddings/prompt/image_token_id",
            serde_json::json!(512),
            "contract.embeddings.prompt.image_token_id",
        ),
        ("/stop/0/id", serde_json::json!(900), "stop[0].id"),
        ("/stop", serde_json::json!([]), "stop"),
        ("/cache/length", serde_json::json!(18), "cache.length"),
        ("/cache/heads", serde_json::json!(0), "cache.heads"),
        ("/hidden_size", serde_json::json!(u64::MAX), "hidden_size"),
        ("/contract/embeddings/image/side", serde_json::json!(0), "contract.embeddings.image.side"),
        ("/contract/embeddings/image/std/1", serde_json::json!(0.0), "contract.embeddings.image.std[1]"),
        ("/element_type", serde_json::json!("si8"), "element_type"),
        ("/decoding/run_cap", serde_json::json!(1), "decoding.run_cap"),
        ("/decoding/no_repeat_ngram/size", serde_json::json!(200), "decoding.no_repeat_ngram"),
        (
            "/contract/embeddings/host_tensors/embed_tokens/shape",
            serde_json::json!([2, 512]),
            "contract.embeddings.host_tensors.embed_tokens.shape",
        ),
        (
            "/contract/embeddings/host_tensors/prompt_input_ids/element",
            serde_json::json!("f16"),
            "contract.embeddings.host_tensors.prompt_input_ids.element",
        ),
        (
            "/contract/embeddings/decoder/asset",
            serde_json::json!("../decoder.aimodel"),
            "contract.embeddings.decoder.asset",
        ),
        ("/tokenizer", serde_json::json!("/etc/tokenizer.json"), "tokenizer"),
        (
            "/contract/embeddings/host_tensors/embed_tokens/file",
            serde_json::json!(""),
            "contract.embeddings.host_tensors.embed_tokens.file",
        ),
    ] {
        let error = error_with(pointer, value).to_string();
        assert!(error.starts_with(&format!("recipe.json: {place}: ")), "{pointer}: {error}");
    }
}

#[test]
fn garbage_and_deep_nesting_are_errors() {
    for bytes in [Vec::new(), b"null".to_vec(), b"\xff".to_vec(), "[".repeat(100_000).into_bytes()] {
        let error = Recipe::from_json("recipe.json", &bytes).unwrap_err();
        assert!(error.to_string().starts_with("recipe.json: "), "{error}");
    }
}

#[test]
fn states_have_the_shape_of_the_caches() {
    let state = |name: &str| State { name: name.to_owned(), shape: vec![3, 1, 2, 64, 8] };
    assert_eq!(small().states(), [state("keyCache"), state("valueCache")]);
    assert!(Recipe { kv: kv::host(), ..small() }.states().is_empty());
}
