//! What every help text ends with.

const EXIT_STATUS: &str = "\
Exit status:
  0  done
  1  a check found something, such as a difference
  2  bad input or usage
  3  the environment: no room, no permission, a missing runtime, interrupted";

/// Worked examples, and the exit codes after them.
pub(super) fn with_exit_status(examples: &str) -> String {
    format!("{examples}\n\n{EXIT_STATUS}")
}
