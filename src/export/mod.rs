//! One export from request to published bundle: the line of modules, run end to end.
//!
//! A [`Blueprint`] is everything that will be written, known from the checkpoint's headers; [`Plan`] reports it and
//! [`export`] writes it. Manifests say what each model is.

mod blueprint;
mod built_in;
mod manifest;
mod pipeline;
mod plan;
mod request;
mod run;
mod source;
mod stream;
mod unlimited_ocr;

pub use blueprint::{AssetPlan, Blueprint, graphs_after};
pub use manifest::{Family, Manifest};
pub use plan::{AssetReport, DroppedReport, PassReport, Plan, WeightReport, pass_reports};
pub use request::{CheckpointChoice, Destination, ExportRequest, MoeForm, Precision};
pub use run::{ExportReport, Surroundings, export, export_explained};
