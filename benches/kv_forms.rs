//! A decode step in each form of the key/value cache, on Apple's CPU runtime: time, beside the bytes that cross between
//! host and runtime, on the trained checkpoints that are built in.
//!
//! The time includes the pipe to the Python process, over which the caches go in the form `host`. All forms read on from
//! the same visual tokens and choose the same tokens, or this stops. `AIMODEL_PYTHON` names the interpreter.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a bench reports and stops at the first fault")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use aimodel::bundle::Cancel;
use aimodel::export::{CheckpointChoice, Destination, ExportRequest, MoeForm, Surroundings, export};
use aimodel::host::decode::argmax;
use aimodel::host::image;
use aimodel::host::reader::{HostAssets, Seen, Session};
use aimodel::passes::KvForm;
use aimodel::progress::Silent;
use aimodel::runtime::Asset;
use aimodel::runtime::coreai::{CoreAi, interpreter};
use tempfile::TempDir;

/// Steps that are timed; one before them is not, since the runtime compiles the function with it.
const STEPS: u32 = 8;

const PAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/pages");

fn main() {
    if let Err(error) = CoreAi::start(&interpreter(None), BTreeMap::new()) {
        println!("not run: {error}");
        return;
    }
    println!("{:<14} {:<12} {:>10} {:>14}", "model", "form", "ms a step", "bytes moved");
    let unlimited = ExportRequest { moe: Some(MoeForm::Native), ..request("unlimited-ocr", 256) };
    forms(&unlimited, "unlimited-ocr-tiny-invoice.png");
    let glm = ExportRequest { grids: vec!["8x16".parse().unwrap()], ..request("glm-ocr", 256) };
    forms(&glm, "glm-ocr-tiny-invoice.png");
}

fn request(model: &str, max_context: usize) -> ExportRequest {
    let (checkpoint, max_context) = (CheckpointChoice::BuiltIn, Some(max_context));
    ExportRequest { checkpoint, max_context, ..ExportRequest::new(model) }
}

fn forms(request: &ExportRequest, page: &str) {
    let page = image::open(Path::new(PAGES).join(page)).unwrap();
    let (mut seen, mut first) = (None, None);
    for kv in KvForm::ALL {
        let bundle = Exported::new(&ExportRequest { kv: Some(kv), ..request.clone() });
        let mut runtime = CoreAi::start(&interpreter(None), bundle.assets()).unwrap();
        let see = |runtime: &mut CoreAi| Session::new(&bundle.host).see(runtime, &page).unwrap();
        let seen = seen.get_or_insert_with(|| see(&mut runtime));
        let Measured { step, bytes, tokens } = bundle.measure(&mut runtime, seen);
        println!("{:<14} {:<12} {:>10.2} {bytes:>14}", request.model, kv.name(), step.as_secs_f64() * 1e3);
        assert_eq!(tokens, *first.get_or_insert_with(|| tokens.clone()), "{kv}: the tokens of another form");
    }
}

/// What reading on after the prompt took.
struct Measured {
    /// Time of one step.
    step: Duration,
    /// Bytes handed in and out with the last step.
    bytes: u64,
    /// What was read.
    tokens: Vec<u32>,
}

/// A bundle in a folder that is removed with it.
struct Exported {
    folder: TempDir,
    host: HostAssets,
}

impl Exported {
    fn new(request: &ExportRequest) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(BUNDLE);
        let destination = Destination { path: path.clone(), zip: false, force: false };
        let surroundings = Surroundings { progress: &Silent, cancel: &Cancel::default(), date: None };
        export(request, &destination, surroundings).unwrap();
        Self { folder, host: HostAssets::open(&path).unwrap() }
    }

    fn assets(&self) -> BTreeMap<Asset, PathBuf> {
        let path = |part| self.folder.path().join(BUNDLE).join(self.host.recipe().asset(part));
        Asset::ALL.map(|part| (part, path(part))).into()
    }

    fn measure(&self, runtime: &mut CoreAi, seen: &Seen) -> Measured {
        let mut session = Session::new(&self.host);
        let mut logits = session.prefill(runtime, seen).unwrap();
        let mut tokens = Vec::new();
        let mut step = || {
            let id = argmax(&logits, &[]).unwrap();
            tokens.push(id);
            logits = session.decode(runtime, id).unwrap();
        };
        step();
        let begun = Instant::now();
        (0..STEPS).for_each(|_| step());
        let step = begun.elapsed() / STEPS;
        Measured { step, bytes: self.host.recipe().bytes_per_step(session.length()).unwrap(), tokens }
    }
}

/// Name of the bundle in its folder.
const BUNDLE: &str = "bundle";
