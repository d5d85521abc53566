//! Everything that can be checked about a destination before the work starts.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::{METADATA, Target, archive, files, metadata};
use crate::{Error, Result};

/// What is at a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Occupant {
    /// Nothing.
    Nobody,
    /// A bundle of ours that may be replaced.
    Bundle,
}

/// Checks the folder the bundle goes into. The answer is what the user should be warned of.
///
/// # Errors
/// When it is missing or not a folder, or the destination is a link.
pub(super) fn parent(target: &Target) -> Result<Vec<String>> {
    let parent = target.parent();
    let place = || parent.display().to_string();
    match parent.metadata() {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => return Err(Error::input("the output's parent is not a folder").at(place())),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            return Err(Error::input("the folder for the output does not exist")
                .at(place())
                .hint(format!("make it first: mkdir -p {}", place())));
        }
        Err(e) => return Err(Error::io(parent, &e)),
    }
    let path = target.path();
    if path.is_symlink() {
        return Err(Error::input("the output is a symbolic link")
            .at(path.display().to_string())
            .hint("name the folder it points to: devices do not load bundles through links"));
    }
    let linked = parent.is_symlink();
    Ok(linked
        .then(|| format!("{} is a symbolic link: devices do not load bundles through links", place()))
        .into_iter()
        .collect())
}

/// Checks that output and checkpoint lie apart, whatever links are between them.
///
/// # Errors
/// When one is inside the other.
pub(super) fn apart(target: &Target, checkpoint: &Path) -> Result<()> {
    let Ok(checkpoint) = checkpoint.canonicalize() else { return Ok(()) };
    let output = resolved(target)?;
    let problem = if output.starts_with(&checkpoint) {
        "the output would be inside the checkpoint"
    } else if checkpoint.starts_with(&output) {
        "the checkpoint is inside the output"
    } else {
        return Ok(());
    };
    Err(Error::input(problem)
        .at(target.path().display().to_string())
        .found(format!("the checkpoint at {}", checkpoint.display()))
        .hint("name another output with `-o`"))
}

fn resolved(target: &Target) -> Result<PathBuf> {
    let path = target.path();
    match path.canonicalize() {
        Ok(path) => Ok(path),
        Err(_) => {
            let parent = target.parent().canonicalize().map_err(|e| Error::io(target.parent(), &e))?;
            Ok(parent.join(path.file_name().unwrap_or_default()))
        }
    }
}

/// Checks what is at the destination now.
///
/// # Errors
/// When something is there and may not be replaced, or is not a bundle of ours.
pub(super) fn occupant(target: &Target) -> Result<Occupant> {
    let path = target.path();
    let metadata = match path.symlink_metadata() {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Occupant::Nobody),
        Err(e) => return Err(Error::io(&path, &e)),
        Ok(metadata) => metadata,
    };
    if !target.replaces() {
        return Err(Error::input("the output already exists")
            .at(path.display().to_string())
            .hint("`--force` replaces an older bundle; `-o` names another place"));
    }
    let ours = match target.is_zip() {
        true => metadata.is_file() && archive::is_bundle(&path),
        false => metadata.is_dir() && is_bundle(&path),
    };
    if ours { Ok(Occupant::Bundle) } else { Err(foreign(target)) }
}

fn foreign(target: &Target) -> Error {
    let kind = if target.is_zip() { "an archive" } else { "a bundle" };
    Error::input("what is there was not made by aimodel, so it is left alone")
        .at(target.path().display().to_string())
        .expected(format!("{kind} with our mark in {METADATA}"))
        .hint("remove it yourself, or name another output with `-o`")
}

fn is_bundle(folder: &Path) -> bool {
    let bytes = files::read_small(&folder.join(METADATA), metadata::MAX_BYTES);
    bytes.is_ok_and(|bytes| metadata::is_marked(&bytes))
}

/// Checks that `bytes` fit on the disk of `folder`, where the system tells.
///
/// # Errors
/// When they do not.
pub(super) fn space(folder: &Path, bytes: u64) -> Result<()> {
    match fs4::available_space(folder) {
        Ok(free) if free < bytes => Err(Error::environment("the disk has too little room")
            .at(folder.display().to_string())
            .found(format!("{free} bytes free"))
            .expected(format!("{bytes} bytes"))
            .hint("free some space, or name an output on another disk with `-o`")),
        _ => Ok(()),
    }
}

/// The error for a folder in which nothing can be made.
pub(super) fn unwritable(folder: &Path, error: &std::io::Error) -> Error {
    Error::environment("nothing can be written to this folder")
        .at(folder.display().to_string())
        .found(error)
        .hint("change its permissions, or name an output elsewhere with `-o`")
}
