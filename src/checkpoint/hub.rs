//! Finds downloaded models in the cache of the Hugging Face Hub: `models--<owner>--<name>/snapshots/<revision>`.

use std::path::{Path, PathBuf};

use crate::{Error, Result};

use super::folder::FileName;

/// Longest reference file that is read, in bytes; a commit hash has 40.
const MAX_REFERENCE_BYTES: u64 = 256;

/// What of the environment decides where the cache is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HubEnvironment {
    /// `HF_HUB_CACHE`: the cache itself.
    pub hub_cache: Option<PathBuf>,
    /// `HF_HOME`: the folder with the cache `hub` in it.
    pub hf_home: Option<PathBuf>,
    /// `XDG_CACHE_HOME`: the folder with `huggingface/hub` in it.
    pub cache_home: Option<PathBuf>,
    /// The home folder, with `.cache/huggingface/hub` in it.
    pub home: Option<PathBuf>,
}

impl HubEnvironment {
    /// Reads the environment of the process; an empty variable counts as unset.
    #[must_use]
    pub fn from_process() -> Self {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Self {
            hub_cache: variable("HF_HUB_CACHE"),
            hf_home: variable("HF_HOME"),
            cache_home: variable("XDG_CACHE_HOME"),
            home: std::env::home_dir(),
        }
    }

    /// The folder of the cache, whether it exists or not; `None` when nothing says where it would be.
    #[must_use]
    pub fn cache(&self) -> Option<PathBuf> {
        let in_cache_home = |folder: &Path| folder.join("huggingface").join("hub");
        let hub = self.hub_cache.clone();
        let hub = hub.or_else(|| self.hf_home.as_ref().map(|folder| folder.join("hub")));
        let hub = hub.or_else(|| self.cache_home.as_deref().map(in_cache_home));
        hub.or_else(|| self.home.as_ref().map(|home| in_cache_home(&home.join(".cache"))))
    }
}

/// One downloaded revision of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The folder of its files.
    pub path: PathBuf,
    /// The commit it was downloaded from.
    pub revision: String,
}

/// The snapshot of `model_id` (`owner/name`) in the cache: the one that `refs/main` names; without that reference the
/// only one, or the last by name. `None` when the model is not in the cache.
///
/// # Errors
/// When `model_id` is not an id, or `refs/main` is damaged or names a snapshot that is not there.
pub fn find(model_id: &str, environment: &HubEnvironment) -> Result<Option<Snapshot>> {
    let folder = model_folder(model_id)?;
    let Some(model) = environment.cache().map(|cache| cache.join(folder)) else { return Ok(None) };
    if !model.is_dir() {
        return Ok(None);
    }
    let snapshots = model.join("snapshots");
    let Some(revision) = main_revision(&model)? else { return last_snapshot(&snapshots) };
    let path = snapshots.join(revision.as_str());
    if !path.is_dir() {
        return Err(Error::input("the snapshot that `refs/main` names is not there")
            .at(path.display().to_string())
            .hint(format!("download `{model_id}` again, or name another snapshot folder")));
    }
    Ok(Some(Snapshot { path, revision: revision.as_str().to_owned() }))
}

/// Name of the model's folder in the cache.
fn model_folder(model_id: &str) -> Result<String> {
    let word = |part: &str| {
        let plain = part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
        plain && !part.starts_with(['.', '-']) && !part.is_empty() && !part.contains("--") && !part.contains("..")
    };
    let parts: Vec<_> = model_id.split('/').collect();
    if parts.len() > 2 || !parts.iter().all(|part| word(part)) {
        return Err(Error::input("not a model id").found(format!("{model_id:?}")).expected("`owner/name`"));
    }
    Ok(format!("models--{}", parts.join("--")))
}

/// The commit in `refs/main`, if there is that file.
fn main_revision(model: &Path) -> Result<Option<FileName>> {
    let path = model.join("refs").join("main");
    let place = || path.display().to_string();
    let metadata = match std::fs::metadata(&path) {
        Ok(metadata) => metadata,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io(&path, &e)),
    };
    if !metadata.is_file() || metadata.len() > MAX_REFERENCE_BYTES {
        return Err(Error::input("not a reference to a commit").at(place()));
    }
    let text = std::fs::read(&path).map_err(|e| Error::io(&path, &e))?;
    let revision = String::from_utf8_lossy(&text);
    FileName::new(revision.trim()).map(Some).map_err(|e| e.at(place()))
}

fn last_snapshot(snapshots: &Path) -> Result<Option<Snapshot>> {
    let entries = match std::fs::read_dir(snapshots) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io(snapshots, &e)),
    };
    let mut last: Option<String> = None;
    for entry in entries {
        let entry = entry.map_err(|e| Error::io(snapshots, &e))?;
        let name = entry.file_name().into_string().ok().filter(|name| !name.starts_with('.') && entry.path().is_dir());
        last = last.max(name);
    }
    Ok(last.map(|revision| Snapshot { path: snapshots.join(&revision), revision }))
}

#[cfg(test)]
mod tests {
    use super::super::Checkpoint;
    use super::super::fixtures::{Files, shard};
    use super::*;

    const MODEL: &str = "models--baidu--Unlimited-OCR";

    fn cache(files: &Files) -> HubEnvironment {
        HubEnvironment { hub_cache: Some(files.path().to_owned()), ..HubEnvironment::default() }
    }

    fn revision(files: &Files) -> Option<String> {
        let snapshot = find("baidu/Unlimited-OCR", &cache(files)).unwrap()?;
        assert_eq!(snapshot.path, files.join(&format!("{MODEL}/snapshots/{}", snapshot.revision)));
        Some(snapshot.revision)
    }

    #[test]
    fn the_variables_are_asked_in_order() {
        let path = |text: &str| Some(PathBuf::from(text));
        let mut environment = HubEnvironment {
            hub_cache: path("/c"),
            hf_home: path("/h"),
            cache_home: path("/x"),
            home: path("/home/u"),
        };
        assert_eq!(environment.cache(), path("/c"));
        environment.hub_cache = None;
        assert_eq!(environment.cache(), path("/h/hub"));
        environment.hf_home = None;
        assert_eq!(environment.cache(), path("/x/huggingface/hub"));
        environment.cache_home = None;
        assert_eq!(environment.cache(), path("/home/u/.cache/huggingface/hub"));
        environment.home = None;
        assert_eq!(environment.cache(), None);
    }

    #[test]
    fn main_decides_over_other_snapshots() {
        let files = Files::new()
            .add(&format!("{MODEL}/refs/main"), b"aaa\n")
            .add(&format!("{MODEL}/snapshots/aaa/x"), b"")
            .add(&format!("{MODEL}/snapshots/bbb/x"), b"");
        assert_eq!(revision(&files).as_deref(), Some("aaa"));
    }

    #[test]
    fn without_main_the_last_snapshot_is_taken() {
        let files = Files::new()
            .add(&format!("{MODEL}/snapshots/aaa/x"), b"")
            .add(&format!("{MODEL}/snapshots/bbb/x"), b"")
            .add(&format!("{MODEL}/snapshots/ccc"), b"a file is no snapshot");
        assert_eq!(revision(&files).as_deref(), Some("bbb"));
    }

    #[test]
    fn a_model_that_is_not_there_is_none() {
        assert_eq!(revision(&Files::new()), None);
        assert_eq!(revision(&Files::new().add(&format!("{MODEL}/blobs/x"), b"")), None);
        assert_eq!(find("gpt2", &HubEnvironment::default()).unwrap(), None);
    }

    #[test]
    fn a_damaged_reference_is_refused() {
        for reference in ["gone", "../../x", "", "a\u{0}b"] {
            let files = Files::new()
                .add(&format!("{MODEL}/refs/main"), reference.as_bytes())
                .add(&format!("{MODEL}/snapshots/aaa/x"), b"");
            find("baidu/Unlimited-OCR", &cache(&files)).unwrap_err();
        }
    }

    #[test]
    fn names_that_are_no_model_ids_are_refused() {
        for id in ["", "/", "a/", "/a", "a/b/c", "../x", "a/..", "a--b/c", "a b", "a\\b", "C:/x", "-x/y", "x\0"] {
            let error = find(id, &HubEnvironment::default()).unwrap_err();
            assert!(error.to_string().starts_with("not a model id: found"), "{error}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_snapshot_of_links_is_a_checkpoint() {
        let files = Files::new()
            .add(&format!("{MODEL}/blobs/0a"), b"{}")
            .add(&format!("{MODEL}/blobs/0b"), &shard(&[("a", &[1, 2])]))
            .add(&format!("{MODEL}/refs/main"), b"abc")
            .add(&format!("{MODEL}/snapshots/abc/.keep"), b"");
        for (name, blob) in [("config.json", "0a"), ("model.safetensors", "0b")] {
            let link = files.join(&format!("{MODEL}/snapshots/abc/{name}"));
            std::os::unix::fs::symlink(format!("../../blobs/{blob}"), link).unwrap();
        }
        let snapshot = find("baidu/Unlimited-OCR", &cache(&files)).unwrap().unwrap();
        assert_eq!(Checkpoint::open(&snapshot.path).unwrap().tensors().len(), 1);
        let file = snapshot.path.join("model.safetensors");
        assert_eq!(Checkpoint::open(&file).unwrap().tensors().len(), 1, "config.json is sought beside the link");

        std::fs::remove_file(files.join(&format!("{MODEL}/blobs/0b"))).unwrap();
        let error = Checkpoint::open(&snapshot.path).unwrap_err().to_string();
        assert!(error.ends_with("model.safetensors: a link to a file that is not there"), "{error}");
    }
}
