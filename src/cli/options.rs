//! Options that several subcommands share, and the words they take.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::export::{CheckpointChoice, Compute, ExportRequest, MoeForm, Precision};
use crate::grid::Grid;
use crate::host::recipe::Variant;
use crate::passes::KvForm;
use crate::quant::Scheme;

/// How much is printed, and in what form.
#[derive(Debug, Clone, Copy, Default, Args)]
#[command(next_help_heading = "Output options")]
pub(super) struct OutputOptions {
    /// Print results and errors only
    #[arg(short, long)]
    pub quiet: bool,
    /// Print the result as JSON on stdout
    #[arg(long)]
    pub json: bool,
}

/// Where the checkpoint is.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Checkpoint options")]
pub(super) struct CheckpointOptions {
    /// The checkpoint: a folder, a `.safetensors` file, a model id such as `baidu/Unlimited-OCR`, or `built-in`
    ///
    /// A model id is looked up among the models already downloaded from the Hugging Face Hub (`HF_HUB_CACHE`,
    /// `HF_HOME`); nothing is downloaded. `built-in` is a tiny trained checkpoint inside the program. Without this
    /// option the downloaded model is used, and the built-in one where there is none.
    #[arg(short, long, value_name = "PATH|ID|built-in")]
    pub checkpoint: Option<String>,
    /// Use the shards on disk where the shard index disagrees with them
    #[arg(long)]
    pub ignore_index: bool,
}

/// What is made, and how: the same for `plan` and `export`.
#[derive(Debug, Clone, Args)]
pub(super) struct ModelOptions {
    /// The model to export, a name from `aimodel models`
    #[arg(short, long, value_name = "NAME")]
    pub model: String,
    #[command(flatten)]
    pub checkpoint: CheckpointOptions,
    /// How weights are stored [default: the model's own]
    #[arg(long, value_name = "SCHEME", help_heading = "Model options")]
    pub quant: Option<Quant>,
    /// How the routed experts run; unlimited-ocr [default: metal where it can be]
    #[arg(long, value_name = "FORM", help_heading = "Model options")]
    pub moe: Option<Moe>,
    /// Element type of activations and of weights that are not quantised
    #[arg(long, value_name = "TYPE", default_value = "f16", help_heading = "Model options")]
    pub precision: Float,
    /// Side of the square page image, in pixels; unlimited-ocr [default: 640]
    #[arg(long, value_name = "PIXELS", help_heading = "Model options")]
    pub image_size: Option<NonZeroUsize>,
    /// Rows and columns of visual tokens; glm-ocr [default: 22x31]
    ///
    /// A token is 28 x 28 pixels. Several grids, repeated or with commas between, are functions over the same weights:
    /// a page is read with the grid that fits it best. The first one is the default.
    #[arg(long, value_name = "ROWSxCOLUMNS", value_delimiter = ',', help_heading = "Model options")]
    pub grid: Vec<Grid>,
    /// Forms of the decoder; glm-ocr [default: pf64]
    ///
    /// Several, repeated or with commas between, are functions over the same weights.
    #[arg(long, value_name = "FORM", value_delimiter = ',', help_heading = "Model options")]
    pub functions: Vec<Form>,
    /// Tokens of the prompt that are read at once; glm-ocr with pf64 [default: 64]
    #[arg(long, value_name = "TOKENS", help_heading = "Model options")]
    pub prefill_chunk: Option<NonZeroUsize>,
    /// Positions of the key/value cache: prompt and answer together [default: the model's own]
    #[arg(long, value_name = "TOKENS", alias = "cache-length", help_heading = "Model options")]
    pub max_context: Option<NonZeroUsize>,
    /// Text of the prompt after the image [default: the model's own]
    #[arg(long, value_name = "TEXT", help_heading = "Model options")]
    pub prompt: Option<String>,
    /// Return a labelled value besides the results; the bundle is then for debugging only
    #[arg(long, value_name = "LABEL", hide = true)]
    pub probe: Vec<String>,
    /// Run the graphs before and after each pass, and refuse a rewrite that changes the numbers; slow for large models
    #[arg(long, help_heading = "Pass options")]
    pub verify_passes: bool,
    /// Threads that make weights [default: one for each core]
    #[arg(long, value_name = "N", help_heading = "Model options")]
    pub threads: Option<NonZeroUsize>,
    #[command(flatten)]
    pub target: TargetOptions,
}

/// Where the bundle is to run.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Target options")]
pub(super) struct TargetOptions {
    /// The form of the key/value cache [default: what runs on the target, or the model's own]
    #[arg(long, value_name = "FORM")]
    pub kv: Option<Kv>,
    /// Where the bundle is to run: ios27-beta, linux, macos26 or macos27-beta
    ///
    /// Chooses the form of the key/value cache, and refuses one that is known to crash there.
    #[arg(long, value_name = "NAME")]
    pub target: Option<String>,
    /// What computes [default: gpu, or the target's only unit]
    #[arg(long, value_name = "UNIT")]
    pub compute: Option<Unit>,
    /// Take a form of the key/value cache that is known to crash on the target
    #[arg(long, requires = "target")]
    pub allow_known_crash: bool,
    /// Decoder layers of a function, called one after the other; the form `host` [default: all]
    #[arg(long, value_name = "LAYERS")]
    pub chunk_layers: Option<NonZeroUsize>,
}

/// Forms of the key/value cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Kv {
    /// Written at a position that is an input; no shape ever changes
    Indexed,
    /// Written at the end of positions that grow with each step
    Dynamic,
    /// Blended in with a mask from the host, layer by layer
    Blend,
    /// Blended in with a mask from the host, all layers in one go
    BlendWhole,
    /// Appended at the end; what is there moves towards the front
    Shift,
    /// Kept by the host, which hands in the past and takes the new columns
    Host,
}

/// What computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Unit {
    /// The processor
    Cpu,
    /// The graphics processor
    Gpu,
    /// The Neural Engine: norms and linear layers take the forms it computes in half precision
    Ane,
}

/// How weights are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Quant {
    /// Every weight in half precision
    Fp16,
    /// Routed experts as 8-bit codes in blocks of 32, everything else in half precision
    Sym8,
    /// Linear layers but the head as 8-bit codes in blocks of 32, as coreai-opt makes them
    #[value(name = "int8lin")]
    Int8Lin,
    /// As int8lin, and the head too, with scales that clip nothing
    #[value(name = "int8hu")]
    Int8Hu,
}

/// How the routed experts run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Moe {
    /// A Metal kernel that reads the chosen experts only; Apple GPUs
    Metal,
    /// Standard operations; runs everywhere
    Native,
}

/// Forms of the decoder of GLM-OCR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Form {
    /// One function for any number of tokens
    Dynamic,
    /// One function for one token
    S1,
    /// A function for one token, and one for a chunk of the prompt
    Pf64,
}

/// Element type of activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Float {
    /// Half precision: what devices run
    F16,
    /// Single precision: for comparing numbers
    F32,
}

/// What runs a bundle.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Runtime options")]
pub(super) struct RuntimeOptions {
    /// What runs the bundle
    #[arg(long, value_name = "RUNTIME", default_value = "eval")]
    pub runtime: RuntimeChoice,
    /// The Python that has the package `coreai-core`, for `--runtime coreai`
    /// [default: $AIMODEL_PYTHON, .venv/bin/python or python3]
    #[arg(long, value_name = "PATH")]
    pub python: Option<PathBuf>,
}

/// What runs a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum RuntimeChoice {
    /// The reference executor inside this program
    Eval,
    /// Apple's own runtime, from the Python package `coreai-core`
    Coreai,
}

impl From<Quant> for Scheme {
    fn from(quant: Quant) -> Self {
        match quant {
            Quant::Fp16 => Self::Fp16,
            Quant::Sym8 => Self::Sym8,
            Quant::Int8Lin => Self::Int8Lin,
            Quant::Int8Hu => Self::Int8Hu,
        }
    }
}

impl From<Form> for Variant {
    fn from(form: Form) -> Self {
        match form {
            Form::Dynamic => Self::Dynamic,
            Form::S1 => Self::Step,
            Form::Pf64 => Self::Prefill,
        }
    }
}

impl From<Kv> for KvForm {
    fn from(form: Kv) -> Self {
        match form {
            Kv::Indexed => Self::Indexed,
            Kv::Dynamic => Self::Dynamic,
            Kv::Blend => Self::Blend,
            Kv::BlendWhole => Self::BlendWhole,
            Kv::Shift => Self::Shift,
            Kv::Host => Self::Host,
        }
    }
}

impl From<Unit> for Compute {
    fn from(unit: Unit) -> Self {
        match unit {
            Unit::Cpu => Self::Cpu,
            Unit::Gpu => Self::Gpu,
            Unit::Ane => Self::Ane,
        }
    }
}

impl From<Moe> for MoeForm {
    fn from(moe: Moe) -> Self {
        match moe {
            Moe::Metal => Self::Metal,
            Moe::Native => Self::Native,
        }
    }
}

impl From<Float> for Precision {
    fn from(float: Float) -> Self {
        match float {
            Float::F16 => Self::F16,
            Float::F32 => Self::F32,
        }
    }
}

impl ModelOptions {
    /// The request these options make.
    pub fn request(&self) -> ExportRequest {
        ExportRequest {
            model: self.model.clone(),
            checkpoint: self.checkpoint.choice(),
            ignore_index: self.checkpoint.ignore_index,
            scheme: self.quant.map(Into::into),
            moe: self.moe.map(Into::into),
            precision: self.precision.into(),
            image_size: self.image_size.map(NonZeroUsize::get),
            grids: self.grid.clone(),
            functions: self.functions.iter().copied().map(Into::into).collect(),
            prefill_chunk: self.prefill_chunk.map(NonZeroUsize::get),
            max_context: self.max_context.map(NonZeroUsize::get),
            prompt: self.prompt.clone(),
            kv: self.target.kv.map(Into::into),
            target: self.target.target.clone(),
            compute: self.target.compute.map(Into::into),
            allow_known_crash: self.target.allow_known_crash,
            chunk_layers: self.target.chunk_layers.map(NonZeroUsize::get),
            probes: self.probe.clone(),
            verify_passes: self.verify_passes,
            threads: self.threads.map_or(0, NonZeroUsize::get),
        }
    }
}

impl CheckpointOptions {
    /// Where the checkpoint is. What is on disk under that name comes before a model id.
    fn choice(&self) -> CheckpointChoice {
        match self.checkpoint.as_deref() {
            None => CheckpointChoice::Default,
            Some("built-in") => CheckpointChoice::BuiltIn,
            Some(id) if is_model_id(id) && !Path::new(id).exists() => CheckpointChoice::Hub(id.to_owned()),
            Some(path) => CheckpointChoice::Path(path.into()),
        }
    }
}

/// Whether `text` has the form `owner/name` of a model id.
fn is_model_id(text: &str) -> bool {
    let is_part = |part: &str| {
        let mut bytes = part.bytes();
        bytes.next().is_some_and(|b| b.is_ascii_alphanumeric())
            && bytes.all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    };
    text.split_once('/').is_some_and(|(owner, name)| is_part(owner) && is_part(name) && !name.ends_with(".safetensors"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(text: Option<&str>) -> CheckpointChoice {
        let options = CheckpointOptions { checkpoint: text.map(str::to_owned), ignore_index: false };
        options.choice()
    }

    #[test]
    fn model_ids_are_told_from_paths() {
        for id in ["baidu/Unlimited-OCR", "zai-org/GLM-OCR", "a/b.c_d"] {
            assert!(is_model_id(id), "{id}");
        }
        for path in ["built-in", "./a/b", "../a", "/a/b", "a/b/c", "a/", "/b", "a", "m/model.safetensors", "~/b"] {
            assert!(!is_model_id(path), "{path}");
        }
    }

    #[test]
    fn the_checkpoint_is_what_is_on_disk_under_that_name() {
        assert_eq!(choice(None), CheckpointChoice::Default);
        assert_eq!(choice(Some("built-in")), CheckpointChoice::BuiltIn);
        assert_eq!(choice(Some("./built-in")), CheckpointChoice::Path("./built-in".into()));
        // A folder of the package the tests run in.
        assert_eq!(choice(Some("src/cli")), CheckpointChoice::Path("src/cli".into()));
        assert_eq!(choice(Some("no/such/folder")), CheckpointChoice::Path("no/such/folder".into()));
    }

    #[test]
    fn forms_and_units_are_the_words_of_the_command_line() {
        let forms: Vec<KvForm> = Kv::value_variants().iter().map(|form| (*form).into()).collect();
        assert_eq!(forms, KvForm::ALL);
        for form in Kv::value_variants() {
            assert_eq!(form.to_possible_value().unwrap().get_name(), KvForm::from(*form).name());
        }
        let units: Vec<Compute> = Unit::value_variants().iter().map(|unit| (*unit).into()).collect();
        assert_eq!(units, Compute::ALL);
        for unit in Unit::value_variants() {
            assert_eq!(unit.to_possible_value().unwrap().get_name(), Compute::from(*unit).name());
        }
    }

    #[test]
    fn scheme_names_are_the_words_of_the_command_line() {
        let words: Vec<Scheme> = Quant::value_variants().iter().map(|quant| (*quant).into()).collect();
        assert_eq!(words, Scheme::ALL);
        for quant in Quant::value_variants() {
            assert_eq!(quant.to_possible_value().unwrap().get_name(), Scheme::from(*quant).name());
        }
    }
}
