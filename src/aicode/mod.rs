//! Between the graph and the versioned operations of Apple's `aicode` dialect, both ways.
//!
//! [`lower`] turns a module of primitive operations into a program and says which weight each of its resources holds;
//! [`raise`] turns a program back into a module whose weights lie in the asset, so that the executor runs what was
//! written.

mod attributes;
mod elementwise;
pub mod kernel;
mod lower;
mod names;
mod raise;
mod states;

pub use lower::{Lowered, lower};
pub use raise::raise;
