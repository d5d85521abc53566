//! The trained checkpoint reads every golden page as Hugging Face does: the same text and the same tokens, with both
//! schemes, with and without the Metal kernel, on the reference executor and on Apple's runtime.
//!
//! Apple's CPU runtime computes half precision in software, so the last test takes about six minutes on two idle cores;
//! the others take seconds: `cargo test --test pages -- --skip apple`.

#![allow(clippy::print_stdout, reason = "shown with --nocapture")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::path::PathBuf;
use std::sync::Mutex;

use aimodel::Result;
use aimodel::eval::Options;
use aimodel::export::{CheckpointChoice, ExportRequest, MoeForm};
use aimodel::host::image;
use aimodel::host::reader::{HostAssets, Session, read_page};
use aimodel::quant::Scheme;
use aimodel::runtime::eval::{Eval, Modules};
use aimodel::runtime::{Asset, Call, HostTensor, Outputs, Runtime, State};
use serde::Deserialize;
use support::bundles::{self, Exported};
use support::{golden, python};

/// Processes of Apple's runtime at a time.
const PROCESSES: usize = 2;

#[test]
fn sym8_with_the_metal_kernel_reads_as_hugging_face() {
    read_on_eval(Scheme::Sym8, MoeForm::Metal);
}

#[test]
fn sym8_reads_as_hugging_face() {
    read_on_eval(Scheme::Sym8, MoeForm::Native);
}

#[test]
fn fp16_reads_as_hugging_face() {
    read_on_eval(Scheme::Fp16, MoeForm::Native);
}

#[test]
fn apples_runtime_reads_as_hugging_face() {
    let bundles = [export(Scheme::Sym8, MoeForm::Native), export(Scheme::Fp16, MoeForm::Native)];
    let [sym8, fp16] = &bundles.each_ref().map(|bundle| std::fs::read(bundle.program(Asset::Vision)).unwrap());
    assert!(sym8 == fp16, "the schemes share the vision asset: it is run once a page");

    let pages = Mutex::new(expected().into_iter());
    let worker = || {
        let mut readers = bundles.each_ref().map(|bundle| (python::core_ai(bundle.assets()), bundle.host()));
        loop {
            // The lock is held for the choice of the page only.
            let page = pages.lock().unwrap().next();
            let Some(page) = page else { break };
            read_on_apple(&mut readers, &page);
        }
    };
    std::thread::scope(|scope| (0..PROCESSES).for_each(|_| drop(scope.spawn(worker))));
    assert_eq!(pages.lock().unwrap().len(), 0, "every page was read");
}

/// Reads a page with each of the readers; all get the visual tokens of the first one's vision asset.
fn read_on_apple(readers: &mut [(impl Runtime, HostAssets)], page: &Page) {
    let mut seen: Option<HostTensor> = None;
    for (runtime, host) in readers {
        let tokens = match seen.take() {
            Some(tokens) => tokens,
            None => Session::new(host).see(runtime, &page.image()).unwrap().tokens().clone(),
        };
        page.check_reading(&mut Seen::new(runtime, host, &tokens), host);
        seen = Some(tokens);
    }
}

fn read_on_eval(scheme: Scheme, moe: MoeForm) {
    let bundle = export(scheme, moe);
    let modules = Modules::open(&bundle.assets()).unwrap();
    let mut runtime = Eval::new(&modules, Options::default());
    let host = bundle.host();
    expected().iter().for_each(|page| page.check_reading(&mut runtime, &host));
}

/// The prompt is 122 tokens and the longest page below 128; what Apple's runtime computes grows with the cache.
fn export(scheme: Scheme, moe: MoeForm) -> Exported {
    let request = bundles::request(CheckpointChoice::BuiltIn, scheme, moe);
    Exported::new(&ExportRequest { max_context: Some(256), ..request })
}

/// One page as Hugging Face reads it.
#[derive(Deserialize)]
struct Page {
    file: PathBuf,
    output: String,
    output_ids: Vec<u32>,
}

fn expected() -> Vec<Page> {
    #[derive(Deserialize)]
    struct Expected {
        pages: Vec<Page>,
    }
    let text = std::fs::read(golden("pages/expected.json")).unwrap();
    let pages = serde_json::from_slice::<Expected>(&text).unwrap().pages;
    assert_eq!(pages.len(), 7);
    pages
}

impl Page {
    fn image(&self) -> ::image::RgbImage {
        image::open(golden("pages").join(&self.file)).unwrap()
    }

    fn check_reading(&self, runtime: &mut dyn Runtime, host: &HostAssets) {
        let reading = read_page(runtime, host, &self.image(), None, &|_| Ok(())).unwrap();
        let name = self.file.display();
        assert_eq!(reading.text, self.output, "{name}");
        assert_eq!(reading.ids, self.output_ids, "{name}");
        println!("{}: {name}: {} tokens are equal", runtime.name(), reading.ids.len());
    }
}

/// A runtime that has seen the page already.
struct Seen<'r> {
    runtime: &'r mut dyn Runtime,
    visual_tokens: Outputs,
}

impl<'r> Seen<'r> {
    fn new(runtime: &'r mut dyn Runtime, host: &HostAssets, visual_tokens: &HostTensor) -> Self {
        let name = host.recipe().contract.embeddings().unwrap().vision.visual_tokens.clone();
        Self { runtime, visual_tokens: [(name, visual_tokens.clone())].into_iter().collect() }
    }
}

impl Runtime for Seen<'_> {
    fn name(&self) -> &str {
        self.runtime.name()
    }

    fn reset_states(&mut self, asset: Asset, states: &[State]) -> Result<()> {
        self.runtime.reset_states(asset, states)
    }

    fn run(&mut self, call: &Call<'_>) -> Result<Outputs> {
        match call.asset {
            Asset::Vision => Ok(self.visual_tokens.clone()),
            Asset::Decoder => self.runtime.run(call),
        }
    }
}
