//! Bad input is refused: exit code 2, one sentence, and not a byte changed on the disk.
//!
//! Each test makes many checkpoints or requests with one fault each; the sentences are in `tests/snapshots`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use support::checkpoint::{Checkpoint, INDEX, SHARDS, Tensor, join, split};
use support::process::{self, aimodel, outcome, tree};
use tempfile::TempDir;

/// An expert's weight, and its extents.
const EXPERT: &str = "model.layers.1.mlp.experts.3.up_proj.weight";
const NORM: &str = "model.norm.weight";
const NEWLINE: &str = "model.image_newline";
const DEEP: usize = 200_000;

/// The sentences of many refusals.
#[derive(Default)]
struct Refusals(String);

impl Refusals {
    /// A checkpoint whose content is changed before it is saved.
    fn changed(&mut self, case: &str, change: impl FnOnce(&mut Checkpoint)) {
        let mut checkpoint = Checkpoint::golden();
        change(&mut checkpoint);
        let place = Place::new();
        checkpoint.save(&place.checkpoint());
        self.add(case, place.refused(&[]));
    }

    /// A checkpoint of GLM-OCR whose content is changed before it is saved, with options beside the usual ones.
    fn changed_glm(&mut self, case: &str, change: impl FnOnce(&mut Checkpoint), options: &[&str]) {
        let place = Place::glm(change);
        self.add(case, place.refused_as(&place.export_glm(options)));
    }

    /// A setting of the decoder.
    fn set(&mut self, name: &str, value: Value) {
        self.changed(&format!("{name} = {value}"), |c| c.set(name, value));
    }

    /// A change of config.json at a JSON pointer; the part before the last name is there.
    fn configured(&mut self, pointer: &str, value: Value) {
        self.changed(&format!("{pointer} = {value}"), |c| {
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            c.config.pointer_mut(parent).unwrap()[name] = value;
        });
    }

    /// A checkpoint whose files are damaged after it is saved.
    fn damaged(&mut self, case: &str, damage: impl FnOnce(&Path)) {
        let place = Place::saved();
        damage(&place.checkpoint());
        self.add(case, place.refused(&[]));
    }

    /// A sound checkpoint and a request that does not fit it.
    fn asked(&mut self, words: &[&str]) {
        let place = Place::saved();
        let mut all = process::export(&place.checkpoint(), &place.path("out"));
        give(&mut all, words);
        self.add(&words.join(" "), place.refused_as(&all));
    }

    fn add(&mut self, case: &str, sentence: String) {
        writeln!(self.0, "# {case}\n{sentence}").unwrap();
    }
}

/// Adds options with their values; one may be given once: its value is replaced.
fn give(all: &mut Vec<String>, options: &[&str]) {
    for option in options.chunks(2) {
        match all.iter().position(|word| word == option[0]) {
            Some(before) => option[1].clone_into(&mut all[before + 1]),
            None => all.extend(option.iter().map(|word| (*word).to_owned())),
        }
    }
}

/// A folder with a checkpoint in it and room for an output.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn saved() -> Self {
        let place = Self::new();
        Checkpoint::golden().save(&place.checkpoint());
        place
    }

    /// With a checkpoint of GLM-OCR that is changed before it is saved.
    fn glm(change: impl FnOnce(&mut Checkpoint)) -> Self {
        let mut checkpoint = Checkpoint::golden_glm();
        change(&mut checkpoint);
        let place = Self::new();
        checkpoint.save(&place.checkpoint());
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn export_glm(&self, options: &[&str]) -> Vec<String> {
        let mut words = process::export_glm(&self.checkpoint(), &self.path("out"));
        give(&mut words, options);
        words
    }

    fn checkpoint(&self) -> PathBuf {
        self.path("checkpoint")
    }

    fn refused(&self, words: &[&str]) -> String {
        let mut all = process::export(&self.checkpoint(), &self.path("out"));
        all.extend(words.iter().map(|word| (*word).to_owned()));
        self.refused_as(&all)
    }

    /// Runs the program, which must refuse and change nothing; the answer is what it says.
    fn refused_as(&self, words: &[String]) -> String {
        let before = tree(self.0.path());
        let (code, message) = outcome(&aimodel(words).output().unwrap());
        assert_eq!(code, Some(2), "{message}");
        assert!(tree(self.0.path()) == before, "something was left behind: {message}");
        message.replace(self.0.path().to_str().unwrap(), "DIR")
    }
}

fn edit_header(folder: &Path, shard: &str, edit: impl FnOnce(&str) -> String) {
    let path = folder.join(shard);
    let file = std::fs::read(&path).unwrap();
    let (header, data) = split(&file);
    std::fs::write(&path, join(&edit(header), data)).unwrap();
}

/// Edits the entry of the first tensor of the second shard.
fn edit_entry(folder: &Path, edit: impl FnOnce(&mut Value)) {
    edit_header(folder, SHARDS[1], |header| {
        let mut header: serde_json::Map<String, Value> = serde_json::from_str(header).unwrap();
        let first = header.values_mut().find(|entry| entry["data_offsets"][0] == json!(0)).unwrap();
        edit(first);
        json!(header).to_string()
    });
}

#[test]
fn files_that_are_missing_or_damaged() {
    let mut refusals = Refusals::default();
    let remove = |folder: &Path, name: &str| std::fs::remove_file(folder.join(name)).unwrap();
    let write = |folder: &Path, name: &str, bytes: &[u8]| std::fs::write(folder.join(name), bytes).unwrap();
    let read = |folder: &Path, name: &str| std::fs::read(folder.join(name)).unwrap();
    refusals.damaged("no folder", |folder| std::fs::remove_dir_all(folder).unwrap());
    refusals.damaged("a file in place of the folder", |folder| {
        std::fs::remove_dir_all(folder).unwrap();
        std::fs::write(folder, "").unwrap();
    });
    for name in ["config.json", "tokenizer.json", SHARDS[1]] {
        refusals.damaged(&format!("no {name}"), |folder| remove(folder, name));
    }
    refusals.damaged("no shard and no index", |folder| {
        remove(folder, SHARDS[0]);
        remove(folder, INDEX);
    });
    refusals.damaged("a truncated shard", |folder| {
        let bytes = read(folder, SHARDS[1]);
        write(folder, SHARDS[1], &bytes[..bytes.len() - 4]);
    });
    refusals.damaged("a lengthened shard", |folder| {
        write(folder, SHARDS[1], &[read(folder, SHARDS[1]), vec![0; 4]].concat());
    });
    refusals.damaged("an empty shard", |folder| write(folder, SHARDS[1], b""));
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
    for name in [SHARDS[1], "config.json", "tokenizer.json"] {
        refusals.damaged(&format!("a Git-LFS pointer as {name}"), |folder| write(folder, name, pointer));
    }
    refusals.damaged("a web page as a shard", |folder| write(folder, SHARDS[1], b"<!DOCTYPE html><html></html>"));
    for length in [u64::MAX, 1_000_000_000_000] {
        refusals.damaged(&format!("a header of {length} bytes"), |folder| {
            let bytes = read(folder, SHARDS[1]);
            write(folder, SHARDS[1], &[&length.to_le_bytes(), &bytes[8..]].concat());
        });
    }
    let deep = "[".repeat(DEEP);
    for name in ["config.json", INDEX, "tokenizer.json", "generation_config.json"] {
        refusals.damaged(&format!("deep nesting in {name}"), |folder| write(folder, name, deep.as_bytes()));
    }
    refusals.damaged("deep nesting in a header", |folder| write(folder, SHARDS[1], &join(&deep, &[])));
    refusals.damaged("a tokenizer of no kind", |folder| write(folder, "tokenizer.json", b"{\"version\": \"1.0\"}"));
    refusals.damaged("half a config.json", |folder| {
        let bytes = read(folder, "config.json");
        write(folder, "config.json", &bytes[..40]);
    });
    insta::assert_snapshot!("files", refusals.0);
}

#[test]
fn headers_and_indices_that_do_not_hold() {
    let mut refusals = Refusals::default();
    refusals.damaged("two tensors at one place", |folder| {
        edit_header(folder, SHARDS[0], |header| {
            let mut header: serde_json::Map<String, Value> = serde_json::from_str(header).unwrap();
            let [key, value] = ["k", "v"].map(|part| format!("model.layers.0.self_attn.{part}_proj.weight"));
            header[&value]["data_offsets"] = header[&key]["data_offsets"].clone();
            json!(header).to_string()
        });
    });
    refusals.damaged("a shape that does not fit its bytes", |f| edit_entry(f, |e| e["shape"] = json!([1000, 1000])));
    refusals.damaged("a shape that overflows", |f| edit_entry(f, |e| e["shape"] = json!([1_u64 << 32, 1_u64 << 32])));
    refusals.damaged("a negative extent", |f| edit_entry(f, |e| e["shape"] = json!([-128])));
    for dtype in ["F8_E4M3", "Q9"] {
        refusals.damaged(&format!("elements of {dtype}"), |f| edit_entry(f, |e| e["dtype"] = json!(dtype)));
    }
    refusals.damaged("a gap", |folder| {
        let path = folder.join(SHARDS[1]);
        let file = std::fs::read(&path).unwrap();
        let (header, data) = split(&file);
        let mut header: serde_json::Map<String, Value> = serde_json::from_str(header).unwrap();
        for entry in header.values_mut() {
            let [start, end] = [0, 1].map(|i| entry["data_offsets"][i].as_u64().unwrap() + 2);
            entry["data_offsets"] = json!([start, end]);
        }
        std::fs::write(path, join(&json!(header).to_string(), &[&[0; 2], data].concat())).unwrap();
    });
    refusals.damaged("one name twice in a header", |folder| {
        edit_header(folder, SHARDS[1], |header| {
            let entry = r#""a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#;
            header.replacen('{', &format!("{{{entry},{entry},"), 1)
        });
    });
    refusals.changed("one name in two shards with other values", |c| {
        let mut second = c.tensors[0].clone();
        second.data[0] ^= 1;
        c.tensors.push(second);
    });
    for name in ["../x.safetensors", "/etc/passwd", "a/../../x", "C:\\x", "x\0"] {
        refusals.damaged(&format!("a shard named {name:?}"), |folder| {
            let index = json!({"weight_map": {"lm_head.weight": name}});
            std::fs::write(folder.join(INDEX), index.to_string()).unwrap();
        });
    }
    refusals.damaged("an index of another build", |folder| {
        let index = json!({"weight_map": {"a": "model-00001-of-00005.safetensors"}});
        std::fs::write(folder.join(INDEX), index.to_string()).unwrap();
    });
    insta::assert_snapshot!("headers", refusals.0);
}

#[test]
fn checkpoints_that_are_not_of_plain_weights() {
    let mut refusals = Refusals::default();
    refusals.damaged("an adapter", |folder| {
        std::fs::rename(folder.join(SHARDS[0]), folder.join("adapter_model.safetensors")).unwrap();
        for name in [SHARDS[1], INDEX] {
            std::fs::remove_file(folder.join(name)).unwrap();
        }
    });
    refusals.damaged("a pickle", |folder| {
        for name in [SHARDS[0], SHARDS[1], INDEX] {
            std::fs::remove_file(folder.join(name)).unwrap();
        }
        std::fs::write(folder.join("pytorch_model.bin"), b"PK\x03\x04").unwrap();
    });
    refusals.changed("bitsandbytes", |c| {
        let mut codes = c.take(EXPERT);
        codes.shape = vec![1, codes.data.len()];
        "U8".clone_into(&mut codes.dtype);
        c.tensors.push(codes);
    });
    refusals.changed("bitsandbytes with its scales", |c| {
        c.tensors.push(Tensor::bf16(&format!("{EXPERT}.absmax"), &[1], &[1.0]));
    });
    refusals.changed("FP8 scales", |c| c.tensors.push(Tensor::bf16(&format!("{EXPERT}_scale_inv"), &[1], &[1.0])));
    refusals.changed("activation scales", |c| {
        c.tensors.push(Tensor::bf16("model.layers.0.mlp.up_proj.input_activation_scale", &[1], &[1.0]));
    });
    insta::assert_snapshot!("not_plain", refusals.0);
}

#[test]
fn tensors_that_do_not_fit_the_model() {
    let mut refusals = Refusals::default();
    refusals.changed("a missing tensor", |c| drop(c.take(NORM)));
    refusals.changed("a renamed tensor", |c| "model.final_norm.weight".clone_into(&mut c.tensor(NORM).name));
    refusals.changed("an extra tensor", |c| c.tensors.push(Tensor::bf16("model.layers.3.x", &[1], &[1.0])));
    refusals.changed("two extra tensors", |c| {
        c.tensors.extend(["a", "b"].map(|name| Tensor::bf16(name, &[1], &[1.0])));
    });
    refusals.changed("a transposed tensor", |c| c.tensor(EXPERT).shape.reverse());
    refusals.changed("a tensor of another rank", |c| c.tensor(NORM).shape = vec![1, 128]);
    refusals.changed("integers", |c| "I16".clone_into(&mut c.tensor(NORM).dtype));
    refusals.changed("a missing expert", |c| drop(c.take(EXPERT)));
    refusals.changed("missing experts", |c| c.tensors.retain(|t| !t.name.contains("layers.2.mlp.experts")));
    refusals.changed("one expert too many", |c| {
        let mut expert = c.tensor(EXPERT).clone();
        expert.name = expert.name.replace("experts.3", "experts.8");
        c.tensors.push(expert);
    });
    for (name, shape) in [("gate_up_proj", [8, 128, 128]), ("down_proj", [8, 128, 64])] {
        refusals.changed(&format!("experts one by one, and a packed {name}"), |c| {
            let values = vec![0.0; shape.iter().product()];
            c.tensors.push(Tensor::bf16(&format!("model.layers.1.mlp.experts.{name}"), &shape, &values));
        });
    }
    refusals.changed("packed experts without down_proj", |c| {
        c.tensors.retain(|t| !t.name.contains("layers.1.mlp.experts"));
        let name = "model.layers.1.mlp.experts.gate_up_proj";
        c.tensors.push(Tensor::bf16(name, &[8, 128, 128], &vec![0.0; 8 * 128 * 128]));
    });
    refusals.changed("packed experts of another shape", |c| {
        c.tensors.retain(|t| !t.name.contains("layers.1.mlp.experts"));
        for (name, shape) in [("gate_up_proj", [8, 64, 256]), ("down_proj", [8, 128, 64])] {
            let name = format!("model.layers.1.mlp.experts.{name}");
            c.tensors.push(Tensor::bf16(&name, &shape, &vec![0.0; shape.iter().product()]));
        }
    });
    insta::assert_snapshot!("tensors", refusals.0);
}

/// Found in the middle of writing, over an older bundle: it stays as it is.
#[test]
fn weights_that_no_device_can_hold() {
    let mut refusals = Refusals::default();
    let mut refused = |case: &str, change: &dyn Fn(&mut Checkpoint)| {
        let mut checkpoint = Checkpoint::golden();
        change(&mut checkpoint);
        let place = Place::new();
        checkpoint.save(&place.checkpoint());
        let older = process::export(&support::golden("structure/unlimited-ocr"), &place.path("out"));
        assert_eq!(outcome(&aimodel(&older).output().unwrap()), (Some(0), String::new()));
        refusals.add(case, place.refused(&["--force"]));
        std::fs::remove_dir_all(place.path("out")).unwrap();
        place.refused(&[]);
    };
    let put = |c: &mut Checkpoint, name: &str, value: f32| {
        let tensor = c.tensor(name);
        let mut values = tensor.values();
        *values.last_mut().unwrap() = value;
        *tensor = Tensor::bf16(name, &tensor.shape.clone(), &values);
    };
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 7e4] {
        refused(&format!("an expert with {value}"), &|c| put(c, EXPERT, value));
    }
    for name in [
        "model.embed_tokens.weight",
        "model.layers.1.mlp.gate.weight",
        "model.sam_model.pos_embed",
        "model.sam_model.blocks.2.attn.rel_pos_h",
        "model.projector.layers.bias",
        "model.image_newline",
    ] {
        refused(&format!("{name} with NaN"), &|c| put(c, name, f32::NAN));
    }
    refused("a router in F32 with NaN, which is stored as it is", &|c| {
        let router = c.tensor("model.layers.1.mlp.gate.weight");
        router.widen();
        router.data[4 * 130..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    for (what, bits) in [("NaN", 0x7e00_u16), ("an infinity", 0xfc00)] {
        refused(&format!("a norm in F16 with {what}, which is stored as it is"), &|c| {
            let norm = c.tensor(NORM);
            "F16".clone_into(&mut norm.dtype);
            norm.data.copy_from_slice(&0x3c00_u16.to_le_bytes().repeat(128));
            norm.data[10..12].copy_from_slice(&bits.to_le_bytes());
        });
    }
    insta::assert_snapshot!("weights", refusals.0);
}

#[test]
fn another_model() {
    let mut refusals = Refusals::default();
    refusals.configured("/model_type", json!("glm_ocr"));
    refusals.configured("/model_type", json!(7));
    refusals.changed("no model_type", |c| drop(c.config.as_object_mut().unwrap().remove("model_type")));
    refusals.configured("/architectures", json!(["GlmOcrForConditionalGeneration"]));
    refusals.configured("/projector_config/projector_type", json!("mlp_gelu"));
    insta::assert_snapshot!("another_model", refusals.0);
}

#[test]
fn settings_of_the_decoder() {
    let mut refusals = Refusals::default();
    for (name, value) in [
        ("use_mla", json!(true)),
        ("topk_method", json!("group_limited_greedy")),
        ("scoring_func", json!("sigmoid")),
        ("norm_topk_prob", json!(true)),
        ("routed_scaling_factor", json!(2)),
        ("n_group", json!(2)),
        ("hidden_act", json!("gelu")),
        ("attention_bias", json!(true)),
        ("tie_word_embeddings", json!(true)),
        ("q_lora_rank", json!(1536)),
        ("layer_types", json!(["reference_sliding_attention", "full_attention"])),
        ("rope_scaling", json!({"type": "yarn", "factor": 40})),
        ("rope_scaling", json!({"factor": 40})),
        ("rope_parameters", json!({"rope_type": "llama3", "rope_theta": 1e4})),
        ("rope_parameters", json!({"rope_type": "default", "partial_rotary_factor": 0.5})),
        ("rope_theta", json!(0)),
        ("num_attention_heads", json!(0)),
        ("num_attention_heads", json!(3)),
        ("num_attention_heads", json!(8)),
        ("num_key_value_heads", json!(2)),
        ("head_dim", json!(64)),
        ("num_experts_per_tok", json!(9)),
        ("num_hidden_layers", json!(1_u64 << 40)),
        ("num_hidden_layers", json!(2)),
        ("n_routed_experts", json!(7)),
        ("n_routed_experts", json!(9)),
        ("vocab_size", json!(500)),
        ("vocab_size", json!(-1)),
        ("hidden_size", json!(1e30)),
        ("max_position_embeddings", json!(u64::MAX)),
        ("sliding_window_size", json!(0)),
        ("bos_token_id", json!(600)),
        ("eos_token_id", json!(1_u64 << 32)),
        ("hidden_size", json!("128")),
    ] {
        refusals.set(name, value);
    }
    refusals.configured("/sliding_window", json!(9));
    refusals.configured("/routed_scaling_factor", json!(2.5));
    refusals.configured("/num_experts_per_tok", json!(3));
    refusals.changed("two rotary bases", |c| {
        c.set("rope_theta", json!(1e6));
        c.set("rope_parameters", json!({"rope_type": "default", "rope_theta": 1e4}));
    });
    refusals.changed("no window", |c| {
        for section in ["", "/language_config"] {
            let section = c.config.pointer_mut(section).unwrap().as_object_mut().unwrap();
            section.retain(|name, _| !name.starts_with("sliding_window"));
        }
    });
    refusals.changed("no language_config", |c| drop(c.config.as_object_mut().unwrap().remove("language_config")));
    refusals.changed("two decoders", |c| c.config["text_config"] = c.config["language_config"].clone());
    insta::assert_snapshot!("decoder", refusals.0);
}

#[test]
fn settings_of_the_vision_tower() {
    let mut refusals = Refusals::default();
    refusals.changed("no vision_config", |c| drop(c.config.as_object_mut().unwrap().remove("vision_config")));
    refusals.changed("no vision_config.width.sam_vit_b", |c| {
        let vision = c.config["vision_config"].as_object_mut().unwrap();
        vision.remove("sam_config");
        vision["width"].as_object_mut().unwrap().remove("sam_vit_b");
    });
    for (pointer, value) in [
        ("/vision_config/width/sam_vit_b/layers", json!(4)),
        ("/vision_config/sam_config/window_size", json!(16)),
        ("/vision_config/sam_config/use_rel_pos", json!(false)),
        ("/vision_config/encoder_config/hidden_act", json!("gelu")),
        ("/vision_config/image_size", json!(0)),
        ("/projector_config/n_embed", json!(64)),
        ("/projector_config/input_dim", json!(64)),
    ] {
        refusals.configured(pointer, value);
    }
    for (what, name, value) in [
        ("global layers that are not there", "global_attn_indexes", json!([2, 5])),
        ("a layer count beyond reason", "layers", json!(1_u64 << 50)),
        ("heads that do not divide", "heads", json!(5)),
        ("three downsampling layers", "downsample_channels", json!([128, 64, 64])),
    ] {
        refusals.changed(what, |c| {
            c.config["vision_config"].as_object_mut().unwrap().remove("sam_config");
            c.config["vision_config"]["width"]["sam_vit_b"][name] = value;
        });
    }
    insta::assert_snapshot!("vision", refusals.0);
}

/// Layers of the decoder of GLM-OCR: two are run, the third guesses further tokens.
const GLM_LAYERS: &str = "model.language_model.layers";
const GLM_HEAD: &str = "lm_head.weight";

fn tie(checkpoint: &mut Checkpoint) {
    checkpoint.config["text_config"]["tie_word_embeddings"] = json!(true);
}

#[test]
fn checkpoints_of_glm_ocr() {
    let mut refusals = Refusals::default();
    let sections =
        |list: Value| move |c: &mut Checkpoint| c.config["text_config"]["rope_parameters"]["mrope_section"] = list;
    refusals.changed_glm("sections that do not make up half a head", sections(json!([4, 6, 5])), &[]);
    refusals.changed_glm("two sections", sections(json!([8, 8])), &[]);
    let stray = |c: &mut Checkpoint| {
        c.tensors.push(Tensor::bf16(&format!("{GLM_LAYERS}.20.input_layernorm.weight"), &[128], &[1.0; 128]));
    };
    refusals.changed_glm("a layer that is not of the model", stray, &[]);
    refusals.changed_glm(
        "a layer that is missing",
        |c| c.tensors.retain(|t| !t.name.starts_with(&format!("{GLM_LAYERS}.1."))),
        &[],
    );
    refusals.changed_glm("a head of its own that is said to be the table", tie, &[]);
    refusals.changed_glm("a head that is missing", |c| drop(c.take(GLM_HEAD)), &[]);
    for name in ["tokenizer.json", "preprocessor_config.json"] {
        refusals.changed_glm(&format!("no {name}"), |c| c.files.retain(|(file, _)| file != name), &[]);
    }
    let template = |c: &mut Checkpoint| {
        c.files.retain(|(name, _)| name != "chat_template.jinja");
        c.files.push(("chat_template.jinja".to_owned(), b"<|user|>\n{{ messages }".to_vec()));
    };
    refusals.changed_glm("a chat template that is cut short", template, &[]);
    let model_type = |c: &mut Checkpoint| c.config["model_type"] = json!("unlimited-ocr");
    refusals.changed_glm("another model", model_type, &[]);
    insta::assert_snapshot!("glm_ocr", refusals.0);
}

#[test]
fn requests_that_do_not_fit_glm_ocr() {
    let mut refusals = Refusals::default();
    for options in [
        &["--grid", "8x16"][..],
        &["--grid", "4x5,5x4,4x5"],
        &["--grid", "4x5,10x16"],
        &["--max-context", "4097"],
        &["--prefill-chunk", "129"],
        &["--prefill-chunk", "1"],
        &["--functions", "s1", "--prefill-chunk", "64"],
        &["--moe", "native"],
        &["--image-size", "640"],
        &["--quant", "sym8"],
    ] {
        refusals.changed_glm(&options.join(" "), |_| (), options);
    }
    insta::assert_snapshot!("glm_ocr_requests", refusals.0);
}

/// Makes a bundle of a checkpoint of GLM-OCR that only looks odd; the answer is its ledger and what was told.
fn accepted_glm(change: impl FnOnce(&mut Checkpoint), options: &[&str]) -> (Value, String) {
    let place = Place::glm(change);
    let (code, told) = outcome(&aimodel(&place.export_glm(options)).output().unwrap());
    assert_eq!(code, Some(0), "{told}");
    let ledger = std::fs::read(place.path("out/ledger.json")).unwrap();
    (serde_json::from_slice(&ledger).unwrap(), told)
}

/// Saving a fine-tuned model loses the layers that guess further tokens, and keeps their number.
#[test]
fn another_number_of_prediction_layers_is_a_warning() {
    let is_one = |name: &str| name.starts_with(&format!("{GLM_LAYERS}.2."));
    let told =
        |found: usize| format!("config.json speaks of 1 next-token-prediction layers, the checkpoint has {found}");
    let dropped = |ledger: &Value| ledger["totals"]["dropped"].as_u64().unwrap();
    let (ledger, warning) = accepted_glm(|_| (), &[]);
    let layer = dropped(&ledger);
    assert!(layer > 0 && !warning.contains("next-token-prediction"), "{layer}: {warning}");

    let (ledger, warning) = accepted_glm(|c| c.tensors.retain(|t| !is_one(&t.name)), &[]);
    assert!(warning.contains(&told(0)), "{warning}");
    assert_eq!(dropped(&ledger), 0);

    // A further one is known by the projection that no other layer has, whatever its number.
    let twice = |c: &mut Checkpoint| {
        let mut further: Vec<Tensor> = c.tensors.iter().filter(|t| is_one(&t.name)).cloned().collect();
        further.iter_mut().for_each(|t| t.name = t.name.replace("layers.2.", "layers.20."));
        c.tensors.extend(further);
    };
    let (ledger, warning) = accepted_glm(twice, &[]);
    assert!(warning.contains(&told(2)), "{warning}");
    assert_eq!(dropped(&ledger), 2 * layer);
}

#[test]
fn a_tied_head_is_stored_once_unless_it_has_codes_of_its_own() {
    let table = "model.language_model.embed_tokens.weight";
    let without = |c: &mut Checkpoint| {
        tie(c);
        c.take(GLM_HEAD);
    };
    let copied = |c: &mut Checkpoint| {
        tie(c);
        c.tensor(GLM_HEAD).data = c.tensor(table).data.clone();
    };
    let weights = |ledger: &Value| ledger["tensors"][table]["used_by"].as_array().unwrap().len();
    let bytes = |ledger: &Value| ledger["totals"]["bytes"].as_u64().unwrap();
    for (scheme, expected) in [("fp16", 1), ("int8lin", 1), ("int8hu", 3)] {
        let options = ["--quant", scheme];
        let (ledger, _) = accepted_glm(without, &options);
        assert_eq!(weights(&ledger), expected, "{scheme}");
        let (stored, _) = accepted_glm(copied, &options);
        assert_eq!(stored["tensors"][GLM_HEAD]["dropped_by"]["pass"], "tie-head", "{scheme}");
        assert_eq!((weights(&stored), bytes(&stored)), (expected, bytes(&ledger)), "{scheme}");
    }
}

#[test]
fn requests_that_do_not_fit() {
    let mut refusals = Refusals::default();
    for words in [
        &["--model", "gpt"][..],
        &["--quant", "int3"],
        &["--stop-after", "no-such-pass"],
        &["--image-size", "100"],
        &["--image-size", "8192"],
        &["--max-context", "6"],
        &["--max-context", "4097"],
        &["--moe", "metal", "--quant", "fp16"],
        &["--moe", "metal", "--precision", "f32"],
        &["--checkpoint", "nobody/nothing"],
        &["--kv", "growing"],
        &["--target", "vista"],
        &["--target", "macos26", "--compute", "ane"],
        &["--target", "macos26", "--kv", "dynamic"],
        &["--target", "macos27-beta", "--kv", "indexed"],
        &["--target", "ios27-beta", "--compute", "ane", "--kv", "dynamic"],
        &["--compute", "ane", "--kv", "dynamic"],
        &["--compute", "ane", "--moe", "metal"],
        &["--target", "linux", "--moe", "metal"],
        &["--chunk-layers", "2"],
        &["--chunk-layers", "0"],
    ] {
        refusals.asked(words);
    }
    let place = Place::saved();
    refusals.add("--allow-known-crash without --target", place.refused(&["--allow-known-crash"]));
    insta::assert_snapshot!("requests", refusals.0);
}

#[test]
fn destinations_that_must_not_be_touched() {
    let mut refusals = Refusals::default();
    let mut to = |case: &str, output: &str, prepare: &dyn Fn(&Place), words: &[&str]| {
        let place = Place::saved();
        prepare(&place);
        let mut all = process::export(&place.checkpoint(), &place.path(output));
        all.extend(words.iter().map(|word| (*word).to_owned()));
        refusals.add(case, place.refused_as(&all));
    };
    let folder = |place: &Place| std::fs::create_dir(place.path("out")).unwrap();
    to("inside the checkpoint", "checkpoint/out", &|_| {}, &[]);
    to("the checkpoint itself", "checkpoint", &|_| {}, &["--force"]);
    to("around the checkpoint", "", &|_| {}, &["--force"]);
    to("something is there", "out", &folder, &[]);
    to("a folder that is not ours", "out", &folder, &["--force"]);
    to("a file that is not ours", "out", &|place| std::fs::write(place.path("out"), "mine").unwrap(), &["--force"]);
    to(
        "an archive that is not ours",
        "out",
        &|place| std::fs::write(place.path("out"), "PK").unwrap(),
        &["--force", "--zip"],
    );
    to("no parent", "no/out", &|_| {}, &[]);
    to("a parent that is a file", "checkpoint/config.json/out", &|_| {}, &[]);
    insta::assert_snapshot!("destinations", refusals.0);
}

/// What Python writes, and what a file may have been through, changes nothing while nobody reads it.
#[test]
fn a_configuration_that_only_looks_odd_is_read() {
    type Edit = fn(String) -> String;
    let edits: [(&str, Edit); 4] = [
        ("NaN in a field that is not read", |text| text.replacen('{', "{\"loss\": NaN, \"best\": -Infinity,", 1)),
        ("a byte-order mark", |text| format!("\u{feff}{text}")),
        ("CRLF line ends", |text| text.replace(',', ",\r\n")),
        ("a key twice, of which nobody reads either", |text| text.replacen('{', "{\"tile_tag\": \"1D\",", 1)),
    ];
    for (case, edit) in edits {
        let place = Place::saved();
        let config = place.checkpoint().join("config.json");
        let text = edit(std::fs::read_to_string(&config).unwrap());
        std::fs::write(&config, text).unwrap();
        let words = process::export(&place.checkpoint(), &place.path("out"));
        assert_eq!(outcome(&aimodel(&words).output().unwrap()), (Some(0), String::new()), "{case}");
    }
}

#[test]
fn a_non_finite_literal_that_is_read_is_refused() {
    let mut refusals = Refusals::default();
    for (name, literal) in [("rms_norm_eps", "NaN"), ("rope_theta", "Infinity"), ("sliding_window", "-Infinity")] {
        refusals.damaged(&format!("{name} = {literal}"), |folder| {
            let path = folder.join("config.json");
            let text = std::fs::read_to_string(&path).unwrap().replace("\"sliding_window\":8", "\"unused\":8");
            let section = format!("\"language_config\":{{\"{name}\":{literal},");
            std::fs::write(&path, text.replacen("\"language_config\":{", &section, 1)).unwrap();
        });
    }
    insta::assert_snapshot!("non_finite", refusals.0);
}

/// Not refused, but told, and noted in the ledger: such a weight works on as zero.
#[test]
fn values_too_small_for_half_precision_are_a_warning() {
    let mut checkpoint = Checkpoint::golden();
    let norm = checkpoint.tensor(NORM);
    let mut values = norm.values();
    values[0] = 1e-9;
    *norm = Tensor::bf16(NORM, &norm.shape.clone(), &values);
    let newline = checkpoint.tensor(NEWLINE);
    let values: Vec<f32> =
        newline.values().into_iter().enumerate().map(|(i, v)| if i < 2 { -1e-9 } else { v }).collect();
    *newline = Tensor::bf16(NEWLINE, &newline.shape.clone(), &values);
    let place = Place::new();
    checkpoint.save(&place.checkpoint());
    let mut words = process::export(&place.checkpoint(), &place.path("out"));
    words.retain(|word| word != "--quiet");
    let output = aimodel(&words).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let ledger = std::fs::read(place.path("out").join("ledger.json")).unwrap();
    let ledger: Value = serde_json::from_slice(&ledger).unwrap();
    for (weight, count) in [("decoder/model.norm.weight", 1), ("assets/image_newline.f16", 2)] {
        let remark = format!("{count} values too small for half precision became zero");
        assert!(stderr.contains(&format!("{weight}: {remark}")), "{stderr}");
        assert_eq!(ledger["weights"][weight]["remark"], remark);
    }
}
