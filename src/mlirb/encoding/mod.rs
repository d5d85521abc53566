//! The numbers of the format: each file encodes and decodes one kind of thing.

pub(super) mod attributes;
pub(super) mod container;
pub(super) mod cursor;
pub(super) mod entry;
pub(super) mod operations;
pub(super) mod resources;
pub(super) mod tables;
pub(super) mod types;
pub(super) mod varint;
