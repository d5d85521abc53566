//! What `quantise-linears` stores of layers of a trained checkpoint, against coreai-opt 0.4.0, byte for byte
//! (`golden/quant/make_int8.py` makes what is compared with), and what Apple's runtime makes of it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use aimodel::asset::{AssetMetadata, AssetWriter};
use aimodel::checkpoint::Checkpoint;
use aimodel::graph::{Builder, Function, FunctionRole, Module, Op, TensorType, ValueId};
use aimodel::grid::Grid;
use aimodel::mlirb::ResourceId;
use aimodel::models::glm_text::Query;
use aimodel::models::{Loader, glm_text};
use aimodel::passes::{self, DeadCode, FoldConstants, LowerLinear, Outcome, Pass, QuantiseLinears, SplitGateUp};
use aimodel::quant::{Indivisible, IndivisiblePolicy, Scheme};
use aimodel::runtime::eval::{Eval, Modules};
use aimodel::runtime::{Asset, Call, HostTensor, Runtime};
use aimodel::weights::{Recipe, WeightId, produce};
use aimodel::{ElementType, aicode};
use safetensors::SafeTensors;
use sha2::{Digest, Sha256};
use support::{golden, largest_difference, python};

const LAYER: &str = "model.language_model.layers.0.";

fn trained() -> Checkpoint {
    Checkpoint::open(&golden("trained/glm-ocr-tiny")).unwrap()
}

/// The decoder as it is exported: a function for one token and one for any number of them.
fn decoder(checkpoint: &Checkpoint, element: ElementType) -> Module {
    let grid = Grid::new(2, 2).unwrap();
    let calls = [("main", Query::Tokens(1)), ("dynamic", Query::Any)].map(|(name, query)| glm_text::Call {
        name: name.to_owned(),
        grid,
        query,
    });
    let config = glm_text::Config::read(&checkpoint.config()).unwrap();
    let mut module = Module::default();
    let mut loader = Loader::new(checkpoint);
    let functions = glm_text::functions(&config, &calls, 64, element, &mut loader, &mut module.weights);
    module.functions = functions.unwrap();
    module
}

fn int8hu(indivisible: Indivisible) -> QuantiseLinears {
    QuantiseLinears { scheme: Scheme::Int8Hu, indivisible: IndivisiblePolicy::new(indivisible) }
}

/// Name, codes and scales of each quantised layer.
fn quantised(module: &Module, function: &Function) -> Vec<(String, WeightId, WeightId)> {
    let constant = |value: ValueId| match function.node(value).op {
        Op::Constant(id) => id,
        _ => panic!("codes and scales are constants"),
    };
    let scaled = function.nodes.iter().filter(|node| node.op == Op::BlockScale);
    let layers = scaled.map(|node| {
        let (codes, scales) = (constant(node.inputs[0]), constant(node.inputs[1]));
        let Recipe::Codes { of, .. } = module.weights.recipe(codes) else { panic!("codes are codes") };
        (module.weights.parameter_name(*of).unwrap().to_owned(), codes, scales)
    });
    layers.collect()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

#[test]
fn layers_and_head_equal_coreai_opt() {
    let mut module = decoder(&trained(), ElementType::F16);
    for pass in [&SplitGateUp as &dyn Pass, &int8hu(Indivisible::Pad)] {
        passes::run(&mut module, pass).unwrap();
    }
    let layers = quantised(&module, &module.functions[0]);
    assert_eq!(layers.len(), 4 * 7 + 1, "seven in each of four layers, and the head");
    assert_eq!(layers, quantised(&module, &module.functions[1]), "both functions share all of them");

    let file = std::fs::read(golden("quant/glm_linears.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let (_, header) = SafeTensors::read_metadata(&file).unwrap();
    let hashes = header.metadata().as_ref().unwrap();
    let mut compared = 0;
    for (name, codes, scales) in layers.into_iter().filter(|(name, ..)| hashes.contains_key(name)) {
        let whole = |id| produce(&module.weights, id, 0..module.weights.elements(id)).unwrap().bytes;
        let (codes, scales) = (whole(codes), whole(scales));
        let theirs = |part: &str| tensors.tensor(&format!("{name}.{part}")).unwrap().data();
        assert!(codes.starts_with(theirs("codes")), "{name}: codes of the first rows");
        assert!(scales.starts_with(theirs("scales")), "{name}: scales of the first rows");
        assert_eq!(&sha256(&[codes, scales].concat()), &hashes[&name], "{name}: all codes and scales");
        compared += 1;
    }
    assert_eq!(compared, tensors.len() / 2);
}

#[test]
fn splitting_keeps_what_the_decoder_computes_and_quantising_nearly() {
    let mut module = decoder(&trained(), ElementType::F32);
    let split = passes::run_proved(&mut module, &SplitGateUp).unwrap();
    assert_eq!(split.outcome, Outcome::Rewrote(2 * 4));
    let quantised = passes::run_proved(&mut module, &int8hu(Indivisible::Pad)).unwrap();
    assert_eq!(quantised.outcome, Outcome::Rewrote(2 * (4 * 7 + 1)));
    assert!(quantised.difference.is_some_and(|difference| difference > 0.0 && difference < 0.05), "{quantised:?}");
}

/// Two rows through a layer over the first 48 columns of a weight of the checkpoint, which 32 does not divide.
fn indivisible_layer(checkpoint: &Checkpoint) -> Module {
    let mut module = Module::default();
    let mut b = Builder::new("main", FunctionRole::Entry, &mut module.weights);
    let x = b.input("x", TensorType::new(ElementType::F32, &[1, 2, 48]));
    let name = format!("{LAYER}self_attn.k_proj.weight");
    let weights = b.weights();
    let read = weights.read_parameter(checkpoint.tensor(&name).unwrap());
    let rows = weights.rows(read, 0, 64).unwrap();
    let narrow = weights.reshape(rows, &[256, 48]).unwrap();
    let cast = weights.cast(narrow, ElementType::F32);
    let weight = b.weight(cast);
    let y = b.linear(x, weight, None);
    b.result("y", y);
    let function = b.finish().unwrap();
    module.functions.push(function);
    module
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

fn result(runtime: &mut dyn Runtime) -> Vec<f32> {
    let x = (0..2 * 48).map(|i| (i * 37 % 64) as f32 / 32.0 - 1.0).collect();
    let inputs = vec![("x", HostTensor::floats(vec![1, 2, 48], x).unwrap())];
    let call = Call { asset: Asset::Decoder, function: "main", inputs, states: Vec::new() };
    runtime.run(&call).unwrap().take_floats("y", &[1, 2, 256]).unwrap()
}

#[test]
fn apples_runtime_computes_padded_and_smaller_blocks_as_we_do() {
    let checkpoint = trained();
    for (indivisible, expected) in [
        (Indivisible::Pad, "si8[256,64]"),
        (Indivisible::SmallerBlock, "f32[256,3]"),
        (Indivisible::KeepFloat, "f32[256,48]"),
    ] {
        let mut module = indivisible_layer(&checkpoint);
        for pass in [&int8hu(indivisible) as &dyn Pass, &LowerLinear, &FoldConstants, &DeadCode] {
            passes::run(&mut module, pass).unwrap();
        }
        assert!(module.text().contains(expected), "{}", module.text());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decoder.aimodel");
        write(&module, &path);
        let assets = BTreeMap::from([(Asset::Decoder, path)]);
        let theirs = result(&mut python::core_ai(assets.clone()));
        let modules = Modules::open(&assets).unwrap();
        let ours = result(&mut Eval::new(&modules, aimodel::eval::Options::default()));
        assert!(largest_difference(&theirs, &ours) < 1e-5, "{indivisible:?}");
    }
}
