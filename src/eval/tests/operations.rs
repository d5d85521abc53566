//! Tables of cases; the expected numbers are worked out by hand or taken from published tables.

use super::{apply, apply_declared, assert_close, bools, f32s, i8s, i32s};
use crate::eval::Tensor;
use crate::graph::{Binary, Op, Reduction, TensorType, Unary, Window};
use crate::weights::Resampling;
use crate::{ElementType, Result};

#[test]
fn unary_functions() -> Result<()> {
    // Reference values from the C library in double precision.
    let cases: &[(Unary, [f32; 3], [f64; 3])] = &[
        (Unary::Exp, [-1.5, 0.0, 2.0], [0.223_130_160_1, 1.0, 7.389_056_098_9]),
        (Unary::Sin, [-1.5, 0.5, 3.0], [-0.997_494_986_6, 0.479_425_538_6, 0.141_120_008_1]),
        (Unary::Cos, [-1.5, 0.5, 3.0], [0.070_737_201_7, 0.877_582_561_9, -0.989_992_496_6]),
        (Unary::Tanh, [-1.5, 0.5, 20.0], [-0.905_148_253_6, 0.462_117_157_3, 1.0]),
        (Unary::Sqrt, [0.0, 2.25, 5.0], [0.0, 1.5, 2.236_067_977_5]),
        (Unary::Rsqrt, [1.0, 0.25, 5.0], [1.0, 2.0, 0.447_213_595_5]),
        (Unary::Sigmoid, [-100.0, 0.0, 1.5], [0.0, 0.5, 0.817_574_476_2]),
        (Unary::Silu, [-1.5, 0.0, 2.5], [-0.273_638_285_7, 0.0, 2.310_354_549_9]),
        (Unary::GeluErf, [-1.5, 0.0, 2.5], [-0.100_210_801_9, 0.0, 2.484_475_836_7]),
        (Unary::GeluTanh, [-1.5, 0.0, 2.5], [-0.100_428_423, 0.0, 2.484_915_733_9]),
        (Unary::QuickGelu, [-1.5, 0.0, 2.5], [-0.108_337_801_6, 0.0, 2.465_013_835]),
    ];
    for (f, x, expected) in cases {
        let expected = expected.map(|value| value as f32);
        assert_close(&apply(&Op::Unary(*f), &[f32s(&[3], x)])?, &[3], &expected, 3e-7);
    }
    assert_eq!(apply(&Op::Unary(Unary::Not), &[bools(&[2], &[true, false])])?, bools(&[2], &[false, true]).1);
    assert!(apply(&Op::Unary(Unary::Exp), &[i32s(&[1], &[1])]).is_err());
    Ok(())
}

#[test]
fn binary_functions_of_numbers() -> Result<()> {
    let cases: &[(Binary, [f32; 3])] = &[
        (Binary::Add, [3.0, 1.0, -2.0]),
        (Binary::Sub, [-1.0, 3.0, -4.0]),
        (Binary::Mul, [2.0, -2.0, -3.0]),
        (Binary::Div, [0.5, -2.0, -3.0]),
        (Binary::Max, [2.0, 2.0, 1.0]),
        (Binary::Min, [1.0, -1.0, -3.0]),
    ];
    let (a, b) = (f32s(&[3], &[1.0, 2.0, -3.0]), f32s(&[3], &[2.0, -1.0, 1.0]));
    for (f, expected) in cases {
        assert_close(&apply(&Op::Binary(*f), &[a.clone(), b.clone()])?, &[3], expected, 0.0);
    }
    assert_eq!(apply(&Op::Binary(Binary::Greater), &[a.clone(), b.clone()])?, bools(&[3], &[false, true, false]).1);
    assert_eq!(apply(&Op::Binary(Binary::Equal), &[a.clone(), a.clone()])?, bools(&[3], &[true; 3]).1);
    assert!(apply(&Op::Binary(Binary::And), &[a, b]).is_err());
    Ok(())
}

#[test]
fn binary_functions_of_integers_round_quotients_down() -> Result<()> {
    let cases: &[(Binary, [i32; 4])] = &[
        (Binary::Add, [9, -5, 5, -9]),
        (Binary::Sub, [5, -9, 9, -5]),
        (Binary::Mul, [14, -14, -14, 14]),
        (Binary::Div, [3, -4, -4, 3]),
        (Binary::Max, [7, 2, 7, -2]),
        (Binary::Min, [2, -7, -2, -7]),
    ];
    let (a, b) = (i32s(&[4], &[7, -7, 7, -7]), i32s(&[4], &[2, 2, -2, -2]));
    for (f, expected) in cases {
        assert_eq!(apply(&Op::Binary(*f), &[a.clone(), b.clone()])?, i32s(&[4], expected).1, "{f:?}");
    }
    assert_eq!(apply(&Op::Binary(Binary::Greater), &[a.clone(), b])?, bools(&[4], &[true, false, true, false]).1);
    let by_zero = apply(&Op::Binary(Binary::Div), &[a, i32s(&[], &[0])]);
    assert!(by_zero.is_err_and(|e| e.to_string().contains("division by zero")));
    Ok(())
}

#[test]
fn logic_and_selection() -> Result<()> {
    let (a, b) = (bools(&[4], &[true, true, false, false]), bools(&[4], &[true, false, true, false]));
    for (f, expected) in [
        (Binary::And, [true, false, false, false]),
        (Binary::Or, [true, true, true, false]),
        (Binary::Equal, [true, false, false, true]),
    ] {
        assert_eq!(apply(&Op::Binary(f), &[a.clone(), b.clone()])?, bools(&[4], &expected).1);
    }
    let chosen = apply(&Op::Select, &[bools(&[2, 1], &[true, false]), f32s(&[2], &[1.0, 2.0]), f32s(&[], &[9.0])])?;
    assert_close(&chosen, &[2, 2], &[1.0, 2.0, 9.0, 9.0], 0.0);
    Ok(())
}

#[test]
fn casts_drop_fractions_and_bits_that_do_not_fit() -> Result<()> {
    let x = f32s(&[4], &[-1.9, 0.0, 2.9, 300.0]);
    let cast = |to, x: &(ElementType, Tensor)| apply(&Op::Cast(to), std::slice::from_ref(x));
    assert_eq!(cast(ElementType::I32, &x)?, i32s(&[4], &[-1, 0, 2, 300]).1);
    assert_eq!(cast(ElementType::I8, &x)?, i8s(&[4], &[-1, 0, 2, 127]).1);
    assert_eq!(cast(ElementType::U16, &x)?, i32s(&[4], &[0, 0, 2, 300]).1);
    assert_eq!(cast(ElementType::Bool, &x)?, bools(&[4], &[true, false, true, true]).1);
    assert_eq!(cast(ElementType::F16, &x)?, x.1);
    assert_eq!(cast(ElementType::U8, &i32s(&[2], &[257, -1]))?, i32s(&[2], &[1, 255]).1);
    assert_close(&cast(ElementType::F32, &bools(&[2], &[true, false]))?, &[2], &[1.0, 0.0], 0.0);
    assert_close(&cast(ElementType::F32, &i8s(&[2], &[-128, 5]))?, &[2], &[-128.0, 5.0], 0.0);
    assert_eq!(cast(ElementType::Bool, &i32s(&[2], &[0, 7]))?, bools(&[2], &[false, true]).1);
    Ok(())
}

#[test]
fn reductions_keep_their_axes() -> Result<()> {
    let x = f32s(&[2, 2, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 9.0]);
    let reduce = |kind, axes: &[usize]| apply(&Op::Reduce { kind, axes: axes.to_vec() }, std::slice::from_ref(&x));
    assert_close(&reduce(Reduction::Sum, &[1])?, &[2, 1, 2], &[4.0, 6.0, 12.0, 15.0], 0.0);
    assert_close(&reduce(Reduction::Mean, &[2])?, &[2, 2, 1], &[1.5, 3.5, 5.5, 8.0], 0.0);
    assert_close(&reduce(Reduction::Max, &[0, 2])?, &[1, 2, 1], &[6.0, 9.0], 0.0);
    assert_close(&reduce(Reduction::Min, &[0, 1, 2])?, &[1, 1, 1], &[1.0], 0.0);
    let integers = i32s(&[2, 2], &[1, 2, 3, 4]);
    let sum = apply(&Op::Reduce { kind: Reduction::Sum, axes: vec![0] }, std::slice::from_ref(&integers))?;
    assert_eq!(sum, i32s(&[1, 2], &[4, 6]).1);
    Ok(())
}

#[test]
fn sums_of_many_small_numbers_are_exact() -> Result<()> {
    let x = f32s(&[1 << 20], &vec![0.1; 1 << 20]);
    let mean = apply(&Op::Reduce { kind: Reduction::Mean, axes: vec![0] }, &[x])?;
    assert_close(&mean, &[1], &[0.1], 0.0);
    Ok(())
}

#[test]
fn softmax_survives_large_logits_and_masks() -> Result<()> {
    let x = f32s(&[2, 2], &[1000.0, 1000.0, f32::NEG_INFINITY, 3.0]);
    let rows = apply(&Op::Softmax { axis: 1 }, std::slice::from_ref(&x))?;
    assert_close(&rows, &[2, 2], &[0.5, 0.5, 0.0, 1.0], 0.0);
    let columns = apply(&Op::Softmax { axis: 0 }, &[f32s(&[2, 2], &[0.0, 0.0, 0.0, 3.0f32.ln()])])?;
    assert_close(&columns, &[2, 2], &[0.5, 0.25, 0.5, 0.75], 1e-6);
    Ok(())
}

#[test]
fn norms() -> Result<()> {
    let x = f32s(&[2, 2], &[3.0, 4.0, 0.0, 0.0]);
    let rms = apply(&Op::RmsNorm { epsilon: 1.0 }, &[x.clone(), f32s(&[2], &[1.0, 2.0])])?;
    let scale = 1.0 / 13.5f32.sqrt();
    assert_close(&rms, &[2, 2], &[3.0 * scale, 8.0 * scale, 0.0, 0.0], 1e-6);
    let gamma_beta = [f32s(&[2], &[2.0, 4.0]), f32s(&[2], &[10.0, 20.0])];
    let layer = apply(
        &Op::LayerNorm { epsilon: 0.0 },
        &[f32s(&[1, 2], &[1.0, 3.0]), gamma_beta[0].clone(), gamma_beta[1].clone()],
    )?;
    assert_close(&layer, &[1, 2], &[8.0, 24.0], 1e-6);
    Ok(())
}

#[test]
fn sorting_is_stable_both_ways() -> Result<()> {
    let x = f32s(&[5], &[2.0, -0.0, 2.0, 0.0, 1.0]);
    let arg = |descending| apply(&Op::ArgSort { axis: 0, descending }, std::slice::from_ref(&x));
    assert_eq!(arg(true)?, i32s(&[5], &[0, 2, 4, 1, 3]).1);
    assert_eq!(arg(false)?, i32s(&[5], &[1, 3, 4, 0, 2]).1);
    let table = i32s(&[3, 2], &[3, 1, 1, 2, 2, 3]);
    let sorted = apply(&Op::Sort { axis: 0, descending: true }, std::slice::from_ref(&table))?;
    assert_eq!(sorted, i32s(&[3, 2], &[3, 3, 2, 2, 1, 1]).1);
    let with_nan = apply(&Op::ArgSort { axis: 0, descending: false }, &[f32s(&[3], &[f32::NAN, 2.0, 1.0])])?;
    assert_eq!(with_nan, i32s(&[3], &[2, 1, 0]).1);
    Ok(())
}

#[test]
fn arg_max_takes_the_first_of_equals() -> Result<()> {
    let x = f32s(&[2, 3], &[1.0, 5.0, 5.0, 2.0, 0.0, 7.0]);
    assert_eq!(apply(&Op::ArgMax { axis: 1 }, std::slice::from_ref(&x))?, i32s(&[2, 1], &[1, 2]).1);
    assert_eq!(apply(&Op::ArgMax { axis: 0 }, &[x])?, i32s(&[1, 3], &[1, 0, 1]).1);
    Ok(())
}

#[test]
fn movement() -> Result<()> {
    let x = i32s(&[2, 3], &[1, 2, 3, 4, 5, 6]);
    let one = |op: &Op| apply(op, std::slice::from_ref(&x));
    assert_eq!(one(&Op::Transpose(vec![1, 0]))?, i32s(&[3, 2], &[1, 4, 2, 5, 3, 6]).1);
    assert_eq!(one(&Op::Reshape(vec![3, 2]))?, i32s(&[3, 2], &[1, 2, 3, 4, 5, 6]).1);
    assert_eq!(one(&Op::Slice { begin: vec![1, 0], end: vec![2, 2] })?, i32s(&[1, 2], &[4, 5]).1);
    assert_eq!(one(&Op::BroadcastTo(vec![2, 2, 3]))?, i32s(&[2, 2, 3], &[1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6]).1);
    let padded = one(&Op::Pad { before: vec![0, 1], after: vec![1, 0] })?;
    assert_eq!(padded, i32s(&[3, 4], &[0, 1, 2, 3, 0, 4, 5, 6, 0, 0, 0, 0]).1);
    let joined = apply(&Op::Concat { axis: 1 }, &[x.clone(), i32s(&[2, 1], &[7, 8])])?;
    assert_eq!(joined, i32s(&[2, 4], &[1, 2, 3, 7, 4, 5, 6, 8]).1);
    Ok(())
}

#[test]
fn run_time_slices_count_from_the_end_and_clamp() -> Result<()> {
    let x = i32s(&[4, 2], &[0, 1, 2, 3, 4, 5, 6, 7]);
    let cases = [
        ([1, 0], [3, 2], [2, 2], vec![2, 3, 4, 5]),
        ([-1, 0], [i32::MAX, i32::MAX], [1, 2], vec![6, 7]),
        ([0, -1], [-2, 2], [2, 1], vec![1, 3]),
        ([-100, 1], [1, 100], [1, 1], vec![1]),
        ([2, 0], [2, 2], [0, 2], vec![]),
    ];
    for (begin, end, shape, expected) in cases {
        let inputs = [x.clone(), i32s(&[2], &begin), i32s(&[2], &end)];
        let slice = apply_declared(&Op::SliceAt, &inputs, Some(TensorType::new(ElementType::I32, &shape)))?;
        assert_eq!(slice, i32s(&shape, &expected).1);
    }
    let inputs = [x, i32s(&[2], &[0, 0]), i32s(&[2], &[1, 1])];
    let wrong = apply_declared(&Op::SliceAt, &inputs, Some(TensorType::new(ElementType::I32, &[2, 2])));
    assert!(wrong.is_err_and(|e| e.to_string().contains("another type than the graph says")));
    Ok(())
}

#[test]
fn slice_update_replaces_a_box() -> Result<()> {
    let x = f32s(&[2, 3], &[0.0; 6]);
    let update = |begin: &[i32], end: &[i32], new: &[f32]| {
        let shape = [2, new.len() / 2];
        apply(&Op::SliceUpdate, &[x.clone(), i32s(&[2], begin), i32s(&[2], end), f32s(&shape, new)])
    };
    assert_close(&update(&[0, -2], &[2, 3], &[1.0, 2.0, 3.0, 4.0])?, &[2, 3], &[0.0, 1.0, 2.0, 0.0, 3.0, 4.0], 0.0);
    assert!(update(&[0, 2], &[2, 4], &[1.0, 2.0, 3.0, 4.0]).is_err(), "a clamped box is smaller than its update");
    Ok(())
}

#[test]
fn gather_takes_boxes_by_tuples() -> Result<()> {
    let x = i32s(&[2, 2, 2], &[0, 1, 2, 3, 4, 5, 6, 7]);
    let gather = |shape: &[usize], indices: &[i32]| apply(&Op::Gather, &[x.clone(), i32s(shape, indices)]);
    assert_eq!(gather(&[3, 1], &[1, 0, 1])?, i32s(&[3, 2, 2], &[4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7]).1);
    assert_eq!(gather(&[2, 2], &[1, 0, 0, 1])?, i32s(&[2, 2], &[4, 5, 2, 3]).1);
    assert_eq!(gather(&[1, 1, 3], &[1, 1, 0])?, i32s(&[1, 1], &[6]).1);
    for bad in [-1, 2] {
        assert!(gather(&[1, 1], &[bad]).is_err_and(|e| e.to_string().contains("out of range")));
    }
    Ok(())
}

#[test]
fn gather_along_an_axis() -> Result<()> {
    let x = f32s(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let rows = apply(&Op::GatherAlongAxis { axis: 1 }, &[x.clone(), i32s(&[2, 2], &[2, 0, 1, 1])])?;
    assert_close(&rows, &[2, 2], &[3.0, 1.0, 5.0, 5.0], 0.0);
    let columns = apply(&Op::GatherAlongAxis { axis: 0 }, &[x.clone(), i32s(&[1, 3], &[1, 0, 1])])?;
    assert_close(&columns, &[1, 3], &[4.0, 2.0, 6.0], 0.0);
    assert!(apply(&Op::GatherAlongAxis { axis: 1 }, &[x, i32s(&[2, 1], &[3, 0])]).is_err());
    Ok(())
}

#[test]
fn linear_multiplies_by_the_transpose() -> Result<()> {
    let inputs = [
        f32s(&[1, 2, 2], &[1.0, 2.0, 3.0, 4.0]),
        f32s(&[3, 2], &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0]),
        f32s(&[3], &[10.0, 20.0, 30.0]),
    ];
    assert_close(&apply(&Op::Linear, &inputs[..2])?, &[1, 2, 3], &[1.0, 2.0, 3.0, 3.0, 4.0, 7.0], 0.0);
    assert_close(&apply(&Op::Linear, &inputs)?, &[1, 2, 3], &[11.0, 22.0, 33.0, 13.0, 24.0, 37.0], 0.0);
    Ok(())
}

#[test]
fn resampling_equals_that_of_weights() -> Result<()> {
    let table = [0.0, 10.0, 1.0, 11.0, 2.0, 12.0, 3.0, 13.0];
    let op = Op::Resample { kind: Resampling::Linear, to: vec![2] };
    assert_close(&apply(&op, &[f32s(&[4, 2], &table)])?, &[2, 2], &[0.5, 10.5, 2.5, 12.5], 0.0);
    Ok(())
}

#[test]
fn block_scale_uses_one_scale_a_block() -> Result<()> {
    let codes = i8s(&[2, 4], &[1, 2, 3, 4, -1, -2, -3, -128]);
    let scales = (ElementType::F16, f32s(&[2, 2], &[1.0, 0.5, 2.0, 0.25]).1);
    let made = apply(&Op::BlockScale, &[codes, scales])?;
    assert_close(&made, &[2, 4], &[1.0, 2.0, 1.5, 2.0, -2.0, -4.0, -0.75, -32.0], 0.0);
    Ok(())
}

#[test]
fn gather_qmm_unpacks_four_signed_bytes_a_word() -> Result<()> {
    // Two experts of one output over 32 inputs: all 1 with scale 0.5, and (-1, 2, 0, ..) with scale 2.
    let first = [0x0101_0101; 8];
    let mut second = [0; 8];
    second[0] = i32::from_le_bytes([0xff, 2, 0, 0]);
    let codes = (ElementType::U32, i32s(&[2, 1, 8], &[first, second].concat()).1);
    let scales = (ElementType::F16, f32s(&[2, 1, 1], &[0.5, 2.0]).1);
    let a: Vec<f32> = (0..96).map(|i| (i % 32) as f32).collect();
    let a = (ElementType::F16, f32s(&[3, 32], &a).1);
    let made = apply(&Op::GatherQmm, &[a.clone(), codes.clone(), scales.clone(), i32s(&[3], &[1, 0, 1])])?;
    assert_close(&made, &[3, 1], &[4.0, 248.0, 4.0], 0.0);
    let unknown = apply(&Op::GatherQmm, &[a, codes, scales, i32s(&[3], &[1, 2, 1])]);
    assert!(unknown.is_err_and(|e| e.to_string().contains("no such expert: found 2")));
    Ok(())
}

/// `down(silu(gate x) * up x)` for scalars.
fn scalar_expert(x: f32, [gate, up, down]: [f32; 3]) -> f32 {
    let g = gate * x;
    down * (g / (1.0 + (-g).exp()) * (up * x))
}

#[test]
fn experts_are_weighted_by_probability() -> Result<()> {
    let experts = [[1.0, 2.0, 3.0], [-1.0, 0.5, 2.0], [0.3, 0.7, -1.0]];
    let x = f32s(&[2, 1], &[1.5, -2.0]);
    let probability = f32s(&[2, 2], &[0.75, 0.25, 0.5, 0.125]);
    let chosen = i32s(&[2, 2], &[0, 2, 2, 1]);
    let expected = [
        0.75 * scalar_expert(1.5, experts[0]) + 0.25 * scalar_expert(1.5, experts[2]),
        0.5 * scalar_expert(-2.0, experts[2]) + 0.125 * scalar_expert(-2.0, experts[1]),
    ];
    let mut separate = vec![x.clone(), probability.clone(), chosen.clone()];
    let mut stacked = separate.clone();
    for kind in 0..3 {
        separate.extend(experts.iter().map(|e| f32s(&[1, 1], &[e[kind]])));
        let padded: Vec<f32> = experts.iter().flat_map(|e| [e[kind], 0.0]).collect();
        stacked.push(f32s(&[3, 1, 2], &padded));
    }
    assert_close(&apply(&Op::RoutedExperts { experts: 3 }, &separate)?, &[2, 1], &expected, 1e-6);
    assert_close(&apply(&Op::StackedExperts, &stacked)?, &[2, 1], &expected, 1e-6);
    Ok(())
}

#[test]
fn the_cache_is_written_at_the_start_given() -> Result<()> {
    let cache = f32s(&[2, 1, 2, 3, 1], &[0.0; 12]);
    let columns = f32s(&[1, 2, 2, 1], &[1.0, 2.0, 3.0, 4.0]);
    let append = |start| apply(&Op::KvAppend { layer: 1 }, &[cache.clone(), columns.clone(), i32s(&[1], &[start])]);
    let written = append(1)?;
    let expected = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 0.0, 3.0, 4.0];
    assert_close(&written, &[2, 1, 2, 3, 1], &expected, 0.0);
    assert!(append(2).is_err_and(|e| e.to_string().contains("do not fit the cache")));
    assert!(append(-1).is_err());
    Ok(())
}

#[test]
fn queries_are_the_last_of_the_sequence_and_heads_share_groups() -> Result<()> {
    // Scores of 0 and ln 3 give weights of 1/4 and 3/4; d = 4, so that scores are halved.
    let ln3 = 2.0 * 3.0_f32.ln();
    let one = |value: f32| [value, 0.0, 0.0, 0.0];
    let q = f32s(&[1, 2, 2, 4], &[one(1.0), one(1.0), one(0.0), one(0.0)].concat());
    let k = f32s(&[1, 1, 3, 4], &[one(0.0), one(ln3), one(f32::MIN)].concat());
    let v = f32s(&[1, 1, 3, 4], &[one(4.0), one(8.0), one(-9.0)].concat());
    let causal = apply(&Op::Attention { causal: true }, &[q.clone(), k.clone(), v.clone()])?;
    // The first query of each head does not see the third key; to the head of zeros all keys are alike.
    let expected = [one(7.0), one(7.0), one(6.0), one(1.0)].concat();
    assert_close(&causal, &[1, 2, 2, 4], &expected, 1e-6);
    let full = apply(&Op::Attention { causal: false }, &[q, k, v])?;
    assert_close(&full, &[1, 2, 2, 4], &[one(7.0), one(7.0), one(1.0), one(1.0)].concat(), 1e-6);
    Ok(())
}

#[test]
fn shapes_and_ranges_are_values() -> Result<()> {
    assert_eq!(apply(&Op::ShapeOf, &[f32s(&[2, 0, 3], &[])])?, i32s(&[3], &[2, 0, 3]).1);
    let x = f32s(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let ty = TensorType::new(ElementType::F32, &[3, 2]);
    let reshaped = apply_declared(&Op::ReshapeAt, &[x.clone(), i32s(&[2], &[3, 2])], Some(ty.clone()))?;
    assert_close(&reshaped, &[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0.0);
    assert_eq!(apply_declared(&Op::ReshapeAt, &[x.clone(), i32s(&[2], &[3, -1])], Some(ty.clone()))?, reshaped);
    for wrong in [[4, -1], [-1, -1], [-2, -3], [0, -1]] {
        assert!(
            apply_declared(&Op::ReshapeAt, &[x.clone(), i32s(&[2], &wrong)], Some(ty.clone())).is_err(),
            "{wrong:?}"
        );
    }
    assert!(apply_declared(&Op::ReshapeAt, &[x, i32s(&[2], &[3, 3])], Some(ty)).is_err());
    let range = |begin, end, n: usize| {
        let ty = TensorType::new(ElementType::I32, &[n]);
        apply_declared(&Op::Range, &[i32s(&[], &[begin]), i32s(&[], &[end])], Some(ty))
    };
    assert_eq!(range(-1, 2, 3)?, i32s(&[3], &[-1, 0, 1]).1);
    assert_eq!(range(2, -1, 0)?, i32s(&[0], &[]).1);
    assert!(range(0, i32::MAX, 0).is_err());
    Ok(())
}

#[test]
fn cached_attention_sees_the_past_that_the_window_leaves() -> Result<()> {
    // Queries of zero weigh all keys alike, so that the result is the mean of the values seen.
    let values: Vec<f32> = [0.0; 6].into_iter().chain([1.0, 2.0, 4.0, 8.0, 16.0, 32.0]).collect();
    let cache = f32s(&[2, 1, 1, 6, 1], &values);
    let q = f32s(&[1, 1, 2, 1], &[0.0, 0.0]);
    let attend = |start, window| {
        let op = Op::CachedAttention { layer: 1, window };
        apply(&op, &[q.clone(), cache.clone(), cache.clone(), i32s(&[1], &[start])])
    };
    assert_close(&attend(0, None)?, &[1, 1, 2, 1], &[1.0, 1.5], 1e-6);
    assert_close(&attend(3, None)?, &[1, 1, 2, 1], &[15.0 / 4.0, 31.0 / 5.0], 1e-6);
    // Position 0 is always seen, and the last two.
    let window = Some(Window { prefix: 1, span: 2 });
    assert_close(&attend(3, window)?, &[1, 1, 2, 1], &[13.0 / 3.0, 25.0 / 3.0], 1e-6);
    assert!(attend(5, None).is_err(), "the second query is beyond the cache");
    assert!(attend(-1, None).is_err());
    Ok(())
}
