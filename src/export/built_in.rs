//! The tiny trained checkpoints compiled into the program, so that an export works wherever it is installed.

use crate::Result;
use crate::checkpoint::Checkpoint;

macro_rules! files {
    ($folder:literal: $($name:literal),+ $(,)?) => {
        &[$(($name, include_bytes!(concat!("../../golden/trained/", $folder, "/", $name)))),+]
    };
}

/// Files of `golden/trained/unlimited-ocr-tiny`.
const UNLIMITED_OCR: &[(&str, &[u8])] = files!("unlimited-ocr-tiny":
    "config.json",
    "generation_config.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
    "processor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
);

/// Files of `golden/trained/glm-ocr-tiny`.
const GLM_OCR: &[(&str, &[u8])] = files!("glm-ocr-tiny":
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
);

/// The built-in checkpoint of a model, if it has one.
///
/// # Errors
/// When the checkpoint does not open, which a test rules out.
pub(super) fn open(model: &str) -> Result<Option<Checkpoint>> {
    match model {
        "unlimited-ocr" => Checkpoint::built_in("built-in unlimited-ocr-tiny", UNLIMITED_OCR).map(Some),
        "glm-ocr" => Checkpoint::built_in("built-in glm-ocr-tiny", GLM_OCR).map(Some),
        _ => Ok(None),
    }
}
