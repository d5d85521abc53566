//! What is in a checkpoint, and whether it can be exported.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::Serialize;

use super::size;
use crate::Result;
use crate::checkpoint::{Checkpoint, Json};
use crate::export::Manifest;
use crate::storage::StoredTensor;

/// Largest tensors shown.
const SHOWN: usize = 10;

/// A checkpoint.
#[derive(Debug, Serialize)]
pub(super) struct View {
    location: String,
    decision: Decision,
    shards: Vec<ShardView>,
    tensors: usize,
    bytes: u64,
    /// By element type.
    elements: BTreeMap<&'static str, Count>,
    largest: Vec<TensorView>,
    warnings: Vec<String>,
}

/// Which manifest exports it, and what that follows from.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Decision {
    model_type: Option<String>,
    architectures: Vec<String>,
    /// Whether attention is compressed; where config.json says.
    use_mla: Option<bool>,
    /// The manifest.
    exported_as: Option<String>,
    /// Why none, by manifest.
    refusals: BTreeMap<String, String>,
}

#[derive(Debug, Serialize)]
struct ShardView {
    name: String,
    bytes: u64,
    tensors: usize,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Count {
    tensors: usize,
    bytes: u64,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct TensorView {
    name: String,
    element: &'static str,
    shape: Vec<usize>,
    bytes: u64,
}

impl View {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let checkpoint = Checkpoint::open(path)?;
        let shard = |shard: &crate::checkpoint::Shard| ShardView {
            name: shard.name.clone(),
            bytes: shard.bytes,
            tensors: shard.tensors,
        };
        Ok(Self {
            location: checkpoint.location().to_owned(),
            decision: Decision::of(&checkpoint.config(), &Manifest::all()?),
            shards: checkpoint.shards().iter().map(shard).collect(),
            tensors: checkpoint.tensors().len(),
            bytes: checkpoint.tensors().map(StoredTensor::bytes).fold(0, u64::saturating_add),
            elements: elements(checkpoint.tensors()),
            largest: largest(checkpoint.tensors()),
            warnings: checkpoint.warnings().to_vec(),
        })
    }
}

impl Decision {
    /// A manifest takes a checkpoint by its architectures and model type; compressed attention is not exported
    /// whatever they are.
    fn of(config: &Json<'_>, manifests: &[Manifest]) -> Self {
        let text = config.optional("language_config").or_else(|| config.optional("text_config"));
        let use_mla = text.as_ref().unwrap_or(config).optional("use_mla").and_then(|json| json.as_bool().ok());
        let mut decision = Self {
            model_type: config.optional("model_type").and_then(|json| Some(json.as_str().ok()?.to_owned())),
            architectures: names(config.optional("architectures")),
            use_mla,
            exported_as: None,
            refusals: BTreeMap::new(),
        };
        for manifest in manifests {
            let accepted = manifest.accept(config).map_err(|error| error.to_string());
            let accepted = accepted.and_then(|()| match use_mla {
                Some(true) => Err("its attention is compressed (`use_mla`), which is not exported".to_owned()),
                _ => Ok(()),
            });
            match accepted {
                Ok(()) => {
                    decision.exported_as.get_or_insert_with(|| manifest.name.clone());
                }
                Err(reason) => drop(decision.refusals.insert(manifest.name.clone(), reason)),
            }
        }
        decision
    }
}

fn names(list: Option<Json<'_>>) -> Vec<String> {
    let list = list.and_then(|json| json.as_list().ok()).unwrap_or_default();
    list.iter().filter_map(|name| Some(name.as_str().ok()?.to_owned())).collect()
}

fn elements<'t>(tensors: impl Iterator<Item = &'t StoredTensor>) -> BTreeMap<&'static str, Count> {
    let mut counts: BTreeMap<&'static str, Count> = BTreeMap::new();
    for tensor in tensors {
        let count = counts.entry(tensor.element.name()).or_default();
        count.tensors += 1;
        count.bytes = count.bytes.saturating_add(tensor.bytes());
    }
    counts
}

/// The largest tensors, equal ones by name.
fn largest<'t>(tensors: impl Iterator<Item = &'t StoredTensor>) -> Vec<TensorView> {
    let mut sorted: Vec<_> = tensors.collect();
    sorted.sort_by(|a, b| b.bytes().cmp(&a.bytes()).then_with(|| a.name.cmp(&b.name)));
    let view = |tensor: &StoredTensor| TensorView {
        name: tensor.name.to_string(),
        element: tensor.element.name(),
        shape: tensor.shape.clone(),
        bytes: tensor.bytes(),
    };
    sorted.into_iter().take(SHOWN).map(view).collect()
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "checkpoint   {}", self.location)?;
        self.decision.fmt(f)?;
        writeln!(f, "tensors      {}, {}", self.tensors, size(self.bytes))?;
        for (element, Count { tensors, bytes }) in &self.elements {
            writeln!(f, "  {element:<9}  {tensors} tensors, {bytes} bytes")?;
        }
        writeln!(f, "shards       {}", self.shards.len())?;
        for ShardView { name, bytes, tensors } in &self.shards {
            writeln!(f, "  {name}: {tensors} tensors, {bytes} bytes")?;
        }
        writeln!(f, "largest")?;
        for TensorView { name, element, shape, bytes } in &self.largest {
            writeln!(f, "  {bytes:>12}  {element:<5}  {:<20}  {name}", format!("{shape:?}"))?;
        }
        self.warnings.iter().try_for_each(|warning| writeln!(f, "warning      {warning}"))
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "not said".to_owned());
        let architectures = Some(self.architectures.join(", ")).filter(|names| !names.is_empty());
        writeln!(f, "model type   {}", or_none(self.model_type.clone()))?;
        writeln!(f, "class        {}", or_none(architectures))?;
        writeln!(f, "use_mla      {}", or_none(self.use_mla.map(|flag| flag.to_string())))?;
        if let Some(manifest) = &self.exported_as {
            return writeln!(f, "exported as  {manifest}, by its class and model type");
        }
        writeln!(f, "exported as  nothing")?;
        self.refusals.iter().try_for_each(|(manifest, reason)| writeln!(f, "  {manifest}: {reason}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::JsonDocument;

    fn decision(config: &str) -> Decision {
        let document = JsonDocument::parse("config.json", config.as_bytes()).unwrap();
        Decision::of(&document.root(), &Manifest::all().unwrap())
    }

    #[test]
    fn the_manifest_follows_from_class_model_type_and_attention() {
        let config = |architecture: &str, mla: bool| {
            format!(
                r#"{{"model_type": "unlimited-ocr", "architectures": ["{architecture}"],
                    "language_config": {{"use_mla": {mla}}}}}"#
            )
        };
        let known = decision(&config("UnlimitedOCRForCausalLM", false));
        assert_eq!((known.exported_as.as_deref(), known.use_mla), (Some("unlimited-ocr"), Some(false)));
        let other = decision(&config("LlamaForCausalLM", false));
        assert_eq!(other.exported_as, None);
        assert!(other.refusals["unlimited-ocr"].contains("found `LlamaForCausalLM`"), "{other}");
        let compressed = decision(&config("UnlimitedOCRForCausalLM", true));
        assert_eq!(compressed.exported_as, None);
        assert!(compressed.refusals["unlimited-ocr"].contains("use_mla"), "{compressed}");
    }

    #[test]
    fn a_config_that_says_nothing_is_shown_all_the_same() {
        let text = decision("{}").to_string();
        let expected = "model type   not said\nclass        not said\nuse_mla      not said\nexported as  nothing\n";
        assert!(text.starts_with(expected), "{text}");
    }

    #[test]
    fn the_tiny_checkpoint_is_counted() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/trained/unlimited-ocr-tiny");
        let view = View::open(&path).unwrap();
        assert_eq!(view.decision.exported_as.as_deref(), Some("unlimited-ocr"));
        assert_eq!(view.tensors, view.shards.iter().map(|shard| shard.tensors).sum::<usize>());
        assert_eq!(view.bytes, view.elements.values().map(|count| count.bytes).sum::<u64>());
        assert_eq!(view.largest.len(), SHOWN);
        assert!(view.largest.is_sorted_by(|a, b| a.bytes >= b.bytes));
    }
}
