use std::collections::BTreeMap;

use super::*;
use crate::host::recipe::kv::tests as forms;
use crate::host::recipe::tests::small;

/// Three layers of two heads, with room for `LENGTH` tokens of width 8.
const LENGTH: usize = 64;
const HEADS: usize = 2;
const WIDTH: usize = 8;

/// What a call was given.
#[derive(Debug, PartialEq)]
struct Given {
    function: String,
    inputs: BTreeMap<String, HostTensor>,
    states: Vec<String>,
}

/// A runtime that keeps what it is given. Its columns say of which layer, head and position they are.
#[derive(Debug, Default)]
struct Watching {
    given: Vec<Given>,
    resets: Vec<Vec<State>>,
    /// Tokens fed before each page's first call of the whole decoder.
    length: usize,
    /// The function that fails.
    broken: Option<&'static str>,
}

/// The first layer and the number of layers of the functions.
fn layers_of(function: &str) -> (usize, usize) {
    match function.rsplit_once('_') {
        Some((_, "0")) => (0, 2),
        Some((_, "1")) => (2, 1),
        _ => (0, 3),
    }
}

/// An element of the keys of a layer and head at a position; those of values are negative.
fn element(layer: usize, head: usize, position: usize) -> f32 {
    (1000 * layer + 100 * head + position + 1) as f32
}

impl Watching {
    fn columns(&self, function: &str, tokens: usize, sign: f32) -> HostTensor {
        let (first, layers) = layers_of(function);
        let mut values = Vec::new();
        for layer in first..first + layers {
            for head in 0..HEADS {
                for token in 0..tokens {
                    values.extend([sign * element(layer, head, self.length + token); WIDTH]);
                }
            }
        }
        HostTensor::floats(vec![layers, 1, HEADS, tokens, WIDTH], values).unwrap()
    }
}

impl Runtime for Watching {
    fn name(&self) -> &str {
        "watching"
    }

    fn reset_states(&mut self, asset: Asset, states: &[State]) -> Result<()> {
        assert_eq!(asset, Asset::Decoder);
        self.resets.push(states.to_vec());
        Ok(())
    }

    fn run(&mut self, call: &Call<'_>) -> Result<Outputs> {
        if self.broken == Some(call.function) {
            return Err(Error::environment("out of memory"));
        }
        let inputs: BTreeMap<_, _> =
            call.inputs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        assert_eq!(inputs.len(), call.inputs.len(), "each input once");
        let tokens = inputs.get("inputs_embeds").or_else(|| inputs.get("hidden")).unwrap().shape()[1];
        let mut outputs = BTreeMap::from([
            ("new_keyCache", self.columns(call.function, tokens, 1.0)),
            ("new_valueCache", self.columns(call.function, tokens, -1.0)),
        ]);
        if call.function.ends_with("_0") {
            outputs.insert("hidden", HostTensor::floats(vec![1, tokens, 2], vec![0.5; 2 * tokens])?);
        } else {
            outputs.insert("logits", HostTensor::floats(vec![1, 1, 1], vec![self.length as f32])?);
            self.length += tokens;
        }
        let states = call.states.iter().map(|&state| state.to_owned()).collect();
        self.given.push(Given { function: call.function.to_owned(), inputs, states });
        Ok(outputs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }
}

fn recipe(kv: KvRecipe) -> Recipe {
    Recipe { kv, ..small() }
}

fn embeds(tokens: usize) -> HostTensor {
    HostTensor::floats(vec![1, tokens, 2], vec![0.25; 2 * tokens]).unwrap()
}

fn feed(function: &str, tokens: usize, start: Start) -> Feed<'_> {
    Feed { function, inputs: vec![("inputs_embeds", embeds(tokens))], tokens, start }
}

/// A prompt of three tokens and two more.
fn read(sequence: &mut Sequence<'_>, runtime: &mut Watching) -> Result<Outputs> {
    runtime.length = 0;
    sequence.begin(runtime)?;
    sequence.feed(runtime, feed("prefill", 3, Start::AtZero))?;
    sequence.feed(runtime, feed("decode", 1, Start::Behind))?;
    sequence.feed(runtime, feed("decode", 1, Start::Behind))
}

fn calls_of(kv: KvRecipe) -> Watching {
    let (recipe, mut runtime) = (recipe(kv), Watching::default());
    read(&mut Sequence::new(&recipe), &mut runtime).unwrap();
    runtime
}

fn ints(shape: &[usize], values: &[i32]) -> HostTensor {
    HostTensor::ints(shape.to_vec(), values.to_vec()).unwrap()
}

/// 1 where the token at `position` goes.
fn mask(position: usize) -> HostTensor {
    let mut values = vec![0.0; LENGTH];
    values[position] = 1.0;
    HostTensor::floats(vec![LENGTH, 1], values).unwrap()
}

#[test]
fn a_state_is_fed_with_what_its_form_asks_for() {
    let at = |position: i32| ("pos", ints(&[1], &[position]));
    for (kv, fourth, fifth) in [
        (forms::indexed(), vec![at(3)], vec![at(4)]),
        (forms::shift(), vec![at(3)], vec![at(4)]),
        (
            forms::dynamic(),
            vec![("position_ids", ints(&[1, 4], &[0, 1, 2, 3]))],
            vec![("position_ids", ints(&[1, 5], &[0, 1, 2, 3, 4]))],
        ),
        (forms::blend(), vec![at(3), ("write_mask", mask(3))], vec![at(4), ("write_mask", mask(4))]),
    ] {
        let states = recipe(kv.clone()).states();
        let names: Vec<String> = states.iter().map(|state| state.name.clone()).collect();
        let given = |function: &str, tokens, others: Vec<(&str, HostTensor)>| Given {
            function: function.to_owned(),
            inputs: others.into_iter().chain([("inputs_embeds", embeds(tokens))]).map(named).collect(),
            states: names.clone(),
        };
        let runtime = calls_of(kv);
        assert_eq!(runtime.resets, [states], "once for the page");
        let expected = [given("prefill", 3, vec![]), given("decode", 1, fourth), given("decode", 1, fifth)];
        assert_eq!(runtime.given, expected);
    }
}

fn named((name, value): (&str, HostTensor)) -> (String, HostTensor) {
    (name.to_owned(), value)
}

#[test]
fn several_tokens_are_masked_column_by_column() {
    let recipe = recipe(forms::blend());
    let mut sequence = Sequence::new(&recipe);
    sequence.length = 5;
    let write = KvFeed::WriteMask { input: "write_mask".to_owned() };
    let mask = sequence.place(&write, &sequence.places(3).unwrap()).unwrap();
    assert_eq!(mask.shape(), [LENGTH, 3]);
    let ones: Vec<usize> = (0..LENGTH * 3).filter(|index| mask.as_floats()[*index] == 1.0).collect();
    assert_eq!(ones, [5 * 3, 6 * 3 + 1, 7 * 3 + 2]);
}

/// A cache of these layers that holds the columns of so many tokens.
fn filled(layers: Range<usize>, tokens: usize, sign: f32) -> HostTensor {
    let mut values = Vec::new();
    for layer in layers.clone() {
        for head in 0..HEADS {
            for position in 0..LENGTH {
                let value = if position < tokens { sign * element(layer, head, position) } else { 0.0 };
                values.extend([value; WIDTH]);
            }
        }
    }
    HostTensor::floats(vec![layers.len(), 1, HEADS, LENGTH, WIDTH], values).unwrap()
}

#[test]
fn a_host_hands_in_what_was_written_and_puts_the_new_columns_in_their_place() {
    let (recipe, mut runtime) = (recipe(forms::host()), Watching::default());
    let mut sequence = Sequence::new(&recipe);
    for page in 1..=2 {
        read(&mut sequence, &mut runtime).unwrap();
        assert!(runtime.resets.is_empty(), "there are no states");
        let [prefill, fourth, fifth] = runtime.given.try_into().unwrap();
        assert_eq!(prefill.inputs.keys().collect::<Vec<_>>(), ["inputs_embeds"], "page {page}: it has no past");
        for (given, before) in [(fourth, 3), (fifth, 4)] {
            assert!(given.states.is_empty());
            assert_eq!(given.inputs["pos"], ints(&[1], &[before]));
            let tokens = usize::try_from(before).unwrap();
            assert_eq!(given.inputs["past_keyCache"], filled(0..3, tokens, 1.0), "page {page}");
            assert_eq!(given.inputs["past_valueCache"], filled(0..3, tokens, -1.0), "page {page}");
        }
        runtime = Watching::default();
    }
    let [keys, values] = sequence.columns().unwrap();
    assert_eq!(keys, filled(0..3, 5, 1.0).as_floats());
    assert_eq!(values, filled(0..3, 5, -1.0).as_floats());
    assert_eq!(sequence.length(), 5);
}

#[test]
fn chunks_are_called_in_order_each_with_what_it_takes() {
    let runtime = calls_of(forms::chunked());
    let called: Vec<&str> = runtime.given.iter().map(|given| given.function.as_str()).collect();
    assert_eq!(called, ["prefill_0", "prefill_1", "decode_0", "decode_1", "decode_0", "decode_1"]);
    let names = |call: usize| runtime.given[call].inputs.keys().map(String::as_str).collect::<Vec<_>>();
    assert_eq!((names(0), names(1)), (vec!["inputs_embeds"], vec!["hidden"]));
    assert_eq!(names(4), ["inputs_embeds", "past_keyCache", "past_valueCache", "pos"]);
    assert_eq!(names(5), ["hidden", "past_keyCache", "past_valueCache", "pos"]);
    assert_eq!(runtime.given[4].inputs["past_keyCache"], filled(0..2, 4, 1.0));
    assert_eq!(runtime.given[5].inputs["past_valueCache"], filled(2..3, 4, -1.0));
    assert_eq!(runtime.given[5].inputs["hidden"].as_floats(), [0.5; 2]);
}

#[test]
fn columns_of_chunks_make_up_the_caches() {
    let recipe = recipe(forms::chunked());
    let mut sequence = Sequence::new(&recipe);
    read(&mut sequence, &mut Watching::default()).unwrap();
    assert_eq!(sequence.columns().unwrap()[0], filled(0..3, 5, 1.0).as_floats());
}

#[test]
fn states_are_with_the_runtime() {
    assert_eq!(Sequence::new(&recipe(forms::indexed())).columns(), None);
}

#[test]
fn tokens_that_the_caches_have_no_room_for_are_refused() {
    let (recipe, mut runtime) = (recipe(forms::indexed()), Watching::default());
    let mut sequence = Sequence::new(&recipe);
    sequence.feed(&mut runtime, feed("prefill", LENGTH - 1, Start::AtZero)).unwrap();
    let error = sequence.feed(&mut runtime, feed("decode", 2, Start::Behind)).unwrap_err();
    assert_eq!(error.to_string(), "the caches have no room: found 63 tokens and 2 more, expected at most 64");
    sequence.feed(&mut runtime, feed("decode", 1, Start::Behind)).unwrap();
}

#[test]
fn a_call_that_fails_feeds_nothing() {
    let (recipe, mut runtime) = (recipe(forms::chunked()), Watching::default());
    let mut sequence = Sequence::new(&recipe);
    sequence.begin(&mut runtime).unwrap();
    runtime.broken = Some("prefill_1");
    sequence.feed(&mut runtime, feed("prefill", 3, Start::AtZero)).unwrap_err();
    assert_eq!(sequence.length(), 0);
}

#[test]
fn columns_of_another_shape_name_the_function() {
    let (recipe, mut runtime) = (recipe(forms::host()), Watching::default());
    let mut sequence = Sequence::new(&recipe);
    sequence.begin(&mut runtime).unwrap();
    // Of a name that the runtime takes for a chunk of one layer.
    let error = sequence.feed(&mut runtime, feed("prefill_1", 3, Start::AtZero)).unwrap_err().to_string();
    let expected =
        "function `prefill_1`: output `new_keyCache`: wrong shape: found [1, 1, 2, 3, 8], expected [3, 1, 2, 3, 8]";
    assert_eq!(error, expected);
}

#[test]
fn caches_that_no_memory_can_hold_are_refused() {
    let mut recipe = recipe(forms::host());
    (recipe.cache.length, recipe.cache.heads, recipe.cache.head_dim) = (1 << 24, 1 << 24, 1 << 24);
    let error = Sequence::new(&recipe).begin(&mut Watching::default()).unwrap_err().to_string();
    assert!(error.starts_with("cache: there is no memory for the caches"), "{error}");
}
