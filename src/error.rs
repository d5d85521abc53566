//! The one error of the crate: where, what was wrong, found, expected, a hint.

use std::fmt;
use std::path::Path;

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Who has to act on an error. It decides the exit code of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    /// A check found something: a mismatch, a finding, a budget exceeded (exit code 1).
    Check,
    /// Bad input or usage (exit code 2).
    Input,
    /// The environment: disk full, no permission, a missing runtime (exit code 3).
    Environment,
}

/// What went wrong, in the parts a person needs to mend it.
///
/// Built up by its methods:
/// ```
/// use aimodel::Error;
/// let e = Error::input("the shard is too short")
///     .at("model-00001-of-00002.safetensors")
///     .found("10 bytes")
///     .expected("14 bytes")
///     .hint("download it again");
/// assert_eq!(
///     e.to_string(),
///     "model-00001-of-00002.safetensors: the shard is too short: found 10 bytes, expected 14 bytes"
/// );
/// ```
#[derive(Clone)]
pub struct Error(Box<Parts>);

#[derive(Debug, Clone)]
struct Parts {
    class: ErrorClass,
    places: Vec<String>,
    problem: String,
    found: Option<String>,
    expected: Option<String>,
    hint: Option<String>,
}

impl Error {
    fn new(class: ErrorClass, problem: impl Into<String>) -> Self {
        Self(Box::new(Parts {
            class,
            places: Vec::new(),
            problem: problem.into(),
            found: None,
            expected: None,
            hint: None,
        }))
    }

    /// A check found something (exit code 1).
    #[cold]
    pub fn check(problem: impl Into<String>) -> Self {
        Self::new(ErrorClass::Check, problem)
    }

    /// Bad input or usage (exit code 2).
    #[cold]
    pub fn input(problem: impl Into<String>) -> Self {
        Self::new(ErrorClass::Input, problem)
    }

    /// The environment failed (exit code 3).
    #[cold]
    pub fn environment(problem: impl Into<String>) -> Self {
        Self::new(ErrorClass::Environment, problem)
    }

    /// An input/output error on `path`. A missing file is bad input; everything else is the environment.
    #[cold]
    pub fn io(path: impl AsRef<Path>, error: &std::io::Error) -> Self {
        let class = match error.kind() {
            std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory | std::io::ErrorKind::IsADirectory => {
                ErrorClass::Input
            }
            _ => ErrorClass::Environment,
        };
        Self::new(class, error.to_string()).at(path.as_ref().display().to_string())
    }

    /// Adds an outer place: a file, then a tensor name, JSON path or offset. The outermost is added last.
    #[must_use]
    pub fn at(mut self, place: impl Into<String>) -> Self {
        self.0.places.insert(0, place.into());
        self
    }

    /// What was found.
    #[must_use]
    pub fn found(mut self, found: impl fmt::Display) -> Self {
        self.0.found = Some(found.to_string());
        self
    }

    /// What was expected.
    #[must_use]
    pub fn expected(mut self, expected: impl fmt::Display) -> Self {
        self.0.expected = Some(expected.to_string());
        self
    }

    /// What the reader may do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// The same error as a finding: what is wrong with a thing that is being checked is no bad input. What the
    /// environment did stays its fault.
    #[must_use]
    pub fn into_finding(mut self) -> Self {
        if self.0.class == ErrorClass::Input {
            self.0.class = ErrorClass::Check;
        }
        self
    }

    /// Who has to act.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        self.0.class
    }

    /// The hint, if there is one; it is not part of the `Display` text.
    #[must_use]
    pub fn hint_text(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for place in &self.0.places {
            write!(f, "{place}: ")?;
        }
        f.write_str(&self.0.problem)?;
        match (&self.0.found, &self.0.expected) {
            (Some(found), Some(expected)) => write!(f, ": found {found}, expected {expected}"),
            (Some(found), None) => write!(f, ": found {found}"),
            (None, Some(expected)) => write!(f, ": expected {expected}"),
            (None, None) => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        match self.hint_text() {
            Some(hint) => write!(f, " (hint: {hint})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

/// Adds a place to the error of a result.
pub trait At<T> {
    /// Adds an outer place, made only when there is an error.
    ///
    /// # Errors
    /// The same error with the place added.
    fn at<S: Into<String>>(self, place: impl FnOnce() -> S) -> Result<T>;
}

impl<T> At<T> for Result<T> {
    fn at<S: Into<String>>(self, place: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|error| error.at(place()))
    }
}
