//! Chunks called one after the other do what the function did.

use super::*;
use crate::ElementType;
use crate::eval::{Executor, Options, Tensor, Tensors};
use crate::graph::{Binary, Builder, Dim, ParameterKind, Symbol, TensorType};
use crate::passes::{DeadCode, Entry, KvForm, StaticKv, kv_names, run, run_proved};
use crate::weights::WeightId;

const LAYERS: usize = 5;
const LENGTH: usize = 8;
const CACHES: [&str; 2] = ["keys", "values"];
const NOTHING: Outcome = Outcome::Nothing("no function has a cache of more layers than a chunk");

/// How many tokens a function is fed, and from where on.
#[derive(Clone, Copy)]
enum Fed {
    /// So many, from position 0.
    Prompt(usize),
    /// So many, from a position that is an input.
    Tokens(usize),
    /// As many as the host likes, likewise.
    Any,
}

fn table(b: &mut Builder<'_>, seed: usize, shape: &[usize]) -> ValueId {
    let count: usize = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|i| ((i * 37 + seed * 11) % 64) as f32 / 32.0 - 1.0).collect();
    b.floats(shape, &values)
}

/// A decoder of single-headed layers of width 2: rows of a table, for which only the first layer needs the ids; angles,
/// which all layers share; a head.
fn decoder(name: &str, fed: Fed, module: &mut Module) {
    let mut builder = Builder::new(name, FunctionRole::Entry, &mut module.weights);
    let n = match fed {
        Fed::Prompt(n) | Fed::Tokens(n) => Dim::Fixed(n),
        Fed::Any => Dim::Symbol(Symbol::new("query", 1, LENGTH)),
    };
    let b = &mut builder;
    let ids = b.input("ids", TensorType { element: ElementType::I32, shape: vec![n.clone()] });
    let start = match fed {
        Fed::Prompt(_) => b.integers(&[1], &[0]),
        _ => b.input("pos", TensorType::new(ElementType::I32, &[1])),
    };
    let cache = TensorType::new(ElementType::F32, &[LAYERS, 1, 1, LENGTH, 2]);
    let (mut keys, mut values) = (b.state("keys", cache.clone()), b.state("values", cache));
    let embeddings = table(b, 0, &[4, 2]);
    let rows = b.take_rows(embeddings, ids);
    let mut x = b.reshape_to(rows, &[1.into(), 1.into(), n.clone(), 2.into()]);
    let positions = b.counted_from(start, &n);
    let positions = b.cast(positions, ElementType::F32);
    let angles = b.reshape_to(positions, &[n, 1.into()]);
    let angles = b.unary(crate::graph::Unary::Cos, angles);
    for layer in 0..LAYERS {
        let [q, k, v] = [1, 2, 3].map(|part| {
            let weight = table(b, 10 * layer + part, &[2, 2]);
            b.linear(x, weight, None)
        });
        let k = b.mul(k, angles);
        keys = b.node(Op::KvAppend { layer }, &[keys, k, start]);
        values = b.node(Op::KvAppend { layer }, &[values, v, start]);
        let y = b.node(Op::CachedAttention { layer, window: None }, &[q, keys, values, start]);
        x = b.binary(Binary::Add, x, y);
        b.label(x, format!("layer.{layer}"));
    }
    let head = table(b, 99, &[3, 2]);
    let logits = b.linear(x, head, None);
    b.result("logits", logits);
    b.state_result("keys", keys);
    b.state_result("values", values);
    module.functions.push(builder.finish().unwrap());
    module.verify().unwrap();
}

fn one(fed: Fed) -> Module {
    let mut module = Module::default();
    decoder("decode", fed, &mut module);
    module
}

/// Runs a pass and checks that the numbers stay.
fn proved(module: &mut Module, pass: &dyn Pass) -> Entry {
    let entry = run_proved(module, pass).unwrap();
    assert!(entry.difference.unwrap() < 1e-6, "{entry:?}");
    entry
}

#[test]
fn a_function_becomes_chunks_that_pass_on_one_value() {
    let mut module = one(Fed::Tokens(1));
    let entry = proved(&mut module, &ChunkLayers { layers: 2 });
    assert_eq!(entry.outcome, Outcome::Rewrote(1));
    insta::assert_snapshot!(module.text());
}

#[test]
fn chunks_of_every_size_keep_the_numbers_of_every_kind_of_call() {
    for fed in [Fed::Prompt(4), Fed::Prompt(1), Fed::Tokens(1), Fed::Tokens(3), Fed::Any] {
        for layers in 1..LAYERS {
            let mut module = one(fed);
            proved(&mut module, &ChunkLayers { layers });
            assert_eq!(module.functions.len(), LAYERS.div_ceil(layers));
        }
    }
}

#[test]
fn chunks_take_every_form_that_whole_functions_take() {
    for form in KvForm::ALL {
        for (fed, layers) in [(Fed::Tokens(1), 1), (Fed::Tokens(1), 2), (Fed::Prompt(4), 2), (Fed::Tokens(3), 3)] {
            let mut module = one(fed);
            proved(&mut module, &ChunkLayers { layers });
            proved(&mut module, &StaticKv { form });
        }
    }
}

#[test]
fn a_chunk_takes_nothing_that_its_layers_do_not_need() {
    let mut module = one(Fed::Tokens(1));
    run(&mut module, &ChunkLayers { layers: 2 }).unwrap();
    run(&mut module, &StaticKv { form: KvForm::Host }).unwrap();
    let signature = |function: &Function| {
        let inputs = function.parameters_of(ParameterKind::Input).map(|p| p.name.as_str());
        let results = function.results.iter().map(|r| r.name.as_str());
        format!("{}: {} -> {}", function.name, join(inputs), join(results))
    };
    let signatures: Vec<String> = module.functions.iter().map(signature).collect();
    assert_eq!(
        signatures,
        [
            "decode_0: ids pos past_keys past_values -> hidden new_keys new_values",
            "decode_1: hidden pos past_keys past_values -> hidden new_keys new_values",
            "decode_2: hidden pos past_keys past_values -> logits new_keys new_values",
        ]
    );
}

fn join<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(" ")
}

/// The logits of each of four tokens after a prompt of three, from whole functions over states.
fn from_states(module: &Module) -> Vec<f32> {
    let executor = Executor::new(module, Options::default());
    let mut states = executor.zero_states("prefill").unwrap();
    executor.run("prefill", Tensors::from([ids(&[1, 2, 3])]), &mut states).unwrap();
    let step = |position: i32| {
        let inputs = Tensors::from([ids(&[position % 4]), position_at(position)]);
        executor.run("decode", inputs, &mut states).unwrap()["logits"].to_floats().unwrap()
    };
    (3..7).flat_map(step).collect()
}

/// Decodes with chunks without states, whose columns it puts in their place between calls.
struct Host<'m> {
    executor: Executor<'m>,
    module: &'m Module,
    chunks: Vec<Range<usize>>,
    /// Keys and values of each chunk.
    caches: Vec<[Vec<f32>; 2]>,
}

impl<'m> Host<'m> {
    fn new(module: &'m Module, chunks: Vec<Range<usize>>) -> Self {
        let zeros = |layers: &Range<usize>| vec![0.0; layers.len() * LENGTH * 2];
        let caches = chunks.iter().map(|layers| [zeros(layers), zeros(layers)]).collect();
        Self { executor: Executor::new(module, Options::default()), module, chunks, caches }
    }

    /// The results of the last chunk.
    fn read(&mut self, whole: &str, tokens: &[i32], position: usize) -> Tensors {
        let mut results = Tensors::new();
        for chunk in 0..self.chunks.len() {
            let name = ChunkLayers::function_name(whole, chunk);
            let mut given = Tensors::from([ids(tokens), position_at(position as i32)]);
            given.extend(results.into_iter().chain(self.past(chunk)));
            let function = self.module.function(&name).unwrap();
            given.retain(|name, _| function.parameter(name).is_ok());
            results = self.executor.run(&name, given, &mut Tensors::new()).unwrap();
            self.write_back(chunk, &results, position);
        }
        results
    }

    fn past(&self, chunk: usize) -> Tensors {
        let shape = [self.chunks[chunk].len(), 1, 1, LENGTH, 2];
        let past = |(name, values): (&&str, &Vec<f32>)| {
            (format!("{}{name}", kv_names::PAST), Tensor::floats(&shape, values.clone()).unwrap())
        };
        CACHES.iter().zip(&self.caches[chunk]).map(past).collect()
    }

    fn write_back(&mut self, chunk: usize, results: &Tensors, position: usize) {
        for (name, cache) in CACHES.iter().zip(&mut self.caches[chunk]) {
            let new = results[&format!("{}{name}", kv_names::NEW)].to_floats().unwrap();
            let columns = new.len() / self.chunks[chunk].len();
            for (layer, new) in cache.chunks_exact_mut(LENGTH * 2).zip(new.chunks_exact(columns)) {
                layer[2 * position..][..columns].copy_from_slice(new);
            }
        }
    }
}

/// What [`from_states`] gives, from chunks.
fn from_host(module: &Module, chunks: Vec<Range<usize>>) -> Vec<f32> {
    let mut host = Host::new(module, chunks);
    host.read("prefill", &[1, 2, 3], 0);
    let mut step = |position: usize| host.read("decode", &[position as i32 % 4], position)["logits"].to_floats();
    (3..7).flat_map(|position| step(position).unwrap()).collect()
}

fn ids(ids: &[i32]) -> (String, Tensor) {
    ("ids".to_owned(), Tensor::integers(&[ids.len()], ids.to_vec()).unwrap())
}

fn position_at(position: i32) -> (String, Tensor) {
    ("pos".to_owned(), Tensor::integers(&[1], vec![position]).unwrap())
}

#[test]
fn a_host_decodes_with_chunks_what_whole_functions_decode() {
    let mut module = Module::default();
    decoder("prefill", Fed::Prompt(3), &mut module);
    decoder("decode", Fed::Tokens(1), &mut module);
    let expected = from_states(&module);
    assert_eq!(expected.len(), 4 * 3);
    for layers in [1, 2, 3] {
        let mut module = module.clone();
        let pass = ChunkLayers { layers };
        run(&mut module, &pass).unwrap();
        run(&mut module, &StaticKv { form: KvForm::Host }).unwrap();
        let found = from_host(&module, pass.chunks(LAYERS));
        let difference = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(found.len() == expected.len() && difference < 1e-5, "chunks of {layers}: {difference}");
    }
}

#[test]
fn chunks_hold_the_weights_of_the_functions_once() {
    let constants = |module: &Module| -> std::collections::BTreeSet<WeightId> {
        let nodes = module.functions.iter().flat_map(|function| &function.nodes);
        nodes.filter_map(|node| if let Op::Constant(id) = node.op { Some(id) } else { None }).collect()
    };
    let mut module = Module::default();
    decoder("prefill", Fed::Prompt(3), &mut module);
    decoder("decode", Fed::Tokens(1), &mut module);
    let before = constants(&module);
    proved(&mut module, &ChunkLayers { layers: 2 });
    assert_eq!(constants(&module), before);
    assert_eq!(proved(&mut module, &DeadCode).outcome, Outcome::Nothing("every node is needed"));
}

#[test]
fn decoders_of_a_single_chunk_stay_and_chunks_of_nothing_are_refused() {
    for layers in [LAYERS, LAYERS + 1] {
        let mut module = one(Fed::Tokens(1));
        assert_eq!(proved(&mut module, &ChunkLayers { layers }).outcome, NOTHING);
        assert_eq!(module.functions[0].name, "decode");
    }
    let error = run(&mut one(Fed::Tokens(1)), &ChunkLayers { layers: 0 }).unwrap_err();
    assert_eq!(error.to_string(), "pass `chunk-layers`: a chunk has no layers: found 0, expected at least 1");
}

#[test]
fn layers_of_chunks_make_up_the_decoder() {
    assert_eq!(ChunkLayers { layers: 5 }.chunks(12), [0..5, 5..10, 10..12]);
    assert_eq!(ChunkLayers { layers: 4 }.chunks(12), [0..4, 4..8, 8..12]);
    assert_eq!(ChunkLayers { layers: 12 }.chunks(12), vec![0..12; 1]);
}

#[test]
fn a_layer_that_reads_more_than_the_layer_before_passes_on_is_refused() {
    let mut module = one(Fed::Tokens(1));
    let function = &mut module.functions[0];
    let (first, last) = (function.labelled("layer.0").unwrap(), function.results[0].value);
    function.results[0].value = first;
    function.results.push(crate::graph::FunctionResult { name: "last".to_owned(), value: last });
    let error = run(&mut module, &ChunkLayers { layers: 2 }).unwrap_err().to_string();
    let expected = "pass `chunk-layers`: function `decode`: a layer takes more than what the layer before passes on: \
                    found attention of layer 0";
    assert_eq!(error, expected);
}

#[test]
fn cuts_need_labels() {
    let mut module = one(Fed::Tokens(1));
    let label = module.functions[0].labelled("layer.3").unwrap();
    module.functions[0].nodes[label.index()].label = None;
    let error = run(&mut module, &ChunkLayers { layers: 2 }).unwrap_err().to_string();
    let expected = "pass `chunk-layers`: function `decode`: what a layer passes on is not labelled: expected a value \
                    `layer.3`";
    assert_eq!(error, expected);
}
