//! A request to stop, passed from whoever listens for it to whoever works.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Error, Result};

/// Whether the work should stop. Clones share one flag, which is never taken back.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Asks for the work to stop. The answer is whether it had been asked for before.
    pub fn request(&self) -> bool {
        self.0.swap(true, Ordering::Relaxed)
    }

    /// Called between chunks of work, so that stopping unwinds like any other error and cleans up on the way.
    ///
    /// # Errors
    /// When the work should stop.
    pub fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) { Err(Error::environment("interrupted")) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_reaches_every_clone() {
        let cancel = Cancel::default();
        let worker = cancel.clone();
        assert!(worker.check().is_ok());
        assert!(!cancel.request());
        assert!(cancel.request(), "the second request knows of the first");
        assert_eq!(worker.check().unwrap_err().to_string(), "interrupted");
    }
}
