//! The functions of the programs: readable by our own reader, and those the recipe speaks of.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use super::Parts;
use crate::asset;
use crate::bundle::Bundle;
use crate::graph::{Function, Module, ParameterKind, TensorType};
use crate::host::recipe::Recipe;
use crate::runtime::Asset;
use crate::runtime::eval::Modules;
use crate::{ElementType, Error, Result};

/// Where the assets are, by the part they play.
pub(super) fn folders(bundle: &Bundle, recipe: &Recipe) -> BTreeMap<Asset, PathBuf> {
    let place = |path: &str| bundle.path().join(path);
    BTreeMap::from([(Asset::Vision, place(&recipe.vision.asset)), (Asset::Decoder, place(&recipe.decoder.asset))])
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

/// What a function takes and gives, by name.
#[derive(Debug, Clone, PartialEq)]
struct Signature {
    inputs: Ports,
    states: Ports,
    results: Ports,
}

/// Types by name.
#[derive(Debug, Clone, PartialEq)]
struct Ports(BTreeMap<String, TensorType>);

impl Ports {
    fn new<'n>(ports: impl IntoIterator<Item = (&'n str, TensorType)>) -> Self {
        Self(ports.into_iter().map(|(name, ty)| (name.to_owned(), ty)).collect())
    }
}

impl Signature {
    fn of(function: &Function) -> Self {
        let parameters =
            |kind| Ports::new(function.parameters_of(kind).map(|p| (p.name.as_str(), function.ty(p.value).clone())));
        Self {
            inputs: parameters(ParameterKind::Input),
            states: parameters(ParameterKind::State),
            results: Ports::new(function.results.iter().map(|r| (r.name.as_str(), function.ty(r.value).clone()))),
        }
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ports: Vec<String> = self.0.iter().map(|(name, ty)| format!("{name}: {ty}")).collect();
        f.write_str(&ports.join(", "))
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let states = if self.states.0.is_empty() { "" } else { "; states " };
        write!(f, "({}{states}{}) -> ({})", self.inputs, self.states, self.results)
    }
}

/// The functions that a recipe speaks of.
fn expected(recipe: &Recipe) -> Result<[(Asset, &str, Signature); 3]> {
    let float = |shape: &[usize]| TensorType::new(recipe.element_type, shape);
    let (vision, decoder) = (&recipe.vision, &recipe.decoder);
    let side = recipe.image.side as usize;
    let none = || Ports::new([]);
    let logits = || Ports::new([(decoder.logits.as_str(), float(&[1, 1, recipe.vocab_size]))]);
    let [keys, values] = recipe.states();
    let states =
        || Ports::new([(keys.name.as_str(), float(&keys.shape)), (values.name.as_str(), float(&values.shape))]);
    let embeds = |tokens| (decoder.inputs_embeds.as_str(), float(&[1, tokens, recipe.hidden_size]));
    let position = (decoder.position.as_str(), TensorType::new(ElementType::I32, &[1]));
    let visual_tokens = float(&[1, recipe.grid()?.tokens(), recipe.hidden_size]);
    Ok([
        (
            Asset::Vision,
            &vision.function,
            Signature {
                inputs: Ports::new([(vision.image.as_str(), float(&[1, 3, side, side]))]),
                states: none(),
                results: Ports::new([(vision.visual_tokens.as_str(), visual_tokens)]),
            },
        ),
        (
            Asset::Decoder,
            &decoder.prefill,
            Signature {
                inputs: Ports::new([embeds(recipe.prompt.prefix_length)]),
                states: states(),
                results: logits(),
            },
        ),
        (
            Asset::Decoder,
            &decoder.decode,
            Signature { inputs: Ports::new([embeds(1), position]), states: states(), results: logits() },
        ),
    ])
}

/// The functions have the names, shapes and element types that the recipe says.
pub(super) fn signatures(parts: &Parts<'_>) -> Result<String> {
    let expected = expected(&parts.recipe)?;
    for (part, name, signature) in &expected {
        let found = Signature::of(entry(parts, *part, name)?);
        if found != *signature {
            let error = Error::check("the function is not the one the recipe speaks of");
            return Err(at(parts, *part, error, name).found(found).expected(signature));
        }
    }
    for (part, asset) in &parts.assets {
        let known = |name: &str| expected.iter().any(|(of, known, _)| of == part && *known == name);
        if let Some(other) = module(parts, *part)?.entries().find(|function| !known(&function.name)) {
            let error = Error::check("the recipe does not speak of this function");
            return Err(error.at(format!("function `{}`", other.name)).at(asset.file().source().name()));
        }
    }
    let names: Vec<&str> = expected.iter().map(|(_, name, _)| *name).collect();
    Ok(format!("{} as the recipe says", names.join(", ")))
}

/// What one function leaves in the states is what the other finds: same names, same types.
pub(super) fn shared_states(parts: &Parts<'_>) -> Result<String> {
    let decoder = &parts.recipe.decoder;
    let states = |name: &str| entry(parts, Asset::Decoder, name).map(|function| Signature::of(function).states);
    let (prefill, decode) = (states(&decoder.prefill)?, states(&decoder.decode)?);
    if prefill == decode {
        return Ok(prefill.to_string());
    }
    let error = Error::check(format!("its states are not those of `{}`", decoder.prefill));
    Err(at(parts, Asset::Decoder, error, &decoder.decode).found(decode).expected(prefill))
}

/// The vocabulary that applications read in the metadata is the width of the logits.
pub(super) fn vocabulary(parts: &Parts<'_>) -> Result<String> {
    let vocabulary = parts.bundle.metadata().language.as_ref().map_or(0, |language| language.vocab_size);
    let decoder = &parts.recipe.decoder;
    for name in [&decoder.prefill, &decoder.decode] {
        let results = Signature::of(entry(parts, Asset::Decoder, name)?).results;
        let logits = results.0.get(&decoder.logits).and_then(|ty| ty.shape.last()?.fixed());
        if logits != Some(vocabulary) {
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
