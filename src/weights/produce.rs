//! The bytes of a weight, made in chunks of bounded size.

use std::ops::Range;

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};

use super::{Recipe, TensorIndex, WeightId, Weights, resample};
use crate::quant::{Coding, fp16};
use crate::storage::StoredTensor;
use crate::{ElementType, Error, Result};

/// Part of a weight, as stored.
#[derive(Debug, Default)]
pub struct Chunk {
    /// The elements of the range, little-endian.
    pub bytes: Vec<u8>,
    /// For codes: the block scales (`f16`) of the same range, which come out of the same search.
    pub scales: Vec<u8>,
    /// Values other than zero that became zero in half precision.
    pub flushed: u64,
}

/// The elements `range` of weight `id`. Ranges of codes and scales start and end at whole blocks, those of views at
/// whole elements of what they show.
///
/// # Errors
/// When a source cannot be read, or a value does not fit the stored type; the error names the tensor.
pub fn produce(weights: &Weights, id: WeightId, range: Range<usize>) -> Result<Chunk> {
    let size = weights.element(id).size();
    let bytes = match weights.recipe(id) {
        Recipe::Codes { of, coding } => return quantise(weights, *of, *coding, range),
        Recipe::Scales { of, coding } => {
            let block = coding.block();
            quantise(weights, *of, *coding, range.start * block..range.end * block)?.scales
        }
        Recipe::Reshape { of, .. } => return produce(weights, *of, range),
        Recipe::View { of, .. } => {
            let shown = weights.element(*of).size();
            return produce(weights, *of, range.start * size / shown..range.end * size / shown);
        }
        Recipe::Cast { of, to: ElementType::F16 } => return cast_to_half(weights, *of, range),
        Recipe::Read(index) => read_bytes(weights, *index, range)?,
        Recipe::Literal { bytes, .. } => bytes[range.start * size..range.end * size].to_vec(),
        _ => {
            let mut floats = vec![0.0; range.len()];
            read_floats(weights, id, range.start, &mut floats)?;
            float_bytes(&floats, weights.element(id))
        }
    };
    Ok(Chunk { bytes, ..Chunk::default() })
}

/// Elements of a floating-point weight from element `start` on, as single-precision numbers.
///
/// # Errors
/// As [`produce`].
pub fn read_floats(weights: &Weights, id: WeightId, start: usize, out: &mut [f32]) -> Result<()> {
    let range = start..start + out.len();
    match weights.recipe(id) {
        Recipe::Read(index) => {
            let tensor = weights.tensor(*index);
            decode_floats(tensor.element, &read_bytes(weights, *index, range)?, out)
                .map_err(|e| e.at(format!("tensor `{}`", tensor.name)))
        }
        Recipe::Literal { bytes, element, .. } => {
            let size = element.size();
            decode_floats(*element, &bytes[range.start * size..range.end * size], out)
        }
        Recipe::Reshape { of, .. } => read_floats(weights, *of, start, out),
        Recipe::Rows { of, begin, .. } => {
            let row: usize = weights.shape(id)[1..].iter().product();
            read_floats(weights, *of, begin * row + start, out)
        }
        Recipe::Concat(parts) => read_concatenated(weights, parts, start, out),
        Recipe::Pad { of, axis, .. } => read_padded(weights, *of, (id, *axis), start, out),
        Recipe::Cast { of, to } => {
            read_floats(weights, *of, start, out)?;
            round_to(out, *to).map_err(|at| out_of_range(weights, *of, start + at, *to))
        }
        Recipe::Resample { of, kind, to } => {
            let from = weights.shape(*of);
            let mut table = vec![0.0; weights.elements(*of)];
            read_floats(weights, *of, 0, &mut table)?;
            out.copy_from_slice(&resample(*kind, &table, &from[..to.len()], to)[range]);
            Ok(())
        }
        Recipe::Take { of, indices, .. } => read_taken(weights, *of, indices, start, out),
        Recipe::Codes { .. } | Recipe::View { .. } => Err(not_floats(weights, id)),
        Recipe::Scales { .. } => {
            let chunk = produce(weights, id, range)?;
            decode_floats(ElementType::F16, &chunk.bytes, out)
        }
    }
}

/// A cast to half precision, converted once, with the count of what became zero.
fn cast_to_half(weights: &Weights, of: WeightId, range: Range<usize>) -> Result<Chunk> {
    let mut floats = vec![0.0; range.len()];
    read_floats(weights, of, range.start, &mut floats)?;
    let mut halves = vec![f16::ZERO; floats.len()];
    let stats = fp16::cast_f32(&floats, &mut halves);
    match stats.first_bad {
        Some(bad) => Err(out_of_range(weights, of, range.start + bad.index, ElementType::F16)),
        None => Ok(Chunk { bytes: half_bytes(&halves), flushed: stats.flushed, ..Chunk::default() }),
    }
}

fn quantise(weights: &Weights, of: WeightId, coding: Coding, range: Range<usize>) -> Result<Chunk> {
    let mut floats = vec![0.0; range.len()];
    read_floats(weights, of, range.start, &mut floats)?;
    let mut codes = vec![0; floats.len()];
    let mut scales = vec![f16::ZERO; floats.len() / coding.block()];
    coding
        .encode_rows(&floats, &mut codes, &mut scales)
        .map_err(|bad| out_of_range(weights, of, range.start + bad.index, ElementType::F16))?;
    Ok(Chunk { bytes: codes.into_iter().map(|code| code as u8).collect(), scales: half_bytes(&scales), flushed: 0 })
}

fn read_concatenated(weights: &Weights, parts: &[WeightId], start: usize, out: &mut [f32]) -> Result<()> {
    let (mut position, mut filled) = (0, 0);
    for &part in parts {
        let length = weights.elements(part);
        let wanted = start + filled;
        if filled < out.len() && wanted < position + length {
            let take = (position + length - wanted).min(out.len() - filled);
            read_floats(weights, part, wanted - position, &mut out[filled..filled + take])?;
            filled += take;
        }
        position += length;
    }
    Ok(())
}

/// `padded` is the padded weight and its axis.
fn read_padded(
    weights: &Weights,
    of: WeightId,
    padded: (WeightId, usize),
    start: usize,
    out: &mut [f32],
) -> Result<()> {
    let inner: usize = weights.shape(of)[padded.1..].iter().product();
    let outer: usize = weights.shape(padded.0)[padded.1..].iter().product();
    out.fill(0.0);
    let mut filled = 0;
    while filled < out.len() {
        let (row, column) = ((start + filled) / outer, (start + filled) % outer);
        let in_row = (outer - column).min(out.len() - filled);
        let stored = inner.saturating_sub(column).min(in_row);
        if stored > 0 {
            read_floats(weights, of, row * inner + column, &mut out[filled..filled + stored])?;
        }
        filled += in_row;
    }
    Ok(())
}

fn read_taken(weights: &Weights, of: WeightId, indices: &[u32], start: usize, out: &mut [f32]) -> Result<()> {
    let row: usize = weights.shape(of)[1..].iter().product();
    let mut filled = 0;
    while filled < out.len() {
        let (place, column) = ((start + filled) / row, (start + filled) % row);
        let take = (row - column).min(out.len() - filled);
        read_floats(weights, of, indices[place] as usize * row + column, &mut out[filled..filled + take])?;
        filled += take;
    }
    Ok(())
}

fn read_bytes(weights: &Weights, index: TensorIndex, range: Range<usize>) -> Result<Vec<u8>> {
    let tensor = weights.tensor(index);
    let size = tensor.element.size();
    let mut bytes = vec![0; range.len() * size];
    tensor.read_at(&mut bytes, (range.start * size) as u64)?;
    match not_finite(tensor.element, &bytes).filter(|_| weights.is_parameter(index)) {
        Some(bad) => Err(not_a_number(tensor, range.start + bad, &bytes[bad * size..][..size])),
        None => Ok(bytes),
    }
}

/// Index of the first NaN or infinity, which are the floats whose exponent is all ones.
fn not_finite(element: ElementType, bytes: &[u8]) -> Option<usize> {
    match element {
        ElementType::F16 => exponent_of_ones(bytes, |b: [u8; 2]| u16::from_le_bytes(b) & 0x7c00 == 0x7c00),
        ElementType::BF16 => exponent_of_ones(bytes, |b: [u8; 2]| u16::from_le_bytes(b) & 0x7f80 == 0x7f80),
        ElementType::F32 => exponent_of_ones(bytes, |b: [u8; 4]| u32::from_le_bytes(b) & 0x7f80_0000 == 0x7f80_0000),
        ElementType::F64 => {
            let ones = 0x7ff0_0000_0000_0000;
            exponent_of_ones(bytes, |b: [u8; 8]| u64::from_le_bytes(b) & ones == ones)
        }
        _ => None,
    }
}

fn exponent_of_ones<const N: usize>(bytes: &[u8], is_ones: impl Fn([u8; N]) -> bool) -> Option<usize> {
    let (words, _) = bytes.as_chunks::<N>();
    // Most weights have none: one pass without branches says so, a second one finds the place.
    let any = words.iter().fold(false, |any, word| any | is_ones(*word));
    any.then(|| words.iter().position(|word| is_ones(*word))).flatten()
}

fn not_a_number(tensor: &StoredTensor, index: usize, bytes: &[u8]) -> Error {
    let mut value = [0.0];
    let found = match decode_floats(tensor.element, bytes, &mut value) {
        Ok(()) => format!("{} at element {index}", value[0]),
        Err(_) => format!("element {index}"),
    };
    Error::input("a weight is not a finite number")
        .at(format!("tensor `{}`", tensor.name))
        .at(tensor.source.name())
        .found(found)
        .hint("the checkpoint is damaged, or training diverged: download it again, or ask its makers")
}

/// Little-endian elements as single-precision numbers.
fn decode_floats(element: ElementType, bytes: &[u8], out: &mut [f32]) -> Result<()> {
    match element {
        ElementType::F32 => {
            for (value, bytes) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                *value = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            }
        }
        ElementType::F64 => {
            for (value, bytes) in out.iter_mut().zip(bytes.chunks_exact(8)) {
                let mut word = [0; 8];
                word.copy_from_slice(bytes);
                *value = f64::from_le_bytes(word) as f32;
            }
        }
        ElementType::F16 => half_words(bytes).reinterpret_cast::<f16>().convert_to_f32_slice(out),
        // A bfloat16 is the upper half of a single-precision number.
        ElementType::BF16 => {
            for (value, pair) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *value = f32::from_bits(u32::from(u16::from_le_bytes(*pair)) << 16);
            }
        }
        other => {
            return Err(Error::input("not a floating-point tensor").found(other).expected("f16, bf16, f32 or f64"));
        }
    }
    Ok(())
}

fn half_words(bytes: &[u8]) -> Vec<u16> {
    bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect()
}

fn float_bytes(floats: &[f32], element: ElementType) -> Vec<u8> {
    match element {
        ElementType::F16 => {
            let mut halves = vec![f16::ZERO; floats.len()];
            halves.convert_from_f32_slice(floats);
            half_bytes(&halves)
        }
        ElementType::BF16 => floats.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
        ElementType::F64 => floats.iter().flat_map(|v| f64::from(*v).to_le_bytes()).collect(),
        _ => floats.iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}

fn half_bytes(halves: &[f16]) -> Vec<u8> {
    let mut bytes = vec![0; halves.len() * 2];
    for (pair, half) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(halves) {
        *pair = half.to_le_bytes();
    }
    bytes
}

/// Rounds to what `to` can hold; the error is the index of the first value that is not finite then.
fn round_to(values: &mut [f32], to: ElementType) -> Result<(), usize> {
    match to {
        ElementType::F16 => {
            let mut halves = vec![f16::ZERO; values.len()];
            halves.convert_from_f32_slice(values);
            halves.convert_to_f32_slice(values);
        }
        ElementType::BF16 => values.iter_mut().for_each(|v| *v = bf16::from_f32(*v).to_f32()),
        _ => {}
    }
    first_not_finite(values).map_or(Ok(()), Err)
}

/// The index of the first value that is not finite. Looks at all of them first, without leaving early, which is a
/// few instructions for many values.
fn first_not_finite(values: &[f32]) -> Option<usize> {
    let any = values.iter().fold(false, |any, value| any | !value.is_finite());
    any.then(|| values.iter().position(|value| !value.is_finite())).flatten()
}

fn out_of_range(weights: &Weights, of: WeightId, index: usize, to: ElementType) -> Error {
    let mut value = [0.0];
    let found = match read_floats(weights, of, index, &mut value) {
        Ok(()) => format!("{} at element {index}", value[0]),
        Err(_) => format!("a value out of range at element {index}"),
    };
    let error = Error::input(format!("a weight does not fit {to}")).found(found).expected(range_of(to));
    match weights.sources(of).as_slice() {
        [source] => {
            let tensor = weights.tensor(*source);
            error.at(format!("tensor `{}`", tensor.name)).at(tensor.source.name())
        }
        [first, ..] => {
            let tensor = weights.tensor(*first);
            error.at(format!("tensors from `{}` on", tensor.name)).at(tensor.source.name())
        }
        [] => error,
    }
}

fn range_of(element: ElementType) -> &'static str {
    match element {
        ElementType::F16 => "magnitudes below 65520",
        _ => "finite numbers in its range",
    }
}

fn not_floats(weights: &Weights, id: WeightId) -> Error {
    Error::input("not a floating-point weight").found(weights.describe(id))
}
