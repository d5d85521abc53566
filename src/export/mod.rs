//! One export from request to published bundle: the line of modules, run end to end.
//!
//! A [`Blueprint`] is everything that will be written, known from the checkpoint's headers; [`Plan`] reports it and
//! [`export`] writes it. Manifests say what each model is.

mod blueprint;
mod built_in;
mod chat_template;
mod context;
mod deployment;
mod end_of_turn;
mod fixed_shapes;
mod glm_ocr;
mod kv;
mod manifest;
mod pipeline;
mod plan;
mod request;
mod run;
mod source;
mod stop_tokens;
mod stream;
mod target;
mod tokenizer_files;
mod unlimited_ocr;

pub use blueprint::{AssetPlan, Blueprint, graphs_after};
pub use deployment::Deployment;
pub use manifest::{Family, GlmOcrSettings, Manifest, UnlimitedOcrSettings};
pub use plan::{
    AssetReport, DroppedReport, FunctionReport, KvFormReport, KvReport, PassReport, Plan, SymbolReport, WeightReport,
    pass_reports,
};
pub use request::{CheckpointChoice, Destination, ExportRequest, MoeForm, Precision};
pub use run::{ExportReport, Surroundings, export, export_explained};
pub use target::{Compute, Statement, Target, Verdict};
