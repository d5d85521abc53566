//! The table of modules in ARCHITECTURE.md is true: no module uses another than those of its row, and rows name rows
//! above them only.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const FREE: [&str; 2] = ["error", "element"];

/// Module to the modules its row allows, and the order of rows.
fn table() -> Vec<(String, BTreeSet<String>)> {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let section = text.split("## Modules").nth(1).unwrap().split("\n## ").next().unwrap();
    let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<BTreeSet<_>>();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').collect();
        (names(cells[1]).into_iter().next().unwrap(), names(cells[3]))
    })
    .collect()
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// The module a source file belongs to: its first folder below `src`, or its own name.
fn module_of(path: &Path) -> Option<String> {
    let relative = path.strip_prefix(root().join("src")).unwrap();
    let first = relative.components().next()?.as_os_str().to_str()?;
    let name = first.strip_suffix(".rs").unwrap_or(first);
    (name != "lib" && name != "main").then(|| name.to_owned())
}

/// The modules that a text uses through `crate::`, tests left out.
fn uses(text: &str, modules: &BTreeSet<String>) -> BTreeSet<String> {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut found = BTreeSet::new();
    for after in text.split("crate::").skip(1) {
        let group = match after.strip_prefix('{') {
            Some(group) => group.split('}').next().unwrap_or_default(),
            None => after.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default(),
        };
        let words = group.split(|c: char| !c.is_alphanumeric() && c != '_');
        found.extend(words.filter(|word| modules.contains(*word)).map(str::to_owned));
    }
    found
}

fn is_test(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "tests") || path.file_name().is_some_and(|n| n == "tests.rs")
}

#[test]
fn modules_use_what_their_row_allows() {
    let table = table();
    let modules: BTreeSet<String> = table.iter().map(|(name, _)| name.clone()).collect();
    let allowed: BTreeMap<&str, &BTreeSet<String>> = table.iter().map(|(name, uses)| (name.as_str(), uses)).collect();
    let mut files = Vec::new();
    rust_files(&root().join("src"), &mut files);
    let mut wrong = Vec::new();
    for path in files.iter().filter(|path| !is_test(path)) {
        let Some(module) = module_of(path) else { continue };
        let Some(row) = allowed.get(module.as_str()) else {
            wrong.push(format!("`{module}` has no row"));
            continue;
        };
        for used in uses(&std::fs::read_to_string(path).unwrap(), &modules) {
            if used != module && !FREE.contains(&used.as_str()) && !row.contains(&used) {
                wrong.push(format!("{} uses `{used}`", path.strip_prefix(root()).unwrap().display()));
            }
        }
    }
    assert!(wrong.is_empty(), "not in the table of ARCHITECTURE.md:\n{}", wrong.join("\n"));
}

#[test]
fn rows_name_rows_above_them() {
    let mut above = BTreeSet::new();
    for (module, uses) in table() {
        let below: Vec<&String> = uses.iter().filter(|name| !above.contains(*name)).collect();
        assert!(below.is_empty(), "`{module}` names {below:?}, which are not above it");
        above.insert(module);
    }
    assert!(above.len() >= 18, "{above:?}");
}

#[test]
fn the_table_of_passes_is_the_list_of_passes() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let section = text.split("## Passes").nth(1).unwrap().split("\n## ").next().unwrap();
    let listed: BTreeSet<&str> =
        section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let mut files = Vec::new();
    rust_files(&root().join("src/passes"), &mut files);
    files.retain(|path| !is_test(path));
    let texts: Vec<String> = files.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let named =
        texts.iter().filter_map(|text| text.split("fn name(&self) -> &'static str {").nth(1)?.split('"').nth(1));
    assert_eq!(listed, named.collect());
}
