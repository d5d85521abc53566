//! Bundles that tests export.

use std::collections::BTreeMap;
use std::path::PathBuf;

use aimodel::bundle::{Bundle, Cancel};
use aimodel::export::{CheckpointChoice, Destination, ExportRequest, MoeForm, Surroundings, export};
use aimodel::host::reader::HostAssets;
use aimodel::host::recipe::Variant;
use aimodel::progress::Silent;
use aimodel::quant::Scheme;
use aimodel::runtime::Asset;
use tempfile::TempDir;

use super::golden;

/// The seeded random checkpoint with every structural feature and a window of 8.
pub fn structure() -> CheckpointChoice {
    CheckpointChoice::Path(golden("structure/unlimited-ocr"))
}

/// An export of `unlimited-ocr` in half precision; everything that is not given is the model's own.
pub fn request(checkpoint: CheckpointChoice, scheme: Scheme, moe: MoeForm) -> ExportRequest {
    ExportRequest { checkpoint, scheme: Some(scheme), moe: Some(moe), ..ExportRequest::new("unlimited-ocr") }
}

/// The seeded random checkpoint of GLM-OCR.
pub fn glm_structure() -> CheckpointChoice {
    CheckpointChoice::Path(golden("structure/glm-ocr"))
}

/// An export of `glm-ocr` with every form of the decoder in two grids, which are small: Apple's CPU runtime computes
/// half precision in software.
pub fn glm_request(checkpoint: CheckpointChoice, scheme: Scheme) -> ExportRequest {
    ExportRequest {
        checkpoint,
        scheme: Some(scheme),
        grids: ["4x5", "5x4"].map(|grid| grid.parse().unwrap()).to_vec(),
        functions: Variant::ALL.to_vec(),
        prefill_chunk: Some(16),
        max_context: Some(128),
        ..ExportRequest::new("glm-ocr")
    }
}

/// A bundle in a temporary folder.
pub struct Exported {
    /// Removes the folder when it is dropped.
    folder: TempDir,
}

impl Exported {
    /// Exports into a new temporary folder.
    pub fn new(request: &ExportRequest) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let exported = Self { folder };
        let destination = Destination { path: exported.path(), zip: false, force: false };
        let surroundings = Surroundings { progress: &Silent, cancel: &Cancel::default(), date: None };
        export(request, &destination, surroundings).unwrap();
        exported
    }

    /// The bundle's folder.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("bundle")
    }

    /// The host's side of the bundle.
    pub fn host(&self) -> HostAssets {
        HostAssets::open(self.path()).unwrap()
    }

    /// Where the assets are, by the part they play.
    pub fn assets(&self) -> BTreeMap<Asset, PathBuf> {
        let bundle = Bundle::open(self.path()).unwrap();
        let part = |name: &str| if name == "vision" { Asset::Vision } else { Asset::Decoder };
        bundle.assets().map(|(name, path)| (part(name), path)).collect()
    }

    /// The program file of an asset.
    pub fn program(&self, asset: Asset) -> PathBuf {
        self.assets()[&asset].join("main.mlirb")
    }
}
