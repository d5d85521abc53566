use super::*;
use crate::export::Family;
use crate::host::recipe::Variant;
use crate::weights::produce;

/// The trained checkpoint with some files changed; `None` takes one out.
fn checkpoint(changes: &[(&str, Option<String>)]) -> Checkpoint {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/trained/glm-ocr-tiny");
    let mut files: Vec<(String, Vec<u8>)> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(path).unwrap()))
        .collect();
    for (name, text) in changes {
        files.retain(|(other, _)| other != name);
        files.extend(text.as_ref().map(|text| ((*name).to_owned(), text.clone().into_bytes())));
    }
    let files: Vec<(&str, &'static [u8])> =
        files.iter().map(|(name, bytes)| (name.as_str(), &*bytes.clone().leak())).collect();
    Checkpoint::built_in("tiny", &files).unwrap()
}

fn file(name: &str) -> String {
    let path = format!("{}/golden/trained/glm-ocr-tiny/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

fn export(request: &ExportRequest, checkpoint: &Checkpoint) -> Result<Parts> {
    export_in(KvForm::Dynamic, request, checkpoint)
}

fn export_in(kv: KvForm, request: &ExportRequest, checkpoint: &Checkpoint) -> Result<Parts> {
    let manifest = Manifest::find("glm-ocr").unwrap();
    let Family::GlmOcr(own) = &manifest.family else { panic!("another family") };
    parts(request, (&manifest, own), checkpoint, kv)
}

fn request(grids: &[&str]) -> ExportRequest {
    let grids = grids.iter().map(|grid| grid.parse().unwrap()).collect();
    ExportRequest { grids, ..ExportRequest::new("glm-ocr") }
}

fn slots(parts: &Parts) -> &SlotsContract {
    match &parts.recipe.contract {
        Contract::Slots(slots) => slots,
        Contract::Embeddings(_) => panic!("another contract"),
    }
}

fn refusal(changes: &[(&str, Option<String>)]) -> Error {
    export(&request(&[]), &checkpoint(changes)).unwrap_err()
}

#[test]
fn the_prompt_is_the_one_transformers_was_given_with_slots_for_the_page() {
    let parts = export(&request(&["8x16", "22x31"]), &checkpoint(&[])).unwrap();
    let expected = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/golden/pages/expected_glm_ocr.json")).unwrap();
    let expected: serde_json::Value = serde_json::from_slice(&expected).unwrap();
    let ids: Vec<u64> = expected["prompt_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    let mut slot = 512..;
    let ids: Vec<u8> = ids
        .into_iter()
        .map(|id| if id == 498 { slot.next().unwrap() } else { id as i32 })
        .flat_map(i32::to_le_bytes)
        .collect();
    let (path, id) = &parts.host_tensors[0];
    let bytes = produce(&parts.host_weights, *id, 0..147).unwrap().bytes;
    assert_eq!((path.as_str(), bytes), ("assets/prompt_input_ids.i32", ids));
    let first = &slots(&parts).grids[0];
    assert_eq!((first.prefix_length, first.rope_shift_start, first.rope_shift_amount), (147, 133, 112));
    let second = &slots(&parts).grids[1];
    assert_eq!((second.prefix_length, second.rope_shift_start, second.rope_shift_amount), (701, 687, 651));
    assert_eq!(second.prompt_input_ids.file, "assets/prompt_input_ids_22x31.i32");
    assert_eq!(parts.recipe.decoding.max_tokens, 4096 - 147);
}

#[test]
fn the_functions_are_those_the_contract_names() {
    let functions = vec![Variant::Dynamic, Variant::Prefill];
    let request = ExportRequest { functions, prefill_chunk: Some(32), ..request(&["8x16", "4x4"]) };
    let parts = export(&request, &checkpoint(&[])).unwrap();
    let names = |index: usize| -> Vec<&str> { parts.assets[index].1.entries().map(|f| f.name.as_str()).collect() };
    assert_eq!(names(0), ["main", "main_4x4"]);
    assert_eq!(names(1), ["main", "prefill", "dynamic", "main_4x4", "prefill_4x4", "dynamic_4x4"]);
    let symbols: Vec<&str> = slots(&parts).symbols.iter().map(|symbol| symbol.name.as_str()).collect();
    assert_eq!(symbols, ["query", "total"]);
    assert_eq!(slots(&parts).engine.chunk_threshold, Some(1));
}

#[test]
fn a_decoder_for_any_number_of_tokens_needs_no_chunk_threshold() {
    let request = ExportRequest { functions: vec![Variant::Dynamic], ..request(&["4x4"]) };
    let parts = export(&request, &checkpoint(&[])).unwrap();
    assert_eq!(slots(&parts).engine.chunk_threshold, None);
    assert!(!parts.recipe.notes.iter().any(|note| note.contains("COREAI_CHUNK_THRESHOLD")));
}

#[test]
fn only_positions_that_grow_need_an_engine_that_reshapes() {
    for kv in KvForm::ALL {
        let parts = export_in(kv, &request(&["4x4"]), &checkpoint(&[])).unwrap();
        let grows = kv == KvForm::Dynamic;
        let engine = &slots(&parts).engine;
        assert_eq!(engine.expect_frequent_reshapes, grows, "{kv}");
        assert_eq!(engine.aot_compile.contains("--expect-frequent-reshapes"), grows, "{kv}");
        assert_eq!(parts.recipe.notes.iter().any(|note| note.contains("position_ids")), grows, "{kv}");
        assert_eq!(!slots(&parts).symbols.is_empty(), grows, "{kv}");
        assert_eq!(parts.recipe.kv.form, kv.name());
    }
}

#[test]
fn the_template_of_the_tokenizer_or_none_gives_the_same_prompt() {
    let template = file("chat_template.jinja");
    let with = |config: serde_json::Value| {
        let changes = [("chat_template.jinja", None), ("tokenizer_config.json", Some(config.to_string()))];
        let parts = export(&request(&["4x4"]), &checkpoint(&changes)).unwrap();
        let SlotsPrompt { rendered, origin, .. } = slots(&parts).prompt.clone();
        (rendered, origin)
    };
    let prompt = "[gMASK]<sop><|user|>\n<|begin_of_image|><|image|><|end_of_image|>Text Recognition:<|assistant|>\n";
    let named = serde_json::json!([{"name": "tools", "template": "x"}, {"name": "default", "template": template}]);
    for (config, origin) in [
        (serde_json::json!({}), "built-in"),
        (serde_json::json!({"chat_template": template}), "tokenizer_config.json: chat_template"),
        (serde_json::json!({"chat_template": named}), "tokenizer_config.json: chat_template"),
    ] {
        assert_eq!(with(config), (prompt.to_owned(), origin.to_owned()));
    }
    let named = serde_json::json!({"chat_template": [{"name": "tools", "template": "x"}]}).to_string();
    let error = refusal(&[("chat_template.jinja", None), ("tokenizer_config.json", Some(named))]);
    assert!(error.to_string().contains("chat_template: no template is the default"), "{error}");
}

#[test]
fn the_end_of_a_turn_is_mended_and_told() {
    let parts = export(&request(&["4x4"]), &checkpoint(&[])).unwrap();
    let find = |name: &str| parts.files.iter().find(|(path, _)| path == name).map(|(_, bytes)| bytes.clone()).unwrap();
    let source = file("tokenizer_config.json");
    assert_eq!(find("tokenizer/tokenizer_config.source.json"), source.as_bytes());
    let mended = source.replace(r#""eos_token": "<|endoftext|>""#, r#""eos_token": "<|user|>""#);
    assert_eq!(find("tokenizer/tokenizer_config.json"), mended.as_bytes());
    let told = |notes: &[String]| notes.iter().any(|note| note.contains("eos_token is `<|user|>`"));
    assert!(told(&parts.notes) && told(&parts.recipe.notes));
}

#[test]
fn a_tokenizer_that_needs_no_mending_is_copied_as_it_is() {
    let config = r#"{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|user|>"}"#;
    let changes = [("tokenizer_config.json", Some(config.to_owned()))];
    let parts = export(&request(&["4x4"]), &checkpoint(&changes)).unwrap();
    let paths: Vec<&str> = parts.files.iter().map(|(path, _)| path.as_str()).collect();
    let expected = ["tokenizer", "tokenizer_config", "generation_config", "preprocessor_config"]
        .map(|n| format!("tokenizer/{n}.json"));
    assert_eq!(paths, [&expected[..], &["tokenizer/chat_template.jinja".to_owned()]].concat());
    assert_eq!(parts.notes, [""; 0]);
}

#[test]
fn the_processor_is_read_where_transformers_5_saves_it_too() {
    let settings = file("preprocessor_config.json");
    let whole = format!(r#"{{"image_processor": {settings}, "processor_class": "Glm46VProcessor"}}"#);
    let changes = [("preprocessor_config.json", None), ("processor_config.json", Some(whole))];
    let parts = export(&request(&["4x4"]), &checkpoint(&changes)).unwrap();
    assert_eq!((slots(&parts).page.patch, slots(&parts).page.pixels), (14, [12544, 9_633_792]));
}

#[test]
fn a_processor_that_is_missing_or_of_another_tower_is_refused() {
    let error = refusal(&[("preprocessor_config.json", None)]);
    assert_eq!(error.to_string(), "tiny: preprocessor_config.json is missing");
    assert!(error.hint_text().is_some());
    for name in ["patch_size", "temporal_patch_size", "merge_size"] {
        let text = file("preprocessor_config.json").replace(&format!("\"{name}\": "), &format!("\"{name}\": 1"));
        let error = refusal(&[("preprocessor_config.json", Some(text))]).to_string();
        assert!(error.contains(&format!("{name}: ")), "{error}");
    }
}

#[test]
fn a_checkpoint_without_tokenizer_is_refused() {
    let error = refusal(&[("tokenizer.json", None)]);
    assert!(error.to_string().starts_with("tiny: tokenizer.json is missing"), "{error}");
}

#[test]
fn a_template_without_a_place_for_the_page_is_refused() {
    let error = refusal(&[("chat_template.jinja", Some("<|user|>{{ messages[0].content[1].text }}".to_owned()))]);
    assert!(error.to_string().contains("the prompt does not have one image: found 0 placeholders"), "{error}");
}

#[test]
fn prediction_layers_are_dropped_and_a_wrong_number_of_them_is_told() {
    let config = file("config.json").replace("\"num_nextn_predict_layers\": 1", "\"num_nextn_predict_layers\": 2");
    let parts = export(&request(&["4x4"]), &checkpoint(&[("config.json", Some(config))])).unwrap();
    assert!(
        parts.notes.iter().any(|note| note.contains("speaks of 2 next-token-prediction layers")),
        "{:?}",
        parts.notes
    );
    assert_eq!(parts.dropped.len(), 16);
    assert!(parts.dropped.iter().all(|tensor| tensor.pass == "drop-mtp"));
}
