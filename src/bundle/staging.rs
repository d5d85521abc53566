//! From the first check to the last rename.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::{TempDir, TempPath};

use super::lock::Lock;
use super::preflight::{self, Occupant};
use super::stale::{self, REPLACED};
use super::{Cancel, Target, archive, files};
use crate::{Error, Result};

/// The bundle's files in the work folder.
const STAGED: &str = "bundle";
/// The archive in the work folder.
const ARCHIVE: &str = "bundle.zip";

/// A bundle in the making, in a hidden work folder beside its destination.
///
/// Dropping it removes everything it made; [`Staging::publish`] puts the bundle in place.
#[derive(Debug)]
pub struct Staging {
    target: Target,
    folder: PathBuf,
    warnings: Vec<String>,
    // Dropped in this order: the lock is held until the work folder is gone.
    work: TempDir,
    _lock: Lock,
}

impl Staging {
    /// Makes every check that can be made beforehand, takes the lock of the destination and makes the work folder.
    /// `checkpoint` must lie apart from the destination; `expected_bytes` must fit on its disk (twice, for an
    /// archive, which is made from the staged files).
    ///
    /// # Errors
    /// When a check fails or another run writes to the same destination.
    pub fn begin(target: &Target, checkpoint: Option<&Path>, expected_bytes: Option<u64>) -> Result<Self> {
        let warnings = preflight::parent(target)?;
        if let Some(checkpoint) = checkpoint {
            preflight::apart(target, checkpoint)?;
        }
        let lock = Lock::take(target)?;
        stale::sweep(target);
        preflight::occupant(target)?;
        let copies = if target.is_zip() { 2 } else { 1 };
        preflight::space(target.parent(), expected_bytes.unwrap_or(0).saturating_mul(copies))?;
        let work = work_folder(target)?;
        let folder = work.path().join(STAGED);
        fs::create_dir(&folder).map_err(|e| Error::io(&folder, &e))?;
        Ok(Self { target: target.clone(), folder, warnings, work, _lock: lock })
    }

    /// The folder to write the bundle's files to.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What the user should know about the destination.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Flushes the bundle to the disk, makes the archive if one was asked for, and puts it in place. The answer is
    /// where it is.
    ///
    /// # Errors
    /// When the disk, `cancel` or something that appeared at the destination prevents it; an older bundle is then
    /// still there.
    pub fn publish(self, cancel: &Cancel) -> Result<PathBuf> {
        let path = self.target.path();
        if self.target.is_zip() {
            self.publish_archive(&path, cancel)?;
        } else {
            self.publish_folder(&path, cancel)?;
        }
        Ok(path)
    }

    fn publish_archive(self, path: &Path, cancel: &Cancel) -> Result<()> {
        let archive = self.work.path().join(ARCHIVE);
        archive::write(&self.folder, self.target.bundle_name(), &archive, cancel)?;
        cancel.check()?;
        match preflight::occupant(&self.target)? {
            Occupant::Nobody => persist_new(archive, path)?,
            Occupant::Bundle => fs::rename(&archive, path).map_err(|e| Error::io(path, &e))?,
        }
        files::sync_folder(self.target.parent())
    }

    fn publish_folder(self, path: &Path, cancel: &Cancel) -> Result<()> {
        files::below(&self.folder)?;
        files::sync_tree(&self.folder)?;
        cancel.check()?;
        match preflight::occupant(&self.target)? {
            Occupant::Nobody => fs::rename(&self.folder, path).map_err(|e| Error::io(path, &e))?,
            Occupant::Bundle => {
                let aside = self.work.path().join(REPLACED);
                if let Err(error) = replace(&self.folder, path, &aside) {
                    return Err(keep_older(error, self.work, &aside));
                }
            }
        }
        files::sync_folder(self.target.parent())
    }
}

fn work_folder(target: &Target) -> Result<TempDir> {
    let prefix = target.work_prefix();
    tempfile::Builder::new()
        .prefix(&prefix)
        .rand_bytes(stale::RANDOM_CHARACTERS)
        .tempdir_in(target.parent())
        .map_err(|e| preflight::unwritable(target.parent(), &e))
}

/// Moves `archive` to `path` unless something is there, in one step where the system has it.
fn persist_new(archive: PathBuf, path: &Path) -> Result<()> {
    let archive = TempPath::try_from_path(&archive).map_err(|e| Error::io(archive, &e))?;
    archive.persist_noclobber(path).map_err(|e| Error::io(path, &e.error))
}

/// Puts `new` at `path` and what was there at `aside`; when that fails, what was there is put back.
fn replace(new: &Path, path: &Path, aside: &Path) -> Result<()> {
    fs::rename(path, aside).map_err(|e| Error::io(path, &e))?;
    fs::rename(new, path).map_err(|e| {
        let _ = fs::rename(aside, path);
        Error::io(path, &e)
    })
}

/// An older bundle that could not be put back stays in the work folder, from where the next run restores it.
fn keep_older(error: Error, work: TempDir, aside: &Path) -> Error {
    if aside.symlink_metadata().is_err() {
        return error;
    }
    let _ = work.keep();
    error.hint(format!("the older bundle is at {}; the next run to this output puts it back", aside.display()))
}

#[cfg(test)]
mod tests;
