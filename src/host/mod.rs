//! What an application does around a bundle to read a page: pixels, prompt, embeddings, the choice of tokens.
//!
//! Driven by the [recipe](recipe::Recipe) that the bundle carries; knows nothing of graphs or of how a function is
//! executed ([`Runtime`](crate::runtime::Runtime) does that).

pub mod arrange;
pub mod chat_template;
pub mod decode;
pub mod image;
mod kv;
pub mod patches;
pub mod prompt;
pub mod reader;
pub mod recipe;
mod resample;
pub mod slots;
pub mod tokenizer;
