//! The functions of the programs: readable by our own reader, and those the recipe speaks of.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::Parts;
use super::signature::{Ports, Signature};
use crate::asset;
use crate::bundle::{Bundle, METADATA, RECIPE};
use crate::graph::{Function, Module};
use crate::host::recipe::{FunctionPorts, Recipe};
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
    let ports = Asset::ALL.map(|part| parts.recipe.ports(part)).concat();
    for said in &ports {
        let (found, expected) = (Signature::of(entry(parts, said.asset, &said.name)?), Signature::from(said));
        if found != expected {
            let error = Error::check("the function is not the one the recipe speaks of");
            return Err(at(parts, said.asset, error, &said.name).found(found).expected(expected));
        }
    }
    for (part, asset) in &parts.assets {
        let known = parts.recipe.functions(*part);
        if let Some(other) = module(parts, *part)?.entries().find(|function| !known.contains(&function.name.as_str())) {
            let error = Error::check("the recipe does not speak of this function");
            return Err(error.at(format!("function `{}`", other.name)).at(asset.file().source().name()));
        }
    }
    said_in_metadata(parts)?;
    let names: Vec<&str> = ports.iter().map(|said| said.name.as_str()).collect();
    Ok(format!("{} as the recipe says", names.join(", ")))
}

/// The metadata says of each decoder function what the recipe says.
fn said_in_metadata(parts: &Parts<'_>) -> Result<()> {
    let said = parts.bundle.metadata().decoder.as_ref().map(|decoder| &decoder.functions);
    for (name, expected) in parts.recipe.decoder_signatures() {
        let found = said.and_then(|said| said.get(&name));
        if found != Some(&expected) {
            let error = Error::check(format!("not what {RECIPE} says")).at(format!("decoder.functions.{name}"));
            let error = error.at(parts.bundle.path().join(METADATA).display().to_string());
            return Err(error.found(found.map_or("nothing", |found| found)).expected(expected));
        }
    }
    Ok(())
}

/// What one function leaves in the states is what the others find: same names, same types.
pub(super) fn shared_states(parts: &Parts<'_>) -> Result<String> {
    if parts.recipe.states().is_empty() {
        return no_states(parts);
    }
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

/// The host keeps the caches, so that no call may depend on the one before.
fn no_states(parts: &Parts<'_>) -> Result<String> {
    for name in parts.recipe.functions(Asset::Decoder) {
        let states = Signature::of(entry(parts, Asset::Decoder, name)?).states;
        if !states.is_empty() {
            let error = Error::check("it has states, although the host keeps the caches");
            return Err(at(parts, Asset::Decoder, error, name).found(states));
        }
    }
    Ok("none: the host keeps the caches".to_owned())
}

/// The vocabulary that applications read in the metadata is the width of the logits.
pub(super) fn vocabulary(parts: &Parts<'_>) -> Result<String> {
    let vocabulary = parts.bundle.metadata().language.as_ref().map_or(0, |language| language.vocab_size);
    let ports = parts.recipe.ports(Asset::Decoder);
    // Of chunks of layers, the last gives logits.
    let scores = |said: &&FunctionPorts| said.outputs.iter().any(|output| output.name == parts.recipe.logits());
    for FunctionPorts { name, .. } in ports.iter().filter(scores) {
        let results = Signature::of(entry(parts, Asset::Decoder, name)?).results;
        let width = results.get(parts.recipe.logits()).and_then(|ty| ty.shape.last()?.fixed());
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
