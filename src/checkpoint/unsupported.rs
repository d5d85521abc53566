//! Checkpoints whose tensors are not the plain weights of a model: quantised ones and adapters.

use crate::storage::StoredTensor;
use crate::{ElementType, Error, Result};

/// Endings of tensor names that only such checkpoints have, and what they are. A scale that is passed over makes
/// every weight silently wrong, so one such name is enough to refuse.
const MARKS: [(&str, &str); 22] = [
    (".SCB", "bitsandbytes 8-bit weights"),
    (".weight_format", "bitsandbytes 8-bit weights"),
    (".absmax", "bitsandbytes 4-bit weights"),
    (".quant_map", "bitsandbytes 4-bit weights"),
    (".bitsandbytes__nf4", "bitsandbytes 4-bit weights"),
    (".bitsandbytes__fp4", "bitsandbytes 4-bit weights"),
    ("_scale_inv", "block-scaled FP8 weights"),
    (".weight_scale", "weights with separate scales"),
    (".weight_scale_2", "weights with separate scales"),
    (".weight_packed", "packed weights"),
    (".weight_zero_point", "weights with separate zero points"),
    (".input_scale", "weights with activation scales"),
    ("activation_scale", "weights with activation scales"),
    (".qweight", "GPTQ or AWQ weights"),
    (".qzeros", "GPTQ or AWQ weights"),
    (".g_idx", "GPTQ weights"),
    (".scales", "weights with separate scales"),
    (".biases", "MLX quantised weights"),
    (".lora_A.weight", "an adapter"),
    (".lora_B.weight", "an adapter"),
    (".lora_embedding_A", "an adapter"),
    (".lora_embedding_B", "an adapter"),
];

/// Refuses tensors that are not plain weights; the error names the first.
pub(super) fn refuse<'a>(tensors: impl IntoIterator<Item = &'a StoredTensor>) -> Result<()> {
    match tensors.into_iter().find_map(|tensor| kind(tensor).map(|kind| (tensor, kind))) {
        Some((tensor, kind)) => Err(Error::input("the checkpoint does not hold plain weights")
            .at(format!("tensor `{}`", tensor.name))
            .at(tensor.source.name())
            .found(kind)
            .expected("unquantised weights of a whole model")
            .hint("dequantise the checkpoint, or merge the adapter into its base model, and save it as BF16 first")),
        None => Ok(()),
    }
}

fn kind(tensor: &StoredTensor) -> Option<&'static str> {
    let marked = MARKS.iter().find(|(ending, _)| tensor.name.ends_with(ending)).map(|(_, kind)| *kind);
    let bytes = matches!(tensor.element, ElementType::I8 | ElementType::U8) && tensor.name.ends_with(".weight");
    marked.or_else(|| bytes.then_some("a weight of 8-bit integers"))
}
