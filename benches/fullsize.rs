//! The full-size synthetic checkpoint, end to end: time of each stage, peak memory, exactness of the plan, and one
//! decode step of the native twin on Apple's runtime beside our executor.
//!
//! `benches/fullsize.sh` makes the checkpoint and runs this.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a bench reports and stops at the first fault")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use aimodel::bundle::Cancel;
use aimodel::eval::Options;
use aimodel::export::{Blueprint, CheckpointChoice, Destination, ExportRequest, MoeForm, Plan, Surroundings, export};
use aimodel::host::decode::argmax;
use aimodel::host::recipe::Recipe;
use aimodel::progress::Progress;
use aimodel::quant::Scheme;
use aimodel::runtime::coreai::{CoreAi, interpreter};
use aimodel::runtime::eval::{Eval, Modules};
use aimodel::runtime::{Asset, Call, HostTensor, Runtime};

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
    let out = checkpoint.with_extension("out");
    std::fs::create_dir_all(&out).unwrap();
    let metal = timed_export(&checkpoint, &out.join("metal"), MoeForm::Metal);
    println!("peak resident memory {} MB", peak_memory_mb());
    std::fs::remove_dir_all(metal).unwrap();
    let native = timed_export(&checkpoint, &out.join("native"), MoeForm::Native);
    compare_decode_step(&native);
    std::fs::remove_dir_all(out).unwrap();
}

fn timed_export(checkpoint: &Path, output: &Path, moe: MoeForm) -> PathBuf {
    let mut request = ExportRequest::new("unlimited-ocr");
    request.checkpoint = CheckpointChoice::Path(checkpoint.to_owned());
    request.scheme = Some(Scheme::Sym8);
    request.moe = Some(moe);
    println!("export, sym8, {moe:?}");
    let planned = Plan::of(&Blueprint::new(&request).unwrap());
    let destination = Destination { path: output.to_owned(), zip: false, force: true };
    let (progress, cancel) = (Stages::default(), Cancel::default());
    let begun = Instant::now();
    let surroundings = Surroundings { progress: &progress, cancel: &cancel, date: None };
    let report = export(&request, &destination, surroundings).unwrap();
    println!("  {:<14} {:>6.2} s", "in all", begun.elapsed().as_secs_f64());
    for (asset, (name, bytes)) in planned.assets.iter().zip(&report.assets) {
        assert_eq!(asset.bytes, *bytes, "the plan of {name}");
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
