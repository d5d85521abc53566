//! The trained GLM-OCR checkpoint reads every golden page as Hugging Face does, with every scheme, in two grids, on the
//! reference executor and on Apple's runtime; and how many tokens quantisation flips.
//!
//! `--nocapture` prints the flips. Apple's CPU runtime computes half precision in software, so that its tests take
//! minutes: `cargo test --test pages_glm -- --skip apple`.

#![allow(clippy::print_stdout, reason = "shown with --nocapture")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::path::PathBuf;
use std::sync::Mutex;

use ::image::RgbImage;
use aimodel::Result;
use aimodel::eval::Options;
use aimodel::export::{CheckpointChoice, ExportRequest};
use aimodel::grid::Grid;
use aimodel::host::image;
use aimodel::host::reader::{HostAssets, Reading, read_page};
use aimodel::host::recipe::Variant;
use aimodel::quant::Scheme;
use aimodel::runtime::eval::{Eval, Modules};
use aimodel::runtime::{Asset, Call, HostTensor, Outputs, Runtime, State};
use serde::Deserialize;
use support::bundles::Exported;
use support::{golden, python};

/// Processes of Apple's runtime at a time.
const PROCESSES: usize = 2;

const VOCABULARY: usize = 512;

/// Tokens of a prompt before and after the image.
const BEFORE_IMAGE: usize = 6;

#[test]
fn every_scheme_reads_as_hugging_face_and_flips_few_tokens() {
    let pages = whole_pages();
    let fp16 = read_on_eval(Scheme::Fp16, &pages);
    for scheme in [Scheme::Int8Lin, Scheme::Int8Hu] {
        let quantised = read_on_eval(scheme, &pages);
        let mut total = Flips::default();
        for (page, (ours, reference)) in pages.iter().zip(quantised.iter().zip(&fp16)) {
            let flips = Flips::between(ours, reference);
            println!("{scheme}: {}: {flips}", page.file.display());
            total.add(&flips);
        }
        println!("{scheme}: all pages: {total}");
        assert!(total.rows > 1000, "{total}");
        assert_eq!(total.text, 0, "{scheme}: no token of a text is another");
        assert!(total.visual * 50 <= total.rows, "{scheme}: {total}");
    }
}

#[test]
fn every_variant_reads_the_same() {
    let bundle = Exported::new(&request(Scheme::Int8Hu));
    let modules = Modules::open(&bundle.assets()).unwrap();
    let page = &whole_pages()[0];
    for variant in Variant::ALL {
        let mut host = bundle.host();
        host.choose(variant).unwrap();
        let reading = read(&mut Eval::new(&modules, Options::default()), &host, page);
        assert_eq!(reading.ids, page.output_ids, "{variant}");
    }
}

/// Pages of two heights in one bundle, each in the grid of its size.
#[test]
fn two_grids_of_one_bundle_read_as_hugging_face() {
    let bundle = Exported::new(&ExportRequest { grids: vec![grid(8, 16), grid(6, 16)], ..request(Scheme::Int8Hu) });
    let modules = Modules::open(&bundle.assets()).unwrap();
    let host = bundle.host();
    let mut runtime = Eval::new(&modules, Options::default());
    for (grid, pages) in [whole_pages(), crops()].iter().enumerate() {
        for page in pages {
            assert_eq!(host.grid_of(&page.image()).unwrap(), grid);
            assert_eq!(read(&mut runtime, &host, page).ids, page.output_ids, "{}", page.file.display());
        }
    }
}

/// A page of another size and shape is letterboxed into the grid that is closest.
#[test]
fn a_page_of_another_size_is_read_in_the_closest_grid() {
    let bundle = Exported::new(&ExportRequest { grids: vec![grid(6, 16), grid(8, 16)], ..request(Scheme::Int8Hu) });
    let modules = Modules::open(&bundle.assets()).unwrap();
    let (host, page) = (bundle.host(), whole_pages().remove(0));
    let twice = ::image::imageops::resize(&page.image(), 896, 448, ::image::imageops::FilterType::CatmullRom);
    assert_eq!(host.grid_of(&twice).unwrap(), 1);
    let reading = read_page(&mut Eval::new(&modules, Options::default()), &host, &twice, None, &|_| Ok(())).unwrap();
    assert_eq!(reading.text, page.output);
}

#[test]
fn apples_runtime_reads_as_hugging_face() {
    let schemes = [Scheme::Fp16, Scheme::Int8Lin, Scheme::Int8Hu];
    let bundles = schemes.map(|scheme| Exported::new(&request(scheme)));
    let vision = bundles.each_ref().map(|bundle| std::fs::read(bundle.program(Asset::Vision)).unwrap());
    assert!(vision.iter().all(|program| *program == vision[0]), "the schemes share the vision asset: it is run once");

    let pages = Mutex::new(whole_pages().into_iter());
    let worker = || {
        let mut readers = bundles.each_ref().map(|bundle| (python::core_ai(bundle.assets()), bundle.host()));
        loop {
            // The lock is held for the choice of the page only.
            let page = pages.lock().unwrap().next();
            let Some(page) = page else { break };
            let mut seen = None;
            for (runtime, host) in &mut readers {
                host.choose(Variant::Dynamic).unwrap();
                let mut runtime = Watched { runtime, seen: seen.take(), logits: Vec::new() };
                let reading = read(&mut runtime, host, &page);
                assert_eq!(reading.ids, page.output_ids, "{}", page.file.display());
                seen = runtime.seen;
            }
        }
    };
    std::thread::scope(|scope| (0..PROCESSES).for_each(|_| drop(scope.spawn(worker))));
    assert_eq!(pages.lock().unwrap().len(), 0, "every page was read");
}

/// Both grids on Apple's runtime, one page each.
#[test]
fn apples_runtime_reads_in_both_grids() {
    let bundle = Exported::new(&ExportRequest { grids: vec![grid(8, 16), grid(6, 16)], ..request(Scheme::Int8Hu) });
    let mut runtime = python::core_ai(bundle.assets());
    let mut host = bundle.host();
    host.choose(Variant::Dynamic).unwrap();
    for page in [&whole_pages()[0], &crops()[0]] {
        assert_eq!(read(&mut runtime, &host, page).ids, page.output_ids, "{}", page.file.display());
    }
}

/// The readings of all pages, checked against Hugging Face's.
fn read_on_eval(scheme: Scheme, pages: &[Page]) -> Vec<Watch> {
    let bundle = Exported::new(&request(scheme));
    let modules = Modules::open(&bundle.assets()).unwrap();
    let mut host = bundle.host();
    host.choose(Variant::Dynamic).unwrap();
    let read_one = |page: &Page| {
        let mut eval = Eval::new(&modules, Options::default());
        let mut runtime = Watched { runtime: &mut eval, seen: None, logits: Vec::new() };
        let reading = read(&mut runtime, &host, page);
        assert_eq!(reading.ids, page.output_ids, "{scheme}: {}", page.file.display());
        assert_eq!(reading.text, page.output, "{scheme}: {}", page.file.display());
        Watch {
            visual: host.prompts()[0].iter().filter(|&&id| id >= VOCABULARY as u32).count(),
            logits: runtime.logits,
        }
    };
    pages.iter().map(read_one).collect()
}

fn read(runtime: &mut dyn Runtime, host: &HostAssets, page: &Page) -> Reading {
    read_page(runtime, host, &page.image(), None, &|_| Ok(())).unwrap()
}

fn grid(rows: usize, columns: usize) -> Grid {
    Grid::new(rows, columns).unwrap()
}

/// The prompt is 147 tokens and the longest page 115; what Apple's runtime computes grows with the context.
fn request(scheme: Scheme) -> ExportRequest {
    ExportRequest {
        checkpoint: CheckpointChoice::BuiltIn,
        scheme: Some(scheme),
        grids: vec![grid(8, 16)],
        functions: Variant::ALL.to_vec(),
        max_context: Some(320),
        ..ExportRequest::new("glm-ocr")
    }
}

/// One page as Hugging Face reads it.
#[derive(Deserialize)]
struct Page {
    file: PathBuf,
    output: String,
    output_ids: Vec<u32>,
    /// Height it is cut to.
    #[serde(skip)]
    height: Option<u32>,
}

#[derive(Deserialize)]
struct Expected {
    size: [u32; 2],
    pages: Vec<Page>,
}

fn expected(file: &str) -> Expected {
    let expected: Expected = serde_json::from_slice(&std::fs::read(golden(file)).unwrap()).unwrap();
    assert_eq!(expected.pages.len(), 7);
    expected
}

fn whole_pages() -> Vec<Page> {
    expected("pages/expected_glm_ocr.json").pages
}

/// The upper part of each page.
fn crops() -> Vec<Page> {
    let Expected { size, pages } = expected("pages/expected_glm_ocr_crops.json");
    pages.into_iter().map(|page| Page { height: Some(size[1]), ..page }).collect()
}

impl Page {
    fn image(&self) -> RgbImage {
        let page = image::open(golden("pages").join(&self.file)).unwrap();
        let height = self.height.unwrap_or(page.height());
        ::image::imageops::crop_imm(&page, 0, 0, page.width(), height).to_image()
    }
}

/// A runtime of which the logits are kept. It may have seen the page already.
struct Watched<'r> {
    runtime: &'r mut dyn Runtime,
    seen: Option<Outputs>,
    logits: Vec<f32>,
}

impl Runtime for Watched<'_> {
    fn name(&self) -> &str {
        self.runtime.name()
    }

    fn reset_states(&mut self, asset: Asset, states: &[State]) -> Result<()> {
        self.runtime.reset_states(asset, states)
    }

    fn run(&mut self, call: &Call<'_>) -> Result<Outputs> {
        if call.asset == Asset::Vision {
            if self.seen.is_none() {
                self.seen = Some(self.runtime.run(call)?);
            }
            return Ok(self.seen.clone().unwrap());
        }
        let outputs = self.runtime.run(call)?;
        let fed =
            call.inputs.iter().find(|(name, _)| *name == "input_ids").map(|(_, ids): &(_, HostTensor)| ids.shape()[1]);
        self.logits.extend(outputs.clone().take_floats("logits", &[1, fed.unwrap(), VOCABULARY])?);
        Ok(outputs)
    }
}

/// The logits of a reading, one row for each token of prompt and answer.
struct Watch {
    /// Visual tokens of the prompt.
    visual: usize,
    logits: Vec<f32>,
}

/// Rows of logits that prefer another token.
#[derive(Debug, Default)]
struct Flips {
    rows: usize,
    /// At visual tokens, and at those before them: nothing is generated there.
    visual: usize,
    /// From the last token of the prompt on.
    text: usize,
}

impl Flips {
    fn between(ours: &Watch, reference: &Watch) -> Self {
        assert_eq!(ours.logits.len(), reference.logits.len(), "the readings are equally long");
        let rows = ours.logits.chunks(VOCABULARY).zip(reference.logits.chunks(VOCABULARY));
        let last_visual = BEFORE_IMAGE + reference.visual;
        let mut flips = Self { rows: rows.len(), ..Self::default() };
        for (row, (a, b)) in rows.enumerate() {
            let flipped = usize::from(argmax(a) != argmax(b));
            if row < last_visual { flips.visual += flipped } else { flips.text += flipped }
        }
        flips
    }

    fn add(&mut self, other: &Self) {
        self.rows += other.rows;
        self.visual += other.visual;
        self.text += other.text;
    }
}

impl std::fmt::Display for Flips {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} tokens flip, {} of them in the text", self.visual + self.text, self.rows, self.text)
    }
}

fn argmax(logits: &[f32]) -> usize {
    (0..logits.len()).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap()
}

#[test]
fn golden_pages_are_of_two_sizes() {
    let sizes = [whole_pages(), crops()].map(|pages| pages[0].image().dimensions());
    assert_eq!(sizes, [(448, 224), (448, 168)]);
}
