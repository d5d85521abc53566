//! What became of every tensor of the checkpoint: used, dropped for a reason, or an error.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::files;
use crate::error::At;
use crate::{Error, Result};

/// Longest ledger that is read, in bytes; a checkpoint of 100,000 tensors has about a third of it.
const MAX_BYTES: u64 = 64 << 20;
/// Names shown of the tensors that nothing accounts for.
const SHOWN: usize = 3;

/// Collects what became of each source tensor while a bundle is made.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    weights: BTreeMap<String, WeightRow>,
    used: BTreeMap<String, BTreeSet<String>>,
    dropped: BTreeMap<String, Drop>,
}

/// A weight as written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightRow {
    /// Bytes written.
    pub bytes: u64,
    /// How it is stored: an element type (`f16`), or a scheme and its part (`sym8 codes`).
    pub stored_as: String,
    /// What people should know about the way it is stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
}

/// A tensor that was left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drop {
    /// Name of the pass that left it out.
    pub pass: String,
    /// Why.
    pub reason: String,
    /// Bytes it has in the checkpoint.
    pub bytes: u64,
}

/// What became of one source tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Account {
    /// The weights it is part of, by name.
    UsedBy(Vec<String>),
    /// A pass left it out.
    DroppedBy(Drop),
}

/// Sums of a ledger.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Tensors of the checkpoint.
    pub tensors: usize,
    /// Those that are part of a weight.
    pub used: usize,
    /// Those that were left out.
    pub dropped: usize,
    /// Bytes that these have in the checkpoint.
    pub dropped_bytes: u64,
    /// Weights written.
    pub weights: usize,
    /// Bytes of all weights, each counted once.
    pub bytes: u64,
}

/// A whole ledger, the contents of `ledger.json`. Everything in it is sorted by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accounts {
    /// The sums.
    pub totals: Totals,
    /// Every weight written.
    pub weights: BTreeMap<String, WeightRow>,
    /// Every tensor of the checkpoint.
    pub tensors: BTreeMap<String, Account>,
}

impl Ledger {
    /// An empty ledger.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes that `weight` was written and is made of `sources`, which may be none.
    ///
    /// # Errors
    /// When a weight of that name was written in another form.
    pub fn used<'a>(&mut self, weight: &str, row: WeightRow, sources: impl IntoIterator<Item = &'a str>) -> Result<()> {
        for source in sources {
            self.used.entry(source.to_owned()).or_default().insert(weight.to_owned());
        }
        match self.weights.insert(weight.to_owned(), row.clone()) {
            Some(before) if before != row => Err(Error::input("two weights have one name")
                .at(format!("weight `{weight}`"))
                .found(format!("{} bytes of {}", row.bytes, row.stored_as))
                .expected(format!("{} bytes of {}", before.bytes, before.stored_as))),
            _ => Ok(()),
        }
    }

    /// Notes that `tensor` was left out. A tensor that some weight uses all the same counts as used.
    pub fn dropped(&mut self, tensor: &str, drop: Drop) {
        self.dropped.insert(tensor.to_owned(), drop);
    }

    /// Closes the ledger over all tensors of the checkpoint.
    ///
    /// # Errors
    /// When a tensor is neither used nor dropped, or one that is noted is not in the checkpoint.
    pub fn finish<'a>(mut self, tensors: impl IntoIterator<Item = &'a str>) -> Result<Accounts> {
        let mut accounts = BTreeMap::new();
        let mut unaccounted = Vec::new();
        for tensor in tensors {
            match self.close(tensor) {
                Some(account) => {
                    accounts.insert(tensor.to_owned(), account);
                }
                None => unaccounted.push(tensor),
            }
        }
        if !unaccounted.is_empty() {
            return Err(unaccounted_error(unaccounted));
        }
        if let Some(stranger) = self.used.keys().chain(self.dropped.keys()).next() {
            return Err(Error::input("the checkpoint has no such tensor").at(format!("tensor `{stranger}`")));
        }
        Ok(Accounts { totals: totals(&accounts, &self.weights), weights: self.weights, tensors: accounts })
    }

    fn close(&mut self, tensor: &str) -> Option<Account> {
        let dropped = self.dropped.remove(tensor);
        match self.used.remove(tensor) {
            Some(weights) => Some(Account::UsedBy(weights.into_iter().collect())),
            None => dropped.map(Account::DroppedBy),
        }
    }
}

impl Accounts {
    /// Reads a `ledger.json`.
    ///
    /// # Errors
    /// When it cannot be read or is not a ledger; names file and JSON path.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = files::read_small(path, MAX_BYTES)?;
        let json = &mut serde_json::Deserializer::from_slice(&bytes);
        serde_path_to_error::deserialize(json)
            .map_err(|e| Error::input(e.inner().to_string()).at(e.path().to_string()))
            .at(|| path.display().to_string())
    }

    /// Adds to what people should know about a weight.
    pub fn remark(&mut self, weight: &str, remark: &str) {
        if let Some(row) = self.weights.get_mut(weight) {
            let before = row.remark.take().map_or_else(String::new, |before| format!("{before}; "));
            row.remark = Some(before + remark);
        }
    }

    /// The sums, counted again from what is listed.
    #[must_use]
    pub fn count(&self) -> Totals {
        totals(&self.tensors, &self.weights)
    }
}

fn totals(accounts: &BTreeMap<String, Account>, weights: &BTreeMap<String, WeightRow>) -> Totals {
    let dropped = accounts.values().filter_map(|account| match account {
        Account::DroppedBy(drop) => Some(drop.bytes),
        Account::UsedBy(_) => None,
    });
    let dropped: Vec<u64> = dropped.collect();
    Totals {
        tensors: accounts.len(),
        used: accounts.len() - dropped.len(),
        dropped: dropped.len(),
        dropped_bytes: dropped.into_iter().fold(0, u64::saturating_add),
        weights: weights.len(),
        bytes: weights.values().fold(0, |sum: u64, row| sum.saturating_add(row.bytes)),
    }
}

fn unaccounted_error(mut tensors: Vec<&str>) -> Error {
    tensors.sort_unstable();
    let shown = tensors.iter().take(SHOWN).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let more = match tensors.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let problem =
        if tensors.len() == 1 { "the model does not use this tensor" } else { "the model does not use these tensors" };
    Error::input(problem)
        .at(format!("tensor {shown}{more}"))
        .expected("every tensor of the checkpoint to be used, or left out by a pass that says why")
        .hint("the checkpoint is of another model or was renamed; `aimodel inspect` lists its tensors")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(bytes: u64, stored_as: &str) -> WeightRow {
        WeightRow { bytes, stored_as: stored_as.to_owned(), remark: None }
    }

    fn mtp() -> Drop {
        let reason = "layer 2 is beyond num_hidden_layers".to_owned();
        Drop { pass: "drop-mtp".to_owned(), reason, bytes: 48 }
    }

    fn sample() -> Ledger {
        let mut ledger = Ledger::new();
        ledger.used("experts.codes", row(64, "sym8 codes"), ["e.1", "e.0"]).unwrap();
        ledger.used("experts.scales", row(4, "sym8 scales"), ["e.0", "e.1"]).unwrap();
        ledger.used("mask", row(8, "f16"), []).unwrap();
        ledger.dropped("mtp", mtp());
        ledger
    }

    #[test]
    fn every_tensor_is_used_or_dropped_and_every_weight_counts_once() {
        let accounts = sample().finish(["mtp", "e.1", "e.0"]).unwrap();
        assert_eq!(
            accounts.totals,
            Totals { tensors: 3, used: 2, dropped: 1, dropped_bytes: 48, weights: 3, bytes: 76 }
        );
        let json = serde_json::to_value(&accounts).unwrap();
        let both = serde_json::json!({"used_by": ["experts.codes", "experts.scales"]});
        let dropped =
            serde_json::json!({"pass": "drop-mtp", "reason": "layer 2 is beyond num_hidden_layers", "bytes": 48});
        let tensors = serde_json::json!({"e.0": both, "e.1": both, "mtp": {"dropped_by": dropped}});
        assert_eq!(json["tensors"], tensors);
        assert_eq!(json["weights"]["experts.codes"], serde_json::json!({"bytes": 64, "stored_as": "sym8 codes"}));
    }

    #[test]
    fn remarks_on_a_weight_add_up() {
        let mut accounts = sample().finish(["mtp", "e.1", "e.0"]).unwrap();
        accounts.remark("mask", "padded");
        accounts.remark("mask", "2 values became zero");
        let mask = serde_json::json!({"bytes": 8, "stored_as": "f16", "remark": "padded; 2 values became zero"});
        assert_eq!(serde_json::to_value(&accounts.weights["mask"]).unwrap(), mask);
    }

    #[test]
    fn the_order_of_the_work_does_not_show() {
        let mut other = Ledger::new();
        other.dropped("mtp", mtp());
        other.used("mask", row(8, "f16"), []).unwrap();
        other.used("experts.scales", row(4, "sym8 scales"), ["e.1", "e.0"]).unwrap();
        other.used("experts.codes", row(64, "sym8 codes"), ["e.0", "e.1"]).unwrap();
        let names = ["e.0", "e.1", "mtp"];
        let text = |ledger: Ledger| serde_json::to_string(&ledger.finish(names).unwrap()).unwrap();
        assert_eq!(text(other), text(sample()));
    }

    #[test]
    fn a_tensor_nothing_accounts_for_is_named() {
        let error = sample().finish(["e.0", "e.1", "mtp", "norm.weigth"]).unwrap_err();
        assert!(error.to_string().starts_with("tensor `norm.weigth`: the model does not use this tensor"), "{error}");
        assert!(error.hint_text().is_some());
        let error = Ledger::new().finish(["e", "d", "c", "b", "a"]).unwrap_err().to_string();
        assert!(error.starts_with("tensor `a`, `b`, `c` and 2 more: the model does not use these tensors"), "{error}");
    }

    #[test]
    fn a_tensor_the_checkpoint_does_not_have_is_named() {
        let error = sample().finish(["e.0", "e.1"]).unwrap_err().to_string();
        assert_eq!(error, "tensor `mtp`: the checkpoint has no such tensor");
    }

    #[test]
    fn use_outweighs_dropping() {
        let mut ledger = sample();
        ledger.used("head", row(2, "f16"), ["mtp"]).unwrap();
        let accounts = ledger.finish(["e.0", "e.1", "mtp"]).unwrap();
        assert_eq!(accounts.tensors["mtp"], Account::UsedBy(vec!["head".to_owned()]));
    }

    #[test]
    fn a_weight_has_one_form() {
        let mut ledger = sample();
        ledger.used("mask", row(8, "f16"), []).unwrap();
        let error = ledger.used("mask", row(16, "f32"), []).unwrap_err().to_string();
        assert_eq!(error, "weight `mask`: two weights have one name: found 16 bytes of f32, expected 8 bytes of f16");
    }
}
