//! Next-token-prediction layers (MTP): decoder layers behind the last one, which guess further tokens. The model's own
//! forward never runs them.

use std::collections::BTreeSet;

use super::{Loader, Unused};

/// Which layers these are.
#[derive(Debug, Clone, Copy)]
pub(super) struct PredictionLayers {
    /// What names of layer tensors begin with, up to the number.
    pub prefix: &'static str,
    /// Number of the first: that of decoder layers.
    pub first: usize,
    /// How many config.json speaks of. Saving a fine-tuned model loses the layers and keeps the number, so that they
    /// may be missing.
    pub declared: usize,
}

impl PredictionLayers {
    /// Drops every tensor of such a layer. A layer that config.json does not speak of is one only if it has the
    /// projection that no other layer has; otherwise it stays unaccounted for.
    pub(super) fn drop(self, loader: &mut Loader<'_>) {
        let layers = self.found(loader);
        let of_layers = |name: &&str| self.layer_of(name).is_some_and(|layer| layers.contains(&layer));
        let names: Vec<&str> = loader.names().filter(of_layers).collect();
        for name in names {
            loader.unused(Unused {
                tensor: name.to_owned(),
                pass: "drop-mtp",
                reason: "a next-token-prediction layer guesses further tokens; the model's own forward never runs it",
            });
        }
    }

    /// Where config.json and tensors disagree.
    pub(super) fn warnings(self, loader: &Loader<'_>) -> Vec<String> {
        let found = self.found(loader).len();
        if found == self.declared {
            return Vec::new();
        }
        let declared = self.declared;
        vec![format!(
            "config.json speaks of {declared} next-token-prediction layers, the checkpoint has {found}; none is exported"
        )]
    }

    /// Numbers of the layers there are.
    fn found(self, loader: &Loader<'_>) -> BTreeSet<usize> {
        let is_one = |&layer: &usize| {
            let declared = layer >= self.first && layer - self.first < self.declared;
            declared || layer >= self.first && loader.has(&format!("{}{layer}.eh_proj.weight", self.prefix))
        };
        loader.names().filter_map(|name| self.layer_of(name)).filter(is_one).collect()
    }

    /// The number in the name of a layer's tensor.
    fn layer_of(self, name: &str) -> Option<usize> {
        let (number, _) = name.strip_prefix(self.prefix)?.split_once('.')?;
        number.parse().ok()
    }
}
