//! What is done for the Neural Engine keeps the numbers.

use super::*;
use crate::graph::Function;
use crate::quant::{Indivisible, IndivisiblePolicy, Scheme};

/// Two norms by one weight, around a layer.
fn normed(b: &mut Builder<'_>, x: TensorType) -> ValueId {
    let x = b.input("x", x);
    let (gamma, w) = (weight(b, "gamma", &[4]), weight(b, "w", &[4, 4]));
    let y = b.rms_norm(x, gamma, 1e-6);
    let y = b.linear(y, w, None);
    b.rms_norm(y, gamma, 1e-5)
}

#[test]
fn norms_become_layer_norms_of_both_signs() {
    insta::assert_snapshot!(after(module(|b| normed(b, f32s(&[1, 2, 4]))), &[&AneNorm]));
}

#[test]
fn norms_over_any_number_of_rows_become_composites_of_layer_norms() {
    let text = after(module(|b| normed(b, rows_of(4))), &[&AneNorm, &Externalize]);
    assert!(text.contains("composite layer_norm_1xrowsx8_1e-6: layer_norm"), "{text}");
    assert!(text.contains("composite layer_norm_1xrowsx8_1e-5: layer_norm"), "{text}");
    assert!(!text.contains("rms_norm"), "{text}");
}

#[test]
fn norms_of_half_precision_have_weights_of_half_precision() {
    let half = TensorType::new(ElementType::F16, &[2, 4]);
    let text = after(
        module(|b| {
            let (x, gamma) = (b.input("x", half.clone()), b.input("gamma", TensorType::new(ElementType::F16, &[4])));
            b.rms_norm(x, gamma, 1e-6)
        }),
        &[&AneNorm],
    );
    assert!(text.contains("layer_norm epsilon=1e-6 %5, %2, %6 : f16[2,8]"), "{text}");
}

#[test]
fn layer_norms_stay() {
    let mut module = module(|b| {
        let x = b.input("x", f32s(&[2, 4]));
        let (gamma, beta) = (weight(b, "gamma", &[4]), weight(b, "beta", &[4]));
        b.layer_norm(x, gamma, beta, 1e-6)
    });
    assert_eq!(AneNorm.run(&mut module).unwrap(), Outcome::Nothing("there are no root-mean-square norms"));
}

/// Two layers over one value, one of them with a bias, and one over what they make.
fn layers(b: &mut Builder<'_>, x: TensorType) -> ValueId {
    let x = b.input("x", x);
    let (q, k, bias) = (weight(b, "q", &[6, 32]), weight(b, "k", &[6, 32]), weight(b, "k.bias", &[6]));
    let (q, k) = (b.linear(x, q, None), b.linear(x, k, Some(bias)));
    let (y, o) = (b.mul(q, k), weight(b, "o", &[32, 6]));
    b.linear(y, o, None)
}

#[test]
fn layers_become_convolutions_of_one_tap() {
    insta::assert_snapshot!(after(module(|b| layers(b, f32s(&[1, 3, 32]))), &[&AneConv]));
}

#[test]
fn layers_over_one_and_over_many_axes_become_convolutions() {
    for shape in [vec![32], vec![5, 32], vec![2, 1, 3, 32]] {
        let mut module = module(|b| layers(b, f32s(&shape)));
        assert_eq!(run_proved(&mut module, &AneConv).unwrap().outcome, Outcome::Rewrote(3), "{shape:?}");
        assert_eq!(count(&module.functions[0], "transpose"), 2 + 3, "{shape:?}: what two layers read is turned once");
    }
}

fn count(function: &Function, op: &str) -> usize {
    function.nodes.iter().filter(|node| node.op.name() == op).count()
}

#[test]
fn quantised_weights_are_scaled_before_they_are_taps() {
    let quantise = QuantiseLinears { scheme: Scheme::Int8Hu, indivisible: IndivisiblePolicy::new(Indivisible::Pad) };
    let module = module(|b| {
        let (x, w) = (b.input("x", f32s(&[1, 2, 32])), weight(b, "w", &[6, 32]));
        b.linear(x, w, None)
    });
    insta::assert_snapshot!(after(module, &[&quantise, &AneConv]));
}

#[test]
fn layers_over_any_number_of_rows_stay() {
    let mut module = module(|b| layers(b, rows_of(32)));
    let nothing = Outcome::Nothing("there are no linear layers over a fixed number of rows");
    assert_eq!(AneConv.run(&mut module).unwrap(), nothing);
    assert_eq!(count(&module.functions[0], "linear"), 3);
}
