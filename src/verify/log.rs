//! The checks of one run in order, and what came of each.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::numbers::Agreement;
use crate::error::ErrorClass;
use crate::progress::Progress;
use crate::{Error, Result};

/// What came of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Nothing was found.
    Passed,
    /// Something was found.
    Failed,
    /// The environment stood in the way, so nothing is known.
    NotRun,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Its name, in kebab case.
    pub name: &'static str,
    /// What came of it.
    pub outcome: Outcome,
    /// What was looked at, or what is wrong.
    pub detail: String,
}

/// All checks of a run; the one that ended it is the last.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The bundle.
    pub bundle: PathBuf,
    /// Whether all checks were made and nothing was found.
    pub passed: bool,
    /// The checks, in the order they were made.
    pub checks: Vec<Check>,
    /// How the runtime compares with the reference, once that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agreement: Option<Agreement>,
}

/// A report, and the error that ended the run, if one did.
#[derive(Debug)]
pub struct Verdict {
    /// The checks.
    pub report: Report,
    /// Of class `Check` when something was found, `Environment` when a check could not be made.
    pub failure: Option<Error>,
}

impl fmt::Display for Report {
    /// One line a check. The sentence of one that did not pass is the error's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Check { name, outcome, detail } in &self.checks {
            match outcome {
                Outcome::Passed => writeln!(f, "ok       {name:<16} {detail}")?,
                Outcome::Failed => writeln!(f, "FAILED   {name}")?,
                Outcome::NotRun => writeln!(f, "not run  {name}")?,
            }
        }
        Ok(())
    }
}

/// Makes checks and keeps what came of them.
pub(super) struct Log<'p> {
    progress: &'p dyn Progress,
    checks: Vec<Check>,
    agreement: Option<Agreement>,
}

impl<'p> Log<'p> {
    pub(super) fn new(progress: &'p dyn Progress) -> Self {
        Self { progress, checks: Vec::new(), agreement: None }
    }

    /// Makes a check that says what it looked at.
    pub(super) fn check(&mut self, name: &'static str, work: impl FnOnce() -> Result<String>) -> Result<()> {
        self.make(name, || work().map(|detail| ((), detail)))
    }

    /// Makes a check that gives something the next ones need.
    pub(super) fn make<T>(&mut self, name: &'static str, work: impl FnOnce() -> Result<(T, String)>) -> Result<T> {
        self.progress.begin(name, 0);
        let done = work();
        self.progress.end();
        match done {
            Ok((made, detail)) => {
                self.checks.push(Check { name, outcome: Outcome::Passed, detail });
                Ok(made)
            }
            Err(error) => Err(self.failed(name, error)),
        }
    }

    /// Makes a check that is worth a line only when it does not pass.
    pub(super) fn guard(&mut self, name: &'static str, work: impl FnOnce() -> Result<()>) -> Result<()> {
        work().map_err(|error| self.failed(name, error))
    }

    pub(super) fn compared(&mut self, agreement: Agreement) {
        self.agreement = Some(agreement);
    }

    pub(super) fn finish(self, bundle: &Path, failure: Option<Error>) -> Verdict {
        let Self { checks, agreement, .. } = self;
        Verdict { report: Report { bundle: bundle.to_owned(), passed: failure.is_none(), checks, agreement }, failure }
    }

    fn failed(&mut self, name: &'static str, error: Error) -> Error {
        let error = error.into_finding();
        let outcome = if error.class() == ErrorClass::Environment { Outcome::NotRun } else { Outcome::Failed };
        self.checks.push(Check { name, outcome, detail: error.to_string() });
        error
    }
}
