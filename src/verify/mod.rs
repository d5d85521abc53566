//! Checks of a published bundle: whole, as it was written, and giving the answers it should.
//!
//! [`verify`] goes from the cheap to the dear and stops at the first finding: the bytes of the files, what the
//! programs are, rules that runtimes are known to need, and at last numbers on a runtime of the caller's choice, side
//! by side with the reference executor in single precision. Nothing but the bundle is needed: the pages are drawn.

mod caches;
mod files;
mod functions;
mod lint;
mod log;
mod numbers;
mod pages;
mod signature;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;

pub use log::{Check, Outcome, Report, Verdict};
pub use numbers::{Agreement, MIN_COSINE, SMALL_MARGIN};

use crate::aicode::kernel;
use crate::bundle::Bundle;
use crate::eval::Rounding;
use crate::host::reader::HostAssets;
use crate::host::recipe::{Recipe, Variant};
use crate::progress::Progress;
use crate::runtime::coreai::{CoreAi, PACKAGE};
use crate::runtime::eval::{Eval, Modules};
use crate::runtime::{Asset, Runtime};
use crate::{Error, Result, asset, eval};

use log::Log;

/// What runs the bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judge {
    /// The reference executor, every value rounded to the type it is stored in.
    Reference,
    /// Apple's Core AI, from this Python interpreter.
    CoreAi(PathBuf),
}

/// How much is checked, and on what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// What runs the bundle.
    pub judge: Judge,
    /// Decode steps after the prompt; fewer are done where the cache holds no more.
    pub steps: NonZeroUsize,
    /// The functions that read the prompt; the quickest there are if none are named.
    pub functions: Option<Variant>,
    /// Bytes of weights that the reference executor keeps between uses.
    pub cache_bytes: usize,
}

impl Options {
    /// Decode steps where nothing is asked for.
    pub const STEPS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(3);

    /// The usual checks on `judge`.
    #[must_use]
    pub fn new(judge: Judge) -> Self {
        Self { judge, steps: Self::STEPS, functions: None, cache_bytes: eval::Options::default().cache_bytes }
    }

    fn eval(&self, rounding: Rounding) -> eval::Options {
        eval::Options { rounding, cache_bytes: self.cache_bytes }
    }
}

/// Checks a bundle up to the first finding.
#[must_use]
pub fn verify(bundle: &Bundle, options: &Options, progress: &dyn Progress) -> Verdict {
    let mut log = Log::new(progress);
    let failure = checks(bundle, options, &mut log).err();
    log.finish(bundle.path(), failure)
}

/// The parts of a bundle, each in its place and readable.
struct Parts<'b> {
    bundle: &'b Bundle,
    recipe: Recipe,
    assets: BTreeMap<Asset, asset::Asset>,
    modules: Modules,
}

fn checks(bundle: &Bundle, options: &Options, log: &mut Log<'_>) -> Result<()> {
    log.check("no-debug", || files::no_debug(bundle))?;
    log.check("hashes", || files::hashes(bundle))?;
    let recipe = log.make("recipe", || files::recipe(bundle))?;
    log.check("metadata", || files::metadata(bundle, &recipe))?;
    log.check("files", || files::files(bundle, &recipe))?;
    let host = log.make("host-side", || files::host(bundle, options.functions))?;
    let (assets, modules) = log.make("programs", || functions::read(bundle, &recipe))?;
    let parts = Parts { bundle, recipe, assets, modules };
    log.check("ledger", || files::ledger(&parts))?;
    log.check("signatures", || functions::signatures(&parts))?;
    log.check("shared-states", || functions::shared_states(&parts))?;
    log.check("vocabulary", || functions::vocabulary(&parts))?;
    lint::RULES.iter().try_for_each(|rule| log.check(rule.name, || lint::run(rule, &parts)))?;
    log.check("producer", || files::producer(&parts))?;
    log.check("no-local-paths", || files::no_local_paths(&parts))?;
    run(&parts, &host, options, log)
}

/// What only running the functions shows.
fn run(parts: &Parts<'_>, host: &HostAssets, options: &Options, log: &mut Log<'_>) -> Result<()> {
    let mut core_ai = match &options.judge {
        Judge::Reference => None,
        Judge::CoreAi(python) => Some(log.make("core-ai-loads", || load(parts, python.clone()))?),
    };
    if core_ai.is_some() && !cfg!(target_vendor = "apple") {
        log.guard("numbers", || no_kernels(parts))?;
    }
    let exam = numbers::Exam::new(host, options.steps.get());
    let reference = {
        let mut eval = Eval::new(&parts.modules, options.eval(Rounding::None));
        exam.reference(&mut eval, log)?
    };
    match &mut core_ai {
        Some(core_ai) => exam.candidate(core_ai, &reference, log),
        None => exam.candidate(&mut Eval::new(&parts.modules, options.eval(Rounding::AsStored)), &reference, log),
    }
}

/// Has Core AI load every asset, which is when it parses and verifies the programs.
fn load(parts: &Parts<'_>, python: PathBuf) -> Result<(CoreAi, String)> {
    let mut core_ai = CoreAi::start(&python, functions::folders(parts.bundle, &parts.recipe))?;
    parts.assets.keys().try_for_each(|part| core_ai.load(*part))?;
    let (package, _) = PACKAGE.split_once('=').unwrap_or((PACKAGE, ""));
    let detail = format!("{} of {package} {} takes both programs", core_ai.name(), core_ai.version());
    Ok((core_ai, detail))
}

/// Core AI runs Metal kernels on Apple systems only.
fn no_kernels(parts: &Parts<'_>) -> Result<()> {
    let with_kernel = parts.assets.values().find(|asset| lint::has_operation(asset.program(), kernel::OPERATION));
    let Some(asset) = with_kernel else { return Ok(()) };
    Err(Error::environment("the numbers were not run: Metal kernels need an Apple system")
        .at(asset.file().source().name())
        .hint("check them with `--runtime eval`, or export with `--moe native` for a bundle that runs everywhere"))
}
