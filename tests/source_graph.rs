//! The graphs as built, before any pass, against Hugging Face's tensors: the source of truth that every pass is
//! measured from.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use aimodel::ElementType;
use aimodel::checkpoint::Checkpoint;
use aimodel::eval::{Executor, Options, Tensor};
use aimodel::graph::Module;
use aimodel::models::{Loader, deep_encoder, deepseek_v2};
use support::{Reference, check_close, golden, pixels, tensors};

const MODEL: &str = "unlimited-ocr";
/// Single precision on both sides; values are O(1) up to a few hundred.
const TOLERANCE: f32 = 1e-4;

fn checkpoint() -> Checkpoint {
    Checkpoint::open(&golden("structure/unlimited-ocr")).unwrap()
}

fn vision(side: usize) -> Module {
    let checkpoint = checkpoint();
    let config = deep_encoder::Config::read(&checkpoint.config()).unwrap();
    let mut module = Module::default();
    let mut loader = Loader::new(&checkpoint);
    let function = deep_encoder::function(&config, side, ElementType::F32, &mut loader, &mut module.weights).unwrap();
    module.functions.push(function);
    module.verify().unwrap();
    module
}

fn decoder() -> Module {
    let checkpoint = checkpoint();
    let config = deepseek_v2::Config::read(&checkpoint.config()).unwrap();
    let mut module = Module::default();
    let mut loader = Loader::new(&checkpoint);
    let lengths = deepseek_v2::Lengths { prefix: 117, cache: 256 };
    let functions =
        deepseek_v2::functions(&config, lengths, ElementType::F32, &mut loader, &mut module.weights).unwrap();
    module.functions.extend(functions);
    module.verify().unwrap();
    module
}

/// Every labelled value that the reference has too.
fn compare_vision(side: usize, page: &str, stage: &str, least: usize) {
    let module = vision(side);
    let reference = Reference::open(MODEL, stage);
    let names = reference.names();
    let labels: Vec<&str> =
        module.functions[0].labels().map(|(label, _)| label).filter(|l| names.iter().any(|n| n == l)).collect();
    assert!(labels.len() >= least, "{labels:?}");
    let executor = Executor::new(&module, Options::default());
    let outputs =
        executor.run_with_probes("main", tensors([("image", pixels(page))]), &mut tensors([]), &labels).unwrap();
    for label in labels {
        let got = outputs.probes[label].to_floats().unwrap();
        check_close(label, &got, &reference.floats(label).1, TOLERANCE);
    }
}

#[test]
fn the_vision_tower_equals_hugging_face_at_256() {
    compare_vision(256, "structure/unlimited-ocr/preprocess/stretch_256.png", "vision_256", 12);
}

#[test]
fn the_vision_tower_equals_hugging_face_at_640() {
    compare_vision(640, "structure/unlimited-ocr/preprocess/stretch_640.png", "vision_640", 7);
}

#[test]
fn the_vision_tower_equals_hugging_face_at_1024() {
    compare_vision(1024, "structure/unlimited-ocr/preprocess/pad_1024.png", "vision_1024", 3);
}

#[test]
fn the_decoder_equals_hugging_face_layer_by_layer_and_past_the_window() {
    let module = decoder();
    let executor = Executor::new(&module, Options::default());
    let prefill = Reference::open(MODEL, "prefill");
    let decode = Reference::open(MODEL, "decode");
    let mut states = executor.zero_states("prefill").unwrap();
    let (shape, embeds) = prefill.floats("inputs_embeds");
    let labels = ["layer.0", "layer.1", "layer.2", "norm", "router.1.topk_weights", "router.2.topk_weights"];
    let inputs = tensors([("inputs_embeds", Tensor::floats(&shape, embeds).unwrap())]);
    let outputs = executor.run_with_probes("prefill", inputs, &mut states, &labels).unwrap();
    for label in labels {
        check_close(label, &outputs.probes[label].to_floats().unwrap(), &prefill.floats(label).1, TOLERANCE);
    }
    let logits = outputs.results["logits"].to_floats().unwrap();
    check_close("logits", &logits, &decode.floats("prefill_last_logits").1, TOLERANCE);

    let table = embedding_table();
    let (ids, want) = (decode.ints("forced_ids"), decode.floats("forced_logits").1);
    for (step, (&id, want)) in ids.iter().zip(want.chunks(512)).enumerate() {
        let embeds = Tensor::floats(&[1, 1, 128], table[id as usize * 128..][..128].to_vec()).unwrap();
        let position = Tensor::integers(&[1], vec![117 + step as i32]).unwrap();
        let inputs = tensors([("inputs_embeds", embeds), ("pos", position)]);
        let results = executor.run("decode", inputs, &mut states).unwrap();
        check_close(&format!("step {step}"), &results["logits"].to_floats().unwrap(), want, TOLERANCE);
    }
}

fn embedding_table() -> Vec<f32> {
    let checkpoint = checkpoint();
    let tensor = checkpoint.tensor("model.embed_tokens.weight").unwrap();
    let mut bytes = vec![0; tensor.bytes() as usize];
    tensor.read_at(&mut bytes, 0).unwrap();
    bytes.chunks_exact(2).map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
}
