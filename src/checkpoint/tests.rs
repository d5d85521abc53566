//! Whole checkpoints: which are opened, and how the others are refused.

use super::fixtures::{Files, file, index, shard, typed_shard};
use super::*;
use crate::error::ErrorClass;

const INDEX: &str = "model.safetensors.index.json";
const FIRST: &str = "model-00001-of-00002.safetensors";
const SECOND: &str = "model-00002-of-00002.safetensors";
const IGNORE_INDEX: OpenOptions = OpenOptions { ignore_index: true };

fn names(checkpoint: &Checkpoint) -> Vec<&str> {
    checkpoint.tensors().map(|tensor| tensor.name.as_ref()).collect()
}

fn shard_names(checkpoint: &Checkpoint) -> Vec<&str> {
    checkpoint.shards().iter().map(|shard| shard.name.as_str()).collect()
}

fn bytes(tensor: &StoredTensor) -> Vec<u8> {
    let mut bytes = vec![0; tensor.bytes() as usize];
    tensor.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// The error of a refused checkpoint with its hint; the folder is written `DIR`.
fn refusal_with(files: &Files, options: OpenOptions) -> String {
    let error = Checkpoint::open_with(files.path(), options).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Input);
    format!("{error:?}").replace(&files.path().display().to_string(), "DIR")
}

fn refusal(files: &Files) -> String {
    refusal_with(files, OpenOptions::default())
}

#[test]
fn indexed_shards_are_one_checkpoint() {
    let files = Files::two_shards();
    let checkpoint = Checkpoint::open(files.path()).unwrap();
    assert_eq!(names(&checkpoint), ["a", "b", "c"]);
    assert_eq!(shard_names(&checkpoint), [FIRST, SECOND]);
    assert_eq!(checkpoint.shards()[0].tensors, 2);
    assert_eq!(checkpoint.shards()[1].bytes, std::fs::metadata(files.join(SECOND)).unwrap().len());
    assert_eq!(bytes(checkpoint.tensor("b").unwrap()), [3, 4, 5, 6]);
    assert_eq!(checkpoint.tensor("c").unwrap().shape, [1]);
    assert!(checkpoint.tensor("d").is_none() && checkpoint.warnings().is_empty());
    assert_eq!(checkpoint.config().field("model_type").unwrap().as_str().unwrap(), "tiny");
    assert_eq!(checkpoint.location(), files.path().display().to_string());
}

#[test]
fn the_index_is_followed_whatever_the_shards_are_called() {
    for name in ["model-00001-of-000001.safetensors", "mtp.safetensors", "weights", "…-ö.safetensors"] {
        let files =
            Files::with_config().add(name, &shard(&[("a", &[1, 2])])).add(INDEX, index(&[("a", name)]).as_bytes());
        assert_eq!(shard_names(&Checkpoint::open(files.path()).unwrap()), [name]);
    }
}

#[test]
fn without_an_index_all_shards_are_read() {
    let files = Files::two_shards().remove(INDEX).add("mtp.safetensors", &shard(&[("d", &[])]));
    assert_eq!(names(&Checkpoint::open(files.path()).unwrap()), ["a", "b", "c", "d"]);
}

#[test]
fn files_that_are_not_of_the_model_are_passed_over() {
    let files = Files::with_config()
        .add("model.safetensors", &shard(&[("a", &[1, 2])]))
        .add("._model.safetensors", b"\0\x05\x16\x07 left by a file manager")
        .add("adapter_model.safetensors", &shard(&[("x.lora_A.weight", &[1, 2])]))
        .add("consolidated.safetensors", &shard(&[("b", &[1, 2])]));
    let checkpoint = Checkpoint::open(files.path()).unwrap();
    assert_eq!(names(&checkpoint), ["a"]);
    assert_eq!(
        checkpoint.warnings(),
        [
            "`adapter_model.safetensors` is not read: an adapter is not part of the model",
            "`consolidated.safetensors` is not read: it holds the model in another layout",
        ]
    );
    let files = files.add(INDEX, index(&[("a", "model.safetensors")]).as_bytes());
    assert_eq!(Checkpoint::open(files.path()).unwrap().warnings().len(), 2, "the index leaves them out too");
}

#[test]
fn a_single_file_is_a_checkpoint_with_its_configuration_beside_it() {
    let files = Files::two_shards();
    let checkpoint = Checkpoint::open(&files.join(SECOND)).unwrap();
    assert_eq!(names(&checkpoint), ["c"]);
    assert_eq!(checkpoint.location(), files.join(SECOND).display().to_string());
    let error = Checkpoint::open(&files.join("config.json")).unwrap_err().to_string();
    assert!(error.ends_with("config.json: not a `.safetensors` file"), "{error}");
    let files = files.add("adapter_model.safetensors", &shard(&[]));
    let error = Checkpoint::open(&files.join("adapter_model.safetensors")).unwrap_err().to_string();
    assert!(error.ends_with("adapter_model.safetensors: an adapter, not a model"), "{error}");
}

#[test]
fn built_in_files_are_a_checkpoint() {
    let weights: &'static [u8] = shard(&[("a", &[1, 2])]).leak();
    let config = ("config.json", b"{}".as_slice());
    let checkpoint = Checkpoint::built_in("tiny", &[("model.safetensors", weights), config]).unwrap();
    assert_eq!(bytes(checkpoint.tensor("a").unwrap()), [1, 2]);
    assert_eq!(checkpoint.location(), "tiny");

    let cut = Checkpoint::built_in("tiny", &[("model.safetensors", &weights[..weights.len() - 1]), config]);
    assert!(cut.unwrap_err().to_string().starts_with("tiny/model.safetensors: the file is 1 byte short"));
    let error = Checkpoint::built_in("tiny", &[config, config]).unwrap_err();
    assert_eq!(error.to_string(), "tiny: config.json: the file is given twice");
    let error = Checkpoint::built_in("tiny", &[("model.safetensors", weights)]).unwrap_err();
    assert_eq!(error.to_string(), "tiny/config.json: no such file");
}

#[test]
fn side_files_are_handed_out_unchanged() {
    let files = Files::two_shards()
        .add("tokenizer.json", b"\xef\xbb\xbf{\"a\":\r\n 1}")
        .add("chat_template.jinja", b"\xff\0<html>")
        .add(".gitattributes", b"")
        .add("pytorch_model.bin", b"")
        .add("adapter_model.safetensors", b"")
        .add("figures/page.png", b"");
    let checkpoint = Checkpoint::open(files.path()).unwrap();
    let side_files: Vec<_> = checkpoint.side_file_names().collect();
    assert_eq!(side_files, ["chat_template.jinja", "config.json", "tokenizer.json"]);
    assert_eq!(checkpoint.side_file("tokenizer.json").unwrap().unwrap(), b"\xef\xbb\xbf{\"a\":\r\n 1}");
    assert_eq!(checkpoint.side_file("chat_template.jinja").unwrap().unwrap(), b"\xff\0<html>");
    let tokenizer = checkpoint.side_json("tokenizer.json").unwrap().unwrap();
    assert_eq!(tokenizer.root().field("a").unwrap().as_usize().unwrap(), 1);
    assert!(checkpoint.side_file("vocab.json").unwrap().is_none());
    assert!(checkpoint.side_json("generation_config.json").unwrap().is_none());
}

#[test]
fn side_files_are_refused_where_they_cannot_be_meant() {
    let files = Files::two_shards()
        .add("tokenizer.json", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
        .add("figures/page.png", b"");
    let checkpoint = Checkpoint::open(files.path()).unwrap();
    for name in ["../x", "/etc/passwd", "figures/page.png", "a\\b", "", "..", "figures"] {
        checkpoint.side_file(name).unwrap_err();
        checkpoint.side_json(name).unwrap_err();
    }
    assert!(checkpoint.side_file("tokenizer.json").unwrap_err().to_string().contains("Git-LFS pointer"));
}

#[test]
fn an_oversized_file_is_refused_before_it_is_read() {
    let files = Files::two_shards();
    let sparse = |name: &str, size| std::fs::File::create(files.join(name)).unwrap().set_len(size).unwrap();
    sparse("tokenizer.json", MAX_SIDE_FILE_BYTES + 1);
    let checkpoint = Checkpoint::open(files.path()).unwrap();
    let error = checkpoint.side_file("tokenizer.json").unwrap_err().to_string();
    assert!(error.ends_with("found 268435457 bytes, expected at most 268435456 bytes"), "{error}");
    for name in ["config.json", INDEX] {
        sparse(name, MAX_JSON_BYTES + 1);
        assert!(refusal(&files).contains("expected at most 134217728 bytes"));
    }
}

#[test]
fn what_is_no_checkpoint_is_refused_with_a_sentence() {
    let weights = shard(&[("a", &[1, 2])]);
    let cases = [
        (Files::new(), "DIR: no `.safetensors` file in the folder: found no files at all"),
        (Files::with_config(), "DIR: no `.safetensors` file in the folder (hint: download the weights too)"),
        (
            Files::new().add("model.safetensors", &weights),
            "DIR/config.json: no such file (hint: the folder must hold the whole checkpoint, as published)",
        ),
        (
            Files::with_config().add("pytorch_model.bin", b"PK"),
            "DIR: no `.safetensors` file in the folder: found `pytorch_model.bin` \
             (hint: only safetensors weights are read: save the model as safetensors first)",
        ),
        (
            Files::with_config().add("model.gguf", b"GGUF"),
            "DIR: no `.safetensors` file in the folder: found `model.gguf` \
             (hint: only safetensors weights are read: save the model as safetensors first)",
        ),
        (
            Files::new().add("adapter_config.json", b"{}").add("adapter_model.safetensors", &weights),
            "DIR: an adapter, not a model (hint: merge the adapter into its base model first)",
        ),
        (
            Files::new().add("snapshots/abc/model.safetensors", &weights),
            "DIR: no `.safetensors` file in the folder (hint: this is a model's folder in the Hub cache: \
             name one of its `snapshots/<revision>`, or the model's id)",
        ),
        (Files::with_config().add("model.safetensors", &file("{}", &[])), "DIR: the checkpoint holds no tensors"),
        (
            Files::new().add("config.json", b"[]").add("model.safetensors", &weights),
            "DIR/config.json: not a model configuration: expected an object",
        ),
        (
            Files::new().add("config.json/x", b"").add("model.safetensors", &weights),
            "DIR/config.json: not a regular file",
        ),
    ];
    for (files, expected) in cases {
        assert_eq!(refusal(&files), expected);
    }
}

#[test]
fn a_missing_path_is_bad_input() {
    let files = Files::new();
    let error = Checkpoint::open(&files.join("gone")).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Input);
    assert!(error.to_string().ends_with("gone: no such file or folder"), "{error}");
}

#[test]
fn a_damaged_shard_is_named() {
    let whole = std::fs::read(Files::two_shards().join(SECOND)).unwrap();
    let files = Files::two_shards().add(SECOND, &whole[..whole.len() - 1]);
    assert!(refusal(&files).starts_with(&format!("DIR/{SECOND}: the file is 1 byte short")));
    let files = Files::two_shards().add(FIRST, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n");
    assert!(refusal(&files).starts_with(&format!("DIR/{FIRST}: a Git-LFS pointer, not the file itself")));
}

#[test]
fn a_missing_shard_is_named() {
    let files = Files::two_shards().remove(SECOND);
    assert_eq!(
        refusal(&files),
        format!(
            "DIR/{INDEX}: 1 of 2 shards it names are missing: found `{FIRST}`, expected also `{SECOND}` \
             (hint: download the missing files, or ignore the index (`--ignore-index`) to take what is on disk)"
        )
    );
    let checkpoint = Checkpoint::open_with(files.path(), IGNORE_INDEX).unwrap();
    assert_eq!(names(&checkpoint), ["a", "b"]);
    let warning = "only 1 of 2 shards `model-*` are there: number 1";
    assert_eq!(checkpoint.warnings(), [warning]);

    let files = files.remove(INDEX);
    assert_eq!(refusal(&files), format!("DIR: {warning} (hint: download the missing files)"));
}

#[test]
fn an_index_of_another_build_is_refused_and_can_be_ignored() {
    let other: Vec<_> = (1..=5).map(|i| format!("model-0000{i}-of-00005.safetensors")).collect();
    let places: Vec<_> = ["a", "b", "c", "d", "e"].into_iter().zip(other.iter().map(String::as_str)).collect();
    let files = Files::two_shards().add(INDEX, index(&places).as_bytes());
    let message = refusal(&files);
    assert!(message.starts_with(&format!("DIR/{INDEX}: 5 of 5 shards it names are missing: found `{FIRST}`")));
    assert!(message.contains("`model-00004-of-00005.safetensors` and 1 more"), "{message}");
    assert_eq!(names(&Checkpoint::open_with(files.path(), IGNORE_INDEX).unwrap()), ["a", "b", "c"]);
}

#[test]
fn an_index_must_agree_with_its_shards() {
    let places = |extra: &[(&str, &str)], without: &str| {
        let mut places = vec![("a", FIRST), ("b", FIRST), ("c", SECOND)];
        places.retain(|(tensor, _)| *tensor != without);
        places.extend(extra);
        index(&places)
    };
    let cases = [
        (
            places(&[("d", SECOND)], ""),
            format!("DIR/{INDEX}: tensor `d`: the index places it in `{SECOND}`, which does not have it"),
        ),
        (places(&[], "b"), format!("DIR/{INDEX}: tensor `b`: `{FIRST}` has it, but the index does not list it")),
        (
            places(&[("b", SECOND)], "b"),
            format!("DIR/{INDEX}: tensor `b`: the index places it in `{SECOND}`, which does not have it"),
        ),
    ];
    for (text, expected) in cases {
        let files = Files::two_shards().add(INDEX, text.as_bytes());
        assert!(refusal(&files).starts_with(&expected), "{}", refusal(&files));
        Checkpoint::open_with(files.path(), IGNORE_INDEX).unwrap();
    }
}

#[test]
fn shard_names_that_leave_the_folder_are_refused() {
    for name in ["../x.safetensors", "/etc/passwd", "a/../../x", "a/x", "C:\\x", "C:x", "a\\x", "x\0", "", ".", ".."] {
        let files = Files::two_shards().add(INDEX, index(&[("t", name)]).as_bytes());
        let expected = format!("DIR/{INDEX}: weight_map.t: not a plain file name: found {name:?}");
        assert!(refusal(&files).starts_with(&expected), "{}", refusal(&files));
    }
}

#[test]
fn a_broken_index_is_refused() {
    let cases = [
        ("{\"weight_map\": {\"a\": 1}}", "tensor `a`: invalid type: integer `1`, expected a string"),
        ("{\"weight_map\": {\"a\": \"x\", \"a\": \"y\"}}", "duplicate tensor name `a`"),
        ("{\"metadata\": {}}", "missing field `weight_map`"),
        ("{\"weight_map\": []}", "invalid type: sequence, expected an object from tensor names to file names"),
        ("{\"weight_map\": {}}", "the weight map is empty"),
        ("{\"weight_map\": {\"a\": \"x\",}}", "trailing comma\n  {\"weight_map\": {\"a\": \"x\",}}"),
        (&"{\"metadata\":".repeat(200_000), "EOF while parsing a value"),
    ];
    for (text, expected) in cases {
        let message = refusal(&Files::two_shards().add(INDEX, text.as_bytes()));
        assert!(message.starts_with(&format!("DIR/{INDEX}: ")) && message.contains(expected), "{message}");
    }
}

#[test]
fn a_tensor_in_two_shards_must_be_the_same() {
    let both = |first: &[u8], second: &[u8]| {
        Files::with_config().add("model-1.safetensors", first).add("model-2.safetensors", second)
    };
    let large = vec![7; 3 << 20];
    let mut other = large.clone();
    *other.last_mut().unwrap() = 8;

    let files = both(&shard(&[("h", &large)]), &shard(&[("h", &large), ("x", &[1, 2])]));
    let checkpoint = Checkpoint::open(files.path()).unwrap();
    assert_eq!(names(&checkpoint), ["h", "x"]);
    assert_eq!(checkpoint.warnings().len(), 1);
    assert!(checkpoint.warnings()[0].ends_with("model-2.safetensors, with the same bytes"));

    let message = refusal(&both(&shard(&[("h", &large)]), &shard(&[("h", &other)])));
    let expected = "DIR/model-2.safetensors: tensor `h`: it is also in DIR/model-1.safetensors, with another value";
    assert!(message.starts_with(expected), "{message}");

    let as_half = typed_shard(&[("h", "F16", vec![2], &[0; 4])]);
    let message = refusal(&both(&shard(&[("h", &[0; 4])]), &as_half));
    assert!(message.starts_with(&format!("{expected}: found f16 [2], expected bf16 [2]")), "{message}");
}

#[test]
fn quantised_checkpoints_and_adapters_are_refused_by_tensor() {
    let cases = [
        ("l.weight.absmax", "F32", 4, "bitsandbytes 4-bit weights"),
        ("l.weight.quant_state.bitsandbytes__nf4", "U8", 1, "bitsandbytes 4-bit weights"),
        ("l.SCB", "F32", 4, "bitsandbytes 8-bit weights"),
        ("l.weight_scale_inv", "F32", 4, "block-scaled FP8 weights"),
        ("l.weight_scale", "F32", 4, "weights with separate scales"),
        ("l.input_activation_scale", "F32", 4, "weights with activation scales"),
        ("l.qweight", "I32", 4, "GPTQ or AWQ weights"),
        ("l.scales", "BF16", 2, "weights with separate scales"),
        ("l.weight", "U8", 1, "a weight of 8-bit integers"),
        ("base_model.l.lora_A.weight", "BF16", 2, "an adapter"),
    ];
    for (name, dtype, size, expected) in cases {
        let weights = typed_shard(&[("a", "BF16", vec![1], &[1, 2]), (name, dtype, vec![1], &vec![0; size])]);
        let message = refusal(&Files::with_config().add("model.safetensors", &weights));
        let sentence = format!(
            "DIR/model.safetensors: tensor `{name}`: the checkpoint does not hold plain weights: found {expected}, "
        );
        assert!(message.starts_with(&sentence), "{message}");
    }
}

#[test]
fn scales_that_are_weights_are_accepted() {
    let weights = shard(&[("logit_scale", &[1, 2]), ("block.layer_scale.weight", &[1, 2])]);
    Checkpoint::open(Files::with_config().add("model.safetensors", &weights).path()).unwrap();
}

#[test]
fn a_leftover_quantisation_entry_is_warned_about() {
    let files = Files::two_shards().add("config.json", br#"{"quantization_config": {"quant_method": "fp8"}}"#);
    let checkpoint = Checkpoint::open(files.path()).unwrap();
    assert_eq!(checkpoint.warnings(), ["config.json: quantization_config is ignored: the tensors are plain weights"]);
}

#[test]
fn a_file_that_shrinks_after_opening_is_an_error() {
    let files = Files::two_shards();
    let checkpoint = Checkpoint::open(files.path()).unwrap();
    std::fs::File::options().write(true).open(files.join(SECOND)).unwrap().set_len(20).unwrap();
    let error = checkpoint.tensor("c").unwrap().read_at(&mut [0; 2], 0).unwrap_err();
    assert!(error.to_string().contains("the file became shorter while it was read"), "{error}");
}

#[cfg(unix)]
#[test]
fn a_named_pipe_is_refused_without_waiting() {
    let files = Files::two_shards().remove(SECOND);
    let made = std::process::Command::new("mkfifo").arg(files.join(SECOND)).status().unwrap();
    assert!(made.success());
    assert!(refusal(&files).contains("1 of 2 shards it names are missing"));
}
