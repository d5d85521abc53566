//! From a page to the flattened patches that the vision tower of GLM-OCR takes.

use ::image::RgbImage;

use super::image::{self, Fit, Normalisation};
use crate::checkpoint::Json;
use crate::runtime::{HostTensor, TensorData};
use crate::{Error, Result};

/// Largest ratio of the sides of a page.
const MAX_ASPECT: f64 = 200.0;

/// What `preprocessor_config.json` of a GLM-OCR checkpoint says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PageProcessor {
    /// Side of a patch, in pixels.
    pub patch: u32,
    /// Frames of a patch; the page is repeated.
    pub frames: u32,
    /// Patches along each side of a visual token.
    pub merge: u32,
    /// Fewest and most pixels of a page, counted in every frame.
    pub pixels: [u64; 2],
    /// From 8-bit samples to floats.
    pub normalisation: Normalisation,
}

impl PageProcessor {
    /// Reads and checks the processor's settings.
    ///
    /// # Errors
    /// When a setting is missing, out of range, or asks for something that is not implemented.
    pub fn read(root: &Json<'_>) -> Result<Self> {
        for step in ["do_resize", "do_rescale", "do_normalize", "do_convert_rgb"] {
            if let Some(json) = root.optional(step).filter(|json| !json.as_bool().unwrap_or(false)) {
                return Err(json.error("not supported").expected("true"));
            }
        }
        let extent = |name: &str, most: u64| -> Result<u32> {
            let json = root.field(name)?;
            let value = json.as_u64()?;
            u32::try_from(value)
                .ok()
                .filter(|_| (1..=most).contains(&value))
                .ok_or_else(|| json.error("out of range").found(value).expected(format!("1 to {most}")))
        };
        let size = root.field("size")?;
        let pixels = [size.field("shortest_edge")?.as_u64()?, size.field("longest_edge")?.as_u64()?];
        if pixels[0] == 0 || pixels[0] > pixels[1] {
            return Err(size.error("no page is both large and small enough").found(format!("{pixels:?}")));
        }
        let processor = Self {
            patch: extent("patch_size", 256)?,
            frames: extent("temporal_patch_size", 16)?,
            merge: extent("merge_size", 16)?,
            pixels,
            normalisation: Normalisation { mean: channels(root, "image_mean")?, std: channels(root, "image_std")? },
        };
        if processor.normalisation.std.iter().any(|std| *std <= 0.0) {
            return Err(root.field("image_std")?.error("a standard deviation must be positive"));
        }
        Ok(processor)
    }

    /// Side of a visual token, in pixels.
    #[must_use]
    pub const fn token_pixels(&self) -> u32 {
        self.patch * self.merge
    }

    /// Width and height that a page of `width` x `height` pixels is resized to: multiples of a visual token close to
    /// its own, within the bounds on pixels. Equal to `smart_resize` of transformers, whose arithmetic this follows.
    ///
    /// # Errors
    /// When a side is zero, or one is more than 200 times the other.
    pub fn size(&self, width: u32, height: u32) -> Result<[u32; 2]> {
        let factor = f64::from(self.token_pixels());
        let mut sides = [f64::from(width), f64::from(height)];
        let short = sides[0].min(sides[1]);
        if short > 0.0 && short < factor {
            let scale = (factor / sides[1]).max(factor / sides[0]);
            sides = sides.map(|side| (side * scale).trunc());
        }
        if short == 0.0 || sides[0].max(sides[1]) / sides[0].min(sides[1]) > MAX_ASPECT {
            return Err(Error::input("the page is too narrow")
                .found(format!("{width} x {height} pixels"))
                .expected(format!("sides that differ at most {MAX_ASPECT} times")));
        }
        Ok(self.bounded(sides, factor).map(|side| side as u32))
    }

    fn bounded(&self, sides: [f64; 2], factor: f64) -> [f64; 2] {
        let frames = f64::from(self.frames);
        let [least, most] = self.pixels.map(|pixels| pixels as f64);
        let rounded = sides.map(|side| (side / factor).round_ties_even() * factor);
        let (pixels, pixels_rounded) = (frames * sides[1] * sides[0], frames * rounded[1] * rounded[0]);
        if pixels_rounded > most {
            let shrink = (pixels / most).sqrt();
            return sides.map(|side| factor.max((side / shrink / factor).floor() * factor));
        }
        if pixels_rounded < least {
            let grow = (least / pixels).sqrt();
            return sides.map(|side| (side * grow / factor).ceil() * factor);
        }
        rounded
    }

    /// The page at its own [size](Self::size), resampled as Pillow does it; the processor of transformers does the
    /// same where torchvision is not installed, and differs by at most a few steps of 255 in few samples where it is.
    ///
    /// # Errors
    /// As [`PageProcessor::size`], and when the size cannot be handled.
    pub fn resize(&self, page: &RgbImage) -> Result<RgbImage> {
        let [width, height] = self.size(page.width(), page.height())?;
        image::fit(page, [width, height], Fit::Stretch)
    }

    /// The patches of a page of whole visual tokens, `[n, 3 * frames * patch * patch]`: each flattened as channels,
    /// frames, rows, columns; those of a visual token are neighbours, row by row within it.
    ///
    /// # Errors
    /// When a side is not a multiple of a visual token.
    pub fn patches(&self, page: &RgbImage) -> Result<HostTensor> {
        let token = self.token_pixels();
        let whole = |side: u32| side > 0 && side.is_multiple_of(token);
        if !whole(page.width()) || !whole(page.height()) {
            return Err(Error::input("the page is not made of whole visual tokens")
                .found(format!("{} x {} pixels", page.width(), page.height()))
                .expected(format!("multiples of {token}")));
        }
        let (_, data) = self.normalisation.to_nchw(page)?.into_parts();
        let TensorData::Floats(pixels) = data else {
            return Err(Error::input("pixels are floats"));
        };
        let sides = [page.width() as usize, page.height() as usize];
        let mut patches = Vec::with_capacity(pixels.len() * self.frames as usize);
        for [x, y] in self.corners(sides) {
            self.push_patch(&pixels, sides, [x, y], &mut patches);
        }
        let elements = 3 * self.frames as usize * (self.patch as usize).pow(2);
        HostTensor::floats(vec![patches.len() / elements, elements], patches)
    }

    /// The upper left corner of every patch, in merge order.
    fn corners(&self, [width, height]: [usize; 2]) -> impl Iterator<Item = [usize; 2]> {
        let (patch, merge) = (self.patch as usize, self.merge as usize);
        let token = patch * merge;
        let tokens = (0..height / token).flat_map(move |row| (0..width / token).map(move |column| [column, row]));
        tokens.flat_map(move |[column, row]| {
            (0..merge * merge).map(move |i| [column * token + i % merge * patch, row * token + i / merge * patch])
        })
    }

    fn push_patch(&self, pixels: &[f32], [width, height]: [usize; 2], [x, y]: [usize; 2], to: &mut Vec<f32>) {
        let patch = self.patch as usize;
        for plane in pixels.chunks_exact(width * height) {
            for _ in 0..self.frames {
                for row in plane.chunks_exact(width).skip(y).take(patch) {
                    to.extend_from_slice(&row[x..x + patch]);
                }
            }
        }
    }
}

fn channels(root: &Json<'_>, name: &str) -> Result<[f32; 3]> {
    let json = root.field(name)?;
    let list =
        json.as_list()?.iter().map(|value| value.as_f64().map(|value| value as f32)).collect::<Result<Vec<_>>>()?;
    <[f32; 3]>::try_from(list).map_err(|list| json.error("three channels are expected").found(list.len()))
}

#[cfg(test)]
mod tests;
