//! How a page becomes patches, from the checkpoint's own files.

use crate::checkpoint::{Checkpoint, Json};
use crate::host::patches::PageProcessor;
use crate::models::cogvit;
use crate::{Error, Result};

/// Reads the settings of the checkpoint's processor, which have to be those of its vision tower.
///
/// # Errors
/// When they are missing, not implemented, or contradict config.json.
pub(super) fn processor(checkpoint: &Checkpoint, vision: &cogvit::Config) -> Result<PageProcessor> {
    let own = checkpoint.side_json("preprocessor_config.json")?;
    // Saved by transformers 5, the settings are a part of the processor's.
    let whole = checkpoint.side_json("processor_config.json")?;
    let part = whole.as_ref().and_then(|json| json.root().optional("image_processor"));
    let settings = own.as_ref().map(|json| json.root()).or(part).ok_or_else(|| {
        Error::input("preprocessor_config.json is missing")
            .at(checkpoint.location())
            .hint("it says how a page becomes pixels: copy it from the model the checkpoint was made from")
    })?;
    let processor = PageProcessor::read(&settings)?;
    agree(&settings, &processor, vision)?;
    Ok(processor)
}

fn agree(settings: &Json<'_>, processor: &PageProcessor, vision: &cogvit::Config) -> Result<()> {
    for (name, found, expected) in [
        ("patch_size", processor.patch, vision.patch),
        ("temporal_patch_size", processor.frames, vision.frames),
        ("merge_size", processor.merge, vision.merge),
    ] {
        if found as usize != expected {
            let error = settings.field(name)?.error("disagrees with vision_config of config.json");
            return Err(error.found(found).expected(expected));
        }
    }
    if vision.channels != 3 {
        let error = Error::input("a page has three channels").at("vision_config.in_channels").at("config.json");
        return Err(error.found(vision.channels).expected(3));
    }
    Ok(())
}
