//! One file for each architecture part: the graph as Hugging Face runs it, before any pass.
//!
//! [`Loader`] gives tensors of the checkpoint by name and checks their shapes; [`Net`] is a graph builder with the
//! vocabulary of transformer layers. A part reads its sizes from `config.json` into a struct of its own first, so
//! that everything that can be refused is refused before a graph is built.

mod attention;
pub mod cogvit;
pub mod deep_encoder;
pub mod deepseek_v2;
pub mod glm_text;
mod loader;
mod mtp;
mod net;
mod settings;
mod tied;

pub use loader::{Loader, Unused};
pub use net::Net;
