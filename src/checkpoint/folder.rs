//! The files of a checkpoint, on disk or compiled into the program, behind one face.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::storage::{FileSource, MemorySource, ReadAt};
use crate::{Error, Result};

use super::disguise;

/// The name of a file directly in a folder: no separators, no drive, no `..`.
///
/// The name alone is judged. What it leads to may be a link out of the folder, as in every Hub-cache snapshot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileName(String);

impl FileName {
    /// Takes `name` if it is a plain file name.
    pub(super) fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        let outside = |c: char| matches!(c, '/' | '\\' | ':') || c.is_control();
        if name.is_empty() || name == "." || name == ".." || name.contains(outside) {
            return Err(Error::input("not a plain file name")
                .found(format!("{name:?}"))
                .expected("a name in the folder"));
        }
        Ok(Self(name))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn is_hidden(&self) -> bool {
        self.0.starts_with('.')
    }

    pub(super) fn has_extension(&self, extension: &str) -> bool {
        Path::new(&self.0).extension().is_some_and(|found| found.eq_ignore_ascii_case(extension))
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Borrow<str> for FileName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Where the files of a checkpoint are.
#[derive(Debug)]
pub(super) enum Folder {
    /// A directory.
    Disk(PathBuf),
    /// Files that are part of the program, under the name of the checkpoint.
    BuiltIn { name: String, files: BTreeMap<FileName, &'static [u8]> },
}

impl Folder {
    /// Files of the program; a name may occur once.
    pub(super) fn built_in(name: &str, files: &[(&str, &'static [u8])]) -> Result<Self> {
        let mut by_name = BTreeMap::new();
        for &(file, bytes) in files {
            let file = FileName::new(file).map_err(|e| e.at(name))?;
            if by_name.insert(file.clone(), bytes).is_some() {
                return Err(Error::input("the file is given twice").at(file.as_str()).at(name));
            }
        }
        Ok(Self::BuiltIn { name: name.to_owned(), files: by_name })
    }

    /// The folder in messages.
    pub(super) fn location(&self) -> String {
        match self {
            Self::Disk(folder) => folder.display().to_string(),
            Self::BuiltIn { name, .. } => name.clone(),
        }
    }

    /// A file of the folder in messages.
    pub(super) fn display(&self, file: &FileName) -> String {
        match self {
            Self::Disk(folder) => folder.join(file.as_str()).display().to_string(),
            Self::BuiltIn { name, .. } => format!("{name}/{file}"),
        }
    }

    /// Everything in the folder that is not a folder and has a plain name, sorted. A broken link counts, so that
    /// opening it can say so.
    pub(super) fn names(&self) -> Result<Vec<FileName>> {
        match self {
            Self::Disk(folder) => disk_names(folder),
            Self::BuiltIn { files, .. } => Ok(files.keys().cloned().collect()),
        }
    }

    /// Opens a file; `None` when there is none of that name.
    pub(super) fn open(&self, file: &FileName) -> Result<Option<Arc<dyn ReadAt>>> {
        match self {
            Self::Disk(folder) => open_on_disk(&folder.join(file.as_str())),
            Self::BuiltIn { files, .. } => Ok(files
                .get(file)
                .map(|bytes| Arc::new(MemorySource::from_static(self.display(file), bytes)) as Arc<dyn ReadAt>)),
        }
    }

    /// The bytes of a file of at most `limit` bytes; `None` when there is none of that name.
    pub(super) fn read(&self, file: &FileName, limit: u64) -> Result<Option<Vec<u8>>> {
        let Some(source) = self.open(file)? else { return Ok(None) };
        let size = source.size();
        let Some(length) = usize::try_from(size).ok().filter(|_| size <= limit) else {
            return Err(Error::input("the file is too large to be what its name says")
                .at(source.name())
                .found(format!("{size} bytes"))
                .expected(format!("at most {limit} bytes")));
        };
        let mut bytes = vec![0; length];
        source.read_exact_at(&mut bytes, 0)?;
        disguise::refuse_pointer(&bytes).map_err(|e| e.at(source.name()))?;
        Ok(Some(bytes))
    }
}

fn disk_names(folder: &Path) -> Result<Vec<FileName>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|e| Error::io(folder, &e))? {
        let entry = entry.map_err(|e| Error::io(folder, &e))?;
        let readable = std::fs::metadata(entry.path()).map_or(true, |metadata| metadata.is_file());
        let name = entry.file_name().into_string().ok().and_then(|name| FileName::new(name).ok());
        names.extend(name.filter(|_| readable));
    }
    names.sort();
    Ok(names)
}

/// Looks before opening: opening a named pipe would wait for a writer.
fn open_on_disk(path: &Path) -> Result<Option<Arc<dyn ReadAt>>> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => Ok(Some(Arc::new(FileSource::open(path)?))),
        Ok(_) => Err(Error::input("not a regular file").at(path.display().to_string())),
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io(path, &e)),
        Err(_) if path.is_symlink() => Err(Error::input("a link to a file that is not there")
            .at(path.display().to_string())
            .hint("download the file again")),
        Err(_) => Ok(None),
    }
}
