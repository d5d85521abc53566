//! How a command ends that does not end well.

use std::io::{self, ErrorKind};
use std::process::ExitCode;

use super::output::Output;
use crate::Error;
use crate::error::ErrorClass;

/// Exit code for bad usage, the same as for bad input.
pub(super) const USAGE: u8 = 2;

/// Why a command did not end well.
#[derive(Debug)]
pub(super) enum Failure {
    /// The work failed.
    Work(Error),
    /// The result could not be written to stdout.
    Output(io::Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Work(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl Failure {
    /// Tells the user and gives the exit code. Whoever closed the pipe has read enough: that is no failure.
    pub(super) fn report(self, output: &mut Output) -> ExitCode {
        let error = match self {
            Self::Output(error) if error.kind() == ErrorKind::BrokenPipe => return ExitCode::SUCCESS,
            Self::Output(error) => Error::io("stdout", &error),
            Self::Work(error) => error,
        };
        output.error(&error);
        ExitCode::from(code(error.class()))
    }
}

/// The exit code of a class of errors.
const fn code(class: ErrorClass) -> u8 {
    match class {
        ErrorClass::Check => 1,
        ErrorClass::Input => USAGE,
        ErrorClass::Environment => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_pipe_is_no_failure_and_a_full_disk_is_one() {
        let (mut output, written) = Output::captured(Default::default());
        let code = |failure: Failure, output: &mut Output| format!("{:?}", failure.report(output));
        let closed = Failure::from(io::Error::from(ErrorKind::BrokenPipe));
        assert_eq!(code(closed, &mut output), format!("{:?}", ExitCode::SUCCESS));
        assert_eq!(written.stderr(), "");
        let full = Failure::from(io::Error::from(ErrorKind::StorageFull));
        assert_eq!(code(full, &mut output), format!("{:?}", ExitCode::from(3)));
        assert!(written.stderr().starts_with("error: stdout: "), "{}", written.stderr());
    }

    #[test]
    fn the_exit_code_follows_from_who_has_to_act() {
        let codes = [ErrorClass::Check, ErrorClass::Input, ErrorClass::Environment].map(code);
        assert_eq!(codes, [1, 2, 3]);
    }
}
