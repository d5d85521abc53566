//! CogViT, the vision tower of GLM-OCR: a ViT over flattened patches with rotary positions in two dimensions and
//! norms on queries and keys, a convolution that merges 2 x 2 patches into a visual token, and a gated merger.
//!
//! Patches are fed in *merge order*: the patches of one visual token are neighbours, row by row within it; visual
//! tokens follow each other row by row over the page.

use super::Loader;
use super::attention::{Rotary, angles, frequencies, merge_heads, split_heads};
use super::net::{Bias, Net};
use super::settings::{epsilon_or, layers, only, rope_theta, size, size_or};
use crate::checkpoint::Json;
use crate::graph::{Function, Op, TensorType, Unary, ValueId};
use crate::grid::Grid;
use crate::weights::Weights;
use crate::{ElementType, Result};

/// Of the layer norm in the merger; a constant of the model's code.
const MERGER_EPSILON: f32 = 1e-5;

/// Sizes of the tower, from config.json.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Width of the residual stream.
    pub width: usize,
    /// Attention heads.
    pub heads: usize,
    /// Blocks.
    pub layers: usize,
    /// Width of a block's MLP.
    pub mlp: usize,
    /// Channels of a pixel.
    pub channels: usize,
    /// Frames of a patch; a still image repeats its only one.
    pub frames: usize,
    /// Side of a patch, in pixels.
    pub patch: usize,
    /// Patches along each side of a visual token.
    pub merge: usize,
    /// Width of a visual token, which is that of the decoder.
    pub output: usize,
    /// Added to the mean square in norms.
    pub epsilon: f32,
    /// Base of the rotary angles.
    pub rope_theta: f64,
}

impl Config {
    /// Reads and checks the tower's settings, `vision_config`. Constants of the model's code stand in for what it
    /// does not spell out.
    ///
    /// # Errors
    /// When a setting is missing, contradicts another, or asks for something that is not implemented.
    pub fn read(root: &Json<'_>) -> Result<Self> {
        let vision = root.field("vision_config")?;
        only(&vision, "model_type", Json::as_str, "glm_ocr_vision")?;
        only(&vision, "hidden_act", Json::as_str, "silu")?;
        only(&vision, "attention_bias", Json::as_bool, true)?;
        let config = Self {
            width: size(&vision, "hidden_size")?,
            heads: size(&vision, "num_heads")?,
            layers: layers(&vision.field("depth")?)?,
            mlp: size(&vision, "intermediate_size")?,
            channels: size_or(&vision, "in_channels", 3)?,
            frames: size(&vision, "temporal_patch_size")?,
            patch: size(&vision, "patch_size")?,
            merge: size(&vision, "spatial_merge_size")?,
            output: size(&vision, "out_hidden_size")?,
            epsilon: epsilon_or(&vision, "rms_norm_eps", 1e-5)?,
            rope_theta: rope_theta(&vision, &[""])?,
        };
        config.check(root, &vision)?;
        Ok(config)
    }

    fn check(&self, root: &Json<'_>, vision: &Json<'_>) -> Result<()> {
        // A head turns in pairs, half of them by row and half by column.
        if !self.width.is_multiple_of(4 * self.heads) {
            let error = vision.field("num_heads")?.error("heads do not divide the width into multiples of 4");
            return Err(error.found(self.heads).expected(format!("a divisor of {} / 4", self.width)));
        }
        for (name, value, most) in [
            ("in_channels", self.channels, 4),
            ("temporal_patch_size", self.frames, 16),
            ("patch_size", self.patch, 256),
            ("spatial_merge_size", self.merge, 16),
        ] {
            if value > most {
                return Err(vision.field(name)?.error("out of range").found(value).expected(format!("1 to {most}")));
            }
        }
        let decoder = size(&root.field("text_config")?, "hidden_size")?;
        if decoder != self.output {
            let error = vision.field("out_hidden_size")?.error("visual tokens are not as wide as the decoder");
            return Err(error.found(self.output).expected(decoder));
        }
        Ok(())
    }

    /// Width of one attention head.
    #[must_use]
    pub const fn head_width(&self) -> usize {
        self.width / self.heads
    }

    /// Elements of a flattened patch: channels, frames, rows, columns.
    #[must_use]
    pub const fn patch_elements(&self) -> usize {
        self.channels * self.frames * self.patch * self.patch
    }

    /// Side of a visual token, in pixels.
    #[must_use]
    pub const fn token_pixels(&self) -> usize {
        self.patch * self.merge
    }

    /// Patches of a page of this many visual tokens.
    #[must_use]
    pub const fn patches(&self, grid: Grid) -> usize {
        grid.tokens() * self.merge * self.merge
    }
}

/// Names of the function's values; part of the host contract.
pub mod names {
    /// Normalised patches in merge order, each flattened as channels, frames, rows, columns.
    pub const PATCHES: &str = "patches";
    /// One row for each visual token, row-major over the grid.
    pub const IMAGE_EMBEDS: &str = "image_embeds";
}

/// `name(patches [n, patch elements]) -> image_embeds [tokens, output]` for a page of `grid` visual tokens.
///
/// # Errors
/// When a tensor is missing or misshapen.
pub fn function(
    config: &Config,
    name: &str,
    grid: Grid,
    element: ElementType,
    loader: &mut Loader<'_>,
    weights: &mut Weights,
) -> Result<Function> {
    let net = Net::new(name, element, loader, weights);
    Tower { config, grid, net }.build()
}

struct Tower<'k, 'l, 'c, 'w> {
    config: &'k Config,
    grid: Grid,
    net: Net<'l, 'c, 'w>,
}

impl Tower<'_, '_, '_, '_> {
    fn build(mut self) -> Result<Function> {
        let shape = [self.config.patches(self.grid), self.config.patch_elements()];
        let patches = self.net.b.input(names::PATCHES, TensorType::new(self.net.element(), &shape));
        let mut x = self.embed(patches);
        let rotary = self.rotary();
        for layer in 0..self.config.layers {
            x = self.block(x, layer, rotary);
            self.net.b.label(x, format!("block.{layer}"));
        }
        let x = self.net.rms_norm(x, "model.visual.post_layernorm", self.config.width, self.config.epsilon);
        self.net.b.label(x, "post_layernorm");
        let x = self.downsample(x);
        let x = self.merger(x);
        self.net.b.result(names::IMAGE_EMBEDS, x);
        self.net.finish()
    }

    /// Each patch through the patch convolution, whose kernel is as large as a patch: `[1, n, width]`.
    fn embed(&mut self, patches: ValueId) -> ValueId {
        let Config { width, channels, frames, patch, .. } = *self.config;
        let n = self.config.patches(self.grid);
        let (kernel, prefix) = ([frames, patch, patch], "model.visual.patch_embed.proj");
        let weight = self.net.weight(&format!("{prefix}.weight"), &[width, channels, frames, patch, patch]);
        let bias = self.net.weight(&format!("{prefix}.bias"), &[width]);
        let b = &mut self.net.b;
        let x = b.reshape(patches, &[n, channels, frames, patch, patch]);
        let x = b.node(Op::Conv3d { stride: kernel }, &[x, weight]);
        let x = b.reshape(x, &[1, n, width]);
        let x = b.add(x, bias);
        b.label(x, "patch_embed")
    }

    /// Angles of each patch: a quarter of a head's width by its row, a quarter by its column.
    fn rotary(&mut self) -> Rotary {
        let (n, d, element) = (self.config.patches(self.grid), self.config.head_width(), self.net.element());
        let frequencies = frequencies(d / 2, self.config.rope_theta);
        let positions = patch_positions(self.grid, self.config.merge);
        let b = &mut self.net.b;
        let positions = b.integers(&[n, 2], &positions);
        b.label(positions, "position_ids");
        let parts = [0, 1].map(|axis| {
            let along = b.slice_axis(positions, 1, axis, axis + 1);
            angles(b, along, &frequencies)
        });
        let angles = b.concat(&parts, 1);
        let rotary = Rotary::of_halves(b, angles, element);
        rotary.label(b);
        rotary
    }

    fn block(&mut self, x: ValueId, layer: usize, rotary: Rotary) -> ValueId {
        let Config { width, mlp, epsilon, .. } = *self.config;
        let prefix = format!("model.visual.blocks.{layer}.");
        let y = self.net.rms_norm(x, &format!("{prefix}norm1"), width, epsilon);
        let y = self.attention(y, &format!("{prefix}attn."), rotary);
        let x = self.net.b.add(x, y);
        let y = self.net.rms_norm(x, &format!("{prefix}norm2"), width, epsilon);
        let y = self.net.gated_mlp(y, &format!("{prefix}mlp."), (width, mlp), Bias::Yes);
        self.net.b.add(x, y)
    }

    /// Attention of every patch to all, with norms on queries and keys before they turn.
    fn attention(&mut self, y: ValueId, prefix: &str, rotary: Rotary) -> ValueId {
        let Config { width, heads, epsilon, .. } = *self.config;
        let d = self.config.head_width();
        let qkv = self.net.linear(y, &format!("{prefix}qkv"), (width, 3 * width), Bias::Yes);
        let [q, k, v] = [0, 1, 2].map(|i| {
            let part = self.net.b.slice_axis(qkv, 2, i * width, (i + 1) * width);
            split_heads(&mut self.net.b, part, heads)
        });
        let [q, k] = [(q, "q_norm"), (k, "k_norm")].map(|(x, norm)| {
            let x = self.net.rms_norm(x, &format!("{prefix}{norm}"), d, epsilon);
            rotary.rotate_half(&mut self.net.b, x)
        });
        let y = self.net.b.attention([q, k, v], false);
        let y = merge_heads(&mut self.net.b, y);
        self.net.linear(y, &format!("{prefix}proj"), (width, width), Bias::Yes)
    }

    /// The patches of a visual token, which are neighbours, as a small image through one convolution:
    /// `[1, n, width]` to `[tokens, output]`.
    fn downsample(&mut self, x: ValueId) -> ValueId {
        let Config { width, merge, output, .. } = *self.config;
        let tokens = self.grid.tokens();
        let prefix = "model.visual.downsample";
        let weight = self.net.weight(&format!("{prefix}.weight"), &[output, width, merge, merge]);
        let bias = self.net.weight(&format!("{prefix}.bias"), &[output]);
        let b = &mut self.net.b;
        let x = b.reshape(x, &[tokens, merge, merge, width]);
        let x = b.transpose(x, &[0, 3, 1, 2]);
        let x = b.node(Op::Conv2d { stride: [merge, merge], groups: 1 }, &[x, weight]);
        let x = b.reshape(x, &[tokens, output]);
        let x = b.add(x, bias);
        b.label(x, "downsample")
    }

    /// Projection, norm, GELU, gated MLP. Its width is a constant of the model's code.
    fn merger(&mut self, x: ValueId) -> ValueId {
        let Config { output, channels, .. } = *self.config;
        let prefix = "model.visual.merger.";
        let x = self.net.linear(x, &format!("{prefix}proj"), (output, output), Bias::No);
        let x = self.net.layer_norm(x, &format!("{prefix}post_projection_norm"), output, MERGER_EPSILON);
        let x = self.net.b.unary(Unary::GeluErf, x);
        let x = self.net.gated_mlp(x, prefix, (output, channels * output), Bias::No);
        self.net.b.label(x, "merger")
    }
}

/// Row and column of every patch, in merge order: `[n, 2]`.
fn patch_positions(grid: Grid, merge: usize) -> Vec<i32> {
    let within = move |[row, column]: [usize; 2]| {
        (0..merge * merge).map(move |i| [row * merge + i / merge, column * merge + i % merge])
    };
    grid.cells().flat_map(within).flatten().map(|position| position as i32).collect()
}

#[cfg(test)]
mod tests;
