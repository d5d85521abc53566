//! How far long work is.

/// Told how far long work is. Implementations decide what people see.
pub trait Progress: Sync {
    /// A stage begins; `total` is in bytes, or 0 where it is not known.
    fn begin(&self, stage: &str, total: u64);
    /// So many bytes of the stage are done.
    fn advance(&self, bytes: u64);
    /// The stage is over.
    fn end(&self);
}

/// Nobody is told.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _stage: &str, _total: u64) {}
    fn advance(&self, _bytes: u64) {}
    fn end(&self) {}
}
