//! Each pass on a small graph: the text after it, and the same numbers before and after.

use super::*;
use crate::ElementType;
use crate::graph::{Builder, Dim, Op, Symbol, TensorType, Unary};
use crate::quant::BlockCode;
use crate::storage::{MemorySource, StoredTensor};
use crate::weights::{Resampling, WeightId, Weights};

mod neural_engine;
mod quantise_linears;

/// A tensor as if read from a checkpoint, with values that depend on its name.
fn stored(weights: &mut Weights, name: &str, shape: &[usize]) -> WeightId {
    let count: usize = shape.iter().product();
    let seed: usize = name.bytes().map(usize::from).sum();
    let value = |i: usize| ((i * 37 + seed * 11) % 64) as f32 / 32.0 - 1.0;
    let bytes: Vec<u8> = (0..count).flat_map(|i| value(i).to_le_bytes()).collect();
    weights.read(&StoredTensor {
        name: name.into(),
        source: std::sync::Arc::new(MemorySource::new(name, bytes)),
        offset: 0,
        element: ElementType::F32,
        shape: shape.to_vec(),
    })
}

fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(ElementType::F32, shape)
}

/// A module of one function `f`, built by `body`, which returns the result.
fn module(body: impl FnOnce(&mut Builder<'_>) -> ValueId) -> Module {
    let mut module = Module::default();
    let mut b = Builder::new("f", FunctionRole::Entry, &mut module.weights);
    let y = body(&mut b);
    b.result("y", y);
    let function = b.finish().unwrap();
    module.functions.push(function);
    module.verify().unwrap();
    module
}

/// Runs passes and checks that the numbers stay; returns the text after.
fn after(mut module: Module, passes: &[&dyn Pass]) -> String {
    for pass in passes {
        let entry = run_proved(&mut module, *pass).unwrap();
        assert!(matches!(entry.outcome, Outcome::Rewrote(_)), "{}: {}", entry.pass, entry.outcome);
        let tolerance = if pass.keeps_numbers() { 1e-5 } else { 0.05 };
        assert!(entry.difference.unwrap() <= tolerance, "{}: {:?}", entry.pass, entry.difference);
    }
    module.text()
}

/// As many rows as the host likes.
fn rows_of(columns: usize) -> TensorType {
    let rows = Dim::Symbol(Symbol::new("rows", 1, 6));
    TensorType { element: ElementType::F32, shape: vec![Dim::Fixed(1), rows, Dim::Fixed(columns)] }
}

fn weight(b: &mut Builder<'_>, name: &str, shape: &[usize]) -> ValueId {
    let id = stored(b.weights(), name, shape);
    b.constant(id)
}

#[test]
fn resampled_tables_become_weights() {
    let module = module(|b| {
        let x = b.input("x", f32s(&[3, 3, 2]));
        let table = weight(b, "positions", &[4, 4, 2]);
        let table = b.resample(table, Resampling::Bicubic, &[3, 3]);
        b.add(x, table)
    });
    insta::assert_snapshot!(after(module, &[&FoldPositionEmbeddings, &DeadCode]));
}

#[test]
fn tables_of_positions_alone_become_weights_and_stored_weights_stay() {
    let module = module(|b| {
        let x = b.input("x", f32s(&[4]));
        let positions = b.integers(&[4], &[0, 1, 2, 3]);
        let angles = b.cast(positions, ElementType::F32);
        let table = b.unary(Unary::Cos, angles);
        let w = weight(b, "w", &[2, 2]);
        let w = b.reshape(w, &[4]);
        let x = b.mul(x, table);
        b.add(x, w)
    });
    insta::assert_snapshot!(after(module, &[&FoldPositionEmbeddings, &DeadCode]));
}

#[test]
fn patch_convolutions_become_linear_layers() {
    let module = module(|b| {
        let x = b.input("x", f32s(&[1, 3, 4, 6]));
        let kernel = weight(b, "patch", &[5, 3, 2, 2]);
        b.node(Op::Conv2d { stride: [2, 2], groups: 1 }, &[x, kernel])
    });
    insta::assert_snapshot!(after(module, &[&BakeConv]));
}

#[test]
fn patch_convolutions_over_depth_become_linear_layers() {
    let module = module(|b| {
        let x = b.input("x", f32s(&[2, 3, 4, 4, 6]));
        let kernel = weight(b, "patch", &[5, 3, 2, 2, 3]);
        b.node(Op::Conv3d { stride: [2, 2, 3] }, &[x, kernel])
    });
    insta::assert_snapshot!(after(module, &[&BakeConv]));
}

#[test]
fn inputs_that_are_one_patch_each_are_only_reshaped() {
    let module = module(|b| {
        let x = b.input("x", f32s(&[4, 3, 2, 2, 2]));
        let kernel = weight(b, "patch", &[5, 3, 2, 2, 2]);
        b.node(Op::Conv3d { stride: [2, 2, 2] }, &[x, kernel])
    });
    insta::assert_snapshot!(after(module, &[&BakeConv]));
}

#[test]
fn convolutions_that_overlap_or_leave_a_rest_stay() {
    let refused = |op: Op, image: &[usize], kernel: &[usize]| {
        let mut module = module(|b| {
            let x = b.input("x", f32s(image));
            let kernel = weight(b, "patch", kernel);
            b.node(op, &[x, kernel])
        });
        BakeConv.run(&mut module).unwrap()
    };
    let nothing = Outcome::Nothing("no convolution's stride is its kernel");
    assert_eq!(refused(Op::Conv2d { stride: [1, 1], groups: 1 }, &[1, 3, 4, 6], &[5, 3, 2, 2]), nothing);
    assert_eq!(refused(Op::Conv2d { stride: [2, 2], groups: 1 }, &[1, 3, 4, 5], &[5, 3, 2, 2]), nothing);
    assert_eq!(refused(Op::Conv3d { stride: [2, 1, 2] }, &[1, 3, 4, 4, 4], &[5, 3, 2, 2, 2]), nothing);
}

/// A gated layer over one packed projection, whose halves meet again; the host chooses the number of rows.
fn gated(b: &mut Builder<'_>, bias: bool) -> ValueId {
    let x = b.input("x", rows_of(4));
    let packed = weight(b, "mlp.gate_up_proj.weight", &[6, 4]);
    let bias = bias.then(|| weight(b, "mlp.gate_up_proj.bias", &[6]));
    let both = b.linear(x, packed, bias);
    let (gate, up) = (b.slice_axis(both, 2, 0, 3), b.slice_axis(both, 2, 3, 6));
    let gate = b.unary(crate::graph::Unary::Silu, gate);
    b.mul(gate, up)
}

#[test]
fn packed_projections_become_two() {
    insta::assert_snapshot!(after(module(|b| gated(b, true)), &[&SplitGateUp]));
}

#[test]
fn halves_have_the_names_they_have_where_they_are_stored_apart() {
    let mut module = module(|b| gated(b, false));
    assert_eq!(SplitGateUp.run(&mut module).unwrap(), Outcome::Rewrote(1));
    let weights = module.functions[0].nodes.iter().filter_map(|node| match node.op {
        Op::Constant(id) => module.weights.parameter_name(id),
        _ => None,
    });
    assert_eq!(weights.collect::<Vec<_>>(), ["mlp.gate_proj.weight", "mlp.up_proj.weight"]);
}

#[test]
fn projections_that_are_used_otherwise_stay_packed() {
    type Use = fn(&mut Builder<'_>, ValueId) -> ValueId;
    let uses: [(&str, Use); 5] = [
        ("one half", |b, both| b.slice_axis(both, 1, 0, 3)),
        ("three parts", |b, both| {
            let parts = [0, 2, 4].map(|begin| b.slice_axis(both, 1, begin, begin + 2));
            b.concat(&parts, 1)
        }),
        ("all of it, too", |b, both| {
            let (gate, up) = (b.slice_axis(both, 1, 0, 3), b.slice_axis(both, 1, 3, 6));
            b.concat(&[gate, up, both], 1)
        }),
        ("halves of some rows", |b, both| {
            let rows = b.slice_axis(both, 0, 0, 1);
            let (gate, up) = (b.slice_axis(rows, 1, 0, 3), b.slice_axis(both, 1, 3, 6));
            b.mul(gate, up)
        }),
        ("its result", |b, both| {
            let (gate, up) = (b.slice_axis(both, 1, 0, 3), b.slice_axis(both, 1, 3, 6));
            let y = b.mul(gate, up);
            b.result("both", both);
            y
        }),
    ];
    for (what, used) in uses {
        let mut module = module(|b| {
            let x = b.input("x", f32s(&[2, 4]));
            let packed = weight(b, "w", &[6, 4]);
            let both = b.linear(x, packed, None);
            used(b, both)
        });
        let outcome = SplitGateUp.run(&mut module).unwrap();
        assert_eq!(outcome, Outcome::Nothing("no linear layer is used by its halves alone"), "{what}");
    }
}

#[test]
fn transposes_and_reshapes_in_a_row_cancel() {
    let module = module(|b| {
        let x = b.input("x", f32s(&[2, 3, 4]));
        let y = b.transpose(x, &[1, 0, 2]);
        let y = b.transpose(y, &[1, 0, 2]);
        let y = b.transpose(y, &[2, 0, 1]);
        let y = b.reshape(y, &[8, 3]);
        b.reshape(y, &[4, 6])
    });
    insta::assert_snapshot!(after(module, &[&CancelTransposes, &DeadCode]));
}

#[test]
fn tables_are_computed_and_weights_stay_recipes() {
    let module = module(|b| {
        let x = b.input("x", f32s(&[2, 4]));
        let w = weight(b, "w", &[3, 4]);
        let rows = b.slice_axis(w, 0, 1, 3);
        let angles = b.floats(&[2, 1], &[0.0, 1.0]);
        let cos = b.unary(crate::graph::Unary::Cos, angles);
        let y = b.mul(x, cos);
        b.add(y, rows)
    });
    insta::assert_snapshot!(after(module, &[&FoldConstants, &DeadCode]));
}

#[test]
fn linear_layers_become_products() {
    let module = module(|b| {
        let x = b.input("x", f32s(&[1, 2, 4]));
        let (w, bias) = (weight(b, "w", &[3, 4]), weight(b, "b", &[3]));
        b.linear(x, w, Some(bias))
    });
    insta::assert_snapshot!(after(module, &[&LowerLinear]));
}

#[test]
fn norms_become_composites_one_for_each_type() {
    let module = module(|b| {
        let x = b.input("x", f32s(&[1, 2, 4]));
        let (g, h) = (weight(b, "g", &[4]), weight(b, "h", &[4]));
        let y = b.rms_norm(x, g, 1e-6);
        let y = b.rms_norm(y, h, 1e-6);
        b.layer_norm(y, g, h, 1e-5)
    });
    insta::assert_snapshot!(after(module, &[&Externalize]));
}

#[test]
fn attention_to_all_keys_has_no_mask() {
    let module = module(|b| {
        let (q, k) = (b.input("q", f32s(&[1, 2, 3, 4])), b.input("k", f32s(&[1, 2, 5, 4])));
        b.attention([q, k, k], false)
    });
    insta::assert_snapshot!(after(module, &[&Externalize]));
}

/// Three experts of width 32 over 64, two of them chosen for each of `tokens`.
fn experts(tokens: usize) -> Module {
    module(|b| {
        let x = b.input("x", f32s(&[tokens, 64]));
        let probability = b.input("p", f32s(&[tokens, 2]));
        let choices: Vec<i32> = (0..tokens as i32).flat_map(|t| [t % 3, (t + 2) % 3]).collect();
        let expert = b.integers(&[tokens, 2], &choices);
        let mut inputs = vec![x, probability, expert];
        for (part, shape) in [("gate", [32, 64]), ("up", [32, 64]), ("down", [64, 32])] {
            inputs.extend((0..3).map(|e| weight(b, &format!("{part}.{e}"), &shape)));
        }
        b.node(Op::RoutedExperts { experts: 3 }, &inputs)
    })
}

const QUANTISE: QuantiseExperts = QuantiseExperts { code: BlockCode::Sym8, step: QuantiseExperts::KERNEL_STEP };

#[test]
fn experts_are_stacked_and_gathered() {
    insta::assert_snapshot!(after(experts(2), &[&StackExperts, &GatherMoe, &DeadCode]));
}

#[test]
fn quantised_experts_are_gathered_as_stored() {
    insta::assert_snapshot!(after(experts(2), &[&StackExperts, &QUANTISE, &GatherMoe, &DeadCode]));
}

/// The experts of a token in half precision, as the kernel takes them.
fn half_experts(tokens: usize) -> Module {
    let half = |shape: &[usize]| TensorType::new(ElementType::F16, shape);
    module(|b| {
        let x = b.input("x", half(&[tokens, 64]));
        let probability = b.input("p", f32s(&[tokens, 2]));
        let choices: Vec<i32> = (0..tokens as i32).flat_map(|t| [t % 3, (t + 2) % 3]).collect();
        let expert = b.integers(&[tokens, 2], &choices);
        let mut inputs = vec![x, probability, expert];
        for (part, shape) in [("gate", [32, 64]), ("up", [32, 64]), ("down", [64, 32])] {
            for e in 0..3 {
                let read = stored(b.weights(), &format!("{part}.{e}"), &shape);
                let cast = b.weights().cast(read, ElementType::F16);
                inputs.push(b.weight(cast));
            }
        }
        b.node(Op::RoutedExperts { experts: 3 }, &inputs)
    })
}

#[test]
fn one_token_takes_its_slots_to_the_kernel_as_they_are() {
    insta::assert_snapshot!(after(half_experts(1), &[&StackExperts, &QUANTISE, &MetalizeMoe, &DeadCode]));
}

#[test]
fn many_tokens_are_sorted_by_expert_and_put_back() {
    insta::assert_snapshot!(after(half_experts(3), &[&StackExperts, &QUANTISE, &MetalizeMoe, &DeadCode]));
}

#[test]
fn the_kernel_refuses_floats_and_single_precision() {
    let refused = |mut module: Module, passes: &[&dyn Pass]| {
        passes.iter().try_for_each(|pass| pass.run(&mut module).map(drop)).unwrap_err()
    };
    let error = refused(half_experts(1), &[&StackExperts, &MetalizeMoe]);
    assert_eq!(error.to_string(), "the Metal kernel needs quantised experts");
    let error = refused(experts(1), &[&StackExperts, &QUANTISE, &MetalizeMoe]);
    assert_eq!(error.to_string(), "the Metal kernel needs half precision");
}

#[test]
fn a_pass_that_breaks_an_invariant_is_named() {
    #[derive(Debug)]
    struct Breaking;
    impl Pass for Breaking {
        fn name(&self) -> &'static str {
            "breaking"
        }
        fn run(&self, module: &mut Module) -> Result<Outcome> {
            module.functions[0].nodes[0].ty = f32s(&[7]);
            Ok(Outcome::Rewrote(1))
        }
    }
    let mut module = module(|b| {
        let x = b.input("x", f32s(&[2]));
        b.add(x, x)
    });
    let error = run(&mut module, &Breaking).unwrap_err();
    assert!(error.to_string().starts_with("pass `breaking`: "), "{error}");
}

#[test]
fn a_rewrite_that_moves_the_numbers_is_refused() {
    #[derive(Debug)]
    struct Doubling;
    impl Pass for Doubling {
        fn name(&self) -> &'static str {
            "doubling"
        }
        fn run(&self, module: &mut Module) -> Result<Outcome> {
            rewrite_entries(module, |rewriter, node| {
                let inputs = rewriter.inputs(node);
                Ok((node.op == Op::Softmax { axis: 0 }).then(|| rewriter.builder.add(inputs[0], inputs[0])))
            })
            .map(Outcome::Rewrote)
        }
    }
    let mut module = module(|b| {
        let x = b.input("x", f32s(&[2]));
        b.node(Op::Softmax { axis: 0 }, &[x])
    });
    let error = run_proved(&mut module, &Doubling).unwrap_err();
    assert!(error.to_string().starts_with("pass `doubling`: the pass changed the numbers"), "{error}");
}
