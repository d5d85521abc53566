//! Tensors that lie in files of the bundle.

use std::path::Path;
use std::sync::Arc;

use crate::host::arrange;
use crate::host::recipe::HostTensorFile;
use crate::storage::{FileSource, StoredTensor};
use crate::{ElementType, Error, Result};

/// The tensor of a file, which is left where it is.
pub(super) fn open(bundle: &Path, name: &str, file: &HostTensorFile) -> Result<StoredTensor> {
    let source = FileSource::open(bundle.join(&file.file))?;
    let tensor = StoredTensor {
        name: Arc::from(name),
        source: Arc::new(source),
        offset: 0,
        element: file.element,
        shape: file.shape.clone(),
    };
    arrange::check_extent(&tensor)?;
    Ok(tensor)
}

/// All elements of a tensor of half or single precision.
pub(super) fn read_floats(tensor: &StoredTensor) -> Result<Vec<f32>> {
    let mut values = vec![0.0; tensor.elements()];
    arrange::to_floats(tensor.element, &read_bytes(tensor)?, &mut values);
    Ok(values)
}

/// Checks that a file holds the prompt `ids` that the tokenizer makes.
pub(super) fn check_prompt(bundle: &Path, file: &HostTensorFile, ids: &[u32]) -> Result<()> {
    if read_ids(&open(bundle, "prompt_input_ids", file)?)? == ids {
        return Ok(());
    }
    Err(Error::input("the stored prompt is not what the tokenizer makes of the recipe's prompt")
        .at(bundle.join(&file.file).display().to_string()))
}

fn read_ids(tensor: &StoredTensor) -> Result<Vec<u32>> {
    debug_assert_eq!(tensor.element, ElementType::I32);
    Ok(read_bytes(tensor)?.as_chunks::<4>().0.iter().map(|&bytes| u32::from_le_bytes(bytes)).collect())
}

fn read_bytes(tensor: &StoredTensor) -> Result<Vec<u8>> {
    let mut bytes = vec![0; tensor.elements() * tensor.element.size()];
    tensor.read_at(&mut bytes, 0)?;
    Ok(bytes)
}
