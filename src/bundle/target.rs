//! Where a bundle is to be published, taken apart.

use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// The destination of a bundle: a name in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    parent: PathBuf,
    name: String,
    zip: bool,
    force: bool,
}

impl Target {
    /// A folder, or one archive if `zip`, at `path`; with `force` it may replace a bundle that is there.
    ///
    /// # Errors
    /// When the path does not end in a name, or the name is not UTF-8.
    pub fn new(path: &Path, zip: bool, force: bool) -> Result<Self> {
        let Some(name) = path.file_name() else {
            return Err(Error::input("the output path does not end in a name")
                .at(path.display().to_string())
                .hint("name the folder to be made, such as `-o ./unlimited-ocr-sym8`"));
        };
        let Some(name) = name.to_str() else {
            return Err(Error::input("the output name is not UTF-8").at(path.display().to_string()));
        };
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        Ok(Self { parent, name: name.to_owned(), zip, force })
    }

    /// The folder or archive that will be there.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.parent.join(&self.name)
    }

    /// The folder it will be in.
    #[must_use]
    pub fn parent(&self) -> &Path {
        &self.parent
    }

    /// Whether it is one archive.
    #[must_use]
    pub const fn is_zip(&self) -> bool {
        self.zip
    }

    /// Whether a bundle that is there may be replaced.
    #[must_use]
    pub const fn replaces(&self) -> bool {
        self.force
    }

    /// Name of the bundle's folder, which is also the root of an archive.
    #[must_use]
    pub fn bundle_name(&self) -> &str {
        let stem = self.name.strip_suffix(".zip").filter(|stem| self.zip && !stem.is_empty());
        stem.unwrap_or(&self.name)
    }

    /// How the names of work folders for this target begin.
    pub(super) fn work_prefix(&self) -> String {
        format!(".{}.partial-", self.name)
    }

    /// The lock file of this target.
    pub(super) fn lock_path(&self) -> PathBuf {
        self.parent.join(format!(".{}.partial.lock", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_taken_apart() {
        for (path, zip, parent, bundle) in [
            ("out", false, ".", "out"),
            ("a/out/", false, "a", "out"),
            ("/x/out.zip", true, "/x", "out"),
            ("out.zip", false, ".", "out.zip"),
            ("out", true, ".", "out"),
            (".zip", true, ".", ".zip"),
        ] {
            let target = Target::new(Path::new(path), zip, false).unwrap();
            assert_eq!((target.parent(), target.bundle_name()), (Path::new(parent), bundle), "{path}");
        }
    }

    #[test]
    fn a_path_without_a_name_is_refused() {
        for path in ["/", "..", "a/..", "", "."] {
            let error = Target::new(Path::new(path), false, true).unwrap_err();
            assert!(error.to_string().contains("does not end in a name"), "{path}: {error}");
            assert!(error.hint_text().is_some());
        }
    }
}
