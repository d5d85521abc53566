//! What an export will write, as a report: every tensor, how it is stored, its size, who uses it.

use serde::Serialize;

use super::blueprint::{AssetPlan, Blueprint, stored_as};
use super::{Deployment, Manifest, Statement, Target};
use crate::bundle::{Account, Drop};
use crate::graph::{Dim, Function, Op};
use crate::passes::{Entry, KvForm, PassLog};
use crate::weights::{Recipe, WeightId, Weights};

/// A whole export before it is made. Sizes are those of the real run, to the byte.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// The model.
    pub model: String,
    /// How weights are stored.
    pub scheme: String,
    /// The form of the key/value cache.
    pub kv: KvReport,
    /// The assets.
    pub assets: Vec<AssetReport>,
    /// Tensors the host holds.
    pub host_tensors: Vec<WeightReport>,
    /// Bytes of all assets and host tensors.
    pub total_bytes: u64,
    /// Tensors of the checkpoint that are not used.
    pub dropped: Vec<DroppedReport>,
    /// What is said about the checkpoint.
    pub notes: Vec<String>,
}

/// The form of the key/value cache, and what is known of the forms where the bundle is to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KvReport {
    /// The form.
    pub form: String,
    /// Where the bundle is to run, where that was said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// What is known there of each form that the model can have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forms: Vec<KvFormReport>,
}

/// What is known of a form on a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KvFormReport {
    /// The form.
    pub form: String,
    /// What is known of it.
    #[serde(flatten)]
    pub statement: Statement,
}

/// The form, and what is known of it: `indexed; on macOS 26, GPU, it runs [zoo/static-decode]`.
impl std::fmt::Display for KvReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.form)?;
        let known = self.forms.iter().find(|known| known.form == self.form);
        match (&self.target, known) {
            (Some(target), Some(known)) => write!(f, "; on {target}, it {}", known.statement),
            _ => Ok(()),
        }
    }
}

/// One asset.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AssetReport {
    /// Its name.
    pub name: String,
    /// Bytes of its program file, exactly.
    pub bytes: u64,
    /// Its functions.
    pub functions: Vec<FunctionReport>,
    /// Its weights, in the order they are written.
    pub weights: Vec<WeightReport>,
    /// What each pass did.
    pub passes: Vec<PassReport>,
}

/// A function that applications call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FunctionReport {
    /// Its name.
    pub name: String,
    /// Extents that the caller chooses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub symbols: Vec<SymbolReport>,
}

/// An extent that the caller of a function chooses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SymbolReport {
    /// Its name.
    pub name: String,
    /// The smallest.
    pub min: usize,
    /// The largest.
    pub max: usize,
}

/// The name, and the bounds of what the caller chooses: `dynamic (query 1..=4096, total 1..=4096)`.
impl std::fmt::Display for FunctionReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)?;
        if self.symbols.is_empty() {
            return Ok(());
        }
        let bounds = |symbol: &SymbolReport| format!("{} {}..={}", symbol.name, symbol.min, symbol.max);
        write!(f, " ({})", self.symbols.iter().map(bounds).collect::<Vec<_>>().join(", "))
    }
}

/// What a pass did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PassReport {
    /// Its name.
    pub pass: String,
    /// What it did, or why it did nothing.
    pub outcome: String,
    /// How far the results moved, where the passes were verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub difference: Option<f32>,
}

impl std::fmt::Display for PassReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.pass, self.outcome)?;
        match self.difference {
            Some(difference) => write!(f, "; results moved by {difference:.1e}"),
            None => Ok(()),
        }
    }
}

/// One weight as it will be written.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WeightReport {
    /// Its name in the asset, or its path in the bundle.
    pub name: String,
    /// How it is stored: `f16`, `sym8 codes`.
    pub stored_as: String,
    /// Its shape as stored, padding included.
    pub shape: Vec<usize>,
    /// Extent of an axis before padding, where it is padded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub padded_from: Option<Vec<usize>>,
    /// Bytes.
    pub bytes: u64,
    /// Tensors of the checkpoint it is made of.
    pub sources: usize,
    /// What people should know about the way it is stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
    /// Functions that use it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<String>,
}

/// A tensor that is not used.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DroppedReport {
    /// Its name.
    pub tensor: String,
    /// The pass that drops it.
    pub pass: String,
    /// Why.
    pub reason: String,
    /// Bytes it has in the checkpoint.
    pub bytes: u64,
}

impl Plan {
    /// The report of a blueprint.
    #[must_use]
    pub fn of(blueprint: &Blueprint) -> Self {
        let weights = &blueprint.host_weights;
        let host = |(path, id): &(String, WeightId)| weight_report(path.clone(), weights, *id, Vec::new());
        Self {
            model: blueprint.manifest.name.clone(),
            scheme: blueprint.scheme.to_string(),
            kv: kv_report(&blueprint.deployment, &blueprint.manifest),
            assets: blueprint.assets.iter().map(asset_report).collect(),
            host_tensors: blueprint.host_tensors.iter().map(host).collect(),
            total_bytes: blueprint.weight_bytes(),
            dropped: dropped(blueprint),
            notes: blueprint.notes.clone(),
        }
    }
}

fn kv_report(deployment: &Deployment, manifest: &Manifest) -> KvReport {
    let forms = |target: &Target| {
        let report =
            |form: &KvForm| KvFormReport { form: form.to_string(), statement: target.statement(*form).clone() };
        manifest.kv.iter().map(report).collect()
    };
    KvReport {
        form: deployment.kv.to_string(),
        target: deployment.target.as_ref().map(|target| target.title().to_owned()),
        forms: deployment.target.as_ref().map(forms).unwrap_or_default(),
    }
}

fn asset_report(asset: &AssetPlan) -> AssetReport {
    let weights = &asset.module.weights;
    let resources = asset.lowered.program.resources.iter().zip(&asset.lowered.weights);
    AssetReport {
        name: asset.name.to_owned(),
        bytes: asset.layout.total_bytes,
        functions: asset.module.entries().map(function_report).collect(),
        weights: resources
            .map(|(resource, &id)| weight_report(resource.key.to_string(), weights, id, users(asset, id)))
            .collect(),
        passes: pass_reports(&asset.log),
    }
}

fn function_report(function: &Function) -> FunctionReport {
    let mut symbols: Vec<SymbolReport> = Vec::new();
    for dim in function.parameters.iter().flat_map(|parameter| &function.nodes[parameter.value.index()].ty.shape) {
        if let Dim::Symbol(symbol) = dim
            && symbols.iter().all(|known| *known.name != *symbol.name)
        {
            symbols.push(SymbolReport { name: symbol.name.to_string(), min: symbol.min, max: symbol.max });
        }
    }
    FunctionReport { name: function.name.clone(), symbols }
}

/// What each pass did, as text.
#[must_use]
pub fn pass_reports(log: &PassLog) -> Vec<PassReport> {
    let report = |entry: &Entry| PassReport {
        pass: entry.pass.to_owned(),
        outcome: entry.outcome.to_string(),
        difference: entry.difference,
    };
    log.iter().map(report).collect()
}

/// The entry functions that use the bytes of a weight.
fn users(asset: &AssetPlan, id: WeightId) -> Vec<String> {
    let weights = &asset.module.weights;
    let entries = asset.module.entries();
    let uses = entries.filter(|function| {
        function.nodes.iter().any(|node| matches!(node.op, Op::Constant(used) if weights.storage(used) == id))
    });
    uses.map(|function| function.name.clone()).collect()
}

fn weight_report(name: String, weights: &Weights, id: WeightId, functions: Vec<String>) -> WeightReport {
    WeightReport {
        name,
        stored_as: stored_as(weights, id),
        shape: weights.shape(id).to_vec(),
        padded_from: padded_from(weights, id),
        bytes: weights.bytes(id),
        sources: weights.sources(id).len(),
        remark: weights.remark(id).map(str::to_owned),
        functions,
    }
}

/// The shape before padding, if codes are of a padded weight.
fn padded_from(weights: &Weights, id: WeightId) -> Option<Vec<usize>> {
    match weights.recipe(id) {
        Recipe::Pad { of, .. } => Some(weights.shape(*of).to_vec()),
        Recipe::Codes { of, .. } => padded_from(weights, *of),
        _ => None,
    }
}

fn dropped(blueprint: &Blueprint) -> Vec<DroppedReport> {
    let report = |(tensor, account): (&String, &Account)| match account {
        Account::DroppedBy(Drop { pass, reason, bytes }) => {
            Some(DroppedReport { tensor: tensor.clone(), pass: pass.clone(), reason: reason.clone(), bytes: *bytes })
        }
        Account::UsedBy(_) => None,
    };
    blueprint.accounts.tensors.iter().filter_map(report).collect()
}
