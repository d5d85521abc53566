//! Everything an export will write, known from headers alone.

use std::collections::{BTreeMap, BTreeSet};

use super::pipeline::{self, Choices};
use super::source::{self, Source};
use super::{Compute, Deployment, ExportRequest, Family, Manifest, MoeForm, Precision, glm_ocr, kv, unlimited_ocr};
use crate::aicode::{self, Lowered};
use crate::bundle::{Accounts, Compression, Decoder, Drop, Kind, Language, Ledger, Metadata, SourceDate, WeightRow};
use crate::checkpoint::Checkpoint;
use crate::error::At;
use crate::graph::{FunctionResult, FunctionRole, Module};
use crate::host::recipe::Recipe as HostRecipe;
use crate::mlirb::{self, Layout};
use crate::models::Unused;
use crate::passes::{KvForm, PassLog};
use crate::quant::{Part, Scheme};
use crate::weights::{Recipe, WeightId, Weights};
use crate::{Error, Result};

/// A model's parts before any pass.
#[derive(Debug)]
pub(super) struct Parts {
    /// The assets' modules with their names and pass lists, in the order they are written.
    pub(super) assets: Vec<(&'static str, Module)>,
    /// Tensors the host holds: path in the bundle and weight.
    pub(super) host_tensors: Vec<(String, WeightId)>,
    /// The weights of the host tensors.
    pub(super) host_weights: Weights,
    /// The host contract.
    pub(super) recipe: HostRecipe,
    /// Tensors the model does not run.
    pub(super) dropped: Vec<Unused>,
    /// Files beside the assets: path in the bundle and contents.
    pub(super) files: Vec<(String, Vec<u8>)>,
    /// What the export tells of the checkpoint, as sentences.
    pub(super) notes: Vec<String>,
}

impl Parts {
    /// The names of the decoder's functions.
    fn decoder_functions(&self) -> Vec<String> {
        let decoder = self.assets.iter().filter(|(name, _)| *name == DECODER);
        decoder.flat_map(|(_, module)| module.entries().map(|function| function.name.clone())).collect()
    }
}

/// The name of the decoder's asset.
const DECODER: &str = "decoder";

/// One asset as it will be written.
#[derive(Debug)]
pub struct AssetPlan {
    /// Its name: `vision`, `decoder`.
    pub name: &'static str,
    /// Its module after all passes.
    pub module: Module,
    /// What each pass did.
    pub log: PassLog,
    /// The program and the weights of its resources.
    pub lowered: Lowered,
    /// Where everything lies in the program's file.
    pub layout: Layout,
}

/// Everything an export will write. Sizes are exact; no weight has been read.
#[derive(Debug)]
pub struct Blueprint {
    /// The model.
    pub manifest: Manifest,
    /// How weights are stored.
    pub scheme: Scheme,
    /// How routed experts run.
    pub moe: MoeForm,
    /// Where it is to run.
    pub deployment: Deployment,
    /// The assets, in the order they are written.
    pub assets: Vec<AssetPlan>,
    /// What became of each tensor.
    pub accounts: Accounts,
    /// What is said about the choice of the checkpoint and its state.
    pub notes: Vec<String>,
    pub(super) source: Source,
    pub(super) host_tensors: Vec<(String, WeightId)>,
    pub(super) host_weights: Weights,
    pub(super) recipe: HostRecipe,
    pub(super) files: Vec<(String, Vec<u8>)>,
    probed: bool,
}

/// A request with its choices made and its checkpoint read, before any pass.
struct Opened {
    manifest: Manifest,
    scheme: Scheme,
    moe: MoeForm,
    deployment: Deployment,
    source: Source,
    parts: Parts,
}

impl Opened {
    fn new(manifest: Manifest, request: &ExportRequest) -> Result<Self> {
        request.check_options(&manifest)?;
        let scheme = chosen_scheme(request, &manifest)?;
        let deployment = Deployment::new(request, &manifest)?;
        let moe = chosen_moe(request, scheme, &deployment)?;
        let source = source::open(request, &manifest)?;
        manifest.accept(&source.checkpoint.config())?;
        let parts = parts(request, &manifest, &source.checkpoint, deployment.kv)?;
        Ok(Self { manifest, scheme, moe, deployment, source, parts })
    }

    /// What the passes depend on, up to the pass `stop_after` where there is one.
    fn choices<'c>(&'c self, request: &ExportRequest, stop_after: Option<&'c str>) -> Choices<'c> {
        Choices {
            scheme: self.scheme,
            moe: self.moe,
            deployment: &self.deployment,
            indivisible: self.manifest.quant.as_ref(),
            prove: request.verify_passes,
            stop_after,
        }
    }
}

/// The name stamped on everything written.
pub(super) fn producer() -> String {
    format!("aimodel {}", env!("CARGO_PKG_VERSION"))
}

impl Blueprint {
    /// Reads the headers of the checkpoint and works out what the export will write.
    ///
    /// # Errors
    /// When the request, the checkpoint or both together cannot be exported.
    pub fn new(request: &ExportRequest) -> Result<Self> {
        let mut opened = Opened::new(Manifest::find(&request.model)?, request)?;
        let whole = opened.parts.decoder_functions();
        let modules = std::mem::take(&mut opened.parts.assets);
        let choices = opened.choices(request, None);
        let mut assets = Vec::new();
        for (name, module) in modules {
            assets.push(plan_asset(name, module, &opened.manifest, (choices, &request.probes)).at(|| name)?);
        }
        let Opened { manifest, scheme, moe, deployment, source, mut parts } = opened;
        add_chunks(&mut parts.recipe, &assets, &whole, &deployment)?;
        let accounts = account(&source, &assets, (&parts.host_tensors, &parts.host_weights), &parts.dropped)?;
        let notes = source.note.iter().chain(source.checkpoint.warnings()).chain(&parts.notes).cloned();
        let notes = notes.chain(deployment.warning()).collect();
        Ok(Self {
            manifest,
            scheme,
            moe,
            deployment,
            assets,
            accounts,
            notes,
            source,
            host_tensors: parts.host_tensors,
            host_weights: parts.host_weights,
            recipe: parts.recipe,
            files: parts.files,
            probed: !request.probes.is_empty(),
        })
    }

    /// Bytes of the weights that will be made, which is nearly all of the bundle.
    #[must_use]
    pub fn weight_bytes(&self) -> u64 {
        let assets: u64 = self.assets.iter().map(|asset| asset.layout.total_bytes).sum();
        let host: u64 = self.host_tensors.iter().map(|(_, id)| self.host_weights.bytes(*id)).sum();
        assets + host
    }

    /// The metadata of the bundle, derived from what will be written.
    pub(super) fn metadata(&self, date: Option<SourceDate>) -> Metadata {
        let source = crate::bundle::Source {
            model_definition: self.manifest.name.clone(),
            hf_model_id: self.source.origin.as_ref().map(|origin| origin.id.clone()),
            hf_revision: self.source.origin.as_ref().map(|origin| origin.revision.clone()),
        };
        let mut metadata = Metadata::new(Kind::Llm, self.manifest.name.clone(), source);
        let part = |name: &str| if name == DECODER { "main".to_owned() } else { name.to_owned() };
        metadata.assets = self.assets.iter().map(|asset| (part(asset.name), asset_path(asset.name))).collect();
        let functions = |asset: &AssetPlan| asset.module.entries().map(|f| f.name.clone()).collect();
        let function_map: BTreeMap<String, Vec<String>> =
            self.assets.iter().map(|asset| (part(asset.name), functions(asset))).collect();
        metadata.language = Some(Language {
            tokenizer: "tokenizer".to_owned(),
            vocab_size: self.recipe.vocab_size,
            max_context_length: self.recipe.cache.length,
            embedded_tokenizer: true,
            function_map,
        });
        metadata.decoder = Some(Decoder {
            kv_form: self.recipe.kv.form.clone(),
            functions: self.recipe.decoder_signatures(),
            host: self.recipe.kv.host.clone(),
        });
        metadata.compression = Compression::of(self.scheme.name(), self.quantised_weights());
        metadata.compilation.date = date;
        metadata.compilation.targets = self.deployment.target.iter().map(|target| target.name.clone()).collect();
        metadata.debug = self.probed;
        metadata
    }

    fn quantised_weights(&self) -> usize {
        let codes = |asset: &AssetPlan| {
            let weights = &asset.module.weights;
            asset.lowered.weights.iter().filter(|&&id| matches!(weights.recipe(id), Recipe::Codes { .. })).count()
        };
        self.assets.iter().map(codes).sum()
    }
}

/// The graphs of every asset as they are after the pass `last`, as text. An asset without that pass runs all of its.
///
/// # Errors
/// As [`Blueprint::new`], and when no asset has such a pass.
pub fn graphs_after(request: &ExportRequest, last: &str) -> Result<String> {
    let manifest = Manifest::find(&request.model)?;
    let passes = manifest.passes.vision.iter().chain(&manifest.passes.decoder);
    if !passes.clone().any(|pass| pass == last) {
        let known: BTreeSet<&str> = passes.map(String::as_str).collect();
        let known = known.into_iter().collect::<Vec<_>>().join(", ");
        return Err(Error::input("no such pass").at("--stop-after").found(format!("`{last}`")).expected(known));
    }
    let mut opened = Opened::new(manifest, request)?;
    let modules = std::mem::take(&mut opened.parts.assets);
    let choices = opened.choices(request, Some(last));
    let mut text = String::new();
    for (name, mut module) in modules {
        pipeline::run(&mut module, pass_list(&opened.manifest, name), choices)?;
        text += &format!("// {name}\n{}", module.text());
    }
    Ok(text)
}

fn pass_list<'m>(manifest: &'m Manifest, asset: &str) -> &'m [String] {
    if asset == "vision" { &manifest.passes.vision } else { &manifest.passes.decoder }
}

/// Path of an asset in the bundle.
pub(super) fn asset_path(name: &str) -> String {
    format!("{name}.aimodel")
}

fn chosen_scheme(request: &ExportRequest, manifest: &Manifest) -> Result<Scheme> {
    let scheme = match request.scheme {
        Some(scheme) => scheme,
        None => manifest.default_scheme()?,
    };
    let known = manifest.schemes()?;
    if known.contains(&scheme) {
        return Ok(scheme);
    }
    let known: Vec<String> = known.iter().map(|scheme| format!("`{scheme}`")).collect();
    let error = Error::input(format!("`{}` is not exported with this scheme", manifest.name)).at("--quant");
    Err(error.found(format!("`{scheme}`")).expected(known.join(" or ")))
}

/// The kernel where it can be used and nothing else was asked for: it reads quantised experts in half precision, on GPUs.
fn chosen_moe(request: &ExportRequest, scheme: Scheme, deployment: &Deployment) -> Result<MoeForm> {
    let quantised = scheme.code_for(Part::RoutedExpert).is_some();
    let half = request.precision == Precision::F16;
    let refused = |found: &str, expected: &str, hint: &str| {
        let error = Error::input("the Metal kernel reads quantised experts in half precision").at("--moe metal");
        Err(error.found(found).expected(expected).hint(hint))
    };
    let metal = deployment.takes_metal();
    match request.moe {
        Some(MoeForm::Metal) if !metal => {
            let unit = deployment.compute.map_or("", Compute::name);
            let error = Error::input("the Metal kernel runs on GPUs only").at("--moe metal");
            let error = error.found(format!("the compute unit `{unit}`")).expected("`gpu`");
            Err(error.hint("use `--moe native`"))
        }
        Some(MoeForm::Metal) if !quantised => refused(
            &format!("--quant {scheme}"),
            "a scheme that quantises experts",
            "use `--quant sym8` or `--moe native`",
        ),
        Some(MoeForm::Metal) if !half => {
            refused("--precision f32", "--precision f16", "use `--precision f16` or `--moe native`")
        }
        Some(moe) => Ok(moe),
        None => Ok(if quantised && half && metal { MoeForm::Metal } else { MoeForm::Native }),
    }
}

fn parts(request: &ExportRequest, manifest: &Manifest, checkpoint: &Checkpoint, kv: KvForm) -> Result<Parts> {
    match &manifest.family {
        Family::UnlimitedOcr(own) => unlimited_ocr::parts(request, (manifest, own), checkpoint, kv),
        Family::GlmOcr(own) => glm_ocr::parts(request, (manifest, own), checkpoint, kv),
    }
}

/// Says in the recipe which functions of fewer layers the decoder was cut into, if it was to be.
fn add_chunks(recipe: &mut HostRecipe, assets: &[AssetPlan], whole: &[String], deployment: &Deployment) -> Result<()> {
    let decoder = assets.iter().find(|asset| asset.name == DECODER);
    let (Some(decoder), Some(chunking)) = (decoder, deployment.chunking) else { return Ok(()) };
    recipe.kv.chunks = kv::chunks(&decoder.module, whole, (chunking, recipe.cache.layers))?;
    recipe.check().at(|| "recipe.json")
}

fn plan_asset(
    name: &'static str,
    mut module: Module,
    manifest: &Manifest,
    (choices, probes): (Choices<'_>, &[String]),
) -> Result<AssetPlan> {
    add_probes(&mut module, probes);
    let log = pipeline::run(&mut module, pass_list(manifest, name), choices)?;
    let lowered = aicode::lower(&module, &producer())?;
    let layout = mlirb::layout(&lowered.program)?;
    Ok(AssetPlan { name, module, log, lowered, layout })
}

/// Returns labelled values as results; `all` means every one.
fn add_probes(module: &mut Module, probes: &[String]) {
    for function in module.functions.iter_mut().filter(|f| f.role == FunctionRole::Entry) {
        let wanted = |label: &str| probes.iter().any(|probe| probe == label || probe == "all");
        let found: Vec<FunctionResult> = function
            .labels()
            .filter(|(label, _)| wanted(label))
            .map(|(label, value)| FunctionResult { name: label.to_owned(), value })
            .collect();
        function.results.extend(found);
    }
}

/// Closes the ledger: each tensor of the checkpoint is in a weight, or dropped with a reason.
fn account(
    source: &Source,
    assets: &[AssetPlan],
    (host_tensors, host_weights): (&[(String, WeightId)], &Weights),
    dropped: &[Unused],
) -> Result<Accounts> {
    let mut ledger = Ledger::new();
    for asset in assets {
        let weights = &asset.module.weights;
        for (resource, &id) in asset.lowered.program.resources.iter().zip(&asset.lowered.weights) {
            enter(&mut ledger, &format!("{}/{}", asset.name, resource.key), weights, id)?;
        }
    }
    for (path, id) in host_tensors {
        enter(&mut ledger, path, host_weights, *id)?;
    }
    for unused in dropped {
        let bytes = source.checkpoint.tensor(&unused.tensor).map_or(0, |tensor| tensor.bytes());
        ledger.dropped(&unused.tensor, Drop { pass: unused.pass.to_owned(), reason: unused.reason.to_owned(), bytes });
    }
    ledger.finish(source.checkpoint.tensors().map(|tensor| &*tensor.name))
}

fn enter(ledger: &mut Ledger, name: &str, weights: &Weights, id: WeightId) -> Result<()> {
    let remark = weights.remark(id).map(str::to_owned);
    let row = WeightRow { bytes: weights.bytes(id), stored_as: stored_as(weights, id), remark };
    let sources = weights.sources(id);
    ledger.used(name, row, sources.iter().map(|&source| &*weights.tensor(source).name))
}

/// How a weight is stored: `f16`, `sym8 codes`.
pub(super) fn stored_as(weights: &Weights, id: WeightId) -> String {
    match weights.recipe(id) {
        Recipe::Codes { coding, .. } => format!("{coding} codes"),
        Recipe::Scales { coding, .. } => format!("{coding} scales"),
        _ => weights.element(id).to_string(),
    }
}
