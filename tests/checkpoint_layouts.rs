//! The same weights in other dresses give the same bundle, byte for byte.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use aimodel::bundle::Cancel;
use aimodel::export::{Blueprint, CheckpointChoice, Destination, ExportRequest, MoeForm, Surroundings, export};
use aimodel::progress::Silent;
use aimodel::quant::Scheme;
use aimodel::weights::read_floats;
use serde_json::json;
use support::checkpoint::{Checkpoint, Tensor};
use support::{golden, process};

/// Extents of the golden checkpoint.
const HIDDEN: usize = 128;
const WIDTH: usize = 64;
const EXPERTS: usize = 8;
const EXPERT_LAYERS: [usize; 2] = [1, 2];

fn request(checkpoint: &Path, scheme: Scheme) -> ExportRequest {
    ExportRequest {
        checkpoint: CheckpointChoice::Path(checkpoint.to_owned()),
        scheme: Some(scheme),
        moe: Some(MoeForm::Native),
        image_size: Some(64),
        threads: 2,
        ..ExportRequest::new("unlimited-ocr")
    }
}

/// What the device runs: programs and host tensors, without the accounts of where they came from.
type Run = BTreeMap<PathBuf, Option<Vec<u8>>>;

fn what_runs(bundle: &Path) -> Run {
    let mut files = process::tree(bundle);
    files.retain(|path, bytes| {
        bytes.is_some() && ["vision.aimodel", "decoder.aimodel", "assets"].iter().any(|p| path.starts_with(p))
    });
    assert!(files.contains_key(Path::new("decoder.aimodel/main.mlirb")));
    files
}

fn exported(checkpoint: &Path, scheme: Scheme) -> Run {
    let folder = tempfile::tempdir().unwrap();
    let destination = Destination { path: folder.path().join("out"), zip: false, force: false };
    let surroundings = Surroundings { progress: &Silent, cancel: &Cancel::default(), date: None };
    export(&request(checkpoint, scheme), &destination, surroundings).unwrap();
    what_runs(&destination.path)
}

fn assert_same(found: &Run, expected: &Run) {
    let names = |run: &Run| run.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(found), names(expected));
    for (path, bytes) in expected {
        assert!(found[path] == *bytes, "{} differs", path.display());
    }
}

/// Saves a checkpoint and compares what it gives with what the original gives.
fn assert_equals_original(save: impl FnOnce(&Path)) {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = folder.path().join("checkpoint");
    save(&checkpoint);
    for scheme in [Scheme::Sym8, Scheme::Fp16] {
        let original = exported(&golden("structure/unlimited-ocr"), scheme);
        assert_same(&exported(&checkpoint, scheme), &original);
    }
}

#[test]
fn one_file_without_an_index() {
    assert_equals_original(|folder| Checkpoint::golden().save_single(folder));
}

#[test]
fn the_file_itself() {
    let folder = tempfile::tempdir().unwrap();
    Checkpoint::golden().save_single(folder.path());
    let found = exported(&folder.path().join("model.safetensors"), Scheme::Sym8);
    assert_same(&found, &exported(&golden("structure/unlimited-ocr"), Scheme::Sym8));
}

#[test]
fn shards_with_six_digits_as_the_original_has_them() {
    assert_equals_original(|folder| {
        Checkpoint::golden()
            .save_shards(folder, &["model-00001-of-000002.safetensors", "model-00002-of-000002.safetensors"]);
    });
}

#[test]
fn any_order_of_tensors_and_any_split() {
    assert_equals_original(|folder| {
        let mut checkpoint = Checkpoint::golden();
        // A fixed shuffle: 61 and the number of tensors share no factor.
        let count = checkpoint.tensors.len();
        assert_eq!(count, 166);
        let shuffled = (0..count).map(|i| checkpoint.tensors[i * 61 % count].clone()).collect();
        checkpoint.tensors = shuffled;
        checkpoint.save_shards(folder, &["model-a.safetensors", "b.safetensors", "mtp.safetensors"]);
    });
}

#[test]
fn weights_widened_to_f32() {
    assert_equals_original(|folder| {
        let mut checkpoint = Checkpoint::golden();
        checkpoint.tensors.iter_mut().for_each(Tensor::widen);
        checkpoint.save(folder);
    });
}

#[test]
fn weights_stored_as_f16_where_that_is_exact() {
    assert_equals_original(|folder| {
        let mut checkpoint = Checkpoint::golden();
        let converted = checkpoint.tensors.iter_mut().map(Tensor::convert_to_f16).filter(|exact| *exact).count();
        assert!(converted > 50, "{converted} of {} tensors", checkpoint.tensors.len());
        checkpoint.save(folder);
    });
}

#[test]
fn what_transformers_5_saves() {
    assert_equals_original(|folder| {
        let mut checkpoint = Checkpoint::golden();
        let config = std::fs::read(golden("structure/unlimited-ocr-transformers5/config.json")).unwrap();
        checkpoint.config = serde_json::from_slice(&config).unwrap();
        checkpoint.take("model.vision_model.embeddings.patch_embedding.weight");
        for layer in EXPERT_LAYERS {
            checkpoint.tensor(&format!("model.layers.{layer}.mlp.gate.weight")).widen();
        }
        checkpoint.save_single(folder);
    });
}

/// Packs the experts of a layer as transformers 5 holds them in memory: gate rows first.
fn pack(checkpoint: &mut Checkpoint, layer: usize) {
    let prefix = format!("model.layers.{layer}.mlp.experts.");
    let (mut gate_up, mut down) = (Vec::new(), Vec::new());
    for expert in 0..EXPERTS {
        let mut values = |part: &str| checkpoint.take(&format!("{prefix}{expert}.{part}_proj.weight")).values();
        gate_up.extend(values("gate"));
        gate_up.extend(values("up"));
        down.extend(values("down"));
    }
    let gate_up = Tensor::bf16(&format!("{prefix}gate_up_proj"), &[EXPERTS, 2 * WIDTH, HIDDEN], &gate_up);
    let down = Tensor::bf16(&format!("{prefix}down_proj"), &[EXPERTS, HIDDEN, WIDTH], &down);
    checkpoint.tensors.extend([gate_up, down]);
}

#[test]
fn packed_experts() {
    assert_equals_original(|folder| {
        let mut checkpoint = Checkpoint::golden();
        EXPERT_LAYERS.into_iter().for_each(|layer| pack(&mut checkpoint, layer));
        checkpoint.save(folder);
    });
}

/// Each layer is read as it is, so a merge of two layouts by layer is fine.
#[test]
fn packed_experts_in_one_layer_only() {
    assert_equals_original(|folder| {
        let mut checkpoint = Checkpoint::golden();
        pack(&mut checkpoint, EXPERT_LAYERS[1]);
        checkpoint.save(folder);
    });
}

#[test]
fn experts_are_stacked_by_number_not_by_name() {
    let count = 12;
    let mut checkpoint = Checkpoint::golden();
    checkpoint.set("n_routed_experts", json!(count));
    checkpoint.tensors.retain(|tensor| !tensor.name.contains(".mlp.experts."));
    for layer in EXPERT_LAYERS {
        let prefix = format!("model.layers.{layer}.mlp.");
        let router = format!("{prefix}gate.weight");
        *checkpoint.tensor(&router) = Tensor::bf16(&router, &[count, HIDDEN], &vec![0.0; count * HIDDEN]);
        for expert in 0..count {
            let values = vec![expert as f32; WIDTH * HIDDEN];
            for (part, shape) in [("gate", [WIDTH, HIDDEN]), ("up", [WIDTH, HIDDEN]), ("down", [HIDDEN, WIDTH])] {
                let name = format!("{prefix}experts.{expert}.{part}_proj.weight");
                checkpoint.tensors.push(Tensor::bf16(&name, &shape, &values));
            }
        }
    }
    let folder = tempfile::tempdir().unwrap();
    checkpoint.save(folder.path());
    let blueprint = Blueprint::new(&request(folder.path(), Scheme::Fp16)).unwrap();
    let decoder = blueprint.assets.iter().find(|asset| asset.name == "decoder").unwrap();
    let weights = &decoder.module.weights;
    let stacks: Vec<_> =
        decoder.lowered.weights.iter().filter(|&&id| weights.shape(id).first() == Some(&count)).collect();
    let stacks: Vec<_> = stacks.into_iter().filter(|&&id| weights.shape(id).len() == 3).collect();
    assert_eq!(stacks.len(), 3 * EXPERT_LAYERS.len());
    for &id in stacks {
        let mut values = vec![0.0; weights.elements(id)];
        read_floats(weights, id, 0, &mut values).unwrap();
        for (expert, slot) in values.chunks(WIDTH * HIDDEN).enumerate() {
            assert!(slot.iter().all(|value| *value == expert as f32), "slot {expert} holds {}", slot[0]);
        }
    }
}

#[cfg(unix)]
mod hub_cache {
    use std::os::unix::fs::symlink;

    use super::*;

    const REVISION: &str = "3a7f4dbb00000000000000000000000000000000";

    /// A cache as `huggingface_hub` lays it out: blobs, a snapshot of links to them, a reference to the snapshot.
    fn cache(folder: &Path) {
        let model = folder.join("models--baidu--Unlimited-OCR");
        let (blobs, snapshot) = (model.join("blobs"), model.join("snapshots").join(REVISION));
        Checkpoint::golden().save(&blobs);
        std::fs::create_dir_all(&snapshot).unwrap();
        for (number, name) in process::names(&blobs).into_iter().enumerate() {
            let blob = format!("{number:064x}");
            std::fs::rename(blobs.join(&name), blobs.join(&blob)).unwrap();
            symlink(Path::new("../../blobs").join(blob), snapshot.join(name)).unwrap();
        }
        std::fs::create_dir(model.join("refs")).unwrap();
        std::fs::write(model.join("refs/main"), REVISION).unwrap();
    }

    fn exported_from_cache(checkpoint: &[&str]) -> (Run, serde_json::Value) {
        let folder = tempfile::tempdir().unwrap();
        cache(&folder.path().join("hub"));
        let output = folder.path().join("out");
        let mut command = process::aimodel(&["export", "--model", "unlimited-ocr", "--moe", "native"]);
        command.args(["--image-size", "64", "--quiet", "-o"]).arg(&output).args(checkpoint);
        let done = command.env("HF_HUB_CACHE", folder.path().join("hub")).output().unwrap();
        assert_eq!(process::outcome(&done).0, Some(0), "{}", process::outcome(&done).1);
        let metadata = serde_json::from_slice(&std::fs::read(output.join("metadata.json")).unwrap()).unwrap();
        (what_runs(&output), metadata)
    }

    #[test]
    fn a_snapshot_of_links_is_found_by_default_and_by_its_id() {
        let original = exported(&golden("structure/unlimited-ocr"), Scheme::Sym8);
        let (by_default, metadata) = exported_from_cache(&[]);
        assert_same(&by_default, &original);
        assert_eq!(metadata["source"]["hf_revision"], REVISION);
        let (by_id, _) = exported_from_cache(&["--checkpoint", "baidu/Unlimited-OCR"]);
        assert_same(&by_id, &original);
    }
}
