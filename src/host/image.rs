//! From an image file to the pixels a vision encoder takes.

use std::io::Cursor;
use std::path::Path;

use ::image::{DynamicImage, ImageFormat, ImageReader, Limits, RgbImage};

use super::resample;
use crate::runtime::HostTensor;
use crate::{Error, Result};

/// Longest side of an image that is decoded or made, in pixels.
pub const MAX_SIDE: u32 = 16_384;

/// Most bytes a decoder may allocate; a small file can claim to hold far more.
const MAX_DECODED_BYTES: u64 = 512 << 20;

/// Largest image file, in bytes.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Reads a PNG or JPEG file as 8-bit RGB.
///
/// # Errors
/// When the file cannot be read, is neither format, is damaged, or is larger than the limits allow.
pub fn open(path: impl AsRef<Path>) -> Result<RgbImage> {
    let path = path.as_ref();
    let size = std::fs::metadata(path).map_err(|e| Error::io(path, &e))?.len();
    if size > MAX_FILE_BYTES {
        return Err(Error::input("the image file is too large")
            .at(path.display().to_string())
            .found(format!("{size} bytes"))
            .expected(format!("at most {MAX_FILE_BYTES} bytes")));
    }
    let bytes = std::fs::read(path).map_err(|e| Error::io(path, &e))?;
    decode(&path.display().to_string(), &bytes)
}

/// Decodes a PNG or JPEG file held in memory as 8-bit RGB; `name` is shown in errors.
///
/// Colours become RGB as in Pillow's `convert("RGB")`: grey is repeated, a palette is looked up, transparency is
/// dropped, not blended. Of 16-bit samples the high byte counts, in grey too, where Pillow turns nearly everything
/// white. A PNG gives Pillow's bytes; a JPEG may differ from libjpeg's by up to 3 in a sample. EXIF orientation is
/// not applied.
///
/// # Errors
/// When the bytes are neither format, are damaged, or the image is larger than the limits allow.
pub fn decode(name: &str, bytes: &[u8]) -> Result<RgbImage> {
    let format = ::image::guess_format(bytes).ok().filter(|f| matches!(f, ImageFormat::Png | ImageFormat::Jpeg));
    let format = format.ok_or_else(|| Error::input("not a PNG or JPEG image").at(name))?;
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    reader.limits(limits());
    let image = reader.decode().map_err(|e| {
        Error::input(format!("cannot decode the image: {e}"))
            .at(name)
            .expected(format!("an intact image of at most {MAX_SIDE} x {MAX_SIDE} pixels"))
    })?;
    Ok(to_rgb8(image))
}

fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_SIDE);
    limits.max_image_height = Some(MAX_SIDE);
    limits.max_alloc = Some(MAX_DECODED_BYTES);
    limits
}

fn to_rgb8(image: DynamicImage) -> RgbImage {
    match image {
        DynamicImage::ImageLuma16(grey) => map_pixels(&grey, |&[y]| [high_byte(y); 3]),
        DynamicImage::ImageLumaA16(grey) => map_pixels(&grey, |&[y, _]| [high_byte(y); 3]),
        DynamicImage::ImageRgb16(rgb) => map_pixels(&rgb, |rgb| rgb.map(high_byte)),
        DynamicImage::ImageRgba16(rgba) => map_pixels(&rgba, |&[r, g, b, _]| [r, g, b].map(high_byte)),
        other => other.into_rgb8(),
    }
}

fn high_byte(sample: u16) -> u8 {
    (sample >> 8) as u8
}

fn map_pixels<P, const N: usize>(
    image: &::image::ImageBuffer<P, Vec<u16>>,
    rgb: impl Fn(&[u16; N]) -> [u8; 3],
) -> RgbImage
where
    P: ::image::Pixel<Subpixel = u16>,
{
    let (pixels, _) = image.as_raw().as_chunks::<N>();
    RgbImage::from_raw(image.width(), image.height(), pixels.iter().flat_map(rgb).collect()).unwrap_or_default()
}

/// How an image of any size becomes a square one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preprocessing {
    /// Both sides become `side`; the aspect is not kept. Pillow: `resize((side, side), BICUBIC)`.
    Stretch {
        /// Side of the square, in pixels.
        side: u32,
    },
    /// The longer side becomes `side`, the aspect is kept, the image is centred on a ground of one colour.
    /// Pillow: `ImageOps.pad(image, (side, side), BICUBIC, color=fill)`.
    Pad {
        /// Side of the square, in pixels.
        side: u32,
        /// Colour of the ground.
        fill: [u8; 3],
    },
}

impl Preprocessing {
    /// The square image, equal to Pillow's in every byte.
    ///
    /// # Errors
    /// When a side is zero or too large, or the image is so narrow that nothing of it would be left.
    pub fn apply(self, image: &RgbImage) -> Result<RgbImage> {
        match self {
            Self::Stretch { side } => fit(image, [side, side], Fit::Stretch),
            Self::Pad { side, fill } => fit(image, [side, side], Fit::Pad { fill }),
        }
    }
}

/// How an image takes another size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// The aspect is not kept. Pillow: `resize(size, BICUBIC)`.
    Stretch,
    /// The image becomes as large as the aspect allows, and is centred on a ground of one colour.
    /// Pillow: `ImageOps.pad(image, size, BICUBIC, color=fill)`.
    Pad {
        /// Colour of the ground.
        fill: [u8; 3],
    },
}

/// The image at `[width, height]`, equal to Pillow's in every byte.
///
/// # Errors
/// When a side is zero or too large, or the image is so narrow that nothing of it would be left.
pub fn fit(image: &RgbImage, [width, height]: [u32; 2], how: Fit) -> Result<RgbImage> {
    check_side("the image to make", width, height)?;
    check_side("the image", image.width(), image.height())?;
    match how {
        Fit::Stretch => Ok(resample::bicubic(image, width, height)),
        Fit::Pad { fill } => pad(image, [width, height], fill),
    }
}

fn check_side(what: &str, width: u32, height: u32) -> Result<()> {
    if (1..=MAX_SIDE).contains(&width) && (1..=MAX_SIDE).contains(&height) {
        return Ok(());
    }
    Err(Error::input(format!("{what} has a size that cannot be handled"))
        .found(format!("{width} x {height} pixels"))
        .expected(format!("1 to {MAX_SIDE} pixels a side")))
}

fn pad(image: &RgbImage, ground: [u32; 2], fill: [u8; 3]) -> Result<RgbImage> {
    let [width, height] = fitted([image.width(), image.height()], ground);
    if width == 0 || height == 0 {
        return Err(Error::input("the image is too narrow to be fitted").found(format!(
            "{} x {} pixels",
            image.width(),
            image.height()
        )));
    }
    let resized = resample::bicubic(image, width, height);
    let mut padded = RgbImage::from_pixel(ground[0], ground[1], ::image::Rgb(fill));
    ::image::imageops::replace(&mut padded, &resized, margin(ground[0], width), margin(ground[1], height));
    Ok(padded)
}

/// The largest size of the aspect of `from` that fits into `to`.
fn fitted(from: [u32; 2], to: [u32; 2]) -> [u32; 2] {
    let [from_width, from_height] = from.map(f64::from);
    let [width, height] = to.map(f64::from);
    let (aspect, wanted) = (from_width / from_height, width / height);
    if aspect > wanted {
        [to[0], (from_height / from_width * width).round_ties_even() as u32]
    } else if aspect < wanted {
        [(from_width / from_height * height).round_ties_even() as u32, to[1]]
    } else {
        to
    }
}

/// Pixels before the image; an odd rest is halved towards the even number, as Python's `round` does.
fn margin(side: u32, extent: u32) -> i64 {
    (f64::from(side.saturating_sub(extent)) * 0.5).round_ties_even() as i64
}

/// The affine map from 8-bit samples to what the encoder takes, per channel: `(x / 255 - mean) / std`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Normalisation {
    /// Mean of red, green, blue, in 0 to 1.
    pub mean: [f32; 3],
    /// Standard deviation of red, green, blue, in 0 to 1; positive.
    pub std: [f32; 3],
}

impl Normalisation {
    /// The image as floats `[1, 3, height, width]`.
    ///
    /// # Errors
    /// Never for an image that fits in memory; the shape is checked against the data.
    pub fn to_nchw(&self, image: &RgbImage) -> Result<HostTensor> {
        let (pixels, _) = image.as_raw().as_chunks::<3>();
        let mut floats = Vec::with_capacity(image.as_raw().len());
        for (channel, (mean, std)) in self.mean.into_iter().zip(self.std).enumerate() {
            let table: [f32; 256] = std::array::from_fn(|x| (x as f32 / 255.0 - mean) / std);
            floats.extend(pixels.iter().map(|pixel| table[usize::from(pixel[channel])]));
        }
        HostTensor::floats(vec![1, 3, image.height() as usize, image.width() as usize], floats)
    }
}

#[cfg(test)]
mod tests;
