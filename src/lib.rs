//! Turns Hugging Face checkpoints of the DeepseekV2 and GLM families into Apple Core AI bundles.
//!
//! Data flows one way: checkpoint, graph, passes, quantisation, lowering, bytes, bundle.
//! `ARCHITECTURE.md` has the table of modules and of the edges between them; a test enforces it.

pub mod aicode;
pub mod asset;
pub mod bundle;
pub mod checkpoint;
pub mod cli;
pub mod element;
pub mod error;
pub mod eval;
pub mod export;
pub mod graph;
pub mod grid;
pub mod host;
pub mod mlirb;
pub mod models;
pub mod passes;
pub mod progress;
pub mod quant;
pub mod runtime;
pub mod storage;
pub mod verify;
pub mod weights;

pub use element::ElementType;
pub use error::{Error, Result};
