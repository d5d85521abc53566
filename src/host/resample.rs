//! Bicubic resampling of 8-bit images, bit for bit as Pillow 13 does it.
//!
//! A model is run on pixels that went through Pillow, so its host has to make the same bytes. Pillow weighs with
//! 22-bit fixed-point integers and rounds to 8 bits between the two passes; a resampler with other precision differs
//! by one step in many places, and by several where it shrinks a sharp page.
//!
//! The order of the passes matters for the same reason. Pillow before 13 always began with the rows; since 13
//! (python-pillow/Pillow pull request 9549) it begins with the columns where that saves work.

use ::image::RgbImage;

/// Fraction bits of a weight: 32 less 8 for the pixel and 2 for sums outside 0 to 1.
const FRACTION_BITS: u32 = 32 - 8 - 2;

/// Half the width of the bicubic kernel.
const SUPPORT: f64 = 2.0;

const CHANNELS: usize = 3;

/// The source positions that make one output position, and their fixed-point weights.
struct Taps {
    first: usize,
    weights: Vec<i32>,
}

/// `image` at `width` x `height`, as Pillow's `resize((width, height), BICUBIC)`.
///
/// All four extents must be positive; an empty image gives an empty image.
pub(super) fn bicubic(image: &RgbImage, width: u32, height: u32) -> RgbImage {
    if columns_first(image.dimensions(), (width, height)) {
        resize_rows(&resize_columns(image, height), width)
    } else {
        resize_columns(&resize_rows(image, width), height)
    }
}

/// Whether Pillow 13 begins with the columns: the height shrinks by more than twice what the width does.
/// Found by comparing both orders with Pillow 13.0.0 on 1464 sizes, half of them at the boundary.
fn columns_first((from_width, from_height): (u32, u32), (width, height): (u32, u32)) -> bool {
    let shrinks = |from: u32, to: u32| i64::from(from) - i64::from(to);
    let by_height = shrinks(from_height, height);
    by_height > 0 && by_height > 2 * shrinks(from_width, width)
}

fn resize_rows(image: &RgbImage, width: u32) -> RgbImage {
    if image.width() == width {
        return image.clone();
    }
    let taps = taps(image.width() as usize, width as usize);
    let mut pixels = Vec::with_capacity(image.height() as usize * width as usize * CHANNELS);
    for row in image.as_raw().chunks_exact((image.width() as usize * CHANNELS).max(1)) {
        for tap in &taps {
            let source = row.chunks_exact(CHANNELS).skip(tap.first);
            pixels.extend(weighted(source.zip(&tap.weights)));
        }
    }
    from_pixels(width, image.height(), pixels)
}

fn resize_columns(image: &RgbImage, height: u32) -> RgbImage {
    if image.height() == height {
        return image.clone();
    }
    let row_bytes = image.width() as usize * CHANNELS;
    let mut pixels = Vec::with_capacity(height as usize * row_bytes);
    let mut sums = vec![0_i32; row_bytes];
    for tap in taps(image.height() as usize, height as usize) {
        sums.fill(HALF);
        let rows = image.as_raw().chunks_exact(row_bytes.max(1)).skip(tap.first);
        for (row, &weight) in rows.zip(&tap.weights) {
            for (sum, &value) in sums.iter_mut().zip(row) {
                *sum += i32::from(value) * weight;
            }
        }
        pixels.extend(sums.iter().map(|&sum| to_u8(sum)));
    }
    from_pixels(image.width(), height, pixels)
}

/// One half in fixed point: sums start from it, so that dropping the fraction rounds.
const HALF: i32 = 1 << (FRACTION_BITS - 1);

fn weighted<'a>(pixels: impl Iterator<Item = (&'a [u8], &'a i32)>) -> [u8; CHANNELS] {
    let mut sums = [HALF; CHANNELS];
    for (pixel, &weight) in pixels {
        for (sum, &value) in sums.iter_mut().zip(pixel) {
            *sum += i32::from(value) * weight;
        }
    }
    sums.map(to_u8)
}

fn to_u8(sum: i32) -> u8 {
    (sum >> FRACTION_BITS).clamp(0, 255) as u8
}

fn from_pixels(width: u32, height: u32, pixels: Vec<u8>) -> RgbImage {
    RgbImage::from_raw(width, height, pixels).unwrap_or_default()
}

/// The taps of every output position when `from` positions become `to`.
fn taps(from: usize, to: usize) -> Vec<Taps> {
    let scale = from as f64 / to as f64;
    // Shrinking widens the kernel so that every source position counts.
    let stretch = scale.max(1.0);
    let support = SUPPORT * stretch;
    (0..to)
        .map(|position| {
            let centre = (position as f64 + 0.5) * scale;
            let first = (centre - support + 0.5).max(0.0) as usize;
            let end = ((centre + support + 0.5) as usize).min(from);
            let weights = (first..end).map(|x| kernel((x as f64 - centre + 0.5) * stretch.recip())).collect();
            Taps { first, weights: to_fixed_point(weights) }
        })
        .collect()
}

fn to_fixed_point(weights: Vec<f64>) -> Vec<i32> {
    let sum: f64 = weights.iter().sum();
    let one = f64::from(1 << FRACTION_BITS);
    weights
        .into_iter()
        .map(|weight| {
            let fixed = if sum == 0.0 { weight } else { weight / sum } * one;
            (fixed + 0.5_f64.copysign(fixed)) as i32
        })
        .collect()
}

/// The cubic convolution kernel with a = -0.5.
fn kernel(x: f64) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < SUPPORT {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}
