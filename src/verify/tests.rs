//! Whole bundles pass; each kind of damage is found by the check that is there for it.

use std::path::{Path, PathBuf};

use serde_json::json;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::*;
use crate::ElementType::{F16, F32};
use crate::bundle::Cancel;
use crate::error::ErrorClass;
use crate::export::{CheckpointChoice, Compute, Destination, ExportRequest, MoeForm, Precision, Surroundings, export};
use crate::mlirb::build::{GraphBuilder, Input, NewOperation, ProgramBuilder};
use crate::mlirb::{Attribute, Dim, Program, TensorType, Type};
use crate::passes::KvForm;
use crate::progress::Silent;
use crate::quant::Scheme;

/// A tiny bundle in a folder of its own.
struct Sample {
    folder: TempDir,
}

impl Sample {
    fn new(scheme: Scheme, moe: MoeForm) -> Self {
        Self::of(ExportRequest { scheme: Some(scheme), moe: Some(moe), ..request() })
    }

    fn of(request: ExportRequest) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let destination = Destination { path: folder.path().join("b"), zip: false, force: false };
        let surroundings = Surroundings { progress: &Silent, cancel: &Cancel::default(), date: None };
        export(&request, &destination, surroundings).unwrap();
        Self { folder }
    }

    fn native() -> Self {
        Self::new(Scheme::Sym8, MoeForm::Native)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join("b").join(name)
    }

    /// Replaces text in a file that has it once.
    fn edit(&self, name: &str, from: &str, to: &str) {
        let text = std::fs::read_to_string(self.file(name)).unwrap();
        assert_eq!(text.matches(from).count(), 1, "{from} in {name}");
        std::fs::write(self.file(name), text.replacen(from, to, 1)).unwrap();
    }

    /// Replaces a value of a JSON file.
    fn set(&self, name: &str, pointer: &str, value: serde_json::Value) {
        let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(self.file(name)).unwrap()).unwrap();
        *json.pointer_mut(pointer).unwrap() = value;
        std::fs::write(self.file(name), serde_json::to_vec(&json).unwrap()).unwrap();
    }

    /// Fills a weight with one element, and makes the hash fit.
    fn fill(&self, asset: &str, key: &str, element: [u8; 2]) {
        let path = self.file(&format!("{asset}.aimodel"));
        let opened = asset::Asset::open(&path).unwrap();
        let index = opened.program().resources.iter().position(|resource| &*resource.key == key).unwrap();
        let id = crate::mlirb::ResourceId::new(u32::try_from(index).unwrap());
        let (resource, offset) = opened.file().resource(id).unwrap();
        let mut bytes = std::fs::read(path.join("main.mlirb")).unwrap();
        let start = usize::try_from(offset).unwrap();
        let weight = &mut bytes[start..][..usize::try_from(resource.bytes).unwrap()];
        weight.as_chunks_mut::<2>().0.fill(element);
        std::fs::write(path.join("main.hash"), Sha256::digest(&bytes)).unwrap();
        std::fs::write(path.join("main.mlirb"), bytes).unwrap();
    }

    fn verdict(&self) -> Verdict {
        let bundle = Bundle::open(self.file("")).unwrap();
        verify(&bundle, &Options::new(Judge::Reference), &Silent)
    }

    /// The check that found something, and its sentence without the folder.
    fn finding(&self) -> (&'static str, String) {
        let verdict = self.verdict();
        let error = verdict.failure.expect("a finding");
        assert_eq!(error.class(), ErrorClass::Check, "{error}");
        assert!(!verdict.report.passed);
        let last = verdict.report.checks.last().unwrap();
        assert_eq!((last.outcome, last.detail.as_str()), (Outcome::Failed, error.to_string().as_str()));
        (last.name, error.to_string().replace(&format!("{}/", self.file("").display()).replace("//", "/"), ""))
    }
}

fn request() -> ExportRequest {
    ExportRequest {
        checkpoint: CheckpointChoice::BuiltIn,
        image_size: Some(64),
        max_context: Some(24),
        threads: 1,
        ..ExportRequest::new("unlimited-ocr")
    }
}

#[test]
fn whole_bundles_of_every_form_pass() {
    let single = ExportRequest { scheme: Some(Scheme::Fp16), precision: Precision::F32, ..request() };
    for sample in [Sample::native(), Sample::new(Scheme::Sym8, MoeForm::Metal), Sample::of(single)] {
        let verdict = sample.verdict();
        assert!(verdict.failure.is_none() && verdict.report.passed, "{}", verdict.report);
        let agreement = verdict.report.agreement.unwrap();
        assert_eq!((agreement.runtime.as_str(), agreement.rows), ("eval", 1 + Options::STEPS.get()));
        assert!(agreement.worst_cosine > 0.9999, "{agreement:?}");
    }
}

#[test]
fn whole_bundles_of_every_form_of_the_cache_pass_for_every_unit() {
    let slots = || ExportRequest { functions: Vec::new(), ..slots_request() };
    for model in [request, slots] {
        let of = |kv| ExportRequest { kv: Some(kv), ..model() };
        let forms = KvForm::ALL.map(of);
        let chunked = ExportRequest { chunk_layers: Some(2), ..of(KvForm::Host) };
        let ane = ExportRequest { compute: Some(Compute::Ane), ..chunked.clone() };
        for request in forms.into_iter().chain([chunked, ane]) {
            let asked = format!("{}: {:?} {:?}", request.model, request.kv, request.chunk_layers);
            let verdict = Sample::of(request).verdict();
            assert!(verdict.failure.is_none() && verdict.report.passed, "{asked}: {}", verdict.report);
        }
    }
}

/// A page in two grids, by functions of every form.
fn slots() -> Sample {
    Sample::of(slots_request())
}

fn slots_request() -> ExportRequest {
    ExportRequest {
        checkpoint: CheckpointChoice::BuiltIn,
        scheme: Some(Scheme::Fp16),
        max_context: Some(64),
        grids: vec!["3x4".parse().unwrap(), "4x3".parse().unwrap()],
        functions: Variant::ALL.to_vec(),
        prefill_chunk: Some(8),
        threads: 1,
        ..ExportRequest::new("glm-ocr")
    }
}

#[test]
fn every_form_of_functions_over_slots_passes_in_every_grid() {
    let sample = slots();
    let bundle = Bundle::open(sample.file("")).unwrap();
    let mut references = Vec::new();
    for variant in Variant::ALL {
        let options = Options { functions: Some(variant), ..Options::new(Judge::Reference) };
        let verdict = verify(&bundle, &options, &Silent);
        assert!(verdict.failure.is_none() && verdict.report.passed, "{variant}: {}", verdict.report);
        let agreement = verdict.report.agreement.unwrap();
        assert_eq!(agreement.rows, 1 + Options::STEPS.get() + 1, "{variant}: the prompt of the second grid, too");
        assert!(agreement.worst_cosine > 0.9999, "{agreement:?}");
        references.extend(verdict.report.checks.into_iter().find(|check| check.name == "reference-decode"));
    }
    assert_eq!(references.len(), 3);
    assert!(references.iter().all(|check| *check == references[0]), "all forms choose the same: {references:?}");
}

/// What the checks say of a bundle in each of these forms of the caches; all of them pass.
fn verdicts(request: &ExportRequest, forms: &[KvForm]) -> Vec<Report> {
    let verdict = |form: &KvForm| {
        let verdict = Sample::of(ExportRequest { kv: Some(*form), ..request.clone() }).verdict();
        assert!(verdict.failure.is_none() && verdict.report.passed, "{form}: {}", verdict.report);
        verdict.report
    };
    forms.iter().map(verdict).collect()
}

/// The detail of a check.
fn detail<'r>(report: &'r Report, name: &str) -> &'r str {
    report.checks.iter().find(|check| check.name == name).map_or("", |check| &check.detail)
}

#[test]
fn bundles_of_every_form_of_caches_pass_and_say_the_same() {
    let native = ExportRequest { moe: Some(MoeForm::Native), ..request() };
    let single = ExportRequest { scheme: Some(Scheme::Fp16), precision: Precision::F32, ..native };
    let reports = verdicts(&single, &KvForm::ALL);
    for (form, report) in KvForm::ALL.iter().zip(&reports) {
        for check in ["states-prefill", "states-decode", "reference-decode"] {
            assert_eq!(detail(report, check), detail(&reports[0], check), "{form}");
        }
        let states = detail(report, "shared-states");
        let expected = if *form == KvForm::Host { "none: the host keeps the caches" } else { "keyCache: f32[3," };
        assert!(states.starts_with(expected), "{form}: {states}");
    }
}

#[test]
fn bundles_over_slots_of_every_form_of_caches_pass_and_say_the_same() {
    let functions = vec![Variant::Step, Variant::Prefill];
    let reports = verdicts(&ExportRequest { functions, ..slots_request() }, &KvForm::ALL);
    for (form, report) in KvForm::ALL.iter().zip(&reports) {
        for check in ["states-prefill", "states-decode", "reference-decode"] {
            assert_eq!(detail(report, check), detail(&reports[0], check), "{form}");
        }
    }
}

#[test]
fn caches_that_are_not_as_the_recipe_says_are_found() {
    let at_the_end = Sample::native();
    at_the_end.set("assets/recipe.json", "/kv/caches/states/rows", json!("at-the-end"));
    let (check, sentence) = at_the_end.finding();
    assert_eq!(check, "states-prefill");
    assert!(sentence.ends_with("a row was not written"), "{sentence}");
    let host = Sample::of(ExportRequest { kv: Some(KvForm::Host), moe: Some(MoeForm::Native), ..request() });
    host.set("assets/recipe.json", "/kv/caches/host/keys/past", json!("past"));
    assert_eq!(host.finding().0, "signatures");
}

#[test]
fn a_recipe_that_speaks_of_other_slots_is_found() {
    for (pointer, value, check, part) in [
        ("/decoder/image_embeds", json!("image"), "signatures", "image: f16[12,192]"),
        ("/page/patch", json!(7), "signatures", "expected (patches: f16[48,294])"),
        ("/grids/1/decoder/prefill/tokens", json!(9), "signatures", "function `prefill_4x3`"),
        ("/grids/1/decoder/prefill/function", json!("prefill_2x2"), "metadata", "language.function_map.main"),
        ("/prompt/rendered", json!("<|image|>"), "host-side", "the prompt is laid out otherwise than the recipe says"),
    ] {
        let sample = slots();
        sample.set("assets/recipe.json", &format!("/contract/slots{pointer}"), value);
        let (found, sentence) = sample.finding();
        assert_eq!(found, check, "{pointer}: {sentence}");
        assert!(sentence.contains(part), "{sentence}");
    }
}

#[test]
fn functions_that_a_bundle_does_not_have_are_found() {
    let sample = Sample::native();
    let bundle = Bundle::open(sample.file("")).unwrap();
    let options = Options { functions: Some(Variant::Step), ..Options::new(Judge::Reference) };
    let verdict = verify(&bundle, &options, &Silent);
    assert_eq!(verdict.report.checks.last().map(|check| check.name), Some("host-side"));
}

#[test]
fn steps_end_where_the_cache_does() {
    let sample = Sample::native();
    let bundle = Bundle::open(sample.file("")).unwrap();
    let steps = NonZeroUsize::new(1000).unwrap();
    let verdict = verify(&bundle, &Options { steps, ..Options::new(Judge::Reference) }, &Silent);
    let recipe = Recipe::open(bundle.recipe()).unwrap();
    let rows = 1 + recipe.cache.length - recipe.longest_prefix();
    assert_eq!(verdict.report.agreement.as_ref().map(|agreement| agreement.rows), Some(rows), "{}", verdict.report);
}

#[test]
fn a_flipped_bit_is_found_before_the_program_is_read() {
    let sample = Sample::native();
    let program = sample.file("vision.aimodel/main.mlirb");
    let mut bytes = std::fs::read(&program).unwrap();
    bytes[0] ^= 1;
    std::fs::write(&program, bytes).unwrap();
    let (check, sentence) = sample.finding();
    assert_eq!(check, "hashes");
    assert!(sentence.starts_with("vision.aimodel/main.hash: it is not the hash of the program: found "), "{sentence}");
}

#[test]
fn what_was_lost_in_copying_is_found() {
    for (name, check) in [
        ("decoder.aimodel/main.hash", "hashes"),
        ("assets/recipe.json", "recipe"),
        ("assets/image_newline.f16", "files"),
        ("tokenizer/tokenizer.json", "files"),
        ("decoder.aimodel/metadata.json", "programs"),
        ("ledger.json", "ledger"),
    ] {
        let sample = Sample::native();
        std::fs::remove_file(sample.file(name)).unwrap();
        let (found, sentence) = sample.finding();
        assert_eq!(found, check, "{name}");
        assert!(sentence.starts_with(&format!("{name}: ")), "{sentence}");
    }
}

#[test]
fn a_file_that_was_cut_off_is_found() {
    let sample = Sample::native();
    let name = "assets/embed_tokens.f16";
    std::fs::File::options().write(true).open(sample.file(name)).unwrap().set_len(100).unwrap();
    let expected = "assets/embed_tokens.f16: the file has another length than its tensor: found 100 bytes, expected [512, 192] of f16";
    assert_eq!(sample.finding(), ("files", expected.to_owned()));
}

#[test]
fn a_recipe_that_speaks_of_other_functions_is_found() {
    let recipe = "assets/recipe.json";
    for (from, to, check, part) in [
        ("\"logits\": \"logits\"", "\"logits\": \"scores\"", "signatures", "expected (inputs_embeds: "),
        ("\"input\": \"pos\"", "\"input\": \"at\"", "signatures", "function `decode`: the function is not the one"),
        (
            "\"form\": \"indexed\"",
            "\"form\": \"shift\"",
            "metadata",
            "decoder.kv_form: not what assets/recipe.json says",
        ),
        ("\"layers\": 3", "\"layers\": 4", "signatures", "keyCache: f16[4,1,6,24,32]"),
        ("\"side\": 64", "\"side\": 128", "signatures", "image: f16[1,3,128,128]"),
        (
            "\"length\": 24",
            "\"length\": 25",
            "metadata",
            "language.max_context_length: not what assets/recipe.json says",
        ),
        ("\"decode\": \"decode\"", "\"decode\": \"step\"", "metadata", "found decode, prefill, expected prefill, step"),
        ("\"hidden_size\": 192", "\"hidden_size\": 191", "recipe", "the recipe contradicts itself"),
        ("\"document parsing.\"", "\"document\"", "host-side", "the prompt has another length than the recipe says"),
    ] {
        let sample = Sample::native();
        sample.edit(recipe, from, to);
        let (found, sentence) = sample.finding();
        assert_eq!(found, check, "{from}: {sentence}");
        assert!(sentence.contains(part), "{sentence}");
    }
}

#[test]
fn metadata_that_says_something_else_of_a_function_is_found() {
    let sample = Sample::native();
    sample.edit("metadata.json", "pos: si32[1]", "pos: si32[2]");
    let (check, sentence) = sample.finding();
    assert_eq!(check, "signatures");
    assert!(
        sentence.starts_with("metadata.json: decoder.functions.decode: not what assets/recipe.json says"),
        "{sentence}"
    );
}

#[test]
fn a_ledger_that_does_not_add_up_is_found() {
    let sample = Sample::native();
    sample.edit("ledger.json", "\"tensors\": 192,", "\"tensors\": 191,");
    let (check, sentence) = sample.finding();
    assert_eq!(check, "ledger");
    assert!(sentence.contains("totals: the totals are not those of what is listed"), "{sentence}");
    let sample = Sample::native();
    sample.edit("ledger.json", "\"decoder/lm_head.weight\": {", "\"decoder/lm_head.bias\": {");
    assert_eq!(sample.finding().1, "ledger.json: `decoder/lm_head.bias`: no such weight is stored");
}

#[test]
fn a_local_path_is_found() {
    let sample = Sample::native();
    sample.edit("metadata.json", "\"model_definition\"", "\"hf_revision\": \"/home/me/model\", \"model_definition\"");
    let expected =
        "metadata.json: source: hf_revision: it names a place on the machine it was made on: found `/home/me/model`";
    assert_eq!(sample.finding(), ("no-local-paths", expected.to_owned()));
    let sample = Sample::native();
    sample.edit("metadata.json", "\"model_definition\"", "\"hf_model_id\": \"./model\", \"model_definition\"");
    assert_eq!(sample.finding().0, "metadata");
}

#[test]
fn numbers_show_what_structure_does_not() {
    let nan = Sample::native();
    nan.fill("decoder", "lm_head.weight", [0, 0x7e]);
    assert_eq!(nan.finding(), ("reference", "element 0: the logits are not all finite: found NaN".to_owned()));
    let blind = Sample::native();
    blind.fill("vision", "model.projector.layers.weight", [0, 0]);
    let (check, sentence) = blind.finding();
    assert_eq!(check, "vision");
    assert!(sentence.starts_with("the visual tokens of a drawn page are those of a blank one"), "{sentence}");
}

#[test]
fn a_probed_bundle_is_refused() {
    let sample = Sample::of(ExportRequest { probes: vec!["all".to_owned()], ..request() });
    let (check, sentence) = sample.finding();
    assert_eq!(check, "no-debug");
    assert!(sentence.ends_with("the bundle is marked as debug: it returns probed values"), "{sentence}");
}

#[test]
fn a_missing_interpreter_is_the_environment_and_not_a_finding() {
    let sample = Sample::native();
    let bundle = Bundle::open(sample.file("")).unwrap();
    let judge = Judge::CoreAi(Path::new("no/such/python").to_owned());
    let verdict = verify(&bundle, &Options::new(judge), &Silent);
    assert_eq!(verdict.failure.map(|error| error.class()), Some(ErrorClass::Environment));
    let last = verdict.report.checks.last().unwrap();
    assert_eq!((last.name, last.outcome), ("core-ai-loads", Outcome::NotRun));
}

#[test]
fn metal_kernels_are_told_from_what_runs_everywhere() {
    let kernels = |moe| {
        let sample = Sample::new(Scheme::Sym8, moe);
        let asset = asset::Asset::open(sample.file("decoder.aimodel")).unwrap();
        lint::has_operation(asset.program(), kernel::OPERATION)
    };
    assert!(kernels(MoeForm::Metal));
    assert!(!kernels(MoeForm::Native));
}

#[test]
fn a_report_has_one_line_a_check() {
    let check = |name, outcome| Check { name, outcome, detail: "a, b".to_owned() };
    let report = Report {
        bundle: "b".into(),
        passed: false,
        checks: vec![
            check("hashes", Outcome::Passed),
            check("files", Outcome::Failed),
            check("numbers", Outcome::NotRun),
        ],
        agreement: None,
    };
    assert_eq!(report.to_string(), "ok       hashes           a, b\nFAILED   files\nnot run  numbers\n");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["checks"][2], serde_json::json!({"name": "numbers", "outcome": "not-run", "detail": "a, b"}));
}

/// What a rule says of a program.
fn lint(name: &str, program: &Program) -> Result<(), String> {
    lint_changing(name, program, &[])
}

/// What a rule says of a program whose inputs may change along these axes.
fn lint_changing(name: &str, program: &Program, changing: &[(&str, usize)]) -> Result<(), String> {
    let rule = lint::RULES.iter().find(|rule| rule.name == name).unwrap();
    lint::check(rule, program, changing).map_err(|error| error.to_string())
}

/// A graph of one input, with what `body` adds.
fn graph(input: Input, body: impl FnOnce(&mut GraphBuilder)) -> Program {
    let mut program = ProgramBuilder::new("test");
    let mut graph = GraphBuilder::new("main", vec![input]);
    body(&mut graph);
    let outputs: Vec<_> = Vec::new();
    program.add(graph.finish(&outputs).unwrap());
    program.finish()
}

fn tensor(element: crate::ElementType) -> TensorType {
    TensorType::new([4], element)
}

#[test]
fn a_shape_that_can_change_is_found() {
    let input = |dim| graph(Input::tensor("x", TensorType::new([dim], F16)), |_| ());
    lint("static-shapes", &input(Dim::Fixed(4))).unwrap();
    let error = lint("static-shapes", &input(Dim::Dynamic)).unwrap_err();
    assert_eq!(error, "graph `main`: `x`: an input has no fixed shape: found tensor<?xf16>");
    lint_changing("static-shapes", &input(Dim::Dynamic), &[("x", 0)]).unwrap();
    lint_changing("static-shapes", &input(Dim::Dynamic), &[("x", 1), ("y", 0)]).unwrap_err();

    let mut graph = GraphBuilder::new("main", vec![Input::state("x", TensorType::new([Dim::Dynamic], F16))]);
    let token = graph.body().value(NewOperation::new("dataflow.create_token_v1").result(Type::Token)).unwrap();
    let mut state = ProgramBuilder::new("test");
    state.add(graph.finish(&[("x", token)]).unwrap());
    lint_changing("static-shapes", &state.finish(), &[("x", 0)]).unwrap_err();
}

#[test]
fn rounding_is_found_and_integer_division_is_not() {
    let with = |name: &str| {
        graph(Input::tensor("x", tensor(F32)), |graph| {
            let x = graph.input(0).unwrap();
            graph.body().value(NewOperation::new(name).operands([x]).result(tensor(F32))).unwrap();
        })
    };
    lint("rounding", &with("broadcasting_floor_divide_v1")).unwrap();
    let error = lint("rounding", &with("primitive.floor_v1")).unwrap_err();
    assert_eq!(error, "graph `main`: an operation that rounds: found `primitive.floor_v1`");
}

#[test]
fn two_writes_to_a_state_need_a_read_in_between() {
    let with = |reads: bool| {
        let mut program = ProgramBuilder::new("test");
        let mut graph = GraphBuilder::new("main", vec![Input::state("cache", tensor(F16))]);
        let cache = graph.input(0).unwrap();
        let body = graph.body();
        let mut token = body.value(NewOperation::new("dataflow.create_token_v1").result(Type::Token)).unwrap();
        let value = body.constant(tensor(F16), &[0; 8]).unwrap();
        for _ in 0..2 {
            let write = NewOperation::new("dataflow.write_handle_v1").operands([cache, value, token]);
            token = body.value(write.result(Type::Token)).unwrap();
            if reads {
                let read = NewOperation::new("dataflow.read_handle_v1").operands([cache, token]);
                token = body.add(read.result(tensor(F16)).result(Type::Token)).unwrap()[1];
            }
        }
        program.add(graph.finish(&[("cache", token)]).unwrap());
        program.finish()
    };
    lint("state-writes", &with(true)).unwrap();
    let error = lint("state-writes", &with(false)).unwrap_err();
    assert_eq!(error, "graph `main`: `cache`: a state is written twice without being read in between");
}

#[test]
fn an_unknown_kernel_and_unknown_operands_are_found() {
    let with = |name: &str| {
        graph(Input::tensor("x", tensor(F16)), |graph| {
            let x = graph.input(0).unwrap();
            let run = NewOperation::new(kernel::OPERATION).operands([x]).result(tensor(F16));
            let run = run.property(Attribute::string(name)).property(Attribute::string("text"));
            graph.body().value(run).unwrap();
        })
    };
    let error = lint("kernels", &with("other")).unwrap_err();
    assert_eq!(error, "graph `main`: an unknown kernel: found `other`, expected gather_qmm");
    let error = lint("kernels", &with(kernel::NAME)).unwrap_err();
    assert!(
        error.contains("`gather_qmm`: operands that the kernel is not written for: found tensor<4xf16>"),
        "{error}"
    );
}
