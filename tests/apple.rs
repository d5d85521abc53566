//! What Apple's loader, verifier and compiler, and the Core AI community's `coreai doctor`, say of what we write.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use aimodel::export::{
    AssetReport, Blueprint, CheckpointChoice, ExportRequest, MoeForm, Plan, Precision, WeightReport,
};
use aimodel::host::recipe::Contract;
use aimodel::host::tokenizer::Tokenizer;
use aimodel::quant::Scheme;
use aimodel::runtime::Asset;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use support::bundles::{self, Exported};
use support::{golden, process, python};

/// Constants shorter than this may be equal by chance: biases of zero, norms of one.
const SHORT: u64 = 4096;

/// One asset as Apple's program sees it: what `tests/support/apple.py` prints.
#[derive(Deserialize)]
struct Judged {
    valid: bool,
    graphs: Vec<Graph>,
    resources: Vec<Resource>,
    /// The functions, each with why it does not load.
    functions: BTreeMap<String, Option<String>>,
}

#[derive(Deserialize)]
struct Graph {
    name: String,
    private: bool,
    inputs: Vec<Port>,
    states: Vec<Port>,
    outputs: Vec<Port>,
    /// Keys of the resources it uses.
    resources: BTreeSet<String>,
    kernels: Vec<Kernel>,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
struct Port {
    name: String,
    #[serde(rename = "type")]
    ty: String,
}

#[derive(Deserialize)]
struct Kernel {
    name: String,
    source: String,
    /// Of the operands `A`, `QP`, `SC`, `IDX`, of the three launch sizes, and of the result.
    shapes: Vec<String>,
}

#[derive(Deserialize)]
struct Resource {
    key: String,
    bytes: u64,
    hash: String,
}

impl Judged {
    fn new(asset: &Path) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/apple.py");
        json(&[script, asset.to_str().unwrap()])
    }

    /// The functions of the asset.
    fn entries(&self) -> impl Iterator<Item = &Graph> {
        self.graphs.iter().filter(|graph| !graph.private)
    }

    fn entry(&self, name: &str) -> &Graph {
        self.entries().find(|graph| graph.name == name).unwrap()
    }
}

/// What Python prints as JSON.
fn json<T: DeserializeOwned>(args: &[&str]) -> T {
    let output = python::run(args);
    let parsed = serde_json::from_slice(&output.stdout);
    parsed.unwrap_or_else(|e| panic!("{args:?}: {e}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// The kinds of bundle, of two checkpoints for each model.
fn requests() -> Vec<ExportRequest> {
    let mut requests = Vec::new();
    for checkpoint in [CheckpointChoice::BuiltIn, bundles::structure()] {
        let request = |scheme, moe| bundles::request(checkpoint.clone(), scheme, moe);
        let half = request(Scheme::Fp16, MoeForm::Native);
        requests.push(ExportRequest { precision: Precision::F32, ..half.clone() });
        requests.extend([half, request(Scheme::Sym8, MoeForm::Native), request(Scheme::Sym8, MoeForm::Metal)]);
    }
    let half = bundles::glm_request(bundles::glm_structure(), Scheme::Fp16);
    requests.push(ExportRequest { precision: Precision::F32, ..half.clone() });
    requests.extend([half, bundles::glm_request(bundles::glm_structure(), Scheme::Int8Hu), glm()]);
    requests
}

fn glm() -> ExportRequest {
    bundles::glm_request(CheckpointChoice::BuiltIn, Scheme::Int8Hu)
}

fn metal() -> ExportRequest {
    bundles::request(CheckpointChoice::BuiltIn, Scheme::Sym8, MoeForm::Metal)
}

fn plan(request: &ExportRequest) -> Plan {
    Plan::of(&Blueprint::new(request).unwrap())
}

fn part(report: &AssetReport) -> Asset {
    if report.name == "vision" { Asset::Vision } else { Asset::Decoder }
}

/// Every asset of every kind of bundle, with what was planned.
fn each_asset(check: impl Fn(&ExportRequest, &AssetReport, &Judged)) {
    for request in requests() {
        let bundle = Exported::new(&request);
        for report in &plan(&request).assets {
            check(&request, report, &Judged::new(&bundle.assets()[&part(report)]));
        }
    }
}

#[test]
fn apple_loads_verifies_and_compiles_every_function() {
    each_asset(|request, report, judged| {
        assert!(judged.valid, "{}", report.name);
        let names: Vec<&str> = judged.entries().map(|graph| graph.name.as_str()).collect();
        let reported: Vec<&str> = report.functions.iter().map(|function| function.name.as_str()).collect();
        assert_eq!(names, reported);
        assert!(judged.functions.keys().eq(reported.into_iter().collect::<BTreeSet<_>>()));
        let has_kernels = report.name == "decoder" && request.moe == Some(MoeForm::Metal);
        for (function, refusal) in &judged.functions {
            match refusal {
                // A function with a kernel compiles anywhere and loads where there is Metal.
                Some(refusal) => assert!(has_kernels && refusal.contains("Unresolved symbol"), "{function}: {refusal}"),
                None => assert!(!has_kernels || cfg!(target_os = "macos"), "{function}"),
            }
        }
    });
}

#[test]
fn apple_finds_the_planned_weights_each_of_them_once() {
    each_asset(|_, report, judged| {
        let found: Vec<(&str, u64)> = judged.resources.iter().map(|r| (r.key.as_str(), r.bytes)).collect();
        let planned: Vec<(&str, u64)> = report.weights.iter().map(|w| (w.name.as_str(), w.bytes)).collect();
        assert_eq!(found.iter().collect::<BTreeSet<_>>(), planned.iter().collect::<BTreeSet<_>>());
        assert_eq!(found.len(), planned.len(), "a weight is there twice");

        let mut keys = BTreeMap::new();
        for resource in judged.resources.iter().filter(|resource| resource.bytes >= SHORT) {
            let other = keys.insert(&resource.hash, &resource.key);
            assert_eq!(other, None, "{} has the same bytes as {}", resource.key, other.unwrap());
        }
    });
}

#[test]
fn the_functions_of_an_asset_share_their_weights() {
    each_asset(|_, report, judged| {
        for weight in &report.weights {
            let users = judged.entries().filter(|graph| graph.resources.contains(&weight.name));
            let users: Vec<&str> = users.map(|graph| graph.name.as_str()).collect();
            assert_eq!(users, weight.functions, "{}", weight.name);
            // What one function has alone comes from no tensor: tables of positions and masks.
            assert!(users.len() == report.functions.len() || weight.sources == 0, "{}: {users:?}", weight.name);
        }
    });
}

#[test]
fn the_functions_of_a_decoder_share_their_states() {
    let names = |ports: &[Port]| ports.iter().map(|port| port.name.clone()).collect::<Vec<_>>();
    each_asset(|request, report, judged| {
        let mut all = judged.entries().map(|graph| &graph.states);
        let states = all.next().unwrap();
        assert!(all.all(|other| other == states), "{:?}", report.functions);
        if report.name == "vision" {
            assert_eq!(states, &[]);
            return;
        }
        assert_eq!(names(states), ["keyCache", "valueCache"]);
        for graph in judged.entries() {
            assert_eq!(names(&graph.inputs), inputs_of(&request.model, &graph.name), "{}", graph.name);
            assert_eq!(names(&graph.outputs), ["logits"], "{}", graph.name);
        }
    });
}

fn inputs_of(model: &str, function: &str) -> &'static [&'static str] {
    match (model, function) {
        ("unlimited-ocr", "prefill") => &["inputs_embeds"],
        ("unlimited-ocr", "decode") => &["inputs_embeds", "pos"],
        ("glm-ocr", _) => &["input_ids", "position_ids", "image_embeds", "rope_shift_start", "rope_shift_amount"],
        _ => panic!("{model} has no function {function}"),
    }
}

/// A row of logits for each token fed: one, a chunk, or as many as the host likes.
#[test]
fn every_form_of_a_glm_decoder_is_there_in_every_grid() {
    let bundle = Exported::new(&glm());
    let judged = Judged::new(&bundle.assets()[&Asset::Decoder]);
    for grid in ["", "_5x4"] {
        for (form, tokens) in [("main", "1"), ("prefill", "16"), ("dynamic", "?")] {
            let graph = judged.entry(&format!("{form}{grid}"));
            let types = |ports: &[Port]| ports.iter().map(|port| port.ty.clone()).collect::<Vec<_>>();
            assert_eq!(types(&graph.outputs), [format!("tensor<1x{tokens}x512xf16>")], "{}", graph.name);
            let [ids, positions, image] = &types(&graph.inputs)[..3] else { panic!("{:?}", graph.inputs) };
            assert_eq!(ids, &format!("tensor<1x{tokens}xsi32>"), "{}", graph.name);
            assert_eq!((positions.as_str(), image.as_str()), ("tensor<1x?xsi32>", "tensor<20x192xf16>"));
        }
    }
}

#[test]
fn kernels_have_the_shapes_their_text_is_written_for() {
    let bundle = Exported::new(&metal());
    let judged = Judged::new(&bundle.assets()[&Asset::Decoder]);
    let prefix = bundle.host().recipe().longest_prefix();
    // Two experts of eight for each token; gate, up and down in each of the two layers that have experts.
    for (function, slots) in [("prefill", prefix * 2), ("decode", 2)] {
        let kernels = &judged.entry(function).kernels;
        assert_eq!(kernels.len(), 6, "{function}");
        for kernel in kernels {
            assert_eq!(kernel.name, "gather_qmm");
            check_shapes(&kernel.shapes, slots);
        }
    }
}

/// `A` [slots, K], `QP` [E, N, K / 4], `SC` [E, N, K / 32], `IDX` [slots], three launch sizes, `C` [slots, N].
fn check_shapes(shapes: &[String], slots: usize) {
    let [a, _, scales, .., result] = shapes else { panic!("{shapes:?}") };
    let extents = |shape: &str| shape.split('x').map_while(|part| part.parse().ok()).collect::<Vec<usize>>();
    let (k, experts, n) = (extents(a)[1], extents(scales)[0], extents(scales)[1]);
    let expected = [
        format!("{slots}x{k}xf16"),
        format!("{experts}x{n}x{}xui32", k / 4),
        format!("{experts}x{n}x{}xf16", k / 32),
        format!("{slots}xsi32"),
        "3xui32".to_owned(),
        "3xui32".to_owned(),
        "2xui32".to_owned(),
        format!("{slots}x{n}xf16"),
    ];
    assert_eq!(shapes, expected);
    assert_eq!(extents(result), [slots, n]);
    assert_eq!((experts, k % 256, n % 32), (8, 0, 0), "K {k}, N {n}");
}

#[test]
fn the_kernels_text_is_the_file_in_the_source() {
    let bundle = Exported::new(&metal());
    let judged = Judged::new(&bundle.assets()[&Asset::Decoder]);
    for graph in judged.entries() {
        for kernel in &graph.kernels {
            assert_eq!(kernel.source, include_str!("../src/aicode/kernels/gather_qmm.metal"), "{}", graph.name);
        }
    }
}

#[test]
fn plans_are_exact_to_the_byte() {
    for request in requests() {
        let (plan, bundle) = (plan(&request), Exported::new(&request));
        let size = |path: &Path| path.metadata().unwrap().len();
        for report in &plan.assets {
            assert_eq!(size(&bundle.program(part(report))), report.bytes, "{} {request:?}", report.name);
        }
        for WeightReport { name, bytes, .. } in &plan.host_tensors {
            assert_eq!(size(&bundle.path().join(name)), *bytes, "{name} {request:?}");
        }
        let assets: u64 = plan.assets.iter().map(|report| report.bytes).sum();
        let host: u64 = plan.host_tensors.iter().map(|weight| weight.bytes).sum();
        assert_eq!(assets + host, plan.total_bytes);
    }
}

/// What `coreai doctor --json` prints.
#[derive(Deserialize)]
struct Diagnosis {
    rules_run: BTreeSet<String>,
    findings: Vec<Finding>,
}

#[derive(Debug, Deserialize)]
struct Finding {
    id: String,
    severity: String,
    evidence: String,
}

impl Diagnosis {
    fn new(profile: &str, target: &Path) -> Self {
        json(&["-m", "coreai_cli", "doctor", "--json", "--profile", profile, target.to_str().unwrap()])
    }

    /// Findings that mean that something is wrong; the others are notes for whoever runs the bundle.
    fn defects(&self) -> Vec<&Finding> {
        let is_note = |finding: &Finding| ["requires", "info"].contains(&finding.severity.as_str());
        self.findings.iter().filter(|finding| !is_note(finding)).collect()
    }
}

#[test]
fn the_doctor_finds_no_defect_in_a_bundle() {
    // The doctor reads the text of a template, and the one of this checkpoint puts `<|user|>` together as it runs.
    let is_literal = |request: &ExportRequest| request.checkpoint != bundles::glm_structure();
    for request in requests().into_iter().filter(is_literal) {
        let bundle = Exported::new(&request);
        for profile in ["iphone", "mac"] {
            let diagnosis = Diagnosis::new(profile, &bundle.path());
            for rule in ["BUNDLE-INCOMPLETE", "BUNDLE-ASSET-MISSING", "TOKENIZER-CLASS-UNREGISTERED"] {
                assert!(diagnosis.rules_run.contains(rule), "{rule} was not looked at");
            }
            assert!(diagnosis.defects().is_empty(), "{:#?}", diagnosis.defects());
        }
    }
}

/// Of a checkpoint whose tokenizer names an end of text that its chat template never writes.
#[test]
fn the_doctor_finds_no_defect_in_a_bundle_of_glm_ocr() {
    for scheme in [Scheme::Int8Hu, Scheme::Int8Lin, Scheme::Fp16] {
        let bundle = Exported::new(&bundles::glm_request(CheckpointChoice::BuiltIn, scheme));
        let diagnosis = Diagnosis::new("iphone", &bundle.path());
        for rule in ["EOS-NOT-EMITTED-BY-TEMPLATE", "CHAT-TEMPLATE-MISSING", "TOKENIZER-CLASS-UNREGISTERED"] {
            assert!(diagnosis.rules_run.contains(rule), "{rule} was not looked at");
        }
        assert!(diagnosis.findings.is_empty(), "{scheme}: {:#?}", diagnosis.findings);
        // As the checkpoint has it, an application that stops at one token runs on.
        let tokenizer = bundle.path().join("tokenizer");
        std::fs::copy(tokenizer.join("tokenizer_config.source.json"), tokenizer.join("tokenizer_config.json")).unwrap();
        let diagnosis = Diagnosis::new("iphone", &bundle.path());
        let ids: Vec<&str> = diagnosis.defects().iter().map(|finding| finding.id.as_str()).collect();
        assert_eq!(ids, ["EOS-NOT-EMITTED-BY-TEMPLATE"]);
    }
}

/// Such as swift-transformers, which stops at the `eos_token` of tokenizer_config.json alone.
#[test]
fn an_application_that_knows_one_stop_token_stops() {
    let source = golden("trained/glm-ocr-tiny");
    let bundle = Exported::new(&glm());
    let tokenizer = bundle.path().join("tokenizer");
    let eos = eos_token(&tokenizer.join("tokenizer_config.json"));
    let id = Tokenizer::open(tokenizer.join("tokenizer.json")).unwrap().id(&eos).unwrap();
    let host = bundle.host();
    let recipe = host.recipe();
    assert!(recipe.stop.iter().any(|stop| stop.id == id), "{eos} is not among {:?}", recipe.stop);
    let Contract::Slots(contract) = &recipe.contract else { panic!("another contract") };
    assert!(contract.prompt.rendered.contains(&eos), "the template never writes {eos}");
    // What the model writes at the end of each golden page.
    let expected = std::fs::read(golden("pages/expected_glm_ocr.json")).unwrap();
    let expected: Value = serde_json::from_slice(&expected).unwrap();
    for page in expected["pages"].as_array().unwrap() {
        assert_eq!(page["output_ids"].as_array().unwrap().last().unwrap(), id, "{}", page["file"]);
    }
    // As the checkpoint has it, it would not.
    assert_ne!(eos_token(&source.join("tokenizer_config.json")), eos);
    for name in process::names(&tokenizer).into_iter().filter(|name| name != "tokenizer_config.json") {
        let original = if name == "tokenizer_config.source.json" { "tokenizer_config.json" } else { &name };
        let read = |path: PathBuf| std::fs::read(path).unwrap();
        assert!(read(tokenizer.join(&name)) == read(source.join(original)), "{name} is not the checkpoint's");
    }
}

fn eos_token(config: &Path) -> String {
    let config: Value = serde_json::from_slice(&std::fs::read(config).unwrap()).unwrap();
    config["eos_token"].as_str().unwrap().to_owned()
}

#[test]
fn the_doctor_finds_no_defect_in_an_asset() {
    for request in requests() {
        let bundle = Exported::new(&request);
        for (asset, path) in bundle.assets() {
            let diagnosis = Diagnosis::new("iphone", &path);
            assert!(diagnosis.rules_run.contains("IR-040-DEBUG-LOC"), "{:?}", diagnosis.rules_run);
            assert!(diagnosis.defects().is_empty(), "{asset}: {:#?}", diagnosis.defects());
        }
    }
}

/// Holds that the two tests above can fail.
#[test]
fn the_doctor_finds_an_asset_without_producer() {
    let bundle = Exported::new(&metal());
    let asset = &bundle.assets()[&Asset::Decoder];
    std::fs::write(asset.join("metadata.json"), r#"{"assetVersion": "2.0"}"#).unwrap();
    let diagnosis = Diagnosis::new("iphone", asset);
    assert_eq!(diagnosis.defects().iter().map(|finding| finding.id.as_str()).collect::<Vec<_>>(), ["IR-040-DEBUG-LOC"]);
    assert!(!diagnosis.defects()[0].evidence.is_empty());
}
