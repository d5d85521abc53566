//! The program as people run it, and the files around it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// `aimodel` with these words, blind to the caches and settings of whoever runs the tests.
pub fn aimodel<S: AsRef<std::ffi::OsStr>>(words: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_aimodel"));
    for variable in ["HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "SOURCE_DATE_EPOCH", "CLICOLOR_FORCE"] {
        command.env_remove(variable);
    }
    command.env("HOME", "/nonexistent").args(words).stdin(Stdio::null());
    command
}

/// The words of a small export.
pub fn export(checkpoint: &Path, output: &Path) -> Vec<String> {
    export_as(&["--model", "unlimited-ocr", "--image-size", "64", "--quiet"], checkpoint, output)
}

/// The words of a small export of GLM-OCR, which tells its warnings.
pub fn export_glm(checkpoint: &Path, output: &Path) -> Vec<String> {
    export_as(&["--model", "glm-ocr", "--grid", "4x5", "--max-context", "128"], checkpoint, output)
}

fn export_as(options: &[&str], checkpoint: &Path, output: &Path) -> Vec<String> {
    let places = ["--checkpoint", checkpoint.to_str().unwrap(), "-o", output.to_str().unwrap()];
    ["export"].iter().chain(options).chain(&places).map(|word| (*word).to_owned()).collect()
}

/// Exit code and stderr.
pub fn outcome(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Every file and folder below `folder`, hidden ones too, and what the files hold.
pub fn tree(folder: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    walkdir::WalkDir::new(folder)
        .min_depth(1)
        .into_iter()
        .map(|entry| {
            let entry = entry.unwrap();
            let bytes = entry.path().is_file().then(|| std::fs::read(entry.path()).unwrap());
            (entry.path().strip_prefix(folder).unwrap().to_owned(), bytes)
        })
        .collect()
}

/// Names directly in `folder`, sorted.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.collect();
    names.sort();
    names
}
