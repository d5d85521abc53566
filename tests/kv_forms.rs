//! Every form of the key/value cache is the same model: the same tokens as Hugging Face's past the sliding window, the
//! same logits, the same columns in the caches, on the reference executor and on Apple's runtime; whole decoders and
//! decoders cut into chunks of layers; and trained checkpoints read pages in each form.
//!
//! All bundles are driven by what their recipe says, and nothing else.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stdout, reason = "shown with --nocapture")]

mod support;

use aimodel::eval::Options;
use aimodel::export::{CheckpointChoice, ExportRequest, MoeForm, Precision};
use aimodel::grid::Grid;
use aimodel::host::decode::{Generator, Next};
use aimodel::host::image;
use aimodel::host::reader::{HostAssets, Seen, Session};
use aimodel::host::recipe::{CacheRows, KvCaches, Recipe, Variant};
use aimodel::passes::KvForm;
use aimodel::quant::Scheme;
use aimodel::runtime::eval::{Eval, Modules};
use aimodel::runtime::{Asset, Runtime};
use serde::Deserialize;
use support::bundles::Exported;
use support::{Reference, check_close, golden, largest_difference, python};

/// Between two forms on one runtime, for logits up to 20.
const TOLERANCE: f32 = 1e-3;

/// A structural checkpoint, the page of its reference, and the room it is given.
#[derive(Clone, Copy)]
struct Model {
    name: &'static str,
    context: usize,
}

const UNLIMITED_OCR: Model = Model { name: "unlimited-ocr", context: 192 };
const GLM_OCR: Model = Model { name: "glm-ocr", context: 96 };

#[test]
fn unlimited_ocr_is_the_same_model_in_every_form() {
    same_model(UNLIMITED_OCR);
}

#[test]
fn glm_ocr_is_the_same_model_in_every_form() {
    same_model(GLM_OCR);
}

#[test]
fn unlimited_ocr_is_the_same_model_in_every_form_on_apples_runtime() {
    same_model_on_apple(UNLIMITED_OCR);
}

#[test]
fn glm_ocr_is_the_same_model_in_every_form_on_apples_runtime() {
    same_model_on_apple(GLM_OCR);
}

/// The last size does not divide the number of layers, and the structural checkpoint of GLM-OCR has only two.
#[test]
fn a_decoder_in_chunks_is_the_whole_decoder() {
    for (model, sizes) in [(UNLIMITED_OCR, &[1, 2][..]), (GLM_OCR, &[1])] {
        let whole = Exported::new(&model.request(KvForm::Host));
        let seen = model.seen(&whole);
        let expected = on_eval(&whole, &seen);
        for &size in sizes {
            let request = ExportRequest { chunk_layers: Some(size), ..model.request(KvForm::Host) };
            let chunked = on_eval(&Exported::new(&request), &seen);
            assert_eq!(chunked.ids, expected.ids, "{} in chunks of {size}", model.name);
            check_close("logits", &chunked.logits, &expected.logits, 1e-5);
            check_close("keys", &chunked.caches[0], &expected.caches[0], 1e-5);
        }
    }
}

#[test]
fn a_decoder_in_chunks_runs_on_apples_runtime() {
    for model in [UNLIMITED_OCR, GLM_OCR] {
        let whole = Exported::new(&model.request(KvForm::Host));
        let seen = model.seen(&whole);
        let chunked = Exported::new(&ExportRequest { chunk_layers: Some(1), ..model.request(KvForm::Host) });
        let run = Run::new(&mut python::core_ai(chunked.assets()), &chunked.host(), &seen);
        assert_eq!(run.ids, model.greedy_ids());
    }
}

#[test]
fn the_trained_checkpoints_read_pages_in_every_form() {
    for (model, file) in [("unlimited-ocr", "expected.json"), ("glm-ocr", "expected_glm_ocr.json")] {
        let pages = pages(file);
        let mut seen: Vec<Seen> = Vec::new();
        for form in KvForm::ALL {
            let bundle = Exported::new(&trained(model, form));
            let modules = Modules::open(&bundle.assets()).unwrap();
            let mut eval = Eval::new(&modules, Options::default());
            let host = bundle.host();
            if seen.is_empty() {
                let see = |page: &Page| Session::new(&host).see(&mut eval, &page.image()).unwrap();
                seen = pages.iter().map(see).collect();
            }
            for (page, seen) in pages.iter().zip(&seen) {
                assert_eq!(read(&mut eval, &host, seen), page.output_ids, "{model}, {form}: {}", page.file);
            }
        }
    }
}

/// All forms against Hugging Face's tokens, and against the first.
fn same_model(model: Model) {
    let mut first: Option<(Seen, Run)> = None;
    for form in KvForm::ALL {
        let bundle = Exported::new(&model.request(form));
        assert_eq!(bundle.host().recipe().kv.form, form.name());
        let seen = first.as_ref().map_or_else(|| model.seen(&bundle), |(seen, _)| seen.clone());
        let run = on_eval(&bundle, &seen);
        assert_eq!(run.ids, model.greedy_ids(), "{}, {form}", model.name);
        let (_, expected) = first.get_or_insert_with(|| (seen, run.clone()));
        let apart = largest_difference(&run.logits, &expected.logits);
        println!("{}, {form}: logits differ by {apart:.1e}", model.name);
        check_close("logits", &run.logits, &expected.logits, TOLERANCE);
        for (name, (ours, theirs)) in ["keys", "values"].iter().zip(run.caches.iter().zip(&expected.caches)) {
            check_close(&format!("{form} {name}"), ours, theirs, TOLERANCE);
        }
    }
}

fn same_model_on_apple(model: Model) {
    let mut first: Option<(Seen, Run)> = None;
    for form in KvForm::ALL {
        let bundle = Exported::new(&model.request(form));
        let seen = first.as_ref().map_or_else(|| model.seen(&bundle), |(seen, _)| seen.clone());
        let run = Run::new(&mut python::core_ai(bundle.assets()), &bundle.host(), &seen);
        assert_eq!(run.ids, model.greedy_ids(), "{}, {form}", model.name);
        let (_, expected) = first.get_or_insert_with(|| (seen, run.clone()));
        check_close(&format!("{form} logits"), &run.logits, &expected.logits, TOLERANCE);
    }
}

impl Model {
    /// Single precision; chunks of a prompt that they do not divide.
    fn request(self, form: KvForm) -> ExportRequest {
        let base = ExportRequest {
            checkpoint: CheckpointChoice::Path(golden("structure").join(self.name)),
            scheme: Some(Scheme::Fp16),
            precision: Precision::F32,
            kv: Some(form),
            max_context: Some(self.context),
            ..ExportRequest::new(self.name)
        };
        if self.name == "unlimited-ocr" {
            return ExportRequest { moe: Some(MoeForm::Native), ..base };
        }
        let grids = vec![Grid::new(4, 5).unwrap()];
        ExportRequest { grids, functions: vec![Variant::Prefill], prefill_chunk: Some(10), ..base }
    }

    /// The reference's page, seen once: the forms differ in the decoder only.
    fn seen(self, bundle: &Exported) -> Seen {
        let modules = Modules::open(&bundle.assets()).unwrap();
        let page = image::open(golden("structure").join(self.name).join("page.png")).unwrap();
        let host = bundle.host();
        Session::new(&host).see(&mut Eval::new(&modules, Options::default()), &page).unwrap()
    }

    fn greedy_ids(self) -> Vec<u32> {
        Reference::open(self.name, "decode").ints("greedy_ids").into_iter().map(|id| id as u32).collect()
    }
}

/// What a decoder gives after the prompt of a page: 48 tokens of its own choice, and the logits that chose them.
#[derive(Clone)]
struct Run {
    ids: Vec<u32>,
    logits: Vec<f32>,
    /// The columns of keys and of values at the positions that were fed, where they can be had.
    caches: Vec<Vec<f32>>,
}

impl Run {
    fn new(runtime: &mut dyn Runtime, host: &HostAssets, seen: &Seen) -> Self {
        let mut session = Session::new(host);
        let mut row = session.prefill(runtime, seen).unwrap();
        let mut run = Self { ids: Vec::new(), logits: Vec::new(), caches: Vec::new() };
        while run.ids.len() < 48 {
            let id = argmax(&row);
            run.logits.extend(row);
            run.ids.push(id);
            row = session.decode(runtime, id).unwrap();
        }
        let columns = session.columns().map(|columns| columns.to_vec()).unwrap_or_default();
        run.caches = columns.iter().map(|cache| filled(cache, session.recipe(), session.length())).collect();
        run
    }
}

/// As [`Run::new`] on our executor, whose states can be looked into.
fn on_eval(bundle: &Exported, seen: &Seen) -> Run {
    let modules = Modules::open(&bundle.assets()).unwrap();
    let mut eval = Eval::new(&modules, Options::default());
    let host = bundle.host();
    let mut run = Run::new(&mut eval, &host, seen);
    let fed = host.prompts()[0].len() + run.ids.len();
    if let KvCaches::States { keys, values, .. } = &host.recipe().kv.caches {
        let states = eval.states(Asset::Decoder).unwrap();
        let of = |name: &String| filled(&states[name].to_floats().unwrap(), host.recipe(), fed);
        run.caches = vec![of(keys), of(values)];
    }
    assert_eq!(run.caches.len(), 2);
    run
}

/// The rows of the tokens fed, in the order of their positions.
fn filled(cache: &[f32], recipe: &Recipe, fed: usize) -> Vec<f32> {
    let (length, width) = (recipe.cache.length, recipe.cache.head_dim);
    let at_the_end = matches!(&recipe.kv.caches, KvCaches::States { rows: CacheRows::AtTheEnd, .. });
    let first = if at_the_end { length - fed } else { 0 };
    let heads = cache.chunks_exact(length * width);
    heads.flat_map(|rows| rows[first * width..][..fed * width].iter().copied()).collect()
}

/// A trained checkpoint as it is shipped, with room for the longest page.
fn trained(model: &str, form: KvForm) -> ExportRequest {
    let base = ExportRequest {
        checkpoint: CheckpointChoice::BuiltIn,
        kv: Some(form),
        max_context: Some(320),
        ..ExportRequest::new(model)
    };
    match model {
        "glm-ocr" => ExportRequest { grids: vec![Grid::new(8, 16).unwrap()], ..base },
        _ => ExportRequest { moe: Some(MoeForm::Native), ..base },
    }
}

/// The tokens read, the stop token included.
fn read(runtime: &mut dyn Runtime, host: &HostAssets, seen: &Seen) -> Vec<u32> {
    let mut session = Session::new(host);
    let mut generator = Generator::new(host.recipe().policy().unwrap(), host.prompts()[seen.grid()]);
    let mut logits = session.prefill(runtime, seen).unwrap();
    while let Next::Token(id) = generator.next(&logits).unwrap() {
        logits = session.decode(runtime, id).unwrap();
    }
    generator.output().to_vec()
}

#[derive(Deserialize)]
struct Page {
    file: String,
    output_ids: Vec<u32>,
}

fn pages(file: &str) -> Vec<Page> {
    #[derive(Deserialize)]
    struct Expected {
        pages: Vec<Page>,
    }
    serde_json::from_slice::<Expected>(&std::fs::read(golden("pages").join(file)).unwrap()).unwrap().pages
}

impl Page {
    fn image(&self) -> ::image::RgbImage {
        image::open(golden("pages").join(&self.file)).unwrap()
    }
}

fn argmax(logits: &[f32]) -> u32 {
    (0..logits.len()).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32
}
