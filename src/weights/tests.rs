//! Recipes against bytes worked out by hand, whole and in chunks.

use std::sync::Arc;

use half::{bf16, f16};
use proptest::prelude::*;

use super::{Chunk, Recipe, Resampling, WeightId, Weights, produce, read_floats, resample};
use crate::quant::{BlockCode, Coding};
use crate::storage::{MemorySource, StoredTensor};
use crate::{ElementType, Error, Result};

/// A tensor of single-precision numbers in a source of its own.
fn stored(name: &str, shape: &[usize], values: &[f32]) -> StoredTensor {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    stored_bytes(name, ElementType::F32, shape, bytes)
}

fn stored_bytes(name: &str, element: ElementType, shape: &[usize], bytes: Vec<u8>) -> StoredTensor {
    let source = Arc::new(MemorySource::new(format!("{name}.bin"), bytes));
    StoredTensor { name: name.into(), source, offset: 0, element, shape: shape.to_vec() }
}

/// Numbers that are all different and exact in half precision.
fn ramp(count: usize) -> Vec<f32> {
    (0..count).map(|i| i as f32 / 4.0 - 8.0).collect()
}

fn floats(weights: &Weights, id: WeightId) -> Result<Vec<f32>> {
    let mut out = vec![0.0; weights.elements(id)];
    read_floats(weights, id, 0, &mut out)?;
    Ok(out)
}

fn whole(weights: &Weights, id: WeightId) -> Result<Chunk> {
    produce(weights, id, 0..weights.elements(id))
}

/// A weight of each kind of recipe over a table `[6, 64]`, with the number of elements a range has to be a multiple of.
fn one_of_each(weights: &mut Weights) -> Result<Vec<(WeightId, usize)>> {
    let read = weights.read(&stored("table", &[6, 64], &ramp(384)));
    let rows = weights.rows(read, 1, 4)?;
    let padded = weights.pad(read, 1, 96)?;
    let (codes, scales) = weights.quantise(padded, BlockCode::Sym8)?;
    let literal = weights.literal_f32(&[2, 64], &ramp(128))?;
    let kinds = vec![
        (read, 1),
        (literal, 1),
        (rows, 1),
        (weights.reshape(rows, &[64, 3])?, 1),
        (weights.concat(vec![read, literal, rows])?, 1),
        (padded, 1),
        (weights.pad(read, 0, 8)?, 1),
        (weights.cast(read, ElementType::BF16)?, 1),
        (weights.resample(read, Resampling::Linear, &[4])?, 1),
        (weights.take(read, vec![5, 0, 5, 2], &[2, 2])?, 1),
        (codes, 32),
        (scales, 1),
        (weights.view(codes, ElementType::U32)?, 8),
    ];
    let narrow = weights.rows(read, 0, 2)?;
    let narrow = weights.reshape(narrow, &[8, 16])?;
    let (smaller, their_scales) = weights.quantise(narrow, smaller_blocks(16)?)?;
    let reshaped_codes = weights.reshape(codes, &[3, 192])?;
    Ok(kinds.into_iter().chain([(reshaped_codes, 32), (smaller, 16), (their_scales, 1)]).collect())
}

fn smaller_blocks(columns: usize) -> Result<Coding> {
    Coding::smaller(BlockCode::Int8Clipped, columns).ok_or_else(|| Error::input("no smaller block"))
}

#[test]
fn each_kind_is_in_the_table_of_kinds() -> Result<()> {
    let mut weights = Weights::default();
    let mut found = [false; 12];
    for (id, _) in one_of_each(&mut weights)? {
        let kind = match weights.recipe(id) {
            Recipe::Read(_) => 0,
            Recipe::Literal { .. } => 1,
            Recipe::Rows { .. } => 2,
            Recipe::Reshape { .. } => 3,
            Recipe::Concat(_) => 4,
            Recipe::Pad { .. } => 5,
            Recipe::Cast { .. } => 6,
            Recipe::Resample { .. } => 7,
            Recipe::Take { .. } => 8,
            Recipe::Codes { .. } => 9,
            Recipe::Scales { .. } => 10,
            Recipe::View { .. } => 11,
        };
        found[kind] = true;
    }
    assert_eq!(found, [true; 12]);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn chunks_equal_the_whole(step in 1..200usize) {
        let mut weights = Weights::default();
        for (id, unit) in one_of_each(&mut weights)? {
            let whole = whole(&weights, id)?;
            prop_assert_eq!(whole.bytes.len() as u64, weights.bytes(id));
            let mut joined = Chunk::default();
            let step = step.next_multiple_of(unit);
            for start in (0..weights.elements(id)).step_by(step) {
                let chunk = produce(&weights, id, start..(start + step).min(weights.elements(id)))?;
                joined.bytes.extend(chunk.bytes);
                joined.scales.extend(chunk.scales);
            }
            prop_assert_eq!(&joined.bytes, &whole.bytes, "{}", weights.describe(id));
            prop_assert_eq!(joined.scales, whole.scales);
        }
    }

    #[test]
    fn floats_of_any_range_equal_the_whole(start in 0..100usize, length in 0..100usize) {
        let mut weights = Weights::default();
        for (id, _) in one_of_each(&mut weights)? {
            if !weights.element(id).is_float() || start + length > weights.elements(id) {
                continue;
            }
            let mut part = vec![0.0; length];
            read_floats(&weights, id, start, &mut part)?;
            prop_assert_eq!(&part[..], &floats(&weights, id)?[start..start + length]);
        }
    }
}

#[test]
fn rows_concatenation_and_stacks() -> Result<()> {
    let mut weights = Weights::default();
    let a = weights.read(&stored("a", &[3, 2], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]));
    let b = weights.read(&stored("b", &[1, 2], &[6.0, 7.0]));
    let rows = weights.rows(a, 1, 3)?;
    let joined = weights.concat(vec![b, rows])?;
    assert_eq!(floats(&weights, joined)?, [6.0, 7.0, 2.0, 3.0, 4.0, 5.0]);
    let stack = weights.stack(&[rows, rows])?;
    assert_eq!(weights.describe(stack), "f32[2,2,2]");
    assert_eq!(floats(&weights, stack)?, [2.0, 3.0, 4.0, 5.0, 2.0, 3.0, 4.0, 5.0]);
    Ok(())
}

#[test]
fn padding_and_taking() -> Result<()> {
    let mut weights = Weights::default();
    let a = weights.read(&stored("a", &[2, 2], &[1.0, 2.0, 3.0, 4.0]));
    let wider = weights.pad(a, 1, 3)?;
    assert_eq!(floats(&weights, wider)?, [1.0, 2.0, 0.0, 3.0, 4.0, 0.0]);
    let longer = weights.pad(a, 0, 3)?;
    assert_eq!(floats(&weights, longer)?, [1.0, 2.0, 3.0, 4.0, 0.0, 0.0]);
    let taken = weights.take(a, vec![1, 0, 1], &[3, 1])?;
    assert_eq!(weights.shape(taken), [3, 1, 2]);
    assert_eq!(floats(&weights, taken)?, [3.0, 4.0, 1.0, 2.0, 3.0, 4.0]);
    Ok(())
}

#[test]
fn resampling_is_that_of_the_resampler() -> Result<()> {
    let mut weights = Weights::default();
    let table = ramp(5 * 4 * 3);
    let read = weights.read(&stored("positions", &[5, 4, 3], &table));
    let resampled = weights.resample(read, Resampling::Bicubic, &[3, 7])?;
    assert_eq!(weights.describe(resampled), "f32[3,7,3]");
    assert_eq!(floats(&weights, resampled)?, resample(Resampling::Bicubic, &table, &[5, 4], &[3, 7]));
    assert_eq!(weights.resample(read, Resampling::Bicubic, &[5, 4])?, read);
    Ok(())
}

#[test]
fn codes_times_scales_are_near_the_weight_and_views_keep_the_bytes() -> Result<()> {
    let mut weights = Weights::default();
    let values = ramp(64);
    let read = weights.read(&stored("a", &[1, 64], &values));
    let (codes, scales) = weights.quantise(read, BlockCode::Sym8)?;
    let both = whole(&weights, codes)?;
    assert_eq!(both.scales, whole(&weights, scales)?.bytes);
    let scales = floats(&weights, scales)?;
    for (i, (code, value)) in both.bytes.iter().zip(values).enumerate() {
        let scale = scales[i / 32];
        assert!((f32::from(*code as i8) * scale - value).abs() <= scale, "element {i}");
    }
    let view = weights.view(codes, ElementType::U32)?;
    assert_eq!((weights.shape(view), weights.storage(view)), ([1, 16].as_slice(), codes));
    assert_eq!(whole(&weights, view)?.bytes, both.bytes);
    Ok(())
}

#[test]
fn smaller_blocks_have_scales_of_their_own() -> Result<()> {
    let mut weights = Weights::default();
    let values: Vec<f32> = (0..2 * 48).map(|i| (i / 16 + 1) as f32 * if i % 16 == 3 { -127.0 } else { 1.0 }).collect();
    let read = weights.read(&stored("a", &[2, 48], &values));
    assert!(weights.quantise(read, BlockCode::Int8Clipped).is_err(), "blocks of 32");
    let (codes, scales) = weights.quantise(read, smaller_blocks(48)?)?;
    assert_eq!((weights.describe(codes), weights.describe(scales)), ("si8[2,48]".to_owned(), "f16[2,3]".to_owned()));
    assert_eq!(floats(&weights, scales)?, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let expected: Vec<u8> = (0..2 * 48).map(|i| if i % 16 == 3 { -127_i8 } else { 1 } as u8).collect();
    assert_eq!(whole(&weights, codes)?.bytes, expected);
    Ok(())
}

#[test]
fn a_parameter_is_called_as_said_or_as_its_only_tensor() -> Result<()> {
    let mut weights = Weights::default();
    let (a, b) = (weights.read(&stored("a", &[4, 2], &ramp(8))), weights.read(&stored("b", &[4, 2], &ramp(8))));
    let (rows, joined) = (weights.rows(a, 0, 2)?, weights.concat(vec![a, b])?);
    assert_eq!([a, rows, joined].map(|id| weights.parameter_name(id)), [Some("a"), Some("a"), None]);
    weights.set_name(rows, "half".to_owned());
    assert_eq!(weights.parameter_name(rows), Some("half"));
    Ok(())
}

#[test]
fn every_floating_point_type_is_read_and_written() -> Result<()> {
    let values = [1.5f32, -2.0, 0.0];
    let cases = [
        (ElementType::F16, values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect::<Vec<u8>>()),
        (ElementType::BF16, values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect()),
        (ElementType::F32, values.iter().flat_map(|v| v.to_le_bytes()).collect()),
        (ElementType::F64, values.iter().flat_map(|v| f64::from(*v).to_le_bytes()).collect()),
    ];
    for (from, bytes) in &cases {
        let mut weights = Weights::default();
        let read = weights.read(&stored_bytes("a", *from, &[3], bytes.clone()));
        assert_eq!(floats(&weights, read)?, values);
        for (to, expected) in &cases {
            let cast = weights.cast(read, *to)?;
            assert_eq!(&whole(&weights, cast)?.bytes, expected, "{from} to {to}");
        }
    }
    Ok(())
}

#[test]
fn casts_round_to_nearest_even() -> Result<()> {
    let mut weights = Weights::default();
    // Halfway between two neighbours of half precision, and just beside.
    let read = weights.read(&stored("a", &[3], &[2049.0, 2051.0, 2049.1]));
    let cast = weights.cast(read, ElementType::F16)?;
    assert_eq!(floats(&weights, cast)?, [2048.0, 2052.0, 2050.0]);
    Ok(())
}

#[test]
fn a_value_that_does_not_fit_names_its_tensor_and_place() -> Result<()> {
    let mut weights = Weights::default();
    let read = weights.read(&stored("layers.0.weight", &[3, 32], &[ramp(95), vec![1e6]].concat()));
    let rows = weights.rows(read, 1, 3)?;
    let cast = weights.cast(rows, ElementType::F16)?;
    let message = |id: WeightId| whole(&weights, id).map(|_| ()).map_err(|e| e.to_string());
    assert_eq!(
        message(cast),
        Err("layers.0.weight.bin: tensor `layers.0.weight`: a weight does not fit f16: \
             found 1000000 at element 63, expected magnitudes below 65520"
            .to_owned())
    );
    let bf16 = weights.cast(rows, ElementType::BF16)?;
    assert!(whole(&weights, bf16).is_ok(), "bf16 has the range of f32");
    let (codes, _) = weights.quantise(rows, BlockCode::Sym8)?;
    assert!(whole(&weights, codes).is_err_and(|e| e.to_string().contains("tensor `layers.0.weight`")));
    Ok(())
}

#[test]
fn parameters_that_are_not_finite_are_errors_where_they_are_stored_as_they_are() {
    let cases: [(ElementType, Vec<u8>, &str); 5] = [
        (ElementType::F16, f16::NAN.to_le_bytes().to_vec(), "NaN"),
        (ElementType::F16, f16::NEG_INFINITY.to_le_bytes().to_vec(), "-inf"),
        (ElementType::BF16, bf16::INFINITY.to_le_bytes().to_vec(), "inf"),
        (ElementType::F32, f32::NAN.to_le_bytes().to_vec(), "NaN"),
        (ElementType::F64, f64::INFINITY.to_le_bytes().to_vec(), "inf"),
    ];
    for (element, bad, name) in cases {
        let mut weights = Weights::default();
        let bytes = [vec![0; 2 * element.size()], bad].concat();
        let tensor = stored_bytes("a", element, &[3], bytes);
        let table = weights.read(&tensor);
        assert!(produce(&weights, table, 0..3).is_ok(), "a table may hold {name}");
        let read = weights.read_parameter(&tensor);
        let expected = format!("a.bin: tensor `a`: a weight is not a finite number: found {name} at element 2");
        assert_eq!(produce(&weights, read, 0..3).unwrap_err().to_string(), expected, "{element}");
        // Elements count from the start of the tensor, whatever part is read.
        assert_eq!(read_floats(&weights, read, 2, &mut [0.0]).unwrap_err().to_string(), expected, "{element}");
        assert!(produce(&weights, read, 0..2).is_ok());
    }
}

#[test]
fn the_largest_numbers_are_finite() -> Result<()> {
    let cases = [
        (ElementType::F16, f16::MAX.to_le_bytes().to_vec()),
        (ElementType::BF16, bf16::MIN.to_le_bytes().to_vec()),
        (ElementType::F32, f32::MAX.to_le_bytes().to_vec()),
        (ElementType::F64, f64::MIN.to_le_bytes().to_vec()),
    ];
    for (element, bytes) in cases {
        let mut weights = Weights::default();
        let read = weights.read_parameter(&stored_bytes("a", element, &[1], bytes.clone()));
        assert_eq!(whole(&weights, read)?.bytes, bytes);
    }
    Ok(())
}

#[test]
fn values_that_are_not_finite_are_errors_when_cast() -> Result<()> {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut weights = Weights::default();
        let read =
            weights.read(&stored_bytes("a", ElementType::BF16, &[1], bf16::from_f32(bad).to_le_bytes().to_vec()));
        let cast = weights.cast(read, ElementType::F32)?;
        assert!(whole(&weights, cast).is_err_and(|e| e.to_string().contains("tensor `a`")), "{bad}");
    }
    Ok(())
}

#[test]
fn reading_past_the_end_of_a_source_names_both() {
    let mut weights = Weights::default();
    let read = weights.read(&StoredTensor { shape: vec![4], ..stored("a", &[2], &[1.0, 2.0]) });
    let error = whole(&weights, read).map(|_| ()).map_err(|e| e.to_string());
    assert!(error.is_err_and(|e| e.contains("tensor `a`") && e.contains("a.bin")));
}

#[test]
fn equal_recipes_are_one_weight() -> Result<()> {
    let mut weights = Weights::default();
    let tensor = stored("a", &[4, 2], &ramp(8));
    let read = weights.read(&tensor);
    assert_eq!(weights.read(&tensor), read);
    assert_eq!(weights.rows(read, 0, 2)?, weights.rows(read, 0, 2)?);
    assert_ne!(weights.rows(read, 0, 2)?, weights.rows(read, 0, 3)?);
    let flat = weights.reshape(read, &[8])?;
    assert_eq!(weights.reshape(flat, &[4, 2])?, read, "reshaped back");
    assert_eq!(weights.cast(read, ElementType::F32)?, read, "cast to its own type");
    assert_eq!(weights.pad(read, 0, 4)?, read, "padded to its own extent");
    Ok(())
}

#[test]
fn tensors_that_start_at_one_place_are_told_apart() -> Result<()> {
    let tensor = stored("a", &[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let words = StoredTensor { element: ElementType::BF16, ..tensor.clone() };
    let empty = StoredTensor { shape: vec![0], ..tensor.clone() };
    let mut weights = Weights::default();
    let ids = [&tensor, &empty, &words, &tensor].map(|tensor| weights.read(tensor));
    assert_eq!(ids[0], ids[3]);
    assert_eq!(ids.map(|id| weights.describe(id)), ["f32[2,2]", "f32[0]", "bf16[2,2]", "f32[2,2]"]);
    assert_eq!(floats(&weights, ids[2])?, [0.0, 1.0, 0.0, 2.0]);
    Ok(())
}

#[test]
fn sources_are_listed_once() -> Result<()> {
    let mut weights = Weights::default();
    let (a, b) = (weights.read(&stored("a", &[1, 2], &ramp(2))), weights.read(&stored("b", &[1, 2], &ramp(2))));
    let joined = weights.concat(vec![b, a, b])?;
    let names: Vec<_> = weights.sources(joined).into_iter().map(|i| weights.tensor(i).name.to_string()).collect();
    assert_eq!(names, ["a", "b"]);
    Ok(())
}

#[test]
fn recipes_that_do_not_fit_are_refused_by_name() -> Result<()> {
    let mut weights = Weights::default();
    let a = weights.read(&stored("a", &[4, 6], &ramp(24)));
    let scalar = weights.literal_f32(&[], &[1.0])?;
    let integers = weights.literal_i32(&[2], &[1, 2])?;
    let other = weights.literal_f32(&[4, 5], &ramp(20))?;
    type Attempt = fn(&mut Weights, [WeightId; 4]) -> Result<WeightId>;
    let attempts: [(&str, Attempt); 16] = [
        ("rows past the end", |w, [a, ..]| w.rows(a, 2, 5)),
        ("rows backwards", |w, [a, ..]| w.rows(a, 3, 2)),
        ("rows of a scalar", |w, [_, scalar, ..]| w.rows(scalar, 0, 0)),
        ("rows of integers", |w, [_, _, integers, _]| w.rows(integers, 0, 1)),
        ("reshape", |w, [a, ..]| w.reshape(a, &[5, 5])),
        ("concatenation of nothing", |w, _| w.concat(Vec::new())),
        ("concatenation of scalars", |w, [_, scalar, ..]| w.concat(vec![scalar, scalar])),
        ("concatenation of shapes", |w, [a, _, _, other]| w.concat(vec![a, other])),
        ("padding to less", |w, [a, ..]| w.pad(a, 1, 5)),
        ("padding an axis that is not there", |w, [a, ..]| w.pad(a, 2, 9)),
        ("cast to integers", |w, [a, ..]| w.cast(a, ElementType::I32)),
        ("resampling with too many axes", |w, [a, ..]| w.resample(a, Resampling::Bicubic, &[2, 2])),
        ("taking a row past the end", |w, [a, ..]| w.take(a, vec![4], &[1])),
        ("taking too few", |w, [a, ..]| w.take(a, vec![1], &[2])),
        ("taking of a scalar", |w, [_, scalar, ..]| w.take(scalar, Vec::new(), &[0])),
        ("a view of half an element", |w, [a, ..]| {
            let odd = w.rows(a, 0, 1)?;
            let odd = w.reshape(odd, &[2, 3])?;
            w.view(odd, ElementType::F64)
        }),
    ];
    for (what, attempt) in attempts {
        assert!(attempt(&mut weights, [a, scalar, integers, other]).is_err(), "{what}");
    }
    assert!(weights.quantise(a, BlockCode::Sym8).is_err(), "blocks that do not divide a row");
    assert!(weights.literal(ElementType::F32, &[2], vec![0; 7]).is_err(), "a literal too short");
    let named = weights.rows(a, 2, 5).map_err(|e: Error| e.to_string());
    assert_eq!(named, Err("tensor `a`: the shapes do not fit: rows taken: found f32[4,6], expected 2..5".to_owned()));
    Ok(())
}

#[test]
fn values_that_half_precision_flushes_to_zero_are_counted() -> Result<()> {
    let mut weights = Weights::default();
    let values = [0.0, 1e-8, -1e-9, 6e-8, 1.0, -0.0];
    let read = weights.read(&stored("small", &[6], &values));
    let half = weights.cast(read, ElementType::F16)?;
    assert_eq!(whole(&weights, half)?.flushed, 2, "zeros are zeros, 6e-8 is the smallest that is kept");
    assert_eq!(whole(&weights, read)?.flushed, 0, "single precision keeps all");
    let parts = produce(&weights, half, 0..2)?.flushed + produce(&weights, half, 2..6)?.flushed;
    assert_eq!(parts, 2);
    Ok(())
}
