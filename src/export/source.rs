//! Which checkpoint an export reads.

use std::path::PathBuf;

use super::{CheckpointChoice, ExportRequest, Manifest, built_in};
use crate::checkpoint::hub::{self, HubEnvironment};
use crate::checkpoint::{Checkpoint, OpenOptions};
use crate::{Error, Result};

/// An opened checkpoint and where it came from.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) checkpoint: Checkpoint,
    /// Its place on disk, if it has one.
    pub(super) path: Option<PathBuf>,
    /// Where on the Hub it is from, if it lies in the Hub cache.
    pub(super) origin: Option<Origin>,
    /// Said plainly where the choice was ours.
    pub(super) note: Option<String>,
}

/// A snapshot of the Hub.
#[derive(Debug)]
pub(super) struct Origin {
    /// The model id.
    pub(super) id: String,
    /// The commit.
    pub(super) revision: String,
}

/// Opens the checkpoint asked for; without one, that of the Hub cache, else the built-in one.
pub(super) fn open(request: &ExportRequest, manifest: &Manifest) -> Result<Source> {
    let options = OpenOptions { ignore_index: request.ignore_index };
    let at_path = |path: PathBuf, origin| -> Result<Source> {
        let checkpoint = Checkpoint::open_with(&path, options)?;
        Ok(Source { checkpoint, path: Some(path), origin, note: None })
    };
    match &request.checkpoint {
        CheckpointChoice::Path(path) => at_path(path.clone(), None),
        CheckpointChoice::BuiltIn => open_built_in(manifest, None),
        CheckpointChoice::Hub(id) => {
            let snapshot = hub::find(id, &HubEnvironment::from_process())?;
            let snapshot = snapshot.ok_or_else(|| {
                Error::input("no such folder, and no such model in the Hub cache")
                    .at(id.clone())
                    .hint(format!("download it first: hf download {id}"))
            })?;
            at_path(snapshot.path, Some(Origin { id: id.clone(), revision: snapshot.revision }))
        }
        CheckpointChoice::Default => match hub::find(&manifest.hub, &HubEnvironment::from_process())? {
            Some(snapshot) => {
                let note = format!("using {} of the Hub cache: {}", manifest.hub, snapshot.path.display());
                let origin = Origin { id: manifest.hub.clone(), revision: snapshot.revision };
                Ok(Source { note: Some(note), ..at_path(snapshot.path, Some(origin))? })
            }
            None => {
                let note = format!("{} is not in the Hub cache: using the tiny built-in checkpoint", manifest.hub);
                open_built_in(manifest, Some(note))
            }
        },
    }
}

fn open_built_in(manifest: &Manifest, note: Option<String>) -> Result<Source> {
    let missing =
        || Error::input(format!("`{}` has no built-in checkpoint", manifest.name)).hint("give one with `--checkpoint`");
    let checkpoint = built_in::open(&manifest.name)?.ok_or_else(missing)?;
    Ok(Source { checkpoint, path: None, origin: None, note })
}
