//! Equal input gives equal bytes: whenever, wherever and with however many threads a bundle is made.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use aimodel::bundle::{Cancel, SourceDate};
use aimodel::export::{CheckpointChoice, Destination, ExportRequest, MoeForm, Surroundings, export};
use aimodel::progress::Silent;
use aimodel::quant::Scheme;
use serde_json::Value;
use support::{bundles, golden};
use tempfile::TempDir;

/// The files of a bundle by their paths in it.
type Tree = BTreeMap<String, Vec<u8>>;

/// 2026-06-25T00:00:00Z.
const EPOCH: &str = "1782345600";

/// What can be asked for, and the checkpoint that is built in.
fn requests() -> Vec<ExportRequest> {
    let request = |scheme, moe| bundles::request(bundles::structure(), scheme, moe);
    vec![
        request(Scheme::Sym8, MoeForm::Metal),
        request(Scheme::Sym8, MoeForm::Native),
        request(Scheme::Fp16, MoeForm::Native),
        bundles::request(CheckpointChoice::BuiltIn, Scheme::Sym8, MoeForm::Metal),
        bundles::glm_request(bundles::glm_structure(), Scheme::Int8Hu),
    ]
}

/// An export to `name` in a new folder.
fn export_to(name: &str, request: &ExportRequest, date: Option<SourceDate>) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    let destination = Destination { path: path.clone(), zip: name.ends_with(".zip"), force: false };
    export(request, &destination, Surroundings { progress: &Silent, cancel: &Cancel::default(), date }).unwrap();
    (folder, path)
}

fn tree(request: &ExportRequest, date: Option<SourceDate>) -> Tree {
    let (_folder, path) = export_to("bundle", request, date);
    read_tree(&path)
}

fn read_tree(root: &Path) -> Tree {
    let entries = walkdir::WalkDir::new(root).into_iter().map(Result::unwrap).filter(|e| e.file_type().is_file());
    entries
        .map(|entry| {
            let name = entry.path().strip_prefix(root).unwrap().display().to_string();
            (name, std::fs::read(entry.path()).unwrap())
        })
        .collect()
}

/// The paths whose files are not the same; contents are too long to print.
fn differing<'t>(a: &'t Tree, b: &'t Tree) -> Vec<&'t str> {
    let names = a.keys().chain(b.keys().filter(|name| !a.contains_key(*name)));
    names.filter(|name| a.get(*name) != b.get(*name)).map(String::as_str).collect()
}

#[test]
fn exports_are_equal_byte_for_byte_with_any_number_of_threads() {
    for request in requests() {
        let first = tree(&request, None);
        assert!(first.len() > 8, "{:?}", first.keys());
        for threads in [0, 1, 2, 3] {
            let again = tree(&ExportRequest { threads, ..request.clone() }, None);
            assert_eq!(differing(&first, &again), [""; 0], "{threads} threads, {request:?}");
        }
    }
}

#[test]
fn archives_are_equal_byte_for_byte_and_carry_no_time() {
    let archive = |threads| {
        let request = ExportRequest { threads, ..requests().remove(0) };
        let (_folder, path) = export_to("bundle.zip", &request, None);
        std::fs::read(path).unwrap()
    };
    let first = archive(1);
    assert!(first == archive(2), "two archives differ");
    let mut files = zip::ZipArchive::new(std::io::Cursor::new(first)).unwrap();
    for index in 0..files.len() {
        let file = files.by_index(index).unwrap();
        assert_eq!(file.last_modified(), Some(zip::DateTime::DEFAULT), "{:?}", file.name());
    }
}

#[test]
fn an_archive_holds_the_files_of_the_folder() {
    let request = requests().remove(0);
    let (_folder, path) = export_to("bundle.zip", &request, None);
    let mut archive = zip::ZipArchive::new(std::fs::File::open(path).unwrap()).unwrap();
    let unpacked = tempfile::tempdir().unwrap();
    archive.extract(unpacked.path()).unwrap();
    let folder = tree(&request, None);
    assert_eq!(differing(&read_tree(&unpacked.path().join("bundle")), &folder), [""; 0]);
}

#[test]
fn a_date_changes_dates_only() {
    let request = requests().remove(0);
    let plain = tree(&request, None);
    let dated = tree(&request, Some(SourceDate::from_epoch(EPOCH).unwrap()));
    let changed = differing(&plain, &dated);
    assert_eq!(changed.len(), 3, "the bundle's metadata and that of each asset: {changed:?}");
    for name in changed {
        assert!(name.ends_with("metadata.json"), "{name}");
        let parse = |tree: &Tree| serde_json::from_slice::<Value>(&tree[name]).unwrap();
        let (plain, mut dated) = (parse(&plain), parse(&dated));
        assert!(remove_date(&mut dated), "{name}: {dated}");
        assert_eq!(plain, dated, "{name}");
    }
}

/// Removes the one date that a file of metadata has.
fn remove_date(metadata: &mut Value) -> bool {
    let compilation = metadata.get_mut("compilation").and_then(Value::as_object_mut);
    let of_bundle = compilation.and_then(|object| object.remove("date"));
    let of_asset = metadata.as_object_mut().and_then(|object| object.remove("creationDate"));
    let dates = [(of_bundle, "2026-06-25T00:00:00Z"), (of_asset, "20260625T000000Z")];
    dates.into_iter().filter(|(found, want)| found.as_ref().is_some_and(|found| found == want)).count() == 1
}

#[test]
fn the_command_takes_the_date_from_source_date_epoch() {
    let request = requests().remove(3);
    let run = |epoch: Option<&str>| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bundle");
        let mut command = Command::new(env!("CARGO_BIN_EXE_aimodel"));
        command.args(["export", "--model", "unlimited-ocr", "--checkpoint", "built-in", "--moe", "metal", "--output"]);
        command.arg(&path).env_remove("SOURCE_DATE_EPOCH").envs(epoch.map(|epoch| ("SOURCE_DATE_EPOCH", epoch)));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        read_tree(&path)
    };
    let date = SourceDate::from_epoch(EPOCH).unwrap();
    assert_eq!(differing(&run(None), &tree(&request, None)), [""; 0]);
    assert_eq!(differing(&run(Some(EPOCH)), &tree(&request, Some(date))), [""; 0]);
}

#[test]
fn nothing_in_a_bundle_tells_where_and_when_it_was_made() {
    let copies = tempfile::tempdir().unwrap();
    let checkpoint = copies.path().join("elsewhere");
    copy_files(&golden("structure/unlimited-ocr"), &checkpoint);
    let here = requests().remove(0);
    let elsewhere = ExportRequest { checkpoint: CheckpointChoice::Path(checkpoint.clone()), ..here.clone() };
    let (folder, path) = export_to("bundle", &elsewhere, None);
    let bundle = read_tree(&path);
    assert_eq!(differing(&bundle, &tree(&here, None)), [""; 0]);

    let places = [&checkpoint, folder.path(), copies.path(), Path::new(env!("CARGO_MANIFEST_DIR"))];
    let names = places.map(|place| place.display().to_string());
    for (file, bytes) in &bundle {
        for name in &names {
            assert!(!contains(bytes, name.as_bytes()), "{file} names {name}");
        }
        assert!(!has_date(bytes), "{file} has a date");
    }
}

fn copy_files(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in from.read_dir().unwrap().map(Result::unwrap).filter(|e| e.path().is_file()) {
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}

/// Whether there is a date with a time, as `2026-06-25T00` or `20260625T00`.
fn has_date(bytes: &[u8]) -> bool {
    let forms: [&[u8]; 2] = [b"dddd-dd-ddTdd", b"ddddddddTdd"];
    let fits = |byte: u8, form: u8| if form == b'd' { byte.is_ascii_digit() } else { byte == form };
    forms.iter().any(|form| {
        bytes.windows(form.len()).any(|window| window.iter().zip(*form).all(|(&byte, &form)| fits(byte, form)))
    })
}

#[test]
fn dates_are_found_where_there_are_some() {
    assert!(has_date(b"{\"date\": \"2026-06-25T00:00:00Z\"}") && has_date(b"20260625T000000Z"));
    assert!(!has_date(b"1234567890 20-06-25T00"));
}
