//! What is done for the Neural Engine, on the trained decoder: the numbers stay, and Apple's runtime computes them as we
//! do. There is no Neural Engine here: the runtime is that of the CPU.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::collections::BTreeMap;
use std::path::Path;

use aimodel::asset::{AssetMetadata, AssetWriter};
use aimodel::checkpoint::Checkpoint;
use aimodel::eval::Options;
use aimodel::graph::Module;
use aimodel::grid::Grid;
use aimodel::mlirb::ResourceId;
use aimodel::models::Loader;
use aimodel::models::glm_text::{self, Query};
use aimodel::passes::{
    self, AneConv, AneNorm, ChunkLayers, DeadCode, Externalize, FoldConstants, KvForm, Outcome, Pass, QuantiseLinears,
    SplitGateUp, StaticKv,
};
use aimodel::quant::{Indivisible, IndivisiblePolicy, Scheme};
use aimodel::runtime::eval::{Eval, Modules};
use aimodel::runtime::{Asset, Call, HostTensor, Runtime};
use aimodel::weights::produce;
use aimodel::{ElementType, aicode};
use support::{golden, largest_difference, python};

const LENGTH: usize = 16;

/// The function of the trained decoder that reads one token.
fn decoder() -> Module {
    let checkpoint = Checkpoint::open(&golden("trained/glm-ocr-tiny")).unwrap();
    let config = glm_text::Config::read(&checkpoint.config()).unwrap();
    let call = glm_text::Call { name: "main".to_owned(), grid: Grid::new(2, 2).unwrap(), query: Query::Tokens(1) };
    let mut module = Module::default();
    let mut loader = Loader::new(&checkpoint);
    let functions = glm_text::functions(&config, &[call], LENGTH, ElementType::F32, &mut loader, &mut module.weights);
    module.functions = functions.unwrap();
    module
}

fn int8hu() -> QuantiseLinears {
    QuantiseLinears { scheme: Scheme::Int8Hu, indivisible: IndivisiblePolicy::new(Indivisible::Pad) }
}

/// Four layers in chunks of three and one, without states, as the Neural Engine takes them.
fn for_neural_engine(module: &mut Module) {
    let (chunks, host) = (ChunkLayers { layers: 3 }, StaticKv { form: KvForm::Host });
    let passes: [&dyn Pass; 6] = [&SplitGateUp, &int8hu(), &chunks, &host, &AneNorm, &AneConv];
    for pass in passes {
        let entry = passes::run_proved(module, pass).unwrap();
        assert!(matches!(entry.outcome, Outcome::Rewrote(_)), "{}: {}", entry.pass, entry.outcome);
    }
    for pass in [&Externalize as &dyn Pass, &FoldConstants, &DeadCode] {
        passes::run(module, pass).unwrap();
    }
}

fn write(module: &Module, folder: &Path) {
    let lowered = aicode::lower(module, "aimodel").unwrap();
    let mut writer = AssetWriter::create(folder, &lowered.program, &AssetMetadata::new("aimodel")).unwrap();
    for (index, &weight) in lowered.weights.iter().enumerate() {
        writer.resource(ResourceId::new(index as u32)).unwrap();
        writer.chunk(&produce(&module.weights, weight, 0..module.weights.elements(weight)).unwrap().bytes).unwrap();
    }
    writer.finish().unwrap();
}

/// The results of every function, one after the other, on noise.
fn results(module: &Module, runtime: &mut dyn Runtime) -> Vec<f32> {
    let mut all = Vec::new();
    for function in module.entries() {
        let inputs = function.parameters.iter().map(|parameter| {
            let ty = function.ty(parameter.value);
            let shape = ty.fixed_shape().unwrap();
            let count: usize = shape.iter().product();
            let tensor = match ty.element {
                ElementType::I32 => HostTensor::ints(shape, vec![1; count]),
                _ => HostTensor::floats(shape, (0..count).map(|i| (i * 37 % 64) as f32 / 32.0 - 1.0).collect()),
            };
            (parameter.name.as_str(), tensor.unwrap())
        });
        let call =
            Call { asset: Asset::Decoder, function: &function.name, inputs: inputs.collect(), states: Vec::new() };
        let mut given = runtime.run(&call).unwrap();
        for result in &function.results {
            let shape = function.ty(result.value).fixed_shape().unwrap();
            all.extend(given.take_floats(&result.name, &shape).unwrap());
        }
    }
    all
}

#[test]
fn apples_runtime_computes_chunks_of_convolutions_as_we_do() {
    let mut module = decoder();
    for_neural_engine(&mut module);
    let text = module.text();
    for gone in ["= linear ", "rms_norm", " state "] {
        assert!(!text.contains(gone), "{gone}");
    }
    assert_eq!(module.entries().map(|function| function.name.as_str()).collect::<Vec<_>>(), ["main_0", "main_1"]);

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("decoder.aimodel");
    write(&module, &path);
    let assets = BTreeMap::from([(Asset::Decoder, path)]);
    let theirs = results(&module, &mut python::core_ai(assets.clone()));
    let modules = Modules::open(&assets).unwrap();
    let ours = results(&module, &mut Eval::new(&modules, Options::default()));
    assert!(largest_difference(&theirs, &ours) < 1e-4);
}
