//! What a form of the key/value cache asks of the host, for the recipe.

use super::{ExportRequest, Manifest};
use crate::Result;
use crate::host::recipe::{CacheRows, HostCache, KvCaches, KvFeed, KvRecipe};
use crate::passes::{KvForm, kv_names};

/// The form that is asked for, else the manifest's own.
///
/// # Errors
/// When the manifest names an unknown form.
pub(super) fn form(request: &ExportRequest, manifest: &Manifest) -> Result<KvForm> {
    request.kv.map_or_else(|| manifest.default_kv(), Ok)
}

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
