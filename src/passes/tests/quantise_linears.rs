//! Which linear layers are quantised, and how.

use super::*;
use crate::graph::Function;
use crate::quant::{Indivisible, IndivisibleOverride, IndivisiblePolicy, Scheme};
use crate::weights::Recipe;

const NOTHING: Outcome = Outcome::Nothing("no linear layer has a weight that blocks fit");

fn quantise(scheme: Scheme, indivisible: Indivisible) -> QuantiseLinears {
    QuantiseLinears { scheme, indivisible: IndivisiblePolicy::new(indivisible) }
}

/// What the weight of each linear layer is now: `codes(int8-clipped, "w")` or a float, in order.
fn stored(module: &Module, function: &Function) -> Vec<String> {
    let layers = function.nodes.iter().filter(|node| node.op == Op::Linear);
    let stored = layers.map(|layer| {
        let weight = function.node(layer.inputs[1]);
        let constant = if weight.op == Op::BlockScale { function.node(weight.inputs[0]) } else { weight };
        let Op::Constant(id) = constant.op else { return "computed".to_owned() };
        let name = module.weights.parameter_name(id).unwrap_or_default();
        match module.weights.recipe(id) {
            Recipe::Codes { coding, .. } => format!("{name} {coding}"),
            _ => name.to_owned(),
        }
    });
    stored.collect()
}

/// What the layers of the function that `body` builds are stored as with int8hu.
fn after_int8hu(body: impl FnOnce(&mut Builder<'_>) -> ValueId) -> Vec<String> {
    let mut module = module(body);
    quantise(Scheme::Int8Hu, Indivisible::Pad).run(&mut module).unwrap();
    module.verify().unwrap();
    stored(&module, &module.functions[0])
}

/// A layer and a head that is the embedding table.
fn tied(b: &mut Builder<'_>) -> ValueId {
    let rows = b.integers(&[2], &[3, 1]);
    let table = weight(b, "embed", &[5, 64]);
    let x = b.take_rows(table, rows);
    let (w, bias) = (weight(b, "w", &[64, 64]), weight(b, "b", &[64]));
    let y = b.linear(x, w, Some(bias));
    b.linear(y, table, None)
}

#[test]
fn a_head_that_is_the_embedding_table_becomes_a_weight_of_its_own() {
    insta::assert_snapshot!(after(module(tied), &[&quantise(Scheme::Int8Hu, Indivisible::Pad)]));
}

#[test]
fn schemes_store_layers_and_head_as_they_say() {
    let after = |scheme| {
        let mut module = module(tied);
        let outcome = quantise(scheme, Indivisible::Pad).run(&mut module).unwrap();
        (outcome, stored(&module, &module.functions[0]))
    };
    let floats = Outcome::Nothing("the scheme keeps linear layers as floats");
    assert_eq!(after(Scheme::Sym8), (floats, vec!["w".to_owned(), "embed".to_owned()]));
    let lin = (Outcome::Rewrote(1), vec!["w int8-clipped".to_owned(), "embed".to_owned()]);
    assert_eq!(after(Scheme::Int8Lin), lin);
    let hu = (Outcome::Rewrote(2), vec!["w int8-clipped".to_owned(), "embed int8-symmetric".to_owned()]);
    assert_eq!(after(Scheme::Int8Hu), hu);
}

#[test]
fn scales_have_the_type_of_the_activations() {
    let of = |element| {
        let module = module(|b| {
            let x = b.input("x", TensorType::new(element, &[1, 32]));
            let read = super::stored(b.weights(), "w", &[4, 32]);
            let cast = b.weights().cast(read, element);
            let w = b.weight(cast);
            b.linear(x, w, None)
        });
        let text = after(module, &[&quantise(Scheme::Int8Hu, Indivisible::Pad)]);
        text.lines().find(|line| line.contains("block_scale")).unwrap().to_owned()
    };
    assert_eq!(of(ElementType::F16), "  %4 = block_scale %2, %3 : f16[4,32]");
    assert_eq!(of(ElementType::F32), "  %5 = block_scale %2, %4 : f32[4,32]");
}

#[test]
fn a_head_is_found_behind_casts_and_shapes() {
    let layers = after_int8hu(|b| {
        let x = b.input("x", f32s(&[1, 2, 32]));
        let w = weight(b, "head", &[8, 32]);
        let y = b.linear(x, w, None);
        let y = b.slice_axis(y, 1, 1, 2);
        let y = b.reshape(y, &[1, 8]);
        b.cast(y, ElementType::F16)
    });
    assert_eq!(layers, ["head int8-symmetric"]);
}

#[test]
fn a_layer_whose_value_is_looked_at_is_no_head() {
    let layers = after_int8hu(|b| {
        let x = b.input("x", f32s(&[2, 32]));
        let (w, v, head) = (weight(b, "w", &[32, 32]), weight(b, "v", &[32, 32]), weight(b, "head", &[8, 32]));
        let y = b.linear(x, w, None);
        b.result("layer.0", y);
        let y = b.linear(y, v, None);
        let shown = b.reshape(y, &[2, 4, 8]);
        b.result("layer.1", shown);
        let y = b.reshape(shown, &[2, 32]);
        b.linear(y, head, None)
    });
    assert_eq!(layers, ["w int8-clipped", "v int8-clipped", "head int8-symmetric"]);
}

#[test]
fn routers_stay_floats() {
    let layers = after_int8hu(|b| {
        let x = b.input("x", f32s(&[2, 32]));
        let (w, router) = (weight(b, "w", &[32, 32]), weight(b, "router", &[3, 32]));
        let x = b.linear(x, w, None);
        let scores = b.linear(x, router, None);
        let probabilities = b.softmax_f32(scores);
        let sorted = b.node(Op::Sort { axis: 1, descending: true }, &[probabilities]);
        let order = b.node(Op::ArgSort { axis: 1, descending: true }, &[probabilities]);
        let (probability, expert) = (b.slice_axis(sorted, 1, 0, 2), b.slice_axis(order, 1, 0, 2));
        let mut inputs = vec![x, probability, expert];
        inputs.extend((0..9).map(|i| weight(b, &format!("expert.{i}"), &[32, 32])));
        b.node(Op::RoutedExperts { experts: 3 }, &inputs)
    });
    assert_eq!(layers, ["w int8-clipped", "router"]);
}

#[test]
fn a_convolution_that_became_a_linear_layer_stays_a_float() {
    let mut module = module(|b| {
        let x = b.input("x", f32s(&[2, 8, 2, 2]));
        let kernel = weight(b, "patch", &[4, 8, 2, 2]);
        b.node(Op::Conv2d { stride: [2, 2], groups: 1 }, &[x, kernel])
    });
    for pass in [&BakeConv as &dyn Pass, &FoldConstants] {
        assert!(matches!(pass.run(&mut module).unwrap(), Outcome::Rewrote(_)));
    }
    assert_eq!(quantise(Scheme::Int8Hu, Indivisible::Pad).run(&mut module).unwrap(), NOTHING);
}

/// A layer over 48 columns, then a head over 64; the host chooses the number of rows.
fn indivisible(b: &mut Builder<'_>) -> ValueId {
    let x = b.input("x", rows_of(48));
    let (w, head) = (weight(b, "w", &[64, 48]), weight(b, "head", &[8, 64]));
    let y = b.linear(x, w, None);
    b.linear(y, head, None)
}

#[test]
fn indivisible_rows_and_their_activations_are_padded() {
    insta::assert_snapshot!(after(module(indivisible), &[&quantise(Scheme::Int8Hu, Indivisible::Pad)]));
}

#[test]
fn indivisible_rows_are_cut_into_smaller_blocks() {
    insta::assert_snapshot!(after(module(indivisible), &[&quantise(Scheme::Int8Hu, Indivisible::SmallerBlock)]));
}

#[test]
fn weights_with_indivisible_rows_have_a_remark() {
    let remark = |policy: IndivisiblePolicy| {
        let mut module = module(indivisible);
        QuantiseLinears { scheme: Scheme::Int8Hu, indivisible: policy }.run(&mut module).unwrap();
        let constants = module.functions[0].nodes.iter().filter_map(|node| match node.op {
            Op::Constant(id) => module.weights.remark(id).map(str::to_owned),
            _ => None,
        });
        (stored(&module, &module.functions[0])[0].clone(), constants.collect::<Vec<_>>())
    };
    let expected =
        |stored: &str, done: &str| (stored.to_owned(), vec![format!("48 columns are not a multiple of 32: {done}")]);
    let [pad, smaller, keep] =
        [Indivisible::Pad, Indivisible::SmallerBlock, Indivisible::KeepFloat].map(IndivisiblePolicy::new);
    assert_eq!(remark(pad.clone()), expected("w int8-clipped", "padded to 64"));
    assert_eq!(remark(smaller), expected("w int8-clipped/16", "stored in blocks of 16"));
    assert_eq!(remark(keep), expected("w", "kept as a float"));
    let kept = IndivisibleOverride { tensor: "w".to_owned(), indivisible: Indivisible::KeepFloat };
    assert_eq!(remark(IndivisiblePolicy { overrides: vec![kept], ..pad }), expected("w", "kept as a float"));
}

#[test]
fn functions_that_share_a_weight_share_its_codes() {
    let mut module = Module::default();
    for (name, rows) in [("main", 1), ("prefill", 8)] {
        let mut b = Builder::new(name, FunctionRole::Entry, &mut module.weights);
        let x = b.input("x", f32s(&[rows, 48]));
        let w = weight(&mut b, "w", &[64, 48]);
        let y = b.linear(x, w, None);
        b.result("y", y);
        let function = b.finish().unwrap();
        module.functions.push(function);
    }
    let pass = quantise(Scheme::Int8Hu, Indivisible::Pad);
    assert_eq!(run(&mut module, &pass).unwrap().outcome, Outcome::Rewrote(2));
    let constants = |function: &Function| -> Vec<WeightId> {
        let ids = function.nodes.iter().filter_map(|node| match node.op {
            Op::Constant(id) if !matches!(module.weights.recipe(id), Recipe::Read(_)) => Some(id),
            _ => None,
        });
        ids.collect()
    };
    assert_eq!(constants(&module.functions[0]).len(), 2);
    assert_eq!(constants(&module.functions[0]), constants(&module.functions[1]));
}
