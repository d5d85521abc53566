//! Ctrl-C and its like ask the work to stop, so that it cleans up behind itself.

use crate::bundle::Cancel;
use crate::{Error, Result};

/// Exit code of a process ended by Ctrl-C, as shells have it.
const INTERRUPTED: i32 = 130;

/// A token that the interrupt, termination and hang-up signals set. A second signal ends the process at once.
///
/// # Errors
/// When the system refuses the handler, or there is one already.
pub(super) fn cancel_on_signals() -> Result<Cancel> {
    let cancel = Cancel::default();
    let asked = cancel.clone();
    let handler = move || {
        if asked.request() {
            std::process::exit(INTERRUPTED);
        }
    };
    ctrlc::set_handler(handler).map_err(|e| Error::environment(format!("no signal handler: {e}")))?;
    Ok(cancel)
}

#[cfg(unix)]
#[cfg(test)]
mod tests;
