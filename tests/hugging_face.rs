//! An exported bundle against Hugging Face's tensors, stage by stage, on the reference executor and on Apple's
//! runtime: all passes have run, the assets were written and are read back.
//!
//! The bundle is in single precision, as the reference is. `--nocapture` prints the largest difference of each tensor.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use aimodel::export::{ExportRequest, MoeForm, Precision};
use aimodel::host::decode::{Generator, Next, NoRepeatNgram, Policy};
use aimodel::host::image;
use aimodel::host::reader::HostAssets;
use aimodel::host::recipe::EmbeddingsContract;
use aimodel::quant::Scheme;
use aimodel::runtime::{Asset, Call, HostTensor, Outputs, Runtime};
use support::stages::{On, Stage};
use support::{Reference, bundles, golden};

const MODEL: &str = "unlimited-ocr";

/// Tokens of the prompt: BOS, 111 of the image, 5 of the text.
const PREFIX: usize = 117;
/// Room for the prompt and more steps than the window of 8 is long.
const CACHE: usize = 256;
const VOCABULARY: usize = 512;
const HIDDEN: usize = 128;

const VISION_640: &[&str] =
    &["sam.block.2", "sam.net_3", "clip.embeddings", "clip.pre_layrnorm", "clip.layer.0", "clip.layer.1", "projector"];
const VISION_1024: &[&str] = &["sam.net_3", "clip.embeddings", "projector"];
const PREFILL: &[&str] = &[
    "layer.0",
    "layer.1",
    "layer.2",
    "router.1.logits",
    "router.1.topk_weights",
    "router.2.logits",
    "router.2.topk_weights",
    "norm",
];

#[test]
fn vision_at_640_equals_hugging_face_on_the_reference_executor() {
    vision(On::Eval, 640, VISION_640);
}

#[test]
fn vision_at_640_equals_hugging_face_on_apples_runtime() {
    vision(On::CoreAi, 640, VISION_640);
}

#[test]
fn vision_at_1024_equals_hugging_face_on_the_reference_executor() {
    vision(On::Eval, 1024, VISION_1024);
}

#[test]
fn vision_at_1024_equals_hugging_face_on_apples_runtime() {
    vision(On::CoreAi, 1024, VISION_1024);
}

#[test]
fn the_decoder_equals_hugging_face_on_the_reference_executor() {
    decoder(On::Eval);
}

#[test]
fn the_decoder_equals_hugging_face_on_apples_runtime() {
    decoder(On::CoreAi);
}

/// From the page's file to the features as the decoder takes them.
fn vision(on: On, side: usize, labels: &'static [&'static str]) {
    let request = ExportRequest { image_size: Some(side), max_context: Some(512), ..request(labels) };
    on.export(&request, |runtime, host| {
        let reference = Stage::new(on, MODEL, &format!("vision_{side}"));
        let page = image::open(golden("structure/unlimited-ocr/page.png")).unwrap();
        let vision = &contract(host).vision;
        let inputs = vec![(vision.image.as_str(), host.embeddings().unwrap().pixels(&page).unwrap())];
        let call = Call { asset: Asset::Vision, function: &vision.function, inputs, states: Vec::new() };
        let mut outputs = runtime.run(&call).unwrap();
        labels.iter().for_each(|label| reference.check_output(label, &mut outputs));

        let (shape, _) = reference.tensors.floats("projector");
        let visual_tokens = outputs.take_floats(&vision.visual_tokens, &shape).unwrap();
        let embeds = floats(host.embeddings().unwrap().prefill_embeds(&visual_tokens).unwrap());
        if side == 640 {
            let (_, features) = reference.tensors.floats("image_features");
            // The image follows the BOS token.
            reference.check("image_features", &embeds[HIDDEN..][..features.len()], &features);
            let prefill = Stage::new(on, MODEL, "prefill");
            prefill.check("inputs_embeds", &embeds, &prefill.tensors.floats("inputs_embeds").1);
        }
    });
}

/// Prefill, forced steps past the window, and the model's own choice of tokens.
fn decoder(on: On) {
    let request = ExportRequest { max_context: Some(CACHE), ..request(PREFILL) };
    on.export(&request, |runtime, host| {
        let reference = Stage::new(on, MODEL, "decode");
        let prompt: Vec<i32> = host.prompts()[0].iter().map(|&id| id.try_into().unwrap()).collect();
        assert_eq!(prompt, Reference::open(MODEL, "prefill").ints("input_ids"), "input_ids");
        let mut decoder = Decoder { runtime, host };
        prefill(on, &mut decoder, &reference);
        forced_steps(&mut decoder, &reference);

        // One more than the reference has ids, so that the logits after its last id are seen too.
        let chosen = decoder.generate(49, None, |step, logits| match step.checked_sub(1) {
            None => reference.check("prefill_last_logits", logits, &reference.tensors.floats("prefill_last_logits").1),
            Some(row) => reference.check_row("greedy_logits", row, logits),
        });
        assert_eq!(chosen[..48], reference.tensors.ints("greedy_ids"), "greedy_ids");

        let rule = NoRepeatNgram::new(3, 24).unwrap();
        let chosen = decoder.generate(48, Some(rule), |_, _| ());
        assert_eq!(chosen, reference.tensors.ints("blocked_ids"), "blocked_ids");
    });
}

fn prefill(on: On, decoder: &mut Decoder<'_>, decode: &Stage) {
    let reference = Stage::new(on, MODEL, "prefill");
    let (_, embeds) = reference.tensors.floats("inputs_embeds");
    let mut outputs = decoder.prefill(embeds);
    PREFILL.iter().for_each(|label| reference.check_output(label, &mut outputs));
    let last = take_logits(&mut outputs);
    decode.check("prefill_last_logits", &last, &decode.tensors.floats("prefill_last_logits").1);
}

/// Tokens that Hugging Face was given, four windows of them.
fn forced_steps(decoder: &mut Decoder<'_>, reference: &Stage) {
    let ids = reference.tensors.ints("forced_ids");
    assert_eq!(ids.len(), 32);
    for (row, (id, position)) in ids.into_iter().zip(reference.tensors.ints("forced_positions")).enumerate() {
        let mut outputs = decoder.decode(id, position);
        reference.check_row("forced_logits", row, &take_logits(&mut outputs));
        reference.check_row("forced_hidden", row, &outputs.take_floats("norm", &[1, 1, HIDDEN]).unwrap());
    }
}

fn contract(host: &HostAssets) -> &EmbeddingsContract {
    host.recipe().contract.embeddings().unwrap()
}

/// The input that a position is handed in as.
fn position_input(host: &HostAssets) -> &str {
    host.recipe().kv.feeds[0].input()
}

/// The functions of the decoder.
struct Decoder<'a> {
    runtime: &'a mut dyn Runtime,
    host: &'a HostAssets,
}

impl Decoder<'_> {
    fn prefill(&mut self, embeds: Vec<f32>) -> Outputs {
        let recipe = self.host.recipe();
        self.runtime.reset_states(Asset::Decoder, &recipe.states()).unwrap();
        let embeds = HostTensor::floats(vec![1, PREFIX, HIDDEN], embeds).unwrap();
        let decoder = &contract(self.host).decoder;
        self.run(&decoder.prefill, vec![(decoder.inputs_embeds.as_str(), embeds)])
    }

    fn decode(&mut self, id: i32, position: i32) -> Outputs {
        let decoder = &contract(self.host).decoder;
        let embeds = self.host.embeddings().unwrap().token_embeds(id.try_into().unwrap()).unwrap();
        let position = HostTensor::ints(vec![1], vec![position]).unwrap();
        let inputs = vec![(decoder.inputs_embeds.as_str(), embeds), (position_input(self.host), position)];
        self.run(&decoder.decode, inputs)
    }

    fn run(&mut self, function: &str, inputs: Vec<(&str, HostTensor)>) -> Outputs {
        let states = self.host.recipe().states();
        let states = states.iter().map(|state| state.name.as_str()).collect();
        self.runtime.run(&Call { asset: Asset::Decoder, function, inputs, states }).unwrap()
    }

    /// The ids chosen after a new prefill. `watch` sees the logits after so many tokens.
    fn generate(&mut self, most: usize, rule: Option<NoRepeatNgram>, watch: impl Fn(usize, &[f32])) -> Vec<i32> {
        let (_, embeds) = Reference::open(MODEL, "prefill").floats("inputs_embeds");
        let mut logits = take_logits(&mut self.prefill(embeds));
        let policy =
            Policy { stop_ids: Vec::new(), max_tokens: most, context: CACHE, no_repeat_ngram: rule, run_cap: None };
        let mut generator = Generator::new(policy, self.host.prompts()[0]);
        loop {
            let step = generator.output().len();
            watch(step, &logits);
            match generator.next(&logits).unwrap() {
                Next::Stop(_) => break,
                Next::Token(id) => {
                    let position = i32::try_from(PREFIX + step).unwrap();
                    logits = take_logits(&mut self.decode(id.try_into().unwrap(), position));
                }
            }
        }
        generator.output().iter().map(|&id| id.try_into().unwrap()).collect()
    }
}

fn request(labels: &[&str]) -> ExportRequest {
    ExportRequest {
        precision: Precision::F32,
        probes: labels.iter().map(ToString::to_string).collect(),
        ..bundles::request(bundles::structure(), Scheme::Fp16, MoeForm::Native)
    }
}

fn take_logits(outputs: &mut Outputs) -> Vec<f32> {
    outputs.take_floats("logits", &[1, 1, VOCABULARY]).unwrap()
}

fn floats(tensor: HostTensor) -> Vec<f32> {
    match tensor.into_parts() {
        (_, aimodel::runtime::TensorData::Floats(values)) => values,
        (shape, _) => panic!("integers of shape {shape:?}"),
    }
}
