//! What runs that were killed have left behind.

use std::path::{Path, PathBuf};

use super::Target;

/// Where the older bundle is while the new one takes its place, in the work folder.
pub(super) const REPLACED: &str = "replaced";

/// Random characters at the end of a work folder's name.
pub(super) const RANDOM_CHARACTERS: usize = 6;

/// Clears away the work folders of dead runs; called with the lock held, so no run that made one is alive.
///
/// A run killed between its two last renames has the older bundle in its work folder: that goes back first. What
/// cannot be cleared away is left: it is hidden and no run uses it.
pub(super) fn sweep(target: &Target) {
    for folder in work_folders(target) {
        let older = folder.join(REPLACED);
        let path = target.path();
        let in_danger = older.symlink_metadata().is_ok() && path.symlink_metadata().is_err();
        if in_danger && std::fs::rename(&older, &path).is_err() {
            continue;
        }
        let _ = std::fs::remove_dir_all(&folder);
    }
}

fn work_folders(target: &Target) -> Vec<PathBuf> {
    let prefix = target.work_prefix();
    let Ok(entries) = target.parent().read_dir() else { return Vec::new() };
    let folders = entries.flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = folders.filter(|path| is_work_folder(path, &prefix)).collect();
    found.sort();
    found
}

fn is_work_folder(path: &Path, prefix: &str) -> bool {
    let suffix = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix(prefix));
    let is_random = |text: &str| text.len() == RANDOM_CHARACTERS && text.bytes().all(|b| b.is_ascii_alphanumeric());
    suffix.is_some_and(is_random) && path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir())
}
