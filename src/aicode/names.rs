//! Keys of resources: where a weight comes from and what was done to it.

use std::collections::BTreeSet;

use crate::weights::{Recipe, WeightId, Weights};

/// Gives out keys that are unique in a program.
#[derive(Debug, Default)]
pub(super) struct Keys {
    taken: BTreeSet<String>,
}

impl Keys {
    /// A key for the weight: the name of its first tensor with the steps that change its bytes.
    pub(super) fn key(&mut self, weights: &Weights, id: WeightId) -> String {
        let base = describe(weights, id);
        let mut key = base.clone();
        let mut number = 2;
        while !self.taken.insert(key.clone()) {
            key = format!("{base}.{number}");
            number += 1;
        }
        key
    }
}

fn describe(weights: &Weights, id: WeightId) -> String {
    if let Some(name) = weights.name(id) {
        return name.to_owned();
    }
    let of = |id: &WeightId| describe(weights, *id);
    match weights.recipe(id) {
        Recipe::Read(tensor) => weights.tensor(*tensor).name.to_string(),
        Recipe::Literal { .. } => "table".to_owned(),
        Recipe::Reshape { of: inner, .. } | Recipe::Cast { of: inner, .. } | Recipe::View { of: inner, .. } => {
            of(inner)
        }
        Recipe::Pad { of: inner, .. } => of(inner),
        Recipe::Rows { of: inner, begin, end } => format!("{}.rows_{begin}_{end}", of(inner)),
        Recipe::Concat(parts) => format!("{}.stacked", parts.first().map_or_else(String::new, of)),
        Recipe::Resample { of: inner, to, .. } => {
            let to: Vec<String> = to.iter().map(ToString::to_string).collect();
            format!("{}.{}", of(inner), to.join("x"))
        }
        Recipe::Take { of: inner, .. } => format!("{}.taken", of(inner)),
        Recipe::Codes { of: inner, .. } => format!("{}.codes", of(inner)),
        Recipe::Scales { of: inner, .. } => format!("{}.scales", of(inner)),
    }
}
