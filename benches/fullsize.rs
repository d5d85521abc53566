//! A full-size synthetic checkpoint, end to end: time of each stage, peak memory and exactness of the plan. Of
//! Unlimited-OCR, one decode step of the native twin on Apple's runtime beside our executor; of GLM-OCR, the export
//! again, which gives the same bytes.
//!
//! `benches/fullsize.sh` makes the checkpoints and runs this for each.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a bench reports and stops at the first fault")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use aimodel::bundle::Cancel;
use aimodel::eval::Options;
use aimodel::export::{Blueprint, CheckpointChoice, Destination, ExportRequest, MoeForm, Plan, Surroundings, export};
use aimodel::host::decode::argmax;
use aimodel::host::recipe::{Recipe, Variant};
use aimodel::progress::Progress;
use aimodel::quant::Scheme;
use aimodel::runtime::coreai::{CoreAi, interpreter};
use aimodel::runtime::eval::{Eval, Modules};
use aimodel::runtime::{Asset, Call, HostTensor, Runtime};
use sha2::{Digest, Sha256};

/// Prints how long each stage took.
#[derive(Default)]
struct Stages(Mutex<Option<(String, u64, Instant)>>);

impl Progress for Stages {
    fn begin(&self, stage: &str, total: u64) {
        *self.0.lock().unwrap() = Some((stage.to_owned(), total, Instant::now()));
    }

    fn advance(&self, _bytes: u64) {}

    fn end(&self) {
        if let Some((stage, total, begun)) = self.0.lock().unwrap().take() {
            println!("  {stage:<14} {:>6.2} s  {:>8.2} GB", begun.elapsed().as_secs_f64(), total as f64 / 1e9);
        }
    }
}

fn main() {
    let Some(checkpoint) = std::env::var_os("AIMODEL_FULLSIZE").map(PathBuf::from) else {
        println!("AIMODEL_FULLSIZE is not set: run benches/fullsize.sh");
        return;
    };
    // The folder has the model's name.
    let model = checkpoint.file_name().unwrap().to_str().unwrap();
    let request = ExportRequest { checkpoint: CheckpointChoice::Path(checkpoint.clone()), ..ExportRequest::new(model) };
    let out = checkpoint.with_extension("out");
    std::fs::create_dir_all(&out).unwrap();
    match model {
        "glm-ocr" => glm_ocr(request, &out),
        _ => unlimited_ocr(request, &out),
    }
    std::fs::remove_dir_all(out).unwrap();
}

fn unlimited_ocr(request: ExportRequest, out: &Path) {
    let request = |moe| ExportRequest { scheme: Some(Scheme::Sym8), moe: Some(moe), ..request.clone() };
    let metal = timed_export(&request(MoeForm::Metal), &out.join("metal"));
    println!("peak resident memory {} MB", peak_memory_mb());
    std::fs::remove_dir_all(metal).unwrap();
    let native = timed_export(&request(MoeForm::Native), &out.join("native"));
    compare_decode_step(&native);
}

/// The vision tower in half precision, and a decoder of codes with a function for one token and one for a chunk.
fn glm_ocr(request: ExportRequest, out: &Path) {
    let request = ExportRequest { scheme: Some(Scheme::Int8Hu), functions: vec![Variant::Prefill], ..request };
    let first = digests(&timed_export(&request, &out.join("first")));
    let second = digests(&timed_export(&request, &out.join("second")));
    println!("peak resident memory {} MB", peak_memory_mb());
    assert_eq!(first, second, "two exports differ");
    println!("two exports are equal, {} files", first.len());
}

/// The hash of each file of a bundle, by its path in it.
fn digests(bundle: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = walkdir::WalkDir::new(bundle).into_iter().map(Result::unwrap).filter(|e| e.file_type().is_file());
    let digest = |path: &Path| {
        let (mut file, mut hash, mut chunk) = (File::open(path).unwrap(), Sha256::new(), vec![0; 1 << 20]);
        loop {
            match file.read(&mut chunk).unwrap() {
                0 => break hash.finalize().to_vec(),
                read => hash.update(&chunk[..read]),
            }
        }
    };
    entries.map(|e| (e.path().strip_prefix(bundle).unwrap().to_owned(), digest(e.path()))).collect()
}

fn timed_export(request: &ExportRequest, output: &Path) -> PathBuf {
    println!("export {}, {}", request.model, output.file_name().unwrap().display());
    let planned = Plan::of(&Blueprint::new(request).unwrap());
    let destination = Destination { path: output.to_owned(), zip: false, force: true };
    let (progress, cancel) = (Stages::default(), Cancel::default());
    let begun = Instant::now();
    let surroundings = Surroundings { progress: &progress, cancel: &cancel, date: None };
    let report = export(request, &destination, surroundings).unwrap();
    println!("  {:<14} {:>6.2} s", "in all", begun.elapsed().as_secs_f64());
    for (asset, (name, bytes)) in planned.assets.iter().zip(&report.assets) {
        assert_eq!(asset.bytes, *bytes, "the plan of {name}");
        println!("  {name:<14} {bytes} bytes, as planned");
    }
    report.output
}

/// Highest resident memory of this process so far, as Linux reports it; 0 elsewhere.
fn peak_memory_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok()).unwrap_or(0) / 1000
}

/// One step from empty caches on a fixed embedding.
fn decode_step(runtime: &mut dyn Runtime, recipe: &Recipe) -> Vec<f32> {
    let begun = Instant::now();
    let contract = recipe.contract.embeddings().unwrap();
    let decoder = &contract.decoder;
    let states = recipe.states();
    runtime.reset_states(Asset::Decoder, &states).unwrap();
    let embedding = (0..recipe.hidden_size).map(|i| ((i * 37 % 64) as f32 / 32.0 - 1.0) * 0.05).collect();
    let position = contract.prompt.prefix_length as i32;
    let call = Call {
        asset: Asset::Decoder,
        function: &decoder.decode,
        inputs: vec![
            (&decoder.inputs_embeds, HostTensor::floats(vec![1, 1, recipe.hidden_size], embedding).unwrap()),
            (recipe.kv.feeds[0].input(), HostTensor::ints(vec![1], vec![position]).unwrap()),
        ],
        states: states.iter().map(|state| state.name.as_str()).collect(),
    };
    let mut outputs = runtime.run(&call).unwrap();
    println!("  {:<14} {:>6.2} s", runtime.name(), begun.elapsed().as_secs_f64());
    outputs.take_floats(&decoder.logits, &[1, 1, recipe.vocab_size]).unwrap()
}

fn compare_decode_step(bundle: &Path) {
    println!("one decode step");
    let recipe = Recipe::open(bundle.join("assets/recipe.json")).unwrap();
    let assets = BTreeMap::from([(Asset::Decoder, bundle.join(recipe.asset(Asset::Decoder)))]);
    let modules = Modules::open(&assets).unwrap();
    let options = Options { cache_bytes: 1 << 30, ..Options::default() };
    let ours = decode_step(&mut Eval::new(&modules, options), &recipe);
    let mut apple = CoreAi::start(&interpreter(None), assets).unwrap();
    let theirs = decode_step(&mut apple, &recipe);
    let (ours_best, theirs_best) = (argmax(&ours, &[]).unwrap(), argmax(&theirs, &[]).unwrap());
    let largest = ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("  argmax {ours_best} here, {theirs_best} there; largest difference {largest:.4}");
    assert_eq!(ours_best, theirs_best);
}
