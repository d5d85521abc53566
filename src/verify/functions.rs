//! The functions of the programs: readable by our own reader, and those the recipe speaks of.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::Parts;
use super::signature::{self, Expected, Ports, Signature};
use crate::asset;
use crate::bundle::Bundle;
use crate::graph::{Function, Module};
use crate::host::recipe::{Contract, Recipe};
use crate::runtime::Asset;
use crate::runtime::eval::Modules;
use crate::{Error, Result};

/// Where the assets are, by the part they play.
pub(super) fn folders(bundle: &Bundle, recipe: &Recipe) -> BTreeMap<Asset, PathBuf> {
    Asset::ALL.map(|part| (part, bundle.path().join(recipe.asset(part)))).into()
}

/// What reading the programs gives, and what is said of it.
type Read = ((BTreeMap<Asset, asset::Asset>, Modules), String);

/// Reads every program, checks it beyond its encoding, and raises it to a graph that verifies.
pub(super) fn read(bundle: &Bundle, recipe: &Recipe) -> Result<Read> {
    let folders = folders(bundle, recipe);
    let mut assets = BTreeMap::new();
    for (part, folder) in &folders {
        let asset = asset::Asset::open(folder)?;
        asset.file().check()?;
        assets.insert(*part, asset);
    }
    let modules = Modules::open(&folders)?;
    let raised = || folders.keys().filter_map(|part| modules.get(*part));
    let (entries, nodes): (usize, usize) = (
        raised().map(|module| module.entries().count()).sum(),
        raised().flat_map(|module| &module.functions).map(|function| function.nodes.len()).sum(),
    );
    let detail = format!("{} programs, {entries} functions, {nodes} operations", assets.len());
    Ok(((assets, modules), detail))
}

/// The functions have the names, shapes and element types that the recipe says.
pub(super) fn signatures(parts: &Parts<'_>) -> Result<String> {
    let expected = signature::expected(&parts.recipe)?;
    for Expected { part, name, signature } in &expected {
        let found = Signature::of(entry(parts, *part, name)?);
        if found != *signature {
            let error = Error::check("the function is not the one the recipe speaks of");
            return Err(at(parts, *part, error, name).found(found).expected(signature));
        }
    }
    for (part, asset) in &parts.assets {
        let known = parts.recipe.functions(*part);
        if let Some(other) = module(parts, *part)?.entries().find(|function| !known.contains(&function.name.as_str())) {
            let error = Error::check("the recipe does not speak of this function");
            return Err(error.at(format!("function `{}`", other.name)).at(asset.file().source().name()));
        }
    }
    let names: Vec<&str> = expected.iter().map(|expected| expected.name).collect();
    Ok(format!("{} as the recipe says", names.join(", ")))
}

/// What one function leaves in the states is what the others find: same names, same types.
pub(super) fn shared_states(parts: &Parts<'_>) -> Result<String> {
    let mut first: Option<(&str, Ports)> = None;
    for name in parts.recipe.functions(Asset::Decoder) {
        let states = Signature::of(entry(parts, Asset::Decoder, name)?).states;
        match &first {
            None => first = Some((name, states)),
            Some((other, expected)) if *expected != states => {
                let error = Error::check(format!("its states are not those of `{other}`"));
                return Err(at(parts, Asset::Decoder, error, name).found(states).expected(expected));
            }
            Some(_) => {}
        }
    }
    Ok(first.map_or_else(String::new, |(_, states)| states.to_string()))
}

/// The vocabulary that applications read in the metadata is the width of the logits.
pub(super) fn vocabulary(parts: &Parts<'_>) -> Result<String> {
    let vocabulary = parts.bundle.metadata().language.as_ref().map_or(0, |language| language.vocab_size);
    let name_of_logits = match &parts.recipe.contract {
        Contract::Embeddings(contract) => &contract.decoder.logits,
        Contract::Slots(contract) => &contract.decoder.logits,
    };
    for name in parts.recipe.functions(Asset::Decoder) {
        let results = Signature::of(entry(parts, Asset::Decoder, name)?).results;
        let width = results.get(name_of_logits).and_then(|ty| ty.shape.last()?.fixed());
        if width != Some(vocabulary) {
            let error = Error::check("the logits are not as wide as the vocabulary of the metadata");
            return Err(at(parts, Asset::Decoder, error, name).found(results).expected(vocabulary));
        }
    }
    Ok(format!("{vocabulary} tokens, the width of the logits"))
}

fn module<'p>(parts: &'p Parts<'_>, part: Asset) -> Result<&'p Module> {
    parts.modules.get(part).ok_or_else(|| Error::check(format!("the bundle has no {part} asset")))
}

fn entry<'p>(parts: &'p Parts<'_>, part: Asset, name: &str) -> Result<&'p Function> {
    let module = module(parts, part)?;
    module.entries().find(|function| function.name == name).ok_or_else(|| {
        let names: Vec<&str> = module.entries().map(|function| function.name.as_str()).collect();
        let error = Error::check("the recipe speaks of a function that is not there");
        at(parts, part, error, name).found(names.join(", "))
    })
}

fn at(parts: &Parts<'_>, part: Asset, error: Error, function: &str) -> Error {
    let error = error.at(format!("function `{function}`"));
    match parts.assets.get(&part) {
        Some(asset) => error.at(asset.file().source().name()),
        None => error,
    }
}
