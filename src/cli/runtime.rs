//! The runtime that options choose, over the assets of a bundle.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::options::{RuntimeChoice, RuntimeOptions};
use crate::Result;
use crate::bundle::Bundle;
use crate::eval::Options;
use crate::host::reader::HostAssets;
use crate::runtime::coreai::{CoreAi, interpreter};
use crate::runtime::eval::{Eval, Modules};
use crate::runtime::{Asset, Runtime};

/// Where the assets of a bundle are, by the part they play in its recipe.
pub(super) fn assets_of(bundle: &Bundle, host: &HostAssets) -> BTreeMap<Asset, PathBuf> {
    let recipe = host.recipe();
    Asset::ALL.map(|part| (part, bundle.path().join(recipe.asset(part)))).into()
}

/// Does `work` with the runtime chosen.
pub(super) fn with_runtime<T>(
    options: &RuntimeOptions,
    assets: BTreeMap<Asset, PathBuf>,
    work: impl FnOnce(&mut dyn Runtime) -> Result<T>,
) -> Result<T> {
    match options.runtime {
        RuntimeChoice::Eval => {
            let modules = Modules::open(&assets)?;
            work(&mut Eval::new(&modules, Options::default()))
        }
        RuntimeChoice::Coreai => work(&mut CoreAi::start(&interpreter(options.python.as_deref()), assets)?),
    }
}
