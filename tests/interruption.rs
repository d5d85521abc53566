//! Exports that are cut short: nothing half-written is ever visible, and an older bundle survives.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use support::checkpoint::{Checkpoint, INDEX, join};
use support::process::{self, aimodel, names, outcome, tree};
use tempfile::TempDir;

/// Rows of the embedding table and of the head, 256 MiB each: long enough to be cut short.
const ROWS: usize = 1 << 20;

/// A folder with a large checkpoint and an empty place for bundles.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(place.outputs()).unwrap();
        place
    }

    fn outputs(&self) -> PathBuf {
        self.0.path().join("outputs")
    }

    fn output(&self) -> PathBuf {
        self.outputs().join("bundle")
    }

    /// A bundle of the golden checkpoint at the output; the answer is all its files.
    fn older_bundle(&self) -> std::collections::BTreeMap<PathBuf, Option<Vec<u8>>> {
        let words = process::export(&support::golden("structure/unlimited-ocr"), &self.output());
        assert_eq!(outcome(&aimodel(&words).output().unwrap()), (Some(0), String::new()));
        tree(&self.outputs())
    }

    /// Starts the export of a large checkpoint over whatever is at the output, and waits until it is writing.
    fn start(&self) -> Child {
        let checkpoint = self.0.path().join("large");
        save_large(&checkpoint);
        let mut words = process::export(&checkpoint, &self.output());
        words.push("--force".to_owned());
        let child = aimodel(&words).stderr(Stdio::piped()).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !self.is_writing() {
            assert!(Instant::now() < deadline, "the export did not begin: {:?}", names(&self.outputs()));
            std::thread::sleep(Duration::from_millis(1));
        }
        child
    }

    /// Whether the decoder is being written, which is most of the work.
    fn is_writing(&self) -> bool {
        let hidden = names(&self.outputs()).into_iter().filter(|name| name.starts_with(".bundle.partial-"));
        hidden.map(|name| self.outputs().join(name).join("bundle/decoder.aimodel")).any(|decoder| decoder.is_dir())
    }
}

/// The golden checkpoint with a table and a head of [`ROWS`] zeros, which take no room on the disk.
fn save_large(folder: &Path) {
    let mut checkpoint = Checkpoint::golden();
    checkpoint.set("vocab_size", json!(ROWS));
    let tables = ["model.embed_tokens.weight", "lm_head.weight"].map(|name| checkpoint.take(name));
    checkpoint.save_single(folder);
    std::fs::rename(folder.join("model.safetensors"), folder.join("small.safetensors")).unwrap();
    let bytes = (ROWS * tables[0].shape[1] * 2) as u64;
    for tensor in &tables {
        let entry = json!({"dtype": "BF16", "shape": [ROWS, tensor.shape[1]], "data_offsets": [0, bytes]});
        let header = join(&json!({ &tensor.name: entry }).to_string(), &[]);
        let path = folder.join(format!("{}.safetensors", tensor.name));
        std::fs::write(&path, &header).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(header.len() as u64 + bytes).unwrap();
    }
    assert!(!folder.join(INDEX).exists());
}

fn send(signal: &str, child: &Child) {
    let id = child.id().to_string();
    assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
}

#[test]
fn an_interrupted_export_leaves_nothing_behind() {
    for signal in ["-INT", "-TERM"] {
        let place = Place::new();
        let child = place.start();
        send(signal, &child);
        let ended = outcome(&child.wait_with_output().unwrap());
        assert_eq!(ended, (Some(3), "error: interrupted\n".to_owned()), "{signal}");
        assert_eq!(names(&place.outputs()), [""; 0], "{signal}");
    }
}

#[test]
fn an_older_bundle_survives_an_interruption() {
    let place = Place::new();
    let before = place.older_bundle();
    let child = place.start();
    send("-INT", &child);
    assert_eq!(outcome(&child.wait_with_output().unwrap()).0, Some(3));
    assert!(tree(&place.outputs()) == before, "{:?}", names(&place.outputs()));
}

#[test]
fn a_killed_export_leaves_hidden_files_only_and_the_next_clears_them_away() {
    let place = Place::new();
    let before = place.older_bundle();
    let child = place.start();
    send("-KILL", &child);
    assert_eq!(outcome(&child.wait_with_output().unwrap()).0, None);
    let left = names(&place.outputs());
    assert!(left.iter().any(|name| name.starts_with(".bundle.partial-")), "{left:?}");
    assert!(left.iter().all(|name| name == "bundle" || name.starts_with(".bundle.partial")), "{left:?}");
    assert!(tree(&place.output()) == tree_of(&before, "bundle"), "the older bundle changed");

    std::fs::remove_dir_all(place.output()).unwrap();
    assert!(place.older_bundle() == before, "{:?}", names(&place.outputs()));
}

/// The part of a tree below one of its folders.
fn tree_of<B: Clone>(
    tree: &std::collections::BTreeMap<PathBuf, B>,
    folder: &str,
) -> std::collections::BTreeMap<PathBuf, B> {
    let below = |(path, bytes): (&PathBuf, &B)| Some((path.strip_prefix(folder).ok()?.to_owned(), bytes.clone()));
    tree.iter().filter_map(below).filter(|(path, _)| path != Path::new("")).collect()
}

/// The limit on the size of a file stands for a full disk: writing fails in the middle.
#[test]
fn a_write_that_fails_leaves_nothing_behind() {
    let place = Place::new();
    let checkpoint = support::golden("structure/unlimited-ocr");
    let limited = |force: &[&str]| {
        let script = "trap '' XFSZ; ulimit -f 512; exec \"$0\" \"$@\"";
        let words = process::export(&checkpoint, &place.output());
        let command = aimodel(&[""; 0]);
        outcome(
            &Command::new("sh")
                .args(["-c", script])
                .arg(command.get_program())
                .args(words)
                .args(force)
                .output()
                .unwrap(),
        )
    };
    let (code, message) = limited(&[]);
    assert_eq!(code, Some(3), "{message}");
    assert!(message.contains("main.mlirb: File too large"), "{message}");
    assert_eq!(names(&place.outputs()), [""; 0]);

    let before = place.older_bundle();
    assert_eq!(limited(&["--force"]).0, Some(3));
    assert!(tree(&place.outputs()) == before, "{:?}", names(&place.outputs()));
}
