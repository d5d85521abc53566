use serde_json::json;

use super::super::kv::tests as kv;
use super::super::tests as embeddings;
use super::super::{Contract, StopToken};
use super::*;
use crate::ElementType;

/// A small recipe that holds together: grids of 2 x 3 and 3 x 2 visual tokens of 4 pixels, a prompt of 25 tokens (5, the
/// image's 6, 14), functions of every kind.
pub(in crate::host) fn small() -> Recipe {
    let page =
        PageRecipe { patch: 2, frames: 2, merge: 2, pixels: [32, 4096], mean: [0.5; 3], std: [0.5; 3], fill: [0; 3] };
    let contract = SlotsContract {
        page,
        prompt: SlotsPrompt {
            text: "Text Recognition:".to_owned(),
            rendered: crate::host::chat_template::glm_ocr_page_prompt("Text Recognition:"),
            origin: "built-in".to_owned(),
            image_token_id: 498,
            first_slot_id: 512,
        },
        grids: vec![grid([2, 3], ""), grid([3, 2], "_3x2")],
        vision: PatchesAsset {
            asset: "vision.aimodel".to_owned(),
            patches: "patches".to_owned(),
            image_embeds: "image_embeds".to_owned(),
        },
        decoder: IdsAsset {
            asset: "decoder.aimodel".to_owned(),
            input_ids: "input_ids".to_owned(),
            image_embeds: "image_embeds".to_owned(),
            rope_shift_start: "rope_shift_start".to_owned(),
            rope_shift_amount: "rope_shift_amount".to_owned(),
            logits: "logits".to_owned(),
        },
        symbols: vec![symbol("query", "input_ids"), symbol("total", "position_ids")],
        engine: EngineRecipe {
            chunk_threshold: Some(1),
            expect_frequent_reshapes: true,
            aot_compile: "coreai-build compile decoder.aimodel".to_owned(),
        },
    };
    Recipe {
        model: "glm-ocr".to_owned(),
        stop: vec![StopToken { id: 471, origin: "generation_config.json: eos_token_id".to_owned() }],
        sliding_window: None,
        kv: kv::dynamic(),
        contract: Contract::Slots(contract),
        notes: vec!["Set COREAI_CHUNK_THRESHOLD to 1.".to_owned()],
        ..embeddings::small()
    }
}

fn grid([rows, columns]: [usize; 2], suffix: &str) -> GridRecipe {
    let named = |name: &str| format!("{name}{suffix}");
    GridRecipe {
        rows,
        columns,
        vision: named("main"),
        decoder: DecoderFunctions {
            dynamic: Some(named("dynamic")),
            step: Some(named("main")),
            prefill: Some(PrefillFunction { function: named("prefill"), tokens: 4 }),
        },
        prefix_length: 25,
        rope_shift_start: 11,
        rope_shift_amount: 3,
        prompt_input_ids: HostTensorFile {
            file: format!("assets/{}.i32", named("prompt_input_ids")),
            element: ElementType::I32,
            shape: vec![25],
        },
    }
}

fn symbol(name: &str, input: &str) -> SymbolRecipe {
    SymbolRecipe { name: name.to_owned(), input: input.to_owned(), axis: 1, min: 1, max: 64 }
}

/// What reading the small recipe gives with the value at `pointer` replaced.
fn with(pointer: &str, value: serde_json::Value) -> Result<Recipe> {
    let mut json = serde_json::to_value(small()).unwrap();
    *json.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = value;
    Recipe::from_json("recipe.json", &serde_json::to_vec(&json).unwrap())
}

#[test]
fn is_read_back_as_written() {
    let text = small().to_json().unwrap();
    assert_eq!(Recipe::from_json("recipe.json", text.as_bytes()).unwrap(), small());
}

#[test]
fn the_two_contracts_are_told_apart_by_name() {
    let error = with("/contract", json!({"pixels": {}})).unwrap_err().to_string();
    assert!(error.contains("unknown variant `pixels`, expected `embeddings` or `slots`"), "{error}");
}

#[test]
fn functions_and_host_tensors_are_those_of_all_grids() {
    let recipe = small();
    assert_eq!(recipe.functions(Asset::Vision), ["main", "main_3x2"]);
    let decoder = ["dynamic", "main", "prefill", "dynamic_3x2", "main_3x2", "prefill_3x2"];
    assert_eq!(recipe.functions(Asset::Decoder), decoder);
    let files: Vec<&str> = recipe.host_tensors().iter().map(|tensor| tensor.file.as_str()).collect();
    assert_eq!(files, ["assets/prompt_input_ids.i32", "assets/prompt_input_ids_3x2.i32"]);
    assert_eq!(recipe.longest_prefix(), 25);
    assert_eq!(recipe.contract.slots().unwrap().variants(), Variant::ALL);
}

#[test]
fn values_of_the_wrong_type_name_the_json_path() {
    let error = with("/contract/slots/grids/1/decoder/prefill/tokens", json!("64")).unwrap_err().to_string();
    assert!(error.starts_with("recipe.json: contract.slots.grids[1].decoder.prefill.tokens: "), "{error}");
}

#[test]
fn contradictions_name_the_json_path() {
    let chunk_only = json!({"prefill": {"function": "prefill", "tokens": 4}, "dynamic": "dynamic"});
    for (pointer, value, place) in [
        ("/kv/feeds", json!([{"kind": "position", "input": "pos"}]), "kv.feeds"),
        ("/cache/length", json!(25), "cache.length"),
        ("/contract/slots/page/patch", json!(0), "contract.slots.page.patch"),
        ("/contract/slots/page/pixels", json!([5, 4]), "contract.slots.page.pixels"),
        ("/contract/slots/page/std/2", json!(-1.0), "contract.slots.page.std[2]"),
        ("/contract/slots/prompt/image_token_id", json!(512), "contract.slots.prompt.image_token_id"),
        ("/contract/slots/prompt/first_slot_id", json!(511), "contract.slots.prompt.first_slot_id"),
        ("/contract/slots/vision/asset", json!("/vision.aimodel"), "contract.slots.vision.asset"),
        ("/contract/slots/decoder/asset", json!(""), "contract.slots.decoder.asset"),
        ("/contract/slots/grids", json!([]), "contract.slots.grids"),
        ("/contract/slots/grids/0/rows", json!(0), "contract.slots.grids[0]"),
        ("/contract/slots/grids/1/columns", json!(4097), "contract.slots.grids[1]"),
        ("/contract/slots/grids/1/rows", json!(4), "contract.slots.grids[1].rope_shift_amount"),
        ("/contract/slots/grids/1/prefix_length", json!(6), "contract.slots.grids[1].prefix_length"),
        ("/contract/slots/grids/1/rope_shift_start", json!(26), "contract.slots.grids[1].rope_shift_start"),
        ("/contract/slots/grids/1/rope_shift_start", json!(-1), "contract.slots.grids[1].rope_shift_start"),
        ("/contract/slots/grids/1/rope_shift_amount", json!(4), "contract.slots.grids[1].rope_shift_amount"),
        ("/contract/slots/grids/1/vision", json!("main"), "contract.slots.grids"),
        ("/contract/slots/grids/1/decoder/dynamic", json!("prefill"), "contract.slots.grids"),
        ("/contract/slots/grids/1/decoder", json!({}), "contract.slots.grids[1].decoder"),
        ("/contract/slots/grids/1/decoder", json!({"step": "main_3x2"}), "contract.slots.grids[1].decoder"),
        ("/contract/slots/grids/1/decoder", chunk_only, "contract.slots.grids[1].decoder.prefill"),
        ("/contract/slots/grids/0/decoder/prefill/tokens", json!(1), "contract.slots.grids[0].decoder.prefill.tokens"),
        (
            "/contract/slots/grids/0/prompt_input_ids/shape",
            json!([24]),
            "contract.slots.grids[0].prompt_input_ids.shape",
        ),
        (
            "/contract/slots/grids/0/prompt_input_ids/element",
            json!("f32"),
            "contract.slots.grids[0].prompt_input_ids.element",
        ),
        (
            "/contract/slots/grids/1/prompt_input_ids/file",
            json!("../ids"),
            "contract.slots.grids[1].prompt_input_ids.file",
        ),
        ("/contract/slots/symbols", json!([]), "contract.slots.symbols"),
        ("/contract/slots/symbols/1/input", json!("input_ids"), "contract.slots.symbols"),
        ("/contract/slots/symbols/0/max", json!(65), "contract.slots.symbols[0]"),
        ("/contract/slots/engine/chunk_threshold", json!(0), "contract.slots.engine.chunk_threshold"),
    ] {
        let error = with(pointer, value).unwrap_err().to_string();
        assert!(error.starts_with(&format!("recipe.json: {place}: ")), "{pointer}: {error}");
    }
}

#[test]
fn the_same_grid_twice_is_refused() {
    let mut recipe = small();
    if let Contract::Slots(contract) = &mut recipe.contract {
        contract.grids[1] = grid([2, 3], "_again");
    }
    let error = recipe.check().unwrap_err().to_string();
    let expected = "found 2 x 3, expected another grid than those before";
    assert!(error.starts_with("contract.slots.grids[1]: ") && error.ends_with(expected), "{error}");
}

#[test]
fn a_grid_of_more_pixels_than_an_image_may_have_is_refused() {
    let mut recipe = small();
    if let Contract::Slots(contract) = &mut recipe.contract {
        (contract.page.patch, contract.page.merge) = (256, 16);
        contract.grids[1] = grid([2, 5], "_2x5");
    }
    let error = recipe.check().unwrap_err().to_string();
    assert!(error.ends_with("found 2 x 5 tokens of 4096 pixels, expected at most 16384 pixels a side"), "{error}");
}

#[test]
fn without_a_function_for_any_number_of_tokens_only_the_positions_change() {
    let mut recipe = small();
    if let Contract::Slots(contract) = &mut recipe.contract {
        contract.grids.iter_mut().for_each(|grid| grid.decoder.dynamic = None);
    }
    assert!(recipe.check().unwrap_err().to_string().starts_with("contract.slots.symbols: "));
    if let Contract::Slots(contract) = &mut recipe.contract {
        contract.symbols.remove(0);
        assert_eq!(contract.variants(), [Variant::Step, Variant::Prefill]);
    }
    recipe.check().unwrap();
}

#[test]
fn without_growing_positions_nothing_changes_with_a_call() {
    let mut recipe = small();
    recipe.kv = kv::blend();
    if let Contract::Slots(contract) = &mut recipe.contract {
        contract.grids.iter_mut().for_each(|grid| grid.decoder.dynamic = None);
        contract.symbols.remove(0);
    }
    assert!(recipe.check().unwrap_err().to_string().starts_with("contract.slots.symbols: "));
    if let Contract::Slots(contract) = &mut recipe.contract {
        contract.symbols.clear();
    }
    recipe.check().unwrap();
    assert!(recipe.changing(Asset::Decoder).is_empty());
}

#[test]
fn functions_take_and_give_what_the_grid_and_the_form_of_the_caches_ask_for() {
    let recipe = small();
    let seen: Vec<String> = recipe.ports(Asset::Vision).iter().map(ToString::to_string).collect();
    assert_eq!(seen, ["(patches: f16[24,24]) -> (image_embeds: f16[6,2])"; 2]);
    let decoder = recipe.decoder_signatures();
    let common = "image_embeds: f16[6,2], rope_shift_start: si32[1], rope_shift_amount: si32[1], \
                  position_ids: si32[1,?]; states keyCache: f16[3,1,2,64,8], valueCache: f16[3,1,2,64,8]";
    for (name, tokens) in [("dynamic", "?"), ("main_3x2", "1"), ("prefill", "4")] {
        let expected = format!("(input_ids: si32[1,{tokens}], {common}) -> (logits: f16[1,{tokens},512])");
        assert_eq!(decoder[name], expected);
    }
    assert_eq!(recipe.changing(Asset::Decoder), [("input_ids", 1), ("position_ids", 1)]);
    // One id, the visual tokens, the shift, the positions, the logits.
    assert_eq!(recipe.bytes_per_step(10), Some(4 + 2 * 12 + 8 + 4 * 10 + 2 * 512));
}

#[test]
fn variants_are_known_by_their_names() {
    for variant in Variant::ALL {
        assert_eq!(variant.name().parse::<Variant>().unwrap(), variant);
    }
    let error = "s2".parse::<Variant>().unwrap_err();
    assert_eq!(error.to_string(), "no such functions: found `s2`, expected dynamic, s1, pf64");
}
