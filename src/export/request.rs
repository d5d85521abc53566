//! What the user asks for.

use std::path::PathBuf;

use super::{Compute, Family, Manifest};
use crate::grid::Grid;
use crate::host::recipe::Variant;
use crate::passes::KvForm;
use crate::quant::Scheme;
use crate::{ElementType, Error, Result};

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

/// One export, as asked for. `None`, and an empty list, mean the default of the model's manifest.
#[derive(Debug, Clone)]
pub struct ExportRequest {
    /// Name of a manifest: `unlimited-ocr`, `glm-ocr`.
    pub model: String,
    /// Where the weights come from.
    pub checkpoint: CheckpointChoice,
    /// Use the shards on disk where the index disagrees.
    pub ignore_index: bool,
    /// How weights are stored.
    pub scheme: Option<Scheme>,
    /// How routed experts run; for models that have some.
    pub moe: Option<MoeForm>,
    /// Element type of activations.
    pub precision: Precision,
    /// Side of the page image in pixels; for models that take a square one.
    pub image_size: Option<usize>,
    /// Grids of visual tokens, the default one first; for models that take pages of several shapes.
    pub grids: Vec<Grid>,
    /// Variants of the decoder; for models that have several.
    pub functions: Vec<Variant>,
    /// Tokens of the prompt that are read at once; for models that read it in chunks.
    pub prefill_chunk: Option<usize>,
    /// Positions of the key/value cache.
    pub max_context: Option<usize>,
    /// Text of the prompt after the image.
    pub prompt: Option<String>,
    /// The form of the key/value cache; without it the target chooses.
    pub kv: Option<KvForm>,
    /// Name of the target in `manifests/targets.toml`: `macos26`.
    pub target: Option<String>,
    /// What computes; without it the target's GPU, or its only unit.
    pub compute: Option<Compute>,
    /// Take a form that is known to crash on the target.
    pub allow_known_crash: bool,
    /// Decoder layers of a function; without it functions are whole.
    pub chunk_layers: Option<usize>,
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
            grids: Vec::new(),
            functions: Vec::new(),
            prefill_chunk: None,
            max_context: None,
            prompt: None,
            kv: None,
            target: None,
            compute: None,
            allow_known_crash: false,
            chunk_layers: None,
            probes: Vec::new(),
            verify_passes: false,
            threads: 0,
        }
    }

    /// Refuses an option that the model has no use for: nothing that is asked for is passed over.
    ///
    /// # Errors
    /// When there is one; the hint says what to use in its place.
    pub(super) fn check_options(&self, manifest: &Manifest) -> Result<()> {
        let unused: &[(&str, bool, &str)] = match manifest.family {
            Family::UnlimitedOcr(_) => &[
                ("--grid", !self.grids.is_empty(), "its page is a square: use `--image-size PIXELS`"),
                ("--functions", !self.functions.is_empty(), "it has `prefill` and `decode`, and no other form"),
                ("--prefill-chunk", self.prefill_chunk.is_some(), "its `prefill` reads the whole prompt at once"),
            ],
            Family::GlmOcr(_) => &[
                ("--image-size", self.image_size.is_some(), "its page is a grid: use `--grid ROWSxCOLUMNS`"),
                ("--moe", self.moe.is_some(), "it has no experts: leave the option out"),
            ],
        };
        match unused.iter().find(|(_, given, _)| *given) {
            Some((option, _, hint)) => {
                Err(Error::input(format!("`{}` has no use for this option", manifest.name)).at(*option).hint(*hint))
            }
            None => Ok(()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_of_another_family_is_refused_with_what_to_use_in_its_place() {
        let grid = Grid::new(22, 31).unwrap();
        let of = |model: &str| ExportRequest::new(model);
        for (request, option, hint) in [
            (ExportRequest { image_size: Some(640), ..of("glm-ocr") }, "--image-size", "--grid"),
            (ExportRequest { moe: Some(MoeForm::Native), ..of("glm-ocr") }, "--moe", "no experts"),
            (ExportRequest { grids: vec![grid], ..of("unlimited-ocr") }, "--grid", "--image-size"),
            (ExportRequest { functions: vec![Variant::Step], ..of("unlimited-ocr") }, "--functions", "decode"),
            (ExportRequest { prefill_chunk: Some(8), ..of("unlimited-ocr") }, "--prefill-chunk", "whole prompt"),
        ] {
            let error = request.check_options(&Manifest::find(&request.model).unwrap()).unwrap_err();
            let expected = format!("{option}: `{}` has no use for this option", request.model);
            assert_eq!(error.to_string(), expected);
            assert!(error.hint_text().is_some_and(|text| text.contains(hint)), "{error:?}");
        }
    }

    #[test]
    fn options_of_the_own_family_pass() {
        let request = ExportRequest { image_size: Some(640), moe: Some(MoeForm::Native), ..ExportRequest::new("") };
        request.check_options(&Manifest::find("unlimited-ocr").unwrap()).unwrap();
        let request =
            ExportRequest { prefill_chunk: Some(8), functions: vec![Variant::Step], ..ExportRequest::new("") };
        request.check_options(&Manifest::find("glm-ocr").unwrap()).unwrap();
    }
}
