//! An exported bundle of GLM-OCR against Hugging Face's tensors, stage by stage, on the reference executor and on
//! Apple's runtime: two grids and every variant of the decoder in one bundle, all passes have run, the assets were
//! written and are read back.
//!
//! The bundle is in single precision, as the reference is. `--nocapture` prints the largest difference of each tensor.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use aimodel::export::{CheckpointChoice, ExportRequest, Precision};
use aimodel::grid::Grid;
use aimodel::host::image;
use aimodel::host::reader::HostAssets;
use aimodel::host::recipe::{Contract, GridRecipe, SlotsContract, Variant};
use aimodel::quant::Scheme;
use aimodel::runtime::{Asset, Call, HostTensor, Outputs, Runtime, State};
use support::stages::{On, Stage};
use support::{Reference, golden};

const MODEL: &str = "glm-ocr";

/// Tokens of the prompt, 20 of them visual.
const PREFIX: usize = 32;
/// Tokens of the prompt that are read at once; they do not divide it.
const CHUNK: usize = 10;
/// Room for the prompt, the reference's 48 tokens and one more.
const CONTEXT: usize = 96;
const VOCABULARY: usize = 512;
const HIDDEN: usize = 128;
/// Width of one attention head.
const HEAD: usize = 32;

const VISION: &[&str] = &["patch_embed", "block.0", "block.1", "post_layernorm", "downsample", "merger"];
const PREFILL: &[&str] = &["inputs_embeds", "layer.0", "layer.1", "norm"];

#[test]
fn both_grids_see_as_hugging_face_on_the_reference_executor() {
    vision(On::Eval);
}

#[test]
fn both_grids_see_as_hugging_face_on_apples_runtime() {
    vision(On::CoreAi);
}

#[test]
fn the_decoder_equals_hugging_face_on_the_reference_executor() {
    decoder(On::Eval);
}

#[test]
fn the_decoder_equals_hugging_face_on_apples_runtime() {
    decoder(On::CoreAi);
}

/// From the pages' files to the visual tokens: one page whose size is kept, one that is resized.
fn vision(on: On) {
    on.export(&request(VISION), |runtime, host| {
        let contract = contract(host);
        for (index, (page, stage)) in [("page.png", "vision"), ("page_resize.png", "vision_resize")].iter().enumerate()
        {
            let reference = Stage::new(on, MODEL, stage);
            let page = image::open(golden("structure/glm-ocr").join(page)).unwrap();
            assert_eq!(host.grid_of(&page).unwrap(), index, "{stage}");
            let processor = contract.page.processor();
            let patches = processor.patches(&processor.resize(&page).unwrap()).unwrap();
            let call = Call {
                asset: Asset::Vision,
                function: &contract.grids[index].vision,
                inputs: vec![(contract.vision.patches.as_str(), patches)],
                states: Vec::new(),
            };
            let mut outputs = runtime.run(&call).unwrap();
            VISION.iter().for_each(|label| check_if_there(&reference, label, &mut outputs));
            check_as(&reference, "image_features", &contract.vision.image_embeds, &mut outputs);
        }
    });
}

/// Prefill layer by layer, forced steps, and the model's own choice of tokens with each variant.
fn decoder(on: On) {
    on.export(&request(PREFILL), |runtime, host| {
        let contract = contract(host);
        let grid = &contract.grids[0];
        let mut decoder = Decoder::new(runtime, host, contract, grid);
        prefill(on, &mut decoder);
        forced_steps(on, &mut decoder);

        let want = Stage::new(on, MODEL, "decode").tensors.ints("greedy_ids");
        let steps = Stage::new(on, MODEL, "decode");
        for variant in Variant::ALL {
            decoder.reset();
            let mut logits = decoder.read_prompt(variant);
            steps.check(
                &format!("{variant} prefill_last_logits"),
                &logits,
                &steps.tensors.floats("prefill_last_logits").1,
            );
            let mut chosen = Vec::new();
            for row in 0..want.len() {
                chosen.push(argmax(&logits));
                let function = decoder.step_of(variant);
                let mut outputs = decoder.feed(function, &chosen[row..]);
                logits = outputs.take_floats("logits", &[1, 1, VOCABULARY]).unwrap();
                steps.check_row("greedy_logits", row, &logits);
            }
            assert_eq!(chosen, want, "{variant}");
        }
    });
}

/// The prompt with three distinct position rows at its visual tokens, by the function that takes any number of tokens.
fn prefill(on: On, decoder: &mut Decoder<'_>) {
    let reference = Stage::new(on, MODEL, "prefill");
    decoder.reset();
    let ids = decoder.prompt.clone();
    let function = decoder.grid.decoder.dynamic.as_deref().unwrap();
    let mut outputs = decoder.feed(function, &ids);
    PREFILL.iter().for_each(|label| check_if_there(&reference, label, &mut outputs));
    for label in ["rope_cos", "rope_sin"] {
        let got = outputs.take_floats(label, &[1, 1, PREFIX, HEAD]).unwrap();
        reference.check(label, &got, &reference.tensors.floats(label).1);
    }
    check_as(&reference, "logits", "logits", &mut outputs);
}

fn forced_steps(on: On, decoder: &mut Decoder<'_>) {
    let reference = Stage::new(on, MODEL, "decode");
    let ids = reference.tensors.ints("forced_ids");
    assert_eq!(ids.len(), 32);
    for (row, id) in ids.into_iter().enumerate() {
        let function = decoder.grid.decoder.step.as_deref().unwrap();
        let mut outputs = decoder.feed(function, &[id]);
        let logits = outputs.take_floats("logits", &[1, 1, VOCABULARY]).unwrap();
        reference.check_row("forced_logits", row, &logits);
        reference.check_row("forced_hidden", row, &outputs.take_floats("norm", &[1, 1, HIDDEN]).unwrap());
    }
}

/// The functions of one grid, called as the contract says, with the visual tokens of the reference.
struct Decoder<'a> {
    runtime: &'a mut dyn Runtime,
    grid: &'a GridRecipe,
    states: Vec<State>,
    prompt: Vec<i32>,
    image: HostTensor,
    fed: usize,
}

impl<'a> Decoder<'a> {
    fn new(runtime: &'a mut dyn Runtime, host: &'a HostAssets, contract: &SlotsContract, grid: &'a GridRecipe) -> Self {
        let prompt: Vec<i32> = Reference::open(MODEL, "prefill").ints("input_ids");
        assert_eq!(prompt.len(), PREFIX);
        // The reference's prompt is text of its own: only the place of its image is the contract's.
        let placeholder = contract.prompt.image_token_id as i32;
        let slots = (contract.prompt.first_slot_id as i32..).map(Some);
        let mut slots = slots.take(grid.rows * grid.columns).collect::<Vec<_>>().into_iter();
        let slotted = prompt.iter().map(|&id| if id == placeholder { slots.next().flatten().unwrap() } else { id });
        let prompt: Vec<i32> = slotted.collect();
        let (shape, image) = Reference::open(MODEL, "vision").floats("image_features");
        let cache = host.recipe().cache;
        let shape_of_cache = vec![cache.layers, 1, cache.heads, cache.length, cache.head_dim];
        let states =
            ["keyCache", "valueCache"].map(|name| State { name: name.to_owned(), shape: shape_of_cache.clone() });
        let image = HostTensor::floats(shape, image).unwrap();
        Self { runtime, grid, states: states.to_vec(), prompt, image, fed: 0 }
    }

    fn reset(&mut self) {
        self.runtime.reset_states(Asset::Decoder, &self.states).unwrap();
        self.fed = 0;
    }

    fn step_of(&self, variant: Variant) -> &'a str {
        let functions = &self.grid.decoder;
        let step = if variant == Variant::Dynamic { &functions.dynamic } else { &functions.step };
        step.as_deref().unwrap()
    }

    /// The last row of logits after the prompt.
    fn read_prompt(&mut self, variant: Variant) -> Vec<f32> {
        let step = self.step_of(variant);
        let (chunk, function) = match variant {
            Variant::Dynamic => (PREFIX, step),
            Variant::Step => (1, step),
            Variant::Prefill => {
                let prefill = self.grid.decoder.prefill.as_ref().unwrap();
                assert_eq!(prefill.tokens, CHUNK);
                (CHUNK, prefill.function.as_str())
            }
        };
        let prompt = self.prompt.clone();
        let chunks = prompt.chunks_exact(chunk);
        let rest = chunks.remainder().chunks(1).map(|ids| (step, ids));
        let mut last = Vec::new();
        for (function, ids) in chunks.map(|ids| (function, ids)).chain(rest) {
            let logits = self.feed(function, ids).take_floats("logits", &[1, ids.len(), VOCABULARY]).unwrap();
            last = logits[logits.len() - VOCABULARY..].to_vec();
        }
        last
    }

    fn feed(&mut self, function: &str, ids: &[i32]) -> Outputs {
        self.fed += ids.len();
        let ints = |shape: Vec<usize>, values: Vec<i32>| HostTensor::ints(shape, values).unwrap();
        let inputs = vec![
            ("input_ids", ints(vec![1, ids.len()], ids.to_vec())),
            ("position_ids", ints(vec![1, self.fed], (0..self.fed as i32).collect())),
            ("image_embeds", self.image.clone()),
            ("rope_shift_start", ints(vec![1], vec![self.shift()[0]])),
            ("rope_shift_amount", ints(vec![1], vec![self.shift()[1]])),
        ];
        let states = vec!["keyCache", "valueCache"];
        self.runtime.run(&Call { asset: Asset::Decoder, function, inputs, states }).unwrap()
    }

    /// Where the image of the reference's prompt ends, and what text behind it is moved back by.
    fn shift(&self) -> [i32; 2] {
        let end = self.prompt.iter().rposition(|&id| id >= VOCABULARY as i32).unwrap() as i32 + 1;
        assert_eq!(self.grid.rope_shift_amount, 20 - 5);
        [end, self.grid.rope_shift_amount]
    }
}

/// Compares the output where the reference has a tensor of its name: that of a resized page has its last stages only.
fn check_if_there(stage: &Stage, label: &str, outputs: &mut Outputs) {
    if stage.tensors.names().iter().any(|name| name == label) {
        check_as(stage, label, label, outputs);
    }
}

/// Tensors of the reference may lack our leading axis of one.
fn check_as(stage: &Stage, tensor: &str, output: &str, outputs: &mut Outputs) {
    let (shape, want) = stage.tensors.floats(tensor);
    let batched: Vec<usize> = std::iter::once(1).chain(shape.iter().copied()).collect();
    let got = outputs.clone().take_floats(output, &shape).or_else(|_| outputs.take_floats(output, &batched));
    stage.check(tensor, &got.unwrap(), &want);
}

fn request(labels: &[&str]) -> ExportRequest {
    let rotary = ["rope_cos", "rope_sin"];
    ExportRequest {
        checkpoint: CheckpointChoice::Path(golden("structure/glm-ocr")),
        scheme: Some(Scheme::Fp16),
        precision: Precision::F32,
        grids: vec![Grid::new(4, 5).unwrap(), Grid::new(9, 12).unwrap()],
        functions: Variant::ALL.to_vec(),
        prefill_chunk: Some(CHUNK),
        max_context: Some(CONTEXT.max(9 * 12 + 16)),
        probes: labels.iter().chain(&rotary).map(ToString::to_string).collect(),
        ..ExportRequest::new("glm-ocr")
    }
}

fn contract(host: &HostAssets) -> &SlotsContract {
    match &host.recipe().contract {
        Contract::Slots(contract) => contract,
        Contract::Embeddings(_) => panic!("the decoder takes ids"),
    }
}

fn argmax(logits: &[f32]) -> i32 {
    (0..logits.len()).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as i32
}
