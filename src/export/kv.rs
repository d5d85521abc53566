//! What a form of the key/value cache asks of the host, for the recipe.

use std::collections::BTreeMap;

use crate::graph::{Module, ParameterKind};
use crate::host::recipe::{CacheRows, ChunkFunction, ChunkRecipe, HostCache, KvCaches, KvFeed, KvRecipe};
use crate::passes::{ChunkLayers, KvForm, kv_names};
use crate::{Error, Result};

/// What a model calls what its functions take for their caches.
#[derive(Debug, Clone, Copy)]
pub(super) struct CacheNames {
    /// The position of the first token fed.
    pub(super) position: &'static str,
    /// The cache of keys.
    pub(super) keys: &'static str,
    /// The cache of values.
    pub(super) values: &'static str,
}

/// The form as a host reads it; the functions are whole.
pub(super) fn recipe(form: KvForm, names: CacheNames) -> KvRecipe {
    KvRecipe {
        form: form.to_string(),
        feeds: feeds(form, names),
        caches: caches(form, names),
        chunks: Vec::new(),
        host: sentences(form, names),
    }
}

/// The chunks of a decoder of so many layers, from its module after the passes; none where it is one chunk and is not
/// cut. `whole` are the names of the functions before.
///
/// # Errors
/// When the module does not have them.
pub(super) fn chunks(
    decoder: &Module,
    whole: &[String],
    (chunking, layers): (ChunkLayers, usize),
) -> Result<Vec<ChunkRecipe>> {
    let ranges = chunking.chunks(layers);
    if ranges.len() < 2 {
        return Ok(Vec::new());
    }
    let chunk = |(index, range): (usize, std::ops::Range<usize>)| {
        let own = |name: &String| Ok((name.clone(), chunk_function(decoder, ChunkLayers::function_name(name, index))?));
        let functions = whole.iter().map(own).collect::<Result<BTreeMap<_, _>>>()?;
        Ok(ChunkRecipe { layers: [range.start, range.end], functions })
    };
    ranges.into_iter().enumerate().map(chunk).collect()
}

fn chunk_function(decoder: &Module, function: String) -> Result<ChunkFunction> {
    let Some(own) = decoder.function(&function) else {
        return Err(Error::input("the decoder was not cut").expected(format!("a function `{function}`")));
    };
    let inputs = own.parameters_of(ParameterKind::Input).map(|input| input.name.clone()).collect();
    Ok(ChunkFunction { function, inputs })
}

fn feeds(form: KvForm, names: CacheNames) -> Vec<KvFeed> {
    let position = KvFeed::Position { input: names.position.to_owned() };
    match form {
        KvForm::Indexed | KvForm::Shift | KvForm::Host => vec![position],
        KvForm::Dynamic => vec![KvFeed::PositionIds { input: kv_names::POSITION_IDS.to_owned() }],
        KvForm::Blend | KvForm::BlendWhole => {
            vec![position, KvFeed::WriteMask { input: kv_names::WRITE_MASK.to_owned() }]
        }
    }
}

fn caches(form: KvForm, names: CacheNames) -> KvCaches {
    let states = |rows| KvCaches::States { keys: names.keys.to_owned(), values: names.values.to_owned(), rows };
    match form {
        KvForm::Indexed | KvForm::Dynamic | KvForm::Blend | KvForm::BlendWhole => states(CacheRows::InOrder),
        KvForm::Shift => states(CacheRows::AtTheEnd),
        KvForm::Host => KvCaches::Host { keys: host_cache(names.keys), values: host_cache(names.values) },
    }
}

fn host_cache(name: &str) -> HostCache {
    HostCache { past: format!("{}{name}", kv_names::PAST), new: format!("{}{name}", kv_names::NEW) }
}

fn sentences(form: KvForm, CacheNames { position, keys, values }: CacheNames) -> Vec<String> {
    let count = format!("hand in as `{position}` the position of the first token of the call");
    let each_page = format!("before each page make the states `{keys}` and `{values}` anew, all zero");
    match form {
        KvForm::Indexed => vec![each_page, count],
        KvForm::Dynamic => {
            let ids = kv_names::POSITION_IDS;
            vec![each_page, format!("hand in as `{ids}` 0, 1, 2, .. up to the last token of the call: it grows")]
        }
        KvForm::Blend | KvForm::BlendWhole => {
            let mask = kv_names::WRITE_MASK;
            let mask = format!("hand in as `{mask}` 1 at [position of token i, i] and 0 elsewhere");
            vec![each_page, count, mask]
        }
        KvForm::Shift => {
            let rows = "the caches hold the last token in their last row: position p of t is in row length - t + p";
            vec![each_page, count, rows.to_owned()]
        }
        KvForm::Host => {
            let (past, new) = (kv_names::PAST, kv_names::NEW);
            vec![
                "keep two buffers of the caches' shape for each page, all zero at first".to_owned(),
                count,
                format!("hand them in as `{past}{keys}` and `{past}{values}`"),
                format!("put `{new}{keys}` and `{new}{values}` into them from that position on"),
            ]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_pass_on_what_the_pass_calls_it() {
        assert_eq!(ChunkLayers::HIDDEN, ChunkFunction::HIDDEN);
    }

    #[test]
    fn every_form_says_where_the_tokens_of_a_call_are() {
        let names = CacheNames { position: "pos", keys: "keyCache", values: "valueCache" };
        for form in KvForm::ALL {
            let recipe = recipe(form, names);
            let inputs: Vec<&str> = recipe.feeds.iter().map(KvFeed::input).collect();
            let expected: &[&str] = match form {
                KvForm::Dynamic => &["position_ids"],
                KvForm::Blend | KvForm::BlendWhole => &["pos", "write_mask"],
                _ => &["pos"],
            };
            assert_eq!(inputs, expected, "{form}");
            let said = recipe.host.join(" ");
            assert!(inputs.iter().all(|input| said.contains(&format!("`{input}`"))), "{form}: {said}");
        }
    }
}
