//! The files of a folder: listed in a fixed order, written as JSON, flushed to the disk.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use walkdir::WalkDir;

use crate::{Error, Result};

/// A regular file below a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileBelow {
    /// Its path from the folder, with `/` between the parts on every system.
    pub relative: String,
    /// Its whole path.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
}

/// The files below `folder`, sorted by relative path.
///
/// # Errors
/// When the folder cannot be read, or holds anything but folders and regular files with UTF-8 names: the device's
/// loader does not follow links.
pub(super) fn below(folder: &Path) -> Result<Vec<FileBelow>> {
    let mut files = Vec::new();
    for entry in WalkDir::new(folder) {
        let entry = entry.map_err(|e| walk_error(folder, e))?;
        if entry.file_type().is_dir() {
            continue;
        }
        let path = entry.path().to_owned();
        if !entry.file_type().is_file() {
            return Err(Error::input("a bundle holds regular files only").at(path.display().to_string()));
        }
        let bytes = entry.metadata().map_err(|e| walk_error(&path, e))?.len();
        files.push(FileBelow { relative: relative(folder, &path)?, path, bytes });
    }
    files.sort_by(|a, b| a.relative.cmp(&b.relative));
    Ok(files)
}

fn relative(folder: &Path, path: &Path) -> Result<String> {
    let parts: Option<Vec<&str>> = path
        .strip_prefix(folder)
        .ok()
        .and_then(|below| below.components().map(|part| part.as_os_str().to_str()).collect());
    match parts {
        Some(parts) => Ok(parts.join("/")),
        None => Err(Error::input("the file name is not UTF-8").at(path.display().to_string())),
    }
}

fn walk_error(path: &Path, error: walkdir::Error) -> Error {
    let path = error.path().unwrap_or(path).to_owned();
    Error::io(path, &std::io::Error::from(error))
}

/// Writes a value as indented JSON with a line end, to `path`.
///
/// # Errors
/// When the value has no JSON form or the file cannot be written.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|e| Error::input(format!("no JSON form: {e}")).at(path.display().to_string()))?;
    let mut file = File::create(path).map_err(|e| Error::io(path, &e))?;
    writeln!(file, "{text}").map_err(|e| Error::io(path, &e))
}

/// Reads a whole file of at most `limit` bytes.
///
/// # Errors
/// When it cannot be read or is longer.
pub(super) fn read_small(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let file = File::open(path).map_err(|e| Error::io(path, &e))?;
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(|e| Error::io(path, &e))?;
    if bytes.len() as u64 > limit {
        return Err(Error::input("the file is too long")
            .at(path.display().to_string())
            .expected(format!("at most {limit} bytes")));
    }
    Ok(bytes)
}

/// Flushes every file and folder of `folder` to the disk: after a rename, a crash must not show empty files.
///
/// # Errors
/// When the system reports that data did not arrive, such as a full disk.
pub(super) fn sync_tree(folder: &Path) -> Result<()> {
    for entry in WalkDir::new(folder).contents_first(true) {
        let entry = entry.map_err(|e| walk_error(folder, e))?;
        if entry.file_type().is_dir() {
            sync_folder(entry.path())?;
        } else {
            sync_file(entry.path())?;
        }
    }
    Ok(())
}

fn sync_file(path: &Path) -> Result<()> {
    let file = OpenOptions::new().write(true).open(path).map_err(|e| Error::io(path, &e))?;
    file.sync_all().map_err(|e| Error::io(path, &e))
}

/// Flushes the entries of a folder to the disk, where the system can.
///
/// # Errors
/// When the system reports that they did not arrive.
pub(super) fn sync_folder(path: &Path) -> Result<()> {
    if !cfg!(unix) {
        return Ok(());
    }
    // A folder that may be written to but not read cannot be asked.
    let Ok(folder) = File::open(path) else { return Ok(()) };
    match folder.sync_all() {
        // Some network file systems flush on their own and refuse to be asked.
        Err(e) if matches!(e.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        result => result.map_err(|e| Error::io(path, &e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_sorted_by_relative_path_with_their_sizes() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("b")).unwrap();
        for (name, text) in [("b/z", "12"), ("a", "1"), ("b/c", ""), ("b.txt", "123")] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let found: Vec<_> = below(folder.path()).unwrap().into_iter().map(|f| (f.relative, f.bytes)).collect();
        let expected = [("a", 1), ("b.txt", 3), ("b/c", 0), ("b/z", 2)];
        assert_eq!(found, expected.map(|(name, bytes)| (name.to_owned(), bytes)));
    }

    #[cfg(unix)]
    #[test]
    fn a_link_in_a_bundle_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc/hostname", folder.path().join("link")).unwrap();
        let error = below(folder.path()).unwrap_err().to_string();
        assert!(error.contains("link: a bundle holds regular files only"), "{error}");
    }

    #[test]
    fn a_file_over_the_limit_is_refused_and_one_at_the_limit_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, "1234").unwrap();
        assert_eq!(read_small(&path, 4).unwrap(), b"1234");
        assert!(read_small(&path, 3).unwrap_err().to_string().contains("at most 3 bytes"));
    }
}
