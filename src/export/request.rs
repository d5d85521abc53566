//! What the user asks for.

use std::path::PathBuf;

use crate::ElementType;
use crate::quant::Scheme;

/// Where the checkpoint is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckpointChoice {
    /// The Hub cache, else the checkpoint built into the program.
    Default,
    /// The snapshot of this model id in the Hub cache.
    Hub(String),
    /// A folder, a Hub-cache snapshot or a single `.safetensors` file.
    Path(PathBuf),
    /// The checkpoint built into the program.
    BuiltIn,
}

/// How routed experts run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MoeForm {
    /// The `gather_qmm` Metal kernel; quantised experts, Apple GPUs only.
    Metal,
    /// Gather, block scale and matrix product from the dialect; runs everywhere.
    Native,
}

/// The element type of activations and unquantised weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Half precision: what devices run.
    F16,
    /// Single precision: for comparing numbers.
    F32,
}

impl Precision {
    /// The element type.
    #[must_use]
    pub const fn element(self) -> ElementType {
        match self {
            Self::F16 => ElementType::F16,
            Self::F32 => ElementType::F32,
        }
    }
}

/// One export, as asked for. `None` means the default of the model's manifest.
#[derive(Debug, Clone)]
pub struct ExportRequest {
    /// Name of a manifest: `unlimited-ocr`.
    pub model: String,
    /// Where the weights come from.
    pub checkpoint: CheckpointChoice,
    /// Use the shards on disk where the index disagrees.
    pub ignore_index: bool,
    /// How weights are stored.
    pub scheme: Option<Scheme>,
    /// How routed experts run.
    pub moe: Option<MoeForm>,
    /// Element type of activations.
    pub precision: Precision,
    /// Side of the square page image in pixels.
    pub image_size: Option<usize>,
    /// Positions of the key/value cache.
    pub cache_length: Option<usize>,
    /// Text of the prompt after the image.
    pub prompt: Option<String>,
    /// Labelled values to return besides the results (`all` for every one); such bundles are marked as debug.
    pub probes: Vec<String>,
    /// Run the functions before and after each pass, and refuse a rewrite that changes the numbers.
    pub verify_passes: bool,
    /// Threads that make weights; 0 for one each core.
    pub threads: usize,
}

impl ExportRequest {
    /// An export of `model` with every default.
    pub fn new(model: impl Into<String>) -> Self {
        Self {
            model: model.into(),
            checkpoint: CheckpointChoice::Default,
            ignore_index: false,
            scheme: None,
            moe: None,
            precision: Precision::F16,
            image_size: None,
            cache_length: None,
            prompt: None,
            probes: Vec::new(),
            verify_passes: false,
            threads: 0,
        }
    }
}

/// Where the bundle goes.
#[derive(Debug, Clone)]
pub struct Destination {
    /// The folder, or the archive.
    pub path: PathBuf,
    /// One zip archive instead of a folder.
    pub zip: bool,
    /// Replace a bundle that is there.
    pub force: bool,
}
