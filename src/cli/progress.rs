//! Progress for people at a terminal.

use std::fmt;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::output::Output;
use crate::progress::Progress;

/// How often the bar is drawn again while nothing is reported.
const TICK: Duration = Duration::from_millis(120);

const BYTES: &str = "{msg:<10} [{bar:32}] {bytes:>10} of {total_bytes:<10} {binary_bytes_per_sec}";
const UNKNOWN: &str = "{msg:<10} {spinner} {elapsed}";

/// A bar on stderr, which is not drawn unless that is a terminal.
pub(super) struct Bar(ProgressBar);

impl Bar {
    /// A bar that is shown as the options of `output` have it.
    pub(super) fn new(output: &Output) -> Self {
        let target = if output.shows_progress() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        Self(ProgressBar::with_draw_target(None, target))
    }
}

impl Progress for Bar {
    fn begin(&self, stage: &str, total: u64) {
        let template = if total == 0 { UNKNOWN } else { BYTES };
        self.0.set_style(style(template));
        self.0.reset();
        self.0.set_message(stage.to_owned());
        if total > 0 {
            self.0.set_length(total);
        }
        self.0.enable_steady_tick(TICK);
    }

    fn advance(&self, bytes: u64) {
        self.0.inc(bytes);
    }

    fn end(&self) {
        self.0.disable_steady_tick();
        self.0.finish_and_clear();
    }
}

impl fmt::Debug for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bar({} of {:?})", self.0.position(), self.0.length())
    }
}

/// The templates are constants that a test checks, so the plain bar never takes their place.
fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_are_well_formed() {
        for template in [BYTES, UNKNOWN] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }

    #[test]
    fn every_stage_begins_at_nothing() {
        let bar = Bar(ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()));
        bar.begin("weights", 10);
        bar.advance(7);
        assert_eq!(format!("{bar:?}"), "Bar(7 of Some(10))");
        bar.end();
        bar.begin("archive", 20);
        assert_eq!(format!("{bar:?}"), "Bar(0 of Some(20))");
    }
}
