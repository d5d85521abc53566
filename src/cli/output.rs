//! The one place that prints.

use std::fmt::Display;
use std::io::{self, Write};

use clap::builder::styling::{AnsiColor, Style};
use serde::Serialize;

use super::options::OutputOptions;
use crate::Error;

const ERROR: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const HINT: Style = AnsiColor::Cyan.on_default();

/// Results on stdout, everything else on stderr, as `--quiet` and `--json` have it.
pub(super) struct Output {
    stdout: Box<dyn Write>,
    stderr: Box<dyn Write>,
    options: OutputOptions,
}

impl Output {
    /// To the process's own streams. Colours go to terminals only, and not where `NO_COLOR` is set.
    pub(super) fn to_stdio(options: OutputOptions) -> Self {
        Self { stdout: Box::new(io::stdout()), stderr: Box::new(anstream::stderr()), options }
    }

    /// Whether progress may be shown.
    pub(super) const fn shows_progress(&self) -> bool {
        !self.options.quiet && !self.options.json
    }

    /// What the command was asked for, as JSON or as text.
    pub(super) fn answer(&mut self, answer: &(impl Serialize + Display)) -> io::Result<()> {
        let text = if self.options.json { serde_json::to_string_pretty(answer)? } else { answer.to_string() };
        self.text(&text)
    }

    /// What the command has done; with `--quiet` it goes without saying.
    pub(super) fn done(&mut self, report: &(impl Serialize + Display)) -> io::Result<()> {
        if self.options.quiet && !self.options.json { Ok(()) } else { self.answer(report) }
    }

    /// A text that has one form only.
    pub(super) fn text(&mut self, text: &str) -> io::Result<()> {
        self.stdout.write_all(text.as_bytes())?;
        if !text.ends_with('\n') {
            self.stdout.write_all(b"\n")?;
        }
        self.stdout.flush()
    }

    /// Something the user should know, unless they asked not to.
    pub(super) fn warning(&mut self, text: impl Display) {
        if !self.options.quiet {
            self.labelled(WARNING, "warning", text);
        }
    }

    /// Something that was asked to be told about, on stderr.
    pub(super) fn note(&mut self, text: impl Display) {
        if !self.options.quiet {
            self.labelled(HINT, "note", text);
        }
    }

    /// What went wrong, and what may be done about it.
    pub(super) fn error(&mut self, error: &Error) {
        self.labelled(ERROR, "error", error);
        if let Some(hint) = error.hint_text() {
            self.labelled(HINT, "hint", hint);
        }
    }

    fn labelled(&mut self, style: Style, label: &str, text: impl Display) {
        // Where stderr is closed there is nobody to tell.
        let _ = writeln!(self.stderr, "{style}{label}:{style:#} {text}");
    }
}

#[cfg(test)]
pub(super) use captured::Captured;

#[cfg(test)]
mod captured {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// What was written to an output made by [`Output::captured`].
    #[derive(Clone, Default)]
    pub(in crate::cli) struct Captured {
        stdout: Buffer,
        stderr: Buffer,
    }

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Buffer {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Captured {
        pub(in crate::cli) fn stdout(&self) -> String {
            self.stdout.text()
        }

        pub(in crate::cli) fn stderr(&self) -> String {
            self.stderr.text()
        }
    }

    impl Output {
        /// To memory, without colours.
        pub(in crate::cli) fn captured(options: OutputOptions) -> (Self, Captured) {
            let captured = Captured::default();
            let stderr = anstream::StripStream::new(Box::new(captured.stderr.clone()) as Box<dyn Write>);
            let stdout = Box::new(captured.stdout.clone());
            (Self { stdout, stderr: Box::new(stderr), options }, captured)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Page {
        pages: usize,
    }

    impl Display for Page {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "{} pages", self.pages)
        }
    }

    fn written(quiet: bool, json: bool) -> Captured {
        let (mut output, captured) = Output::captured(OutputOptions { quiet, json });
        output.answer(&Page { pages: 1 }).unwrap();
        output.done(&Page { pages: 2 }).unwrap();
        output.warning("a link");
        output.error(&Error::input("too short").hint("download it again"));
        captured
    }

    #[test]
    fn people_get_text_and_machines_get_json() {
        assert_eq!(written(false, false).stdout(), "1 pages\n2 pages\n");
        assert_eq!(written(false, true).stdout(), "{\n  \"pages\": 1\n}\n{\n  \"pages\": 2\n}\n");
        let stderr = "warning: a link\nerror: too short\nhint: download it again\n";
        assert_eq!(written(false, false).stderr(), stderr);
    }

    #[test]
    fn quiet_leaves_answers_and_errors() {
        let captured = written(true, false);
        assert_eq!(captured.stdout(), "1 pages\n");
        assert_eq!(captured.stderr(), "error: too short\nhint: download it again\n");
        assert_eq!(written(true, true).stdout(), written(false, true).stdout());
    }
}
