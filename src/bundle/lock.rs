//! One run at a time for one destination.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use super::{Target, preflight};
use crate::{Error, Result};

/// Attempts to get hold of a lock file that others keep removing.
const ATTEMPTS: usize = 32;

/// Longest process id that is read from a lock file.
const MAX_ID_BYTES: u64 = 20;

/// An advisory lock. The system frees it when its holder ends, however that happens; the file goes with the lock.
#[derive(Debug)]
pub(super) struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// Takes the lock of `target` without waiting.
    ///
    /// # Errors
    /// When another process holds it, its folder cannot be written to, or the file system has no locks.
    pub fn take(target: &Target) -> Result<Self> {
        let path = target.lock_path();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        for _ in 0..ATTEMPTS {
            let file = options.open(&path).map_err(|e| preflight::unwritable(target.parent(), &e))?;
            match file.try_lock() {
                // The last holder may have removed the file between our opening and locking it.
                Ok(()) if names(&path, &file) => return Self { file, path }.sign(),
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(held(&path, file)),
                Err(TryLockError::Error(e)) => {
                    return Err(Error::io(&path, &e).hint("write to a local disk and copy the bundle from there"));
                }
            }
        }
        Err(Error::environment("the lock file cannot be taken hold of").at(path.display().to_string()))
    }

    /// Writes who holds the lock, for others to report.
    fn sign(mut self) -> Result<Self> {
        let id = std::process::id().to_string();
        let written =
            self.file.set_len(0).and_then(|()| self.file.rewind()).and_then(|()| self.file.write_all(id.as_bytes()));
        written.map_err(|e| Error::io(&self.path, &e))?;
        Ok(self)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Removed while held, so that it cannot be the file of a later holder.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Whether `path` still is the name of `file`.
#[cfg(unix)]
fn names(path: &Path, file: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    let (named, open) = (path.symlink_metadata().map(identity), file.metadata().map(identity));
    matches!((named, open), (Ok(named), Ok(open)) if named == open)
}

/// Other systems do not reuse the name of an open file.
#[cfg(not(unix))]
fn names(_path: &Path, _file: &File) -> bool {
    true
}

fn held(path: &Path, file: File) -> Error {
    let mut id = String::new();
    let holder = match file.take(MAX_ID_BYTES).read_to_string(&mut id) {
        Ok(n) if n > 0 => format!("locked by pid {}", id.trim()),
        _ => "locked by another run".to_owned(),
    };
    Error::environment(holder)
        .at(path.display().to_string())
        .hint("another run writes to the same destination: wait for it, or name another with `-o`")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorClass;

    fn target(folder: &tempfile::TempDir) -> Target {
        Target::new(&folder.path().join("out"), false, false).unwrap()
    }

    #[test]
    fn a_second_taker_is_told_who_holds_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let target = target(&folder);
        let held = Lock::take(&target).unwrap();
        let error = Lock::take(&target).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Environment);
        assert!(error.to_string().ends_with(&format!("locked by pid {}", std::process::id())), "{error}");
        drop(held);
        assert!(!target.lock_path().exists(), "the file goes with the lock");
        Lock::take(&target).unwrap();
    }

    #[test]
    fn the_file_of_a_dead_holder_is_free() {
        let folder = tempfile::tempdir().unwrap();
        let target = target(&folder);
        std::fs::write(target.lock_path(), "4194304").unwrap();
        Lock::take(&target).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_link_is_never_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let (target, victim) = (target(&folder), folder.path().join("victim"));
        std::fs::write(&victim, "kept").unwrap();
        std::os::unix::fs::symlink(&victim, target.lock_path()).unwrap();
        assert!(Lock::take(&target).is_err());
        assert_eq!(std::fs::read(&victim).unwrap(), b"kept");
    }
}
