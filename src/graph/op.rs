//! The operations of the graph.
//!
//! Two levels share one enum. *Source operations* say what the checkpoint's own model does (`Linear`, `RmsNorm`,
//! `RoutedExperts`, the key/value cache); passes rewrite them. *Primitive operations* have a form in Apple's
//! `aicode` dialect, one to one; only they can be lowered.

use crate::ElementType;
use crate::weights::{Resampling, WeightId};

/// One operation. Inputs are listed in the doc comment of each variant, in order.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Op {
    /// A parameter of the function: an input or the value of a state on entry. No inputs.
    Parameter,
    /// A stored weight or a table. No inputs.
    Constant(WeightId),

    /// `f(x)`, elementwise.
    Unary(Unary),
    /// `f(a, b)`, elementwise with numpy broadcasting, equal element types.
    Binary(Binary),
    /// `a ? b : c` with broadcasting; `a` is `i1`.
    Select,
    /// `x` in another element type.
    Cast(ElementType),

    /// `x` reduced over `axes`, which stay as extent 1.
    Reduce {
        /// How elements are combined.
        kind: Reduction,
        /// Ascending.
        axes: Vec<usize>,
    },
    /// Softmax of `x` over `axis`.
    Softmax {
        /// The axis that sums to one.
        axis: usize,
    },
    /// `x` sorted along `axis`, ties in index order.
    Sort {
        /// The axis sorted along.
        axis: usize,
        /// Largest first.
        descending: bool,
    },
    /// The `si32` indices that [`Op::Sort`] would take its elements from.
    ArgSort {
        /// The axis sorted along.
        axis: usize,
        /// Largest first.
        descending: bool,
    },
    /// Index (`ui32`) of the largest element along `axis`, which stays as extent 1.
    ArgMax {
        /// The axis searched.
        axis: usize,
    },

    /// `a [.., m, k] x b [.., k, n]`, batch axes broadcast.
    MatMul,
    /// Convolution without padding or bias: `x [n, c, h, w]`, `w [o, c/groups, kh, kw]`.
    Conv2d {
        /// Step in y and x.
        stride: [usize; 2],
        /// Channel groups.
        groups: usize,
    },
    /// Source: convolution over depth too, without padding, bias or groups: `x [n, c, d, h, w]`,
    /// `w [o, c, kd, kh, kw]`.
    Conv3d {
        /// Step in z, y and x.
        stride: [usize; 3],
    },

    /// Axes of `x` permuted: result axis `i` is axis `perm[i]` of `x`.
    Transpose(Vec<usize>),
    /// `x` with the same elements in another shape.
    Reshape(Vec<usize>),
    /// Inputs `x, shape` (`si32 [rank]`): as [`Op::Reshape`] with a run-time shape; one extent of -1 follows from the
    /// number of elements. The result type is declared.
    ReshapeAt,
    /// The extents of `x`: `si32 [rank]`.
    ShapeOf,
    /// Inputs `begin, end` (`si32 []`): the integers `begin..end`, `si32 [end - begin]`. The result type is declared.
    Range,
    /// `x` repeated along axes of extent 1 (or new outer axes) to a shape.
    BroadcastTo(Vec<usize>),
    /// Inputs joined along `axis`.
    Concat {
        /// The axis joined along.
        axis: usize,
    },
    /// The elements `begin..end` of each axis of `x`, step 1.
    Slice {
        /// First index of each axis.
        begin: Vec<usize>,
        /// One past the last index of each axis; [`Op::TO_END`] on axes whose extent is chosen at run time, which stay
        /// whole.
        end: Vec<usize>,
    },
    /// Inputs `x, begin, end` (`si32 [rank]`): as [`Op::Slice`] with run-time bounds. The result type is declared.
    SliceAt,
    /// Inputs `x, begin, end, update`: `x` with the box `begin..end` replaced; bounds are `si32 [rank]`.
    SliceUpdate,
    /// `x` with zeros added before and after each axis.
    Pad {
        /// Zeros before the first element of each axis.
        before: Vec<usize>,
        /// Zeros after the last element of each axis.
        after: Vec<usize>,
    },
    /// Inputs `x, indices [.., k]`: result `[.., x.shape[k..]]` (`gather_nd`).
    Gather,
    /// Inputs `x, indices`: elements of `x` at `indices` along `axis`; the other axes match.
    GatherAlongAxis {
        /// The axis gathered along.
        axis: usize,
    },

    /// Inputs `codes, scales`: `codes x scale` with one scale for each block; result has the element type of `scales`.
    BlockScale,
    /// Call of a composite function of the module, by name, with the result type declared.
    Invoke(String),
    /// Inputs `a f16 [slots, k]`, `codes ui32 [e, n, k/4]`, `scales f16 [e, n, k/32]`, `expert si32 [slots]`:
    /// `f16 [slots, n]`, row `s` being `a[s]` times the matrix of `expert[s]`. Runs as a Metal kernel.
    GatherQmm,

    /// Source: inputs `x [.., in]`, `weight [out, in]`, and `bias [out]` if there is one.
    Linear,
    /// Source: inputs `x`, `gamma`: root-mean-square norm over the last axis, statistics in f32.
    RmsNorm {
        /// Added to the mean square.
        epsilon: f32,
    },
    /// Source: inputs `x`, `gamma`, `beta`: layer norm over the last axis, statistics in f32.
    LayerNorm {
        /// Added to the variance.
        epsilon: f32,
    },
    /// Source: a table of positions resampled to another size, `[n.., c]` to `[to.., c]`.
    Resample {
        /// Which resampler.
        kind: Resampling,
        /// New extent of each leading axis.
        to: Vec<usize>,
    },
    /// Source: inputs `x [t, h]`, `probability f32 [t, k]`, `expert si32 [t, k]`, then `experts` times gate `[f, h]`,
    /// `experts` times up `[f, h]`, `experts` times down `[h, f]`. Result `f32 [t, h]`:
    /// the sum over the `k` chosen experts of `probability x down(silu(gate x) * up x)`.
    RoutedExperts {
        /// Number of experts.
        experts: usize,
    },
    /// Source: as [`Op::RoutedExperts`] with stacked `gate [e, f, h]`, `up [e, f, h]`, `down [e, h, f]`.
    /// The last axis of a stack may be padded with zeros beyond `h` or `f`.
    StackedExperts,
    /// Source: inputs `cache [l, 1, heads, length, d]`, `columns [1, heads, q, d]`, `start si32 [1]`:
    /// the cache with the columns of `layer` written from position `start` on.
    KvAppend {
        /// The decoder layer.
        layer: usize,
    },
    /// Source: inputs `q [1, heads, n, d]`, `keys` and `values [l, 1, groups, length, d]` with the columns of this call
    /// appended, `start si32 [1]`: as [`Op::Attention`] to the columns of one layer, where query `i` is at position
    /// `start + i` and sees the positions up to its own that the window leaves.
    CachedAttention {
        /// The decoder layer.
        layer: usize,
        /// What is seen of the past; everything where there is none.
        window: Option<Window>,
    },
    /// Source: inputs `q [1, heads, n, d]`, `k` and `v [1, groups, keys, d]`, where `groups` divides `heads`: the
    /// values weighted by `softmax(q kT / sqrt(d))`, statistics in f32, `[1, heads, n, d]`. Head `h` reads group
    /// `h / (heads / groups)`.
    Attention {
        /// Whether query `i` sees the keys up to `keys - n + i` only: the queries are the last of the sequence.
        causal: bool,
    },
}

/// Reference sliding-window attention: position `i` sees those before `prefix`, and the last `span` with itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Window {
    /// Positions that are always seen.
    pub prefix: usize,
    /// Positions seen up to the own one.
    pub span: usize,
}

/// Elementwise functions of one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unary {
    /// e to the x.
    Exp,
    /// Sine of radians.
    Sin,
    /// Cosine of radians.
    Cos,
    /// Hyperbolic tangent.
    Tanh,
    /// Square root.
    Sqrt,
    /// One over the square root.
    Rsqrt,
    /// Logistic function.
    Sigmoid,
    /// `x * sigmoid(x)`.
    Silu,
    /// Gaussian error linear unit through erf.
    GeluErf,
    /// GELU approximated through tanh.
    GeluTanh,
    /// `x * sigmoid(1.702 x)`.
    QuickGelu,
    /// Logical not of `i1`.
    Not,
}

/// Elementwise functions of two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Binary {
    /// Sum.
    Add,
    /// Difference.
    Sub,
    /// Product.
    Mul,
    /// Quotient; of integers, rounded down.
    Div,
    /// The larger.
    Max,
    /// The smaller.
    Min,
    /// `a > b`, `i1`.
    Greater,
    /// `a == b`, `i1`.
    Equal,
    /// Logical and of `i1`.
    And,
    /// Logical or of `i1`.
    Or,
}

impl Binary {
    /// Whether the result is `i1` whatever the operands are.
    #[must_use]
    pub const fn is_predicate(self) -> bool {
        matches!(self, Self::Greater | Self::Equal | Self::And | Self::Or)
    }
}

/// How a reduction combines elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Sum.
    Sum,
    /// Arithmetic mean.
    Mean,
    /// Largest.
    Max,
    /// Smallest.
    Min,
}

impl Op {
    /// The end of a slice that keeps an axis of run-time extent whole.
    pub const TO_END: usize = i32::MAX as usize;

    /// Whether it has a form in the `aicode` dialect; the others need a pass first.
    #[must_use]
    pub const fn is_primitive(&self) -> bool {
        !matches!(
            self,
            Self::Linear
                | Self::Conv3d { .. }
                | Self::RmsNorm { .. }
                | Self::LayerNorm { .. }
                | Self::Resample { .. }
                | Self::RoutedExperts { .. }
                | Self::StackedExperts
                | Self::KvAppend { .. }
                | Self::CachedAttention { .. }
                | Self::Attention { .. }
        )
    }

    /// The stable name used in graph texts and messages.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Parameter => "parameter",
            Self::Constant(_) => "constant",
            Self::Unary(f) => f.name(),
            Self::Binary(f) => f.name(),
            Self::Select => "select",
            Self::Cast(_) => "cast",
            Self::Reduce { kind: Reduction::Sum, .. } => "reduce_sum",
            Self::Reduce { kind: Reduction::Mean, .. } => "reduce_mean",
            Self::Reduce { kind: Reduction::Max, .. } => "reduce_max",
            Self::Reduce { kind: Reduction::Min, .. } => "reduce_min",
            Self::Softmax { .. } => "softmax",
            Self::Sort { .. } => "sort",
            Self::ArgSort { .. } => "argsort",
            Self::ArgMax { .. } => "argmax",
            Self::MatMul => "matmul",
            Self::Conv2d { .. } => "conv2d",
            Self::Conv3d { .. } => "conv3d",
            Self::Transpose(_) => "transpose",
            Self::Reshape(_) => "reshape",
            Self::ReshapeAt => "reshape_at",
            Self::ShapeOf => "shape_of",
            Self::Range => "range",
            Self::BroadcastTo(_) => "broadcast_to",
            Self::Concat { .. } => "concat",
            Self::Slice { .. } => "slice",
            Self::SliceAt => "slice_at",
            Self::SliceUpdate => "slice_update",
            Self::Pad { .. } => "pad",
            Self::Gather => "gather",
            Self::GatherAlongAxis { .. } => "gather_along_axis",
            Self::BlockScale => "block_scale",
            Self::Invoke(_) => "invoke",
            Self::GatherQmm => "gather_qmm",
            Self::Linear => "linear",
            Self::RmsNorm { .. } => "rms_norm",
            Self::LayerNorm { .. } => "layer_norm",
            Self::Resample { .. } => "resample",
            Self::RoutedExperts { .. } => "routed_experts",
            Self::StackedExperts => "stacked_experts",
            Self::KvAppend { .. } => "kv_append",
            Self::CachedAttention { .. } => "cached_attention",
            Self::Attention { .. } => "attention",
        }
    }
}

impl Unary {
    /// The stable name used in graph texts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exp => "exp",
            Self::Sin => "sin",
            Self::Cos => "cos",
            Self::Tanh => "tanh",
            Self::Sqrt => "sqrt",
            Self::Rsqrt => "rsqrt",
            Self::Sigmoid => "sigmoid",
            Self::Silu => "silu",
            Self::GeluErf => "gelu_erf",
            Self::GeluTanh => "gelu_tanh",
            Self::QuickGelu => "quick_gelu",
            Self::Not => "not",
        }
    }
}

impl Binary {
    /// The stable name used in graph texts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Sub => "sub",
            Self::Mul => "mul",
            Self::Div => "div",
            Self::Max => "max",
            Self::Min => "min",
            Self::Greater => "greater",
            Self::Equal => "equal",
            Self::And => "and",
            Self::Or => "or",
        }
    }
}
