use serde_json::{Value, json};

use super::super::tests::small;
use super::*;

/// The form in which columns are written at a position that is handed in.
pub(in crate::host) fn indexed() -> KvRecipe {
    form("indexed", vec![position()], states(CacheRows::InOrder))
}

/// The form in which the position follows from how many there are.
pub(in crate::host) fn dynamic() -> KvRecipe {
    let ids = KvFeed::PositionIds { input: "position_ids".to_owned() };
    form("dynamic", vec![ids], states(CacheRows::InOrder))
}

/// The form in which a mask says where columns go.
pub(in crate::host) fn blend() -> KvRecipe {
    let mask = KvFeed::WriteMask { input: "write_mask".to_owned() };
    form("blend", vec![position(), mask], states(CacheRows::InOrder))
}

/// The form in which the last columns are at the end.
pub(in crate::host) fn shift() -> KvRecipe {
    form("shift", vec![position()], states(CacheRows::AtTheEnd))
}

/// The form in which the host keeps the caches.
pub(in crate::host) fn host() -> KvRecipe {
    let cache = |name: &str| HostCache { past: format!("past_{name}"), new: format!("new_{name}") };
    form("host", vec![position()], KvCaches::Host { keys: cache("keyCache"), values: cache("valueCache") })
}

/// As [`host`], for three layers, of which the last is in a chunk of its own.
pub(in crate::host) fn chunked() -> KvRecipe {
    let function = |function: &str, inputs: &[&str]| ChunkFunction {
        function: function.to_owned(),
        inputs: inputs.iter().map(|&input| input.to_owned()).collect(),
    };
    let chunk = |layers, prefill, decode| ChunkRecipe {
        layers,
        functions: BTreeMap::from([("prefill".to_owned(), prefill), ("decode".to_owned(), decode)]),
    };
    let decode = |input| [input, "pos", "past_keyCache", "past_valueCache"];
    let first =
        chunk([0, 2], function("prefill_0", &["inputs_embeds"]), function("decode_0", &decode("inputs_embeds")));
    let last = chunk([2, 3], function("prefill_1", &["hidden"]), function("decode_1", &decode("hidden")));
    KvRecipe { chunks: vec![first, last], ..host() }
}

fn form(name: &str, feeds: Vec<KvFeed>, caches: KvCaches) -> KvRecipe {
    let host = vec!["hand in what is new".to_owned()];
    KvRecipe { form: name.to_owned(), feeds, caches, chunks: Vec::new(), host }
}

fn position() -> KvFeed {
    KvFeed::Position { input: "pos".to_owned() }
}

fn states(rows: CacheRows) -> KvCaches {
    KvCaches::States { keys: "keyCache".to_owned(), values: "valueCache".to_owned(), rows }
}

fn with(kv: KvRecipe) -> Recipe {
    Recipe { kv, ..small() }
}

#[test]
fn every_form_is_read_back_as_written() {
    for kv in [indexed(), dynamic(), blend(), shift(), host(), chunked()] {
        let text = with(kv.clone()).to_json().unwrap();
        assert_eq!(Recipe::from_json("recipe.json", text.as_bytes()).unwrap().kv, kv);
    }
}

#[test]
fn the_json_says_what_the_inputs_are_for() {
    let json = serde_json::to_value(blend()).unwrap();
    assert_eq!(
        json["feeds"],
        json!([{"kind": "position", "input": "pos"}, {"kind": "write-mask", "input": "write_mask"}])
    );
    let rows = json!({"states": {"keys": "keyCache", "values": "valueCache", "rows": "in-order"}});
    assert_eq!(json["caches"], rows);
    assert_eq!(json.get("chunks"), None);
    let past = |name: &str| json!({"past": format!("past_{name}"), "new": format!("new_{name}")});
    let json = serde_json::to_value(host()).unwrap();
    assert_eq!(json["caches"], json!({"host": {"keys": past("keyCache"), "values": past("valueCache")}}));
}

#[test]
fn functions_take_and_give_what_the_form_asks_for() {
    const STATES: &str = "; states keyCache: f16[3,1,2,64,8], valueCache: f16[3,1,2,64,8]";
    const LOGITS: &str = "logits: f16[1,1,512]";
    for (kv, place) in [
        (indexed(), "pos: si32[1]"),
        (dynamic(), "position_ids: si32[1,?]"),
        (blend(), "pos: si32[1], write_mask: f16[64,1]"),
        (shift(), "pos: si32[1]"),
    ] {
        let said = with(kv).decoder_signatures();
        assert_eq!(said["decode"], format!("(inputs_embeds: f16[1,1,2], {place}{STATES}) -> ({LOGITS})"));
        assert_eq!(said["prefill"], format!("(inputs_embeds: f16[1,18,2]{STATES}) -> ({LOGITS})"));
    }
    let columns = |layers, n| format!("new_keyCache: f16[{layers},1,2,{n},8], new_valueCache: f16[{layers},1,2,{n},8]");
    let past = |layers| format!("past_keyCache: f16[{layers},1,2,64,8], past_valueCache: f16[{layers},1,2,64,8]");
    let said = with(host()).decoder_signatures();
    let decode = format!("(inputs_embeds: f16[1,1,2], pos: si32[1], {}) -> ({LOGITS}, {})", past(3), columns(3, 1));
    assert_eq!(said["decode"], decode);
    assert_eq!(said["prefill"], format!("(inputs_embeds: f16[1,18,2]) -> ({LOGITS}, {})", columns(3, 18)));
    let said = with(chunked()).decoder_signatures();
    let (first, last) = (columns(2, 18), columns(1, 1));
    assert_eq!(said["prefill_0"], format!("(inputs_embeds: f16[1,18,2]) -> ({first}, hidden: f16[1,18,2])"));
    assert_eq!(said["decode_1"], format!("(pos: si32[1], {}, hidden: f16[1,1,2]) -> ({LOGITS}, {last})", past(1)));
    assert_eq!(with(chunked()).functions(Asset::Decoder), ["prefill_0", "prefill_1", "decode_0", "decode_1"]);
}

#[test]
fn bytes_are_those_of_inputs_and_outputs() {
    let bytes = |kv| with(kv).bytes_per_step(20).unwrap();
    let (embedding, logits) = (2 * 2, 2 * 512);
    assert_eq!(bytes(indexed()), embedding + logits + 4);
    assert_eq!(bytes(dynamic()), embedding + logits + 4 * 20);
    assert_eq!(bytes(blend()), embedding + logits + 4 + 2 * 64);
    let (cache, columns) = (2 * 3 * 2 * 64 * 8, 2 * 3 * 2 * 8);
    assert_eq!(bytes(host()), embedding + logits + 4 + 2 * (cache + columns));
    // The second chunk takes the position again, and what the first passes on.
    assert_eq!(bytes(chunked()), bytes(host()) + 4 + 2 * embedding);
}

/// The error of a recipe in the form `kv` with the value at `pointer` replaced.
fn error_with(kv: KvRecipe, pointer: &str, value: Value) -> String {
    let mut json = serde_json::to_value(with(kv)).unwrap();
    *json.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = value;
    Recipe::from_json("recipe.json", &serde_json::to_vec(&json).unwrap()).unwrap_err().to_string()
}

#[test]
fn contradictions_name_the_json_path() {
    let mask = json!({"kind": "write-mask", "input": "m"});
    let position = |input: &str| json!({"kind": "position", "input": input});
    for (kv, pointer, value, part) in [
        (indexed(), "/kv/form", json!(""), "kv.form: "),
        (indexed(), "/kv/feeds", json!([]), "kv.feeds: "),
        (indexed(), "/kv/feeds", json!([mask]), "kv.feeds: "),
        (indexed(), "/kv/feeds", json!([position("a"), position("b")]), "kv.feeds[1]: "),
        (indexed(), "/kv/feeds/0/input", json!("inputs_embeds"), "kv: function `decode`: "),
        (indexed(), "/kv/feeds/0/input", json!("keyCache"), "found `keyCache` more than once"),
        (indexed(), "/kv/feeds/0/input", json!(""), "kv: function `decode`: "),
        (indexed(), "/kv/feeds/0/kind", json!("angle"), "kv.feeds[0]"),
        (indexed(), "/kv/caches/states/values", json!("keyCache"), "kv: function `prefill`: "),
        (host(), "/kv/caches/host/values/new", json!("logits"), "found `logits` more than once"),
        (chunked(), "/kv/caches", json!(states(CacheRows::InOrder)), "kv.chunks: "),
        (chunked(), "/kv/chunks/0/layers", json!([0, 3]), "kv.chunks[1].layers: "),
        (chunked(), "/kv/chunks/0/layers", json!([0, 0]), "kv.chunks[0].layers: "),
        (chunked(), "/kv/chunks/1/layers", json!([2, 4]), "kv.chunks: "),
        (chunked(), "/kv/chunks/1/functions", json!({}), "kv.chunks[1].functions: "),
        (chunked(), "/kv/chunks/1/functions/decode/function", json!("decode_0"), "kv: function `decode_0`: "),
        (chunked(), "/kv/chunks/1/functions/decode/inputs", json!(["pos"]), "kv.chunks[1].functions.decode.inputs: "),
        (
            chunked(),
            "/kv/chunks/0/functions/decode/inputs",
            json!(["hidden"]),
            "kv.chunks[0].functions.decode.inputs: ",
        ),
        (
            chunked(),
            "/kv/chunks/0/functions/prefill/inputs",
            json!(["inputs_embeds", "pos"]),
            "kv.chunks[0].functions.prefill.inputs: the recipe contradicts itself: found `pos`",
        ),
    ] {
        let error = error_with(kv, pointer, value);
        assert!(error.starts_with("recipe.json: kv") && error.contains(part), "{pointer}: {error}");
    }
}
