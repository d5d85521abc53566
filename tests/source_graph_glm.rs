//! The graphs of GLM-OCR as built, before any pass, against Hugging Face's tensors.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::collections::BTreeMap;
use std::path::Path;

use aimodel::ElementType;
use aimodel::checkpoint::Checkpoint;
use aimodel::eval::{Executor, Options, Tensor, Tensors};
use aimodel::graph::Module;
use aimodel::grid::Grid;
use aimodel::host::chat_template::ChatTemplate;
use aimodel::host::image;
use aimodel::host::patches::PageProcessor;
use aimodel::host::slots::{RopeShift, Slots, SlottedPrompt};
use aimodel::host::tokenizer::Tokenizer;
use aimodel::models::cogvit;
use aimodel::models::{Loader, glm_text};
use aimodel::runtime::TensorData;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use support::{Reference, check_close, golden, largest_difference, tensors};

const MODEL: &str = "glm-ocr";
/// Single precision on both sides; values are O(1) up to a few hundred.
const TOLERANCE: f32 = 1e-4;
const VOCABULARY: usize = 512;
/// Positions of the cache.
const CACHE: usize = 320;

fn checkpoint(folder: &str) -> Checkpoint {
    Checkpoint::open(&golden(folder)).unwrap()
}

fn structure() -> Checkpoint {
    checkpoint("structure/glm-ocr")
}

fn vision(checkpoint: &Checkpoint, grid: Grid) -> Module {
    let config = cogvit::Config::read(&checkpoint.config()).unwrap();
    let mut module = Module::default();
    let mut loader = Loader::new(checkpoint);
    let function = cogvit::function(&config, "main", grid, ElementType::F32, &mut loader, &mut module.weights).unwrap();
    module.functions.push(function);
    module.verify().unwrap();
    module
}

/// `main` for one token, `prefill` for so many, `dynamic` for any number.
fn decoder(checkpoint: &Checkpoint, grid: Grid, prefill: usize) -> Module {
    let call = |name: &str, query| glm_text::Call { name: name.to_owned(), grid, query };
    let calls = [
        call("main", glm_text::Query::Tokens(1)),
        call("prefill", glm_text::Query::Tokens(prefill)),
        call("dynamic", glm_text::Query::Any),
    ];
    let config = glm_text::Config::read(&checkpoint.config()).unwrap();
    let mut module = Module::default();
    let mut loader = Loader::new(checkpoint);
    let weights = &mut module.weights;
    let functions = glm_text::functions(&config, &calls, CACHE, ElementType::F32, &mut loader, weights).unwrap();
    module.functions.extend(functions);
    module.verify().unwrap();
    module
}

/// The patches of a page of the right size already.
fn patches(checkpoint: &Checkpoint, page: &Path) -> Tensor {
    let settings = checkpoint.side_json("preprocessor_config.json").unwrap().unwrap();
    let processor = PageProcessor::read(&settings.root()).unwrap();
    let page = processor.resize(&image::open(page).unwrap()).unwrap();
    let (shape, data) = processor.patches(&page).unwrap().into_parts();
    let TensorData::Floats(values) = data else { panic!("patches are floats") };
    Tensor::floats(&shape, values).unwrap()
}

fn compare_vision(page: &str, stage: &str, grid: Grid, labels: &[&str]) {
    let checkpoint = structure();
    let (module, reference) = (vision(&checkpoint, grid), Reference::open(MODEL, stage));
    let executor = Executor::new(&module, Options::default());
    let inputs = tensors([("patches", patches(&checkpoint, &golden(page)))]);
    let outputs = executor.run_with_probes("main", inputs, &mut tensors([]), labels).unwrap();
    for &label in labels {
        let got = outputs.probes[label].to_floats().unwrap();
        check_close(label, &got, &reference.floats(label).1, TOLERANCE);
    }
    let embeds = &outputs.results["image_embeds"];
    let (shape, want) = reference.floats("image_features");
    assert_eq!(embeds.shape(), shape);
    check_close("image_embeds", &embeds.to_floats().unwrap(), &want, TOLERANCE);
}

#[test]
fn the_vision_tower_equals_hugging_face_stage_by_stage() {
    let labels =
        ["patch_embed", "rope_cos", "rope_sin", "block.0", "block.1", "post_layernorm", "downsample", "merger"];
    compare_vision("structure/glm-ocr/page.png", "vision", Grid::new(4, 5).unwrap(), &labels);
}

#[test]
fn the_vision_tower_equals_hugging_face_on_a_resized_page() {
    let page = "structure/glm-ocr/page_resize.png";
    compare_vision(page, "vision_resize", Grid::new(9, 12).unwrap(), &["downsample"]);
}

#[test]
fn patches_have_the_rows_and_columns_of_hugging_face() {
    let checkpoint = structure();
    let module = vision(&checkpoint, Grid::new(4, 5).unwrap());
    let executor = Executor::new(&module, Options::default());
    let inputs = tensors([("patches", Tensor::zeros(ElementType::F32, &[80, 1176]))]);
    let outputs = executor.run_with_probes("main", inputs, &mut tensors([]), &["position_ids"]).unwrap();
    assert_eq!(integers(&outputs.probes["position_ids"]), Reference::open(MODEL, "vision").ints("position_ids"));
}

fn integers(tensor: &Tensor) -> Vec<i32> {
    let Tensor::I32(values) = tensor else { panic!("integers, not {tensor:?}") };
    values.iter().copied().collect()
}

/// The prompt of the reference, its image of 4 x 5 visual tokens in slots.
fn prompt() -> SlottedPrompt {
    let placeholder = 504;
    let mut ids: Vec<u32> = Reference::open(MODEL, "prefill").ints("input_ids").iter().map(|&id| id as u32).collect();
    ids.dedup_by(|a, b| *a == placeholder && *b == placeholder);
    let slots = Slots { placeholder, vocabulary: VOCABULARY as u32, grid: Grid::new(4, 5).unwrap() };
    slots.fill(&ids).unwrap()
}

/// The decoder of the structural checkpoint with the image of the reference.
struct Session<'m> {
    executor: Executor<'m>,
    image: Tensor,
    shift: RopeShift,
    states: Tensors,
    /// Tokens fed so far.
    fed: usize,
    /// Whether the function that takes any number of tokens is called.
    dynamic: bool,
}

impl<'m> Session<'m> {
    fn new(module: &'m Module, shift: RopeShift) -> Self {
        let (shape, image) = Reference::open(MODEL, "vision").floats("image_features");
        Self::with_image(module, shift, Tensor::floats(&shape, image).unwrap())
    }

    fn with_image(module: &'m Module, shift: RopeShift, image: Tensor) -> Self {
        let executor = Executor::new(module, Options::default());
        let states = executor.zero_states("main").unwrap();
        Self { executor, image, shift, states, fed: 0, dynamic: false }
    }

    fn feed(&mut self, ids: &[u32], labels: &[&str]) -> (Vec<f32>, BTreeMap<String, Tensor>) {
        let function = match ids.len() {
            _ if self.dynamic => "dynamic",
            1 => "main",
            _ => "prefill",
        };
        let row = |values: Vec<i32>| Tensor::integers(&[1, values.len()], values).unwrap();
        let one = |value: i32| Tensor::integers(&[1], vec![value]).unwrap();
        let inputs = tensors([
            ("input_ids", row(ids.iter().map(|&id| id as i32).collect())),
            ("pos", one(self.fed as i32)),
            ("image_embeds", self.image.clone()),
            ("rope_shift_start", one(self.shift.start)),
            ("rope_shift_amount", one(self.shift.amount)),
        ]);
        self.fed += ids.len();
        let outputs = self.executor.run_with_probes(function, inputs, &mut self.states, labels).unwrap();
        (outputs.results["logits"].to_floats().unwrap(), outputs.probes)
    }
}

fn last_row(logits: &[f32]) -> &[f32] {
    &logits[logits.len() - VOCABULARY..]
}

fn argmax(logits: &[f32]) -> u32 {
    (0..logits.len()).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32
}

/// That of the reference, with a prefill of so many tokens.
fn structural_decoder(prefill: usize) -> Module {
    decoder(&structure(), Grid::new(4, 5).unwrap(), prefill)
}

#[test]
fn the_prefill_equals_hugging_face_layer_by_layer() {
    let module = structural_decoder(32);
    let reference = Reference::open(MODEL, "prefill");
    let prompt = prompt();
    let labels = [
        "inputs_embeds",
        "rope_cos",
        "rope_sin",
        "cache.0.key",
        "cache.0.value",
        "cache.1.key",
        "cache.1.value",
        "layer.0",
        "layer.1",
        "norm",
    ];
    let mut session = Session::new(&module, prompt.shift);
    let (logits, probes) = session.feed(&prompt.ids, &labels);
    for label in labels {
        check_close(label, &probes[label].to_floats().unwrap(), &reference.floats(label).1, TOLERANCE);
    }
    check_close("logits", &logits, &reference.floats("logits").1, TOLERANCE);
}

/// Kernels that read one position for all three sections are right on text and wrong on images.
#[test]
fn positions_in_time_rows_and_columns_equal_hugging_face() {
    let module = structural_decoder(32);
    let want = Reference::open(MODEL, "prefill").ints("position_ids");
    let (times, places) = want.split_at(32);
    let (rows, columns) = places.split_at(32);
    let distinct = (0..32).filter(|&i| times[i] != rows[i] && rows[i] != columns[i] && columns[i] != times[i]);
    assert!(distinct.count() >= 9, "the reference has visual tokens with three distinct positions");
    let prompt = prompt();
    let (_, probes) = Session::new(&module, prompt.shift).feed(&prompt.ids, &["mrope_positions"]);
    let got = integers(&probes["mrope_positions"]);
    let interleaved: Vec<i32> = (0..32).flat_map(|i| [times[i], rows[i], columns[i]]).collect();
    assert_eq!(got, interleaved);
}

#[test]
fn text_behind_an_image_depends_on_the_shift() {
    let module = structural_decoder(32);
    let prompt = prompt();
    let (with, _) = Session::new(&module, prompt.shift).feed(&prompt.ids, &[]);
    let (without, _) = Session::new(&module, RopeShift::NONE).feed(&prompt.ids, &[]);
    let after = (prompt.shift.start as usize) * VOCABULARY;
    assert_eq!(with[..after], without[..after], "tokens up to the image do not");
    assert!(largest_difference(last_row(&with), last_row(&without)) > 1.0);
}

#[test]
fn decoding_equals_hugging_face_on_forced_tokens_and_chooses_the_same() {
    let module = structural_decoder(32);
    let decode = Reference::open(MODEL, "decode");
    let prompt = prompt();
    let mut session = Session::new(&module, prompt.shift);
    let (logits, _) = session.feed(&prompt.ids, &[]);
    check_close("prefill", last_row(&logits), &decode.floats("prefill_last_logits").1, TOLERANCE);
    let (states, fed) = (session.states.clone(), session.fed);

    let (ids, want) = (decode.ints("forced_ids"), decode.floats("forced_logits").1);
    for (step, (&id, want)) in ids.iter().zip(want.chunks(VOCABULARY)).enumerate() {
        let (got, _) = session.feed(&[id as u32], &[]);
        check_close(&format!("step {step}"), &got, want, TOLERANCE);
    }

    (session.states, session.fed) = (states, fed);
    let mut next = argmax(last_row(&logits));
    for (step, &want) in decode.ints("greedy_ids").iter().enumerate() {
        assert_eq!(next, want as u32, "step {step}");
        next = argmax(&session.feed(&[next], &[]).0);
    }
}

#[test]
fn any_number_of_tokens_at_once_gives_what_hugging_face_gives() {
    let module = structural_decoder(32);
    let decode = Reference::open(MODEL, "decode");
    let prompt = prompt();
    let mut session = Session { dynamic: true, ..Session::new(&module, prompt.shift) };
    let (logits, _) = session.feed(&prompt.ids, &[]);
    check_close("logits", &logits, &Reference::open(MODEL, "prefill").floats("logits").1, TOLERANCE);
    let ids: Vec<u32> = decode.ints("forced_ids").iter().map(|&id| id as u32).collect();
    let want = decode.floats("forced_logits").1;
    let (first, rest) = ids.split_at(7);
    let got: Vec<f32> = session.feed(first, &[]).0.into_iter().chain(session.feed(rest, &[]).0).collect();
    check_close("forced", &got, &want, TOLERANCE);
}

#[test]
fn chunks_of_a_prompt_give_what_the_whole_gives() {
    let (whole, chunked) = (structural_decoder(32), structural_decoder(10));
    let prompt = prompt();
    let (want, _) = Session::new(&whole, prompt.shift).feed(&prompt.ids, &[]);
    let mut session = Session::new(&chunked, prompt.shift);
    let (chunks, rest) = prompt.ids.as_chunks::<10>();
    let mut got: Vec<f32> = chunks.iter().flat_map(|chunk| session.feed(chunk, &[]).0).collect();
    got.extend(rest.iter().flat_map(|id| session.feed(&[*id], &[]).0));
    check_close("logits", &got, &want, TOLERANCE);
}

#[test]
fn the_trained_checkpoint_reads_pages_as_transformers_does() {
    let folder = "trained/glm-ocr-tiny";
    let checkpoint = checkpoint(folder);
    let expected = std::fs::read(golden("pages/expected_glm_ocr.json")).unwrap();
    let expected: Value = serde_json::from_slice(&expected).unwrap();
    let template = std::fs::read_to_string(golden(folder).join("chat_template.jinja")).unwrap();
    let prompt = ChatTemplate::new("chat_template.jinja", template).unwrap().page_prompt("Text Recognition:").unwrap();
    let ids = Tokenizer::open(golden(folder).join("tokenizer.json")).unwrap().encode(&prompt).unwrap();
    let config = glm_text::Config::read(&checkpoint.config()).unwrap();
    let slots = Slots {
        placeholder: config.image.placeholder,
        vocabulary: config.vocabulary as u32,
        grid: Grid::new(8, 16).unwrap(),
    };
    let prompt = slots.fill(&ids).unwrap();
    let grid = Grid::new(8, 16).unwrap();
    let tower = vision(&checkpoint, grid);
    let text = decoder(&checkpoint, grid, prompt.ids.len());
    for page in ["glm-ocr-tiny-1.png", "glm-ocr-tiny-invoice.png"] {
        let pages = expected["pages"].as_array().unwrap();
        let want = &pages.iter().find(|p| p["file"] == page).unwrap()["output_ids"];
        let inputs = tensors([("patches", patches(&checkpoint, &golden("pages").join(page)))]);
        let seen = Executor::new(&tower, Options::default()).run("main", inputs, &mut tensors([])).unwrap();
        let mut session = Session::with_image(&text, prompt.shift, seen["image_embeds"].clone());
        let mut output = vec![argmax(last_row(&session.feed(&prompt.ids, &[]).0))];
        while !config.stop.contains(output.last().unwrap()) && session.fed < CACHE {
            output.push(argmax(&session.feed(&output[output.len() - 1..], &[]).0));
        }
        assert_eq!(json!(output), *want, "{page}");
    }
}

/// The structural checkpoint as one file, with its tensors and its configuration changed.
struct Changed {
    folder: tempfile::TempDir,
}

type Stored = BTreeMap<String, (Vec<usize>, Vec<u8>)>;

impl Changed {
    fn new(tensors: impl FnOnce(&mut Stored), config: impl FnOnce(&mut Value)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut stored = Stored::new();
        for tensor in structure().tensors() {
            let mut bytes = vec![0; tensor.bytes() as usize];
            tensor.read_at(&mut bytes, 0).unwrap();
            stored.insert(tensor.name.to_string(), (tensor.shape.clone(), bytes));
        }
        tensors(&mut stored);
        let views = stored.iter().map(|(name, (shape, bytes))| {
            (name.clone(), TensorView::new(safetensors::Dtype::BF16, shape.clone(), bytes).unwrap())
        });
        let file = safetensors::serialize(views, None).unwrap();
        assert!(SafeTensors::deserialize(&file).is_ok());
        std::fs::write(folder.path().join("model.safetensors"), file).unwrap();
        let mut settings: Value =
            serde_json::from_slice(&std::fs::read(golden("structure/glm-ocr/config.json")).unwrap()).unwrap();
        config(&mut settings);
        std::fs::write(folder.path().join("config.json"), settings.to_string()).unwrap();
        Self { folder }
    }

    /// What became of the tensors outside the vision tower: how many were dropped, and the warnings.
    fn built(&self) -> aimodel::Result<(usize, Vec<String>)> {
        let checkpoint = Checkpoint::open(self.folder.path()).unwrap();
        let config = glm_text::Config::read(&checkpoint.config())?;
        let tower = cogvit::Config::read(&checkpoint.config())?;
        let mut module = Module::default();
        let mut loader = Loader::new(&checkpoint);
        let grid = Grid::new(1, 1).unwrap();
        cogvit::function(&tower, "main", grid, ElementType::F32, &mut loader, &mut module.weights)?;
        let calls = [glm_text::Call { name: "main".to_owned(), grid, query: glm_text::Query::Tokens(1) }];
        glm_text::functions(&config, &calls, 8, ElementType::F32, &mut loader, &mut module.weights)?;
        loader.finish()?;
        Ok((loader.dropped().len(), config.warnings(&loader)))
    }
}

const EMBEDDINGS: &str = "model.language_model.embed_tokens.weight";
const MTP: &str = "model.language_model.layers.2.";

fn without(name: &'static str) -> impl Fn(&mut Stored) {
    move |stored| stored.retain(|key, _| !key.contains(name))
}

#[test]
fn every_tensor_is_used_or_dropped_with_the_prediction_layer() {
    let (dropped, warnings) = Changed::new(|_| (), |_| ()).built().unwrap();
    assert_eq!((dropped, warnings), (16, vec![]));
}

#[test]
fn prediction_layers_may_be_missing_incomplete_or_undeclared() {
    let (dropped, warnings) = Changed::new(without(MTP), |_| ()).built().unwrap();
    assert_eq!((dropped, warnings.len()), (0, 1));
    let trimmed = Changed::new(
        |stored| stored.retain(|name, _| !name.starts_with(MTP) || !name.contains("embed") && !name.contains("shared")),
        |_| (),
    );
    assert_eq!(trimmed.built().unwrap(), (13, vec![]));
    let undeclared = |config: &mut Value| config["text_config"]["num_nextn_predict_layers"] = json!(0);
    let (dropped, warnings) = Changed::new(|_| (), undeclared).built().unwrap();
    assert_eq!((dropped, warnings.len()), (16, 1));
}

#[test]
fn a_decoder_layer_beyond_the_number_of_layers_is_not_taken_for_a_prediction_layer() {
    let fewer = |config: &mut Value| config["text_config"]["num_nextn_predict_layers"] = json!(0);
    let stray = |stored: &mut Stored| stored.retain(|name, _| !name.ends_with("layers.2.eh_proj.weight"));
    let error = Changed::new(stray, fewer).built().unwrap_err().to_string();
    assert!(error.contains("layers.2.") && error.contains("not part of the model"), "{error}");
    let tenfold = |stored: &mut Stored| {
        let tensor = stored.remove(&format!("{MTP}eh_proj.weight")).unwrap();
        stored.insert("model.language_model.layers.20.mlp.extra.weight".to_owned(), tensor);
    };
    let error = Changed::new(tenfold, |_| ()).built().unwrap_err().to_string();
    assert!(error.contains("layers.20.mlp.extra"), "{error}");
}

fn tie(config: &mut Value) {
    config["text_config"]["tie_word_embeddings"] = json!(true);
}

#[test]
fn a_tied_head_is_the_embedding_table_whether_or_not_it_is_stored() {
    assert_eq!(Changed::new(without("lm_head"), tie).built().unwrap(), (16, vec![]));
    let copied = |stored: &mut Stored| {
        let table = stored[EMBEDDINGS].clone();
        stored.insert("lm_head.weight".to_owned(), table);
    };
    assert_eq!(Changed::new(copied, tie).built().unwrap(), (17, vec![]));
}

#[test]
fn a_head_that_contradicts_its_configuration_is_refused() {
    let error = Changed::new(|_| (), tie).built().unwrap_err();
    assert!(error.to_string().contains("`lm_head.weight` is not the embedding table"), "{error}");
    assert!(error.hint_text().is_some());
    let error = Changed::new(without("lm_head"), |_| ()).built().unwrap_err().to_string();
    assert!(error.contains("`lm_head.weight` is missing"), "{error}");
    let conflict = |config: &mut Value| {
        config["tie_word_embeddings"] = json!(false);
        tie(config);
    };
    assert!(Changed::new(|_| (), conflict).built().unwrap_err().to_string().contains("disagrees"));
}
