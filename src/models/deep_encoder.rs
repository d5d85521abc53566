//! DeepEncoder, the vision tower of Unlimited-OCR: a SAM ViT with window and global attention, a convolutional neck
//! that shrinks the grid fourfold, a CLIP ViT over the shrunk grid, and a linear projector over both.

use super::attention::{attend, merge_heads, split_heads};
use super::net::{Bias, Net};
use super::settings::{agree, extent, layers, only, require};
use super::{Loader, Unused};
use crate::checkpoint::Json;
use crate::graph::{Function, Op, TensorType, Unary, ValueId};
use crate::weights::{Resampling, Weights};
use crate::{ElementType, Error, Result};

/// Pixels that one visual token stands for, along each axis: a patch of 16 shrunk fourfold.
pub const TOKEN_PIXELS: usize = 64;

/// Side of an attention window, in patches.
const WINDOW: usize = 14;
const SAM_EPSILON: f32 = 1e-6;
const CLIP_EPSILON: f32 = 1e-5;

/// Sizes of the tower, from config.json.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    sam: Sam,
    clip: Clip,
    /// Width of a visual token, which is that of the decoder.
    pub output: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Sam {
    width: usize,
    heads: usize,
    layers: usize,
    mlp: usize,
    patch: usize,
    /// Side of the position table, in patches.
    grid: usize,
    global_layers: Vec<usize>,
    neck: usize,
    downsample: [usize; 2],
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Clip {
    width: usize,
    heads: usize,
    layers: usize,
    mlp: usize,
    /// Side of the position table, in patches.
    grid: usize,
}

impl Config {
    /// Reads and checks the tower's settings: `vision_config.width.*` of the original file, or `sam_config` and
    /// `encoder_config` of transformers 5; where both are there they agree. Constants of the model's code stand in
    /// for what neither spells out.
    ///
    /// # Errors
    /// When a setting is missing, contradicts another, or asks for something that is not implemented.
    pub fn read(root: &Json<'_>) -> Result<Self> {
        let vision = root.field("vision_config")?;
        only(root, "projector_config.projector_type", Json::as_str, "linear")?;
        let sam = Sam::read(&vision)?;
        let clip = Clip::read(&vision)?;
        if sam.downsample[1] != clip.width {
            let error = vision.error("the last downsampling layer feeds CLIP, so their widths are equal");
            return Err(error.found(sam.downsample[1]).expected(clip.width));
        }
        let projector = root.field("projector_config")?;
        let input = projector.field("input_dim")?;
        let width = extent(&input)?;
        if width != 2 * clip.width {
            let error = input.error("the projector reads CLIP and SAM side by side");
            return Err(error.found(width).expected(2 * clip.width));
        }
        Ok(Self { sam, clip, output: extent(&projector.field("n_embed")?)? })
    }
}

impl Sam {
    fn read(vision: &Json<'_>) -> Result<Self> {
        let size = |name: &str, other: &str, read: fn(&Json<'_>) -> Result<usize>| {
            let paths = [format!("width.sam_vit_b.{name}"), format!("sam_config.{other}")];
            require(vision, &paths.each_ref().map(String::as_str), read)
        };
        let list = |name: &str| {
            let paths = [format!("width.sam_vit_b.{name}"), format!("sam_config.{name}")];
            require(vision, &paths.each_ref().map(String::as_str), Json::as_usize_list)
        };
        let constant =
            |path: &str, default: usize| -> Result<usize> { Ok(agree(vision, &[path], extent)?.unwrap_or(default)) };
        refuse_other_sam(vision)?;
        let width = size("width", "hidden_size", extent)?;
        let patch = constant("sam_config.patch_size", 16)?;
        let image = agree(vision, &["image_size", "sam_config.image_size"], extent)?.unwrap_or(1024);
        let downsample = list("downsample_channels")?;
        let sam = Self {
            width,
            heads: size("heads", "num_attention_heads", extent)?,
            layers: size("layers", "num_hidden_layers", layers)?,
            mlp: constant("sam_config.mlp_dim", 4 * width)?,
            patch,
            grid: image / patch,
            global_layers: list("global_attn_indexes")?,
            neck: constant("sam_config.output_channels", 256)?,
            downsample: <[usize; 2]>::try_from(downsample)
                .map_err(|found| vision.error("two downsampling layers are expected").found(format!("{found:?}")))?,
        };
        if patch * 4 != TOKEN_PIXELS {
            return Err(vision.error("another patch size is not supported").found(patch).expected(TOKEN_PIXELS / 4));
        }
        if let Some(layer) = sam.global_layers.iter().find(|&&layer| layer >= sam.layers) {
            let error = vision.error("global_attn_indexes names a layer that is not there").found(layer);
            return Err(error.expected(format!("less than {}", sam.layers)));
        }
        check_heads(vision, "SAM", sam.width, sam.heads)?;
        Ok(sam)
    }
}

/// Settings of transformers 5 that have one supported value, which is the constant of the original's code.
fn refuse_other_sam(vision: &Json<'_>) -> Result<()> {
    only(vision, "sam_config.window_size", Json::as_usize, WINDOW)?;
    only(vision, "sam_config.hidden_act", Json::as_str, "gelu")?;
    only(vision, "sam_config.layer_norm_eps", Json::as_f64, 1e-6)?;
    only(vision, "sam_config.num_channels", Json::as_usize, 3)?;
    ["qkv_bias", "use_abs_pos", "use_rel_pos"]
        .iter()
        .try_for_each(|name| only(vision, &format!("sam_config.{name}"), Json::as_bool, true))
}

impl Clip {
    fn read(vision: &Json<'_>) -> Result<Self> {
        let size = |name: &str, other: &str, read: fn(&Json<'_>) -> Result<usize>| {
            let paths = [format!("width.clip-l-14-224.{name}"), format!("encoder_config.{other}")];
            require(vision, &paths.each_ref().map(String::as_str), read)
        };
        only(vision, "encoder_config.hidden_act", Json::as_str, "quick_gelu")?;
        only(vision, "encoder_config.layer_norm_eps", Json::as_f64, 1e-5)?;
        let width = size("width", "hidden_size", extent)?;
        let (image, patch) = (size("image_size", "image_size", extent)?, size("patch_size", "patch_size", extent)?);
        let clip = Self {
            width,
            heads: size("heads", "num_attention_heads", extent)?,
            layers: size("layers", "num_hidden_layers", layers)?,
            mlp: agree(vision, &["encoder_config.intermediate_size"], extent)?.unwrap_or(4 * width),
            grid: image / patch,
        };
        check_heads(vision, "CLIP", clip.width, clip.heads)?;
        Ok(clip)
    }
}

fn check_heads(vision: &Json<'_>, tower: &str, width: usize, heads: usize) -> Result<()> {
    if width.is_multiple_of(heads) {
        return Ok(());
    }
    Err(vision.error(format!("{tower}: heads do not divide the width")).found(format!("{heads} heads of {width}")))
}

/// Names of the function's values; part of the host contract.
pub mod names {
    /// The function.
    pub const MAIN: &str = "main";
    /// Normalised page image, `[1, 3, side, side]`.
    pub const IMAGE: &str = "image";
    /// One row for each visual token, row-major over the grid.
    pub const VISUAL_TOKENS: &str = "visual_tokens";
}

/// `main(image [1, 3, side, side]) -> visual_tokens [1, (side / 64)^2, output]`.
///
/// # Errors
/// When the image size does not fit the tower, or a tensor is missing or misshapen.
pub fn function(
    config: &Config,
    side: usize,
    element: ElementType,
    loader: &mut Loader<'_>,
    weights: &mut Weights,
) -> Result<Function> {
    if side == 0 || !side.is_multiple_of(TOKEN_PIXELS) {
        let error = Error::input("the image size does not fit the vision tower");
        return Err(error.found(side).expected(format!("a multiple of {TOKEN_PIXELS}")));
    }
    loader.unused(Unused {
        tensor: "model.vision_model.embeddings.patch_embedding.weight".to_owned(),
        pass: "drop-unused",
        reason: "CLIP reads the features of the SAM tower; its own patch convolution is never run",
    });
    let grid = side / config.sam.patch;
    let net = Net::new(names::MAIN, element, loader, weights);
    Tower { config, grid, net }.build(side)
}

struct Tower<'k, 'l, 'c, 'w> {
    config: &'k Config,
    /// Patches along each axis.
    grid: usize,
    net: Net<'l, 'c, 'w>,
}

impl Tower<'_, '_, '_, '_> {
    fn build(mut self, side: usize) -> Result<Function> {
        let image = self.net.b.input(names::IMAGE, TensorType::new(self.net.element(), &[1, 3, side, side]));
        let mut x = self.patches(image);
        for layer in 0..self.config.sam.layers {
            x = self.sam_block(x, layer);
            self.net.b.label(x, format!("sam.block.{layer}"));
        }
        let features = self.neck(x);
        let tokens = self.grid / 4 * (self.grid / 4);
        let width = self.config.clip.width;
        let features = self.net.b.reshape(features, &[1, width, tokens]);
        let features = self.net.b.transpose(features, &[0, 2, 1]);
        let seen = self.clip(features);
        let both = self.net.b.concat(&[seen, features], 2);
        self.net.b.label(both, "concat");
        let out = self.net.linear(both, "model.projector.layers", (2 * width, self.config.output), Bias::Yes);
        self.net.b.label(out, "projector");
        self.net.b.result(names::VISUAL_TOKENS, out);
        self.net.finish()
    }

    /// Patch convolution and positions: `[1, grid, grid, width]`, channels last.
    fn patches(&mut self, image: ValueId) -> ValueId {
        let (width, patch, table) = (self.config.sam.width, self.config.sam.patch, self.config.sam.grid);
        let prefix = "model.sam_model.patch_embed.proj";
        let weight = self.net.weight(&format!("{prefix}.weight"), &[width, 3, patch, patch]);
        let bias = self.net.weight(&format!("{prefix}.bias"), &[width]);
        let x = self.net.b.node(Op::Conv2d { stride: [patch, patch], groups: 1 }, &[image, weight]);
        let x = self.net.b.transpose(x, &[0, 2, 3, 1]);
        let x = self.net.b.add(x, bias);
        self.net.b.label(x, "sam.patch_embed");
        let positions = self.net.weight_as("model.sam_model.pos_embed", &[1, table, table, width], ElementType::F32);
        let positions = self.net.b.reshape(positions, &[table, table, width]);
        let positions = self.resized(positions, self.grid, table);
        self.net.b.add(x, positions)
    }

    /// A square table of positions at another side, in the activation type.
    fn resized(&mut self, table: ValueId, side: usize, from: usize) -> ValueId {
        let table = if side == from { table } else { self.net.b.resample(table, Resampling::Bicubic, &[side, side]) };
        self.net.b.cast(table, self.net.element())
    }

    fn sam_block(&mut self, x: ValueId, layer: usize) -> ValueId {
        let (width, mlp) = (self.config.sam.width, self.config.sam.mlp);
        let prefix = format!("model.sam_model.blocks.{layer}.");
        let y = self.net.layer_norm(x, &format!("{prefix}norm1"), width, SAM_EPSILON);
        let side = if self.config.sam.global_layers.contains(&layer) { self.grid } else { WINDOW };
        let windows = self.windows(y, side);
        let y = self.window_attention(windows, &format!("{prefix}attn."), side);
        let y = self.unwindow(y, side);
        let x = self.net.b.add(x, y);
        let y = self.net.layer_norm(x, &format!("{prefix}norm2"), width, SAM_EPSILON);
        let y = self.net.linear(y, &format!("{prefix}mlp.lin1"), (width, mlp), Bias::Yes);
        let y = self.net.b.unary(Unary::GeluErf, y);
        let y = self.net.linear(y, &format!("{prefix}mlp.lin2"), (mlp, width), Bias::Yes);
        self.net.b.add(x, y)
    }

    /// Windows along each axis.
    fn window_count(&self, side: usize) -> usize {
        self.grid.div_ceil(side)
    }

    /// `[1, grid, grid, c]` to `[windows, side * side, c]`. Cells beyond the grid are zeros that take part in attention
    /// unmasked, as in the original.
    fn windows(&mut self, x: ValueId, side: usize) -> ValueId {
        let (n, c) = (self.window_count(side), self.config.sam.width);
        let x = self.net.b.pad_axis(x, 1, n * side);
        let x = self.net.b.pad_axis(x, 2, n * side);
        let x = self.net.b.reshape(x, &[n, side, n, side, c]);
        let x = self.net.b.transpose(x, &[0, 2, 1, 3, 4]);
        self.net.b.reshape(x, &[n * n, side * side, c])
    }

    /// The inverse of [`Self::windows`], cropped to the grid.
    fn unwindow(&mut self, x: ValueId, side: usize) -> ValueId {
        let (n, c) = (self.window_count(side), self.config.sam.width);
        let x = self.net.b.reshape(x, &[n, n, side, side, c]);
        let x = self.net.b.transpose(x, &[0, 2, 1, 3, 4]);
        let x = self.net.b.reshape(x, &[1, n * side, n * side, c]);
        if n * side == self.grid {
            return x;
        }
        let x = self.net.b.slice_axis(x, 1, 0, self.grid);
        self.net.b.slice_axis(x, 2, 0, self.grid)
    }

    /// Attention within windows `[w, side * side, c]` with decomposed relative positions.
    fn window_attention(&mut self, x: ValueId, prefix: &str, side: usize) -> ValueId {
        let (c, heads) = (self.config.sam.width, self.config.sam.heads);
        let d = c / heads;
        let qkv = self.net.linear(x, &format!("{prefix}qkv"), (c, 3 * c), Bias::Yes);
        let cells = side * side;
        let [q, k, v] = [0, 1, 2].map(|i| {
            let part = self.net.b.slice_axis(qkv, 2, i * c, (i + 1) * c);
            let part = split_heads(&mut self.net.b, part, heads);
            let all = self.net.b.shape(part)[0] * heads;
            self.net.b.reshape(part, &[all, cells, d])
        });
        let bias = self.relative_bias(q, prefix, (side, d));
        let y = attend(&mut self.net.b, [q, k, v], bias);
        let all = self.net.b.shape(y)[0];
        let y = self.net.b.reshape(y, &[all / heads, heads, cells, d]);
        let y = merge_heads(&mut self.net.b, y);
        self.net.linear(y, &format!("{prefix}proj"), (c, c), Bias::Yes)
    }

    /// `q[y, x] . Rh[y, y'] + q[y, x] . Rw[x, x']` for unscaled `q [w, side * side, d]`: `f32 [w, cells, cells]`.
    fn relative_bias(&mut self, q: ValueId, prefix: &str, (side, d): (usize, usize)) -> ValueId {
        let all = self.net.b.shape(q)[0];
        let rows = self.relative_table(&format!("{prefix}rel_pos_h"), (side, d));
        let columns = self.relative_table(&format!("{prefix}rel_pos_w"), (side, d));
        let b = &mut self.net.b;
        let q = b.reshape(q, &[all, side, side, d]);
        let by_row = b.matmul(q, rows);
        let q = b.transpose(q, &[0, 2, 1, 3]);
        let by_column = b.matmul(q, columns);
        let by_column = b.transpose(by_column, &[0, 2, 1, 3]);
        let by_row = b.cast(by_row, ElementType::F32);
        let by_column = b.cast(by_column, ElementType::F32);
        let by_row = b.reshape(by_row, &[all, side, side, side, 1]);
        let by_column = b.reshape(by_column, &[all, side, side, 1, side]);
        let bias = b.add(by_row, by_column);
        b.reshape(bias, &[all, side * side, side * side])
    }

    /// `[side, d, side]`: column `k` of matrix `q` is the table's entry for distance `q - k`. A table made for another
    /// side is resampled first.
    fn relative_table(&mut self, name: &str, (side, d): (usize, usize)) -> ValueId {
        let stored = if side == WINDOW { WINDOW } else { self.config.sam.grid };
        let (stored, length) = (2 * stored - 1, 2 * side - 1);
        let mut table = self.net.weight_as(name, &[stored, d], ElementType::F32);
        if stored != length {
            table = self.net.b.resample(table, Resampling::Linear, &[length]);
        }
        let table = self.net.b.cast(table, self.net.element());
        let distance = |i: usize| (i / side + side - 1 - i % side) as i32;
        let index: Vec<i32> = (0..side * side).map(distance).collect();
        let index = self.net.b.integers(&[side, side], &index);
        let table = self.net.b.take_rows(table, index);
        self.net.b.transpose(table, &[0, 2, 1])
    }

    /// 1x1 and 3x3 convolutions with norms over channels, then two that halve the grid: `[1, channels, g/4, g/4]`.
    fn neck(&mut self, x: ValueId) -> ValueId {
        let (neck, [middle, last]) = (self.config.sam.neck, self.config.sam.downsample);
        let prefix = "model.sam_model.";
        let x = self.net.b.transpose(x, &[0, 3, 1, 2]);
        let x = self.conv(x, &format!("{prefix}neck.0"), [neck, self.config.sam.width, 1], 1);
        let x = self.channel_norm(x, &format!("{prefix}neck.1"), neck);
        let x = self.conv(x, &format!("{prefix}neck.2"), [neck, neck, 3], 1);
        let x = self.channel_norm(x, &format!("{prefix}neck.3"), neck);
        self.net.b.label(x, "sam.neck");
        let x = self.conv(x, &format!("{prefix}net_2"), [middle, neck, 3], 2);
        self.net.b.label(x, "sam.net_2");
        let x = self.conv(x, &format!("{prefix}net_3"), [last, middle, 3], 2);
        self.net.b.label(x, "sam.net_3");
        x
    }

    /// A convolution without bias, padded so that stride 1 keeps the size; `sizes` is `[out, in, kernel]`.
    fn conv(&mut self, x: ValueId, name: &str, sizes: [usize; 3], stride: usize) -> ValueId {
        let [out, input, kernel] = sizes;
        let weight = self.net.weight(&format!("{name}.weight"), &[out, input, kernel, kernel]);
        let margin = kernel / 2;
        let x = if margin == 0 {
            x
        } else {
            let around = vec![0, 0, margin, margin];
            self.net.b.node(Op::Pad { before: around.clone(), after: around }, &[x])
        };
        self.net.b.node(Op::Conv2d { stride: [stride, stride], groups: 1 }, &[x, weight])
    }

    /// Layer norm over the channels of `[1, c, h, w]`.
    fn channel_norm(&mut self, x: ValueId, name: &str, channels: usize) -> ValueId {
        let x = self.net.b.transpose(x, &[0, 2, 3, 1]);
        let x = self.net.layer_norm(x, name, channels, SAM_EPSILON);
        self.net.b.transpose(x, &[0, 3, 1, 2])
    }

    /// CLIP over the SAM features `[1, n, width]`, without its class token and without a final norm.
    fn clip(&mut self, features: ValueId) -> ValueId {
        let clip = self.config.clip.clone();
        let prefix = "model.vision_model.";
        let class = self.net.weight(&format!("{prefix}embeddings.class_embedding"), &[clip.width]);
        let class = self.net.b.reshape(class, &[1, 1, clip.width]);
        let x = self.net.b.concat(&[class, features], 1);
        let positions = self.clip_positions(&clip);
        let x = self.net.b.add(x, positions);
        self.net.b.label(x, "clip.embeddings");
        let mut x = self.net.layer_norm(x, &format!("{prefix}pre_layrnorm"), clip.width, CLIP_EPSILON);
        self.net.b.label(x, "clip.pre_layrnorm");
        for layer in 0..clip.layers {
            x = self.clip_block(x, &format!("{prefix}transformer.layers.{layer}."), &clip);
            self.net.b.label(x, format!("clip.layer.{layer}"));
        }
        let rows = self.net.b.shape(x).get(1).copied().unwrap_or(1);
        self.net.b.slice_axis(x, 1, 1, rows)
    }

    /// Row 0 of the table is the class token's; the others are a square grid, resampled to the grid there is.
    fn clip_positions(&mut self, clip: &Clip) -> ValueId {
        let (stored, side) = (clip.grid, self.grid / 4);
        let name = "model.vision_model.embeddings.position_embedding.weight";
        let table = self.net.weight_as(name, &[stored * stored + 1, clip.width], ElementType::F32);
        let class = self.net.b.slice_axis(table, 0, 0, 1);
        let class = self.net.b.cast(class, self.net.element());
        let grid = self.net.b.slice_axis(table, 0, 1, stored * stored + 1);
        let grid = self.net.b.reshape(grid, &[stored, stored, clip.width]);
        let grid = self.resized(grid, side, stored);
        let grid = self.net.b.reshape(grid, &[side * side, clip.width]);
        self.net.b.concat(&[class, grid], 0)
    }

    fn clip_block(&mut self, x: ValueId, prefix: &str, clip: &Clip) -> ValueId {
        let width = clip.width;
        let y = self.net.layer_norm(x, &format!("{prefix}layer_norm1"), width, CLIP_EPSILON);
        let qkv = self.net.linear(y, &format!("{prefix}self_attn.qkv_proj"), (width, 3 * width), Bias::Yes);
        let parts = [0, 1, 2].map(|i| {
            let part = self.net.b.slice_axis(qkv, 2, i * width, (i + 1) * width);
            split_heads(&mut self.net.b, part, clip.heads)
        });
        let y = self.net.b.attention(parts, false);
        let y = merge_heads(&mut self.net.b, y);
        let y = self.net.linear(y, &format!("{prefix}self_attn.out_proj"), (width, width), Bias::Yes);
        let x = self.net.b.add(x, y);
        let y = self.net.layer_norm(x, &format!("{prefix}layer_norm2"), width, CLIP_EPSILON);
        let y = self.net.linear(y, &format!("{prefix}mlp.fc1"), (width, clip.mlp), Bias::Yes);
        let y = self.net.b.unary(Unary::QuickGelu, y);
        let y = self.net.linear(y, &format!("{prefix}mlp.fc2"), (clip.mlp, width), Bias::Yes);
        self.net.b.add(x, y)
    }
}
