//! The files of a bundle: whole, consistent with each other, and free of traces.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::Parts;
use crate::asset;
use crate::bundle::{Accounts, Bundle, Decoder, LEDGER, Language, METADATA, RECIPE};
use crate::error::At;
use crate::host::reader::HostAssets;
use crate::host::recipe::{HostTensorFile, Recipe, Variant};
use crate::runtime::Asset;
use crate::{Error, Result};

const COPY_AGAIN: &str = "copy the bundle again, or export it again";

/// Where files of people and machines lie; a bundle that says so was not made by its input alone.
const LOCAL: &[&str] = &[
    "/Users/",
    "/content/",
    "/home/",
    "/media/",
    "/mnt/",
    "/opt/",
    "/private/",
    "/root/",
    "/scratch/",
    "/srv/",
    "/tmp/",
    "/var/",
    "/workspace/",
    "\\Users\\",
    "file://",
];

/// A bundle that returns probed values is not what would be shipped, whatever its answers.
pub(super) fn no_debug(bundle: &Bundle) -> Result<String> {
    match bundle.metadata().debug {
        true => Err(Error::check("the bundle is marked as debug: it returns probed values")
            .at(bundle.path().display().to_string())
            .hint("export it again without `--probe`")),
        false => Ok("no probes".to_owned()),
    }
}

/// Each program is the one that was written.
pub(super) fn hashes(bundle: &Bundle) -> Result<String> {
    let mut parts = Vec::new();
    for (part, folder) in bundle.assets() {
        asset::Asset::verify_hash_in(folder).map_err(with_hint)?;
        parts.push(part);
    }
    Ok(format!("main.hash is the hash of main.mlirb in {}", parts.join(" and ")))
}

pub(super) fn recipe(bundle: &Bundle) -> Result<(Recipe, String)> {
    let recipe = Recipe::open(bundle.recipe()).map_err(with_hint)?;
    let detail = format!("format version {}, consistent in itself", recipe.format_version);
    Ok((recipe, detail))
}

/// What metadata and recipe both say is the same.
pub(super) fn metadata(bundle: &Bundle, recipe: &Recipe) -> Result<String> {
    let place = || bundle.path().join(METADATA).display().to_string();
    let metadata = bundle.metadata();
    let language =
        metadata.language.as_ref().ok_or_else(|| Error::check("the field is missing").at("language").at(place()))?;
    let said = [("source.model_definition".to_owned(), metadata.source.model_definition.clone(), recipe.model.clone())];
    let decoder = metadata.decoder.as_ref();
    let decoder = decoder.ok_or_else(|| Error::check("the field is missing").at("decoder").at(place()))?;
    let said = said.into_iter().chain(said_of_assets(bundle, recipe)).chain(said_of_language(language, recipe));
    let said = said.chain(said_of_decoder(decoder, recipe));
    for (field, found, expected) in said {
        if found != expected {
            let error = Error::check(format!("not what {RECIPE} says")).at(field).at(place());
            return Err(error.found(found).expected(expected));
        }
    }
    if let Some(id) = metadata.source.hf_model_id.as_ref().filter(|id| !is_hub_id(id)) {
        let error = Error::check("not the id of a model").at("source.hf_model_id").at(place());
        return Err(error.found(format!("`{id}`")).expected("`owner/name`"));
    }
    Ok(format!("{METADATA} and {RECIPE} say the same"))
}

/// A field of the metadata, what it says, and what the recipe says.
type Said = (String, String, String);

fn said_of_assets(bundle: &Bundle, recipe: &Recipe) -> Vec<Said> {
    let said = |part: &str, path: &str| {
        let found = bundle.metadata().assets.get(part).cloned().unwrap_or_default();
        (format!("assets.{part}"), found, path.to_owned())
    };
    vec![said("main", recipe.asset(Asset::Decoder)), said("vision", recipe.asset(Asset::Vision))]
}

fn said_of_language(language: &Language, recipe: &Recipe) -> Vec<Said> {
    let said = |field: &str, found: String, expected: String| (format!("language.{field}"), found, expected);
    let sorted = |mut names: Vec<&str>| {
        names.sort_unstable();
        names.join(", ")
    };
    let functions = |part: &str, asset| {
        let found = language.function_map.get(part).into_iter().flatten().map(String::as_str).collect();
        said(&format!("function_map.{part}"), sorted(found), sorted(recipe.functions(asset)))
    };
    let tokenizer = Path::new(&recipe.tokenizer).parent().map_or_else(String::new, |path| path.display().to_string());
    vec![
        said("tokenizer", language.tokenizer.clone(), tokenizer),
        said("embedded_tokenizer", language.embedded_tokenizer.to_string(), true.to_string()),
        said("vocab_size", language.vocab_size.to_string(), recipe.vocab_size.to_string()),
        said("max_context_length", language.max_context_length.to_string(), recipe.cache.length.to_string()),
        functions("main", Asset::Decoder),
        functions("vision", Asset::Vision),
    ]
}

fn said_of_decoder(decoder: &Decoder, recipe: &Recipe) -> Vec<Said> {
    vec![
        ("decoder.kv_form".to_owned(), decoder.kv_form.clone(), recipe.kv.form.clone()),
        ("decoder.host".to_owned(), decoder.host.join("; "), recipe.kv.host.join("; ")),
    ]
}

fn is_hub_id(id: &str) -> bool {
    let part = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.contains(['/', '\\', ':']);
    id.split_once('/').is_some_and(|(owner, name)| part(owner) && part(name))
}

/// Every file that the recipe names is there and of its size, and there are regular files only.
pub(super) fn files(bundle: &Bundle, recipe: &Recipe) -> Result<String> {
    for tensor in recipe.host_tensors() {
        let path = bundle.path().join(&tensor.file);
        let found = path.metadata().map_err(|e| with_hint(Error::io(&path, &e)))?.len();
        if Some(found) != bytes_of(tensor) {
            let error = Error::check("the file has another length than its tensor").at(path.display().to_string());
            let expected = format!("{:?} of {}", tensor.shape, tensor.element);
            return Err(error.found(format!("{found} bytes")).expected(expected).hint(COPY_AGAIN));
        }
    }
    let tokenizer = bundle.path().join(&recipe.tokenizer);
    tokenizer.metadata().map_err(|e| with_hint(Error::io(&tokenizer, &e)))?;
    Ok(format!("{} bytes in all", bundle.bytes()?))
}

fn bytes_of(tensor: &HostTensorFile) -> Option<u64> {
    let size = tensor.element.size() as u64;
    tensor.shape.iter().try_fold(size, |bytes, &extent| bytes.checked_mul(extent as u64))
}

/// The host loads its side, and the tokenizer makes the stored prompt of the recipe's.
pub(super) fn host(bundle: &Bundle, functions: Option<Variant>) -> Result<(HostAssets, String)> {
    let mut host = HostAssets::open(bundle.path()).map_err(with_hint)?;
    functions.map_or(Ok(()), |variant| host.choose(variant))?;
    let lengths: Vec<String> = host.prompts().iter().map(|prompt| prompt.len().to_string()).collect();
    let detail = format!("the tokenizer makes the stored prompt of {} tokens", lengths.join(" and of "));
    Ok((host, detail))
}

/// The ledger adds up, and lists what is there, to the byte.
pub(super) fn ledger(parts: &Parts<'_>) -> Result<String> {
    let path = parts.bundle.path().join(LEDGER);
    let accounts = Accounts::open(&path).map_err(with_hint)?;
    check_ledger(parts, &accounts).at(|| path.display().to_string())?;
    let totals = accounts.totals;
    Ok(format!("{} tensors in {} weights of {} bytes", totals.tensors, totals.weights, totals.bytes))
}

fn check_ledger(parts: &Parts<'_>, accounts: &Accounts) -> Result<()> {
    if accounts.totals != accounts.count() {
        let error = Error::check("the totals are not those of what is listed").at("totals");
        return Err(error.found(format!("{:?}", accounts.totals)).expected(format!("{:?}", accounts.count())));
    }
    let stored = stored_weights(parts);
    for (name, row) in &accounts.weights {
        let found = stored.get(name).ok_or_else(|| Error::check("no such weight is stored").at(format!("`{name}`")))?;
        if *found != row.bytes {
            let error = Error::check("a weight is stored in another length than is listed").at(format!("`{name}`"));
            return Err(error.found(format!("{found} bytes")).expected(format!("{} bytes", row.bytes)));
        }
    }
    if let Some(name) = stored.keys().find(|name| !accounts.weights.contains_key(*name)) {
        return Err(Error::check("a weight is stored that is not listed").at(format!("`{name}`")));
    }
    check_compression(parts.bundle, accounts)
}

/// Bytes of every weight that is stored, by its name in the ledger.
fn stored_weights(parts: &Parts<'_>) -> BTreeMap<String, u64> {
    let host =
        parts.recipe.host_tensors().into_iter().map(|tensor| (tensor.file.clone(), bytes_of(tensor).unwrap_or(0)));
    let in_assets = parts.assets.iter().flat_map(|(part, asset)| {
        let resources = asset.program().resources.iter();
        resources.map(move |resource| (format!("{part}/{}", resource.key), resource.bytes))
    });
    in_assets.chain(host).collect()
}

fn check_compression(bundle: &Bundle, accounts: &Accounts) -> Result<()> {
    let compression = bundle.metadata().compression.as_ref();
    let listed = accounts.weights.values().filter(|row| row.stored_as.ends_with(" codes")).count();
    let said = compression.map_or(0, |compression| compression.quantised_weights);
    if listed == said {
        return Ok(());
    }
    let error = Error::check(format!("weights are stored as codes, of which {METADATA} says another number"));
    Err(error.at("weights").found(listed).expected(said))
}

/// Everything is stamped with who made it: Apple's loader ends the process over a program that is not.
pub(super) fn producer(parts: &Parts<'_>) -> Result<String> {
    let expected = parts.bundle.metadata().producer();
    for asset in parts.assets.values() {
        let stamps = [asset.program().producer.as_str(), asset.metadata().producer.as_deref().unwrap_or("")];
        if let Some(other) = stamps.iter().find(|stamp| **stamp != expected) {
            let error = Error::check("the producer is not that of the bundle").at(asset.file().source().name());
            return Err(error.found(format!("`{other}`")).expected(format!("`{expected}`")));
        }
    }
    Ok(format!("everything is stamped `{expected}`"))
}

/// Neither the program nor what is written about it names a place of the machine it was made on.
pub(super) fn no_local_paths(parts: &Parts<'_>) -> Result<String> {
    for file in [METADATA, LEDGER, RECIPE] {
        let path = parts.bundle.path().join(file);
        let text = std::fs::read(&path).map_err(|e| Error::io(&path, &e))?;
        let json = serde_json::from_slice(&text).map_err(|e| Error::check(e.to_string()));
        json.and_then(|json: Value| no_local_path_in(&json)).at(|| path.display().to_string())?;
    }
    for asset in parts.assets.values() {
        let program = asset.program();
        let metadata = asset.metadata();
        let notes = [&metadata.author, &metadata.description, &metadata.license].into_iter().flatten();
        let keys = program.resources.iter().map(|resource| &*resource.key);
        let mut texts = keys.chain(notes.map(String::as_str)).chain([program.producer.as_str()]);
        texts.try_for_each(no_local_path).at(|| asset.file().source().name())?;
    }
    Ok("nothing names a place on the machine it was made on".to_owned())
}

fn no_local_path_in(json: &Value) -> Result<()> {
    match json {
        Value::String(text) => no_local_path(text),
        Value::Array(items) => items.iter().try_for_each(no_local_path_in),
        Value::Object(fields) => fields.iter().try_for_each(|(key, value)| {
            no_local_path(key)?;
            no_local_path_in(value).at(|| key)
        }),
        _ => Ok(()),
    }
}

fn no_local_path(text: &str) -> Result<()> {
    match LOCAL.iter().any(|place| text.contains(place)) {
        true => Err(Error::check("it names a place on the machine it was made on").found(format!("`{text}`"))),
        false => Ok(()),
    }
}

/// A file that is missing or cut off was most likely lost in copying.
fn with_hint(error: Error) -> Error {
    if error.hint_text().is_some() { error } else { error.hint(COPY_AGAIN) }
}
