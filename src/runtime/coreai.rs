//! Apple's Core AI runtime, driven through a Python process.
//!
//! Apple ships the runtime as a Python package only, so a small driver runs in an interpreter of the user's and is
//! told what to do through a pipe. The process keeps assets, functions and states; only inputs and outputs cross.

mod pipe;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use tempfile::NamedTempFile;

use pipe::{Inputs, Reply, Request, Sent, StateSpec};

use super::{Asset, Call, Outputs, Runtime, State};
use crate::{Error, Result};

const DRIVER: &str = include_str!("coreai_driver.py");

/// The package that holds Apple's runtime, at the version the driver is written for.
pub const PACKAGE: &str = "coreai-core==1.0.0b3";

/// Environment variable that names the Python interpreter.
pub const PYTHON_VARIABLE: &str = "AIMODEL_PYTHON";

/// Most bytes of the process's log shown in an error, from its end.
const LOG_TAIL: u64 = 2048;

/// A running Core AI process. It ends when this is dropped.
#[derive(Debug)]
pub struct CoreAi {
    process: Process,
    version: String,
    assets: BTreeMap<Asset, PathBuf>,
    loaded: BTreeSet<Asset>,
    sent: Sent,
}

/// The Python interpreter to use: the given one, else the one named by [`PYTHON_VARIABLE`], else that of a virtual
/// environment `.venv` in the current folder, else `python3` of the search path.
#[must_use]
pub fn interpreter(given: Option<&Path>) -> PathBuf {
    if let Some(given) = given {
        return given.to_owned();
    }
    if let Some(named) = std::env::var_os(PYTHON_VARIABLE).filter(|value| !value.is_empty()) {
        return named.into();
    }
    let local = Path::new(".venv/bin/python");
    if local.is_file() { local.to_owned() } else { "python3".into() }
}

impl CoreAi {
    /// Starts the process in the interpreter `python`. Assets are loaded when they are first used.
    ///
    /// # Errors
    /// When the interpreter cannot be started or has no Core AI package.
    pub fn start(python: &Path, assets: BTreeMap<Asset, PathBuf>) -> Result<Self> {
        let mut process = Process::start(python)?;
        match process.receive()? {
            Reply::Ready(version) => {
                Ok(Self { process, version, assets, loaded: BTreeSet::new(), sent: Sent::default() })
            }
            Reply::Failed(reason) => Err(Error::environment("Python has no usable Core AI package")
                .at(process.python.clone())
                .found(reason)
                .hint(format!(
                    "install it with `pip install {PACKAGE}`, or name another interpreter with {PYTHON_VARIABLE}"
                ))),
            Reply::Done(_) => Err(process.ended("it did not greet")),
        }
    }

    /// Version of the Core AI package.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Loads an asset, which has Core AI parse and verify its program; nothing is done when it is loaded already.
    ///
    /// # Errors
    /// When there is no such asset, or Core AI refuses it.
    pub fn load(&mut self, asset: Asset) -> Result<()> {
        if self.loaded.contains(&asset) {
            return Ok(());
        }
        let Some(path) = self.assets.get(&asset) else {
            return Err(Error::input(format!("the bundle has no {asset} asset")));
        };
        let name = path.display().to_string();
        // Core AI ends the whole process when the folder is something else.
        if !path.join("main.mlirb").is_file() {
            return Err(Error::input("not an asset").at(name).expected("a folder that holds main.mlirb"));
        }
        let refused = |reason: String| Error::check("Core AI does not load the asset").at(name.clone()).found(reason);
        // A damaged asset ends the process too: that is said of the asset, not of the environment.
        let answer = self.process.ask(&Request::Load { asset: asset.name(), path: &name }, &Inputs::NONE);
        answer.map_err(|ended| refused(ended.to_string()))?.map_err(refused)?;
        self.loaded.insert(asset);
        Ok(())
    }

    /// Error of a request about a loaded asset.
    fn failed(&self, asset: Asset, what: String, reason: &str) -> Error {
        let place = self.assets.get(&asset).map_or_else(|| asset.to_string(), |path| path.display().to_string());
        if reason.to_lowercase().contains("unresolved symbol") {
            return Error::environment("Core AI has no Metal kernels on this system")
                .at(what)
                .at(place)
                .found(reason)
                .hint(
                    "Metal kernels run on Apple systems only; a bundle exported with `--moe native` runs everywhere",
                );
        }
        Error::check("Core AI failed").at(what).at(place).found(reason)
    }
}

impl Runtime for CoreAi {
    fn name(&self) -> &str {
        "core-ai"
    }

    fn reset_states(&mut self, asset: Asset, states: &[State]) -> Result<()> {
        self.load(asset)?;
        let states = states.iter().map(|state| StateSpec { name: &state.name, shape: &state.shape }).collect();
        let answer = self.process.ask(&Request::Reset { asset: asset.name(), states }, &Inputs::NONE)?;
        answer.map(|_| ()).map_err(|reason| self.failed(asset, "states".to_owned(), &reason))
    }

    fn run(&mut self, call: &Call<'_>) -> Result<Outputs> {
        self.load(call.asset)?;
        let inputs = self.sent.next(&call.inputs);
        let request = Request::Run {
            asset: call.asset.name(),
            function: call.function,
            inputs: inputs.specs(),
            states: &call.states,
        };
        let answer = self.process.ask(&request, &inputs)?;
        answer.map_err(|reason| self.failed(call.asset, format!("function `{}`", call.function), &reason))
    }
}

/// The Python process and the three ends of it.
#[derive(Debug)]
struct Process {
    python: String,
    child: Child,
    /// None once closed, which tells the process to end.
    requests: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
    log: NamedTempFile,
}

impl Process {
    fn start(python: &Path) -> Result<Self> {
        let name = python.display().to_string();
        let cannot = |e: std::io::Error| {
            Error::environment(format!("cannot start Python: {e}"))
                .at(name.clone())
                .hint(format!("name an interpreter that has {PACKAGE} with {PYTHON_VARIABLE}"))
        };
        // A file rather than a pipe: nobody has to empty it while the process works.
        let log = NamedTempFile::new().map_err(cannot)?;
        let mut child = Command::new(python)
            .args(["-u", "-c", DRIVER])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log.reopen().map_err(cannot)?)
            .spawn()
            .map_err(cannot)?;
        let (Some(requests), Some(replies)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::environment("the Core AI process has no pipes").at(name));
        };
        Ok(Self { python: name, child, requests: Some(requests), replies: BufReader::new(replies), log })
    }

    /// Sends a request and waits for its answer: the outputs, or why it failed.
    fn ask(&mut self, request: &Request<'_>, inputs: &Inputs<'_>) -> Result<Result<Outputs, String>> {
        let logged = self.log_size();
        let sent = match &mut self.requests {
            Some(requests) => pipe::send(requests, request, inputs),
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        };
        if let Err(e) = sent {
            return Err(self.ended(&e.to_string()));
        }
        match self.receive()? {
            Reply::Done(outputs) => Ok(Ok(outputs)),
            Reply::Failed(reason) => Ok(Err(reason + &self.log_since(logged))),
            Reply::Ready(_) => Err(self.ended("it greeted twice")),
        }
    }

    fn receive(&mut self) -> Result<Reply> {
        match pipe::receive(&mut self.replies)? {
            Some(reply) => Ok(reply),
            None => Err(self.ended("it closed the pipe")),
        }
    }

    /// Ends the process and says how it went and what it logged last.
    fn ended(&mut self, reason: &str) -> Error {
        self.requests = None;
        let status = self.child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
        Error::environment(format!("the Core AI process cannot go on: {reason}"))
            .at(self.python.clone())
            .found(format!("{status}{}", self.log_since(0)))
    }

    fn log_size(&self) -> u64 {
        self.log.as_file().metadata().map_or(0, |metadata| metadata.len())
    }

    /// What the process logged after the first `start` bytes, as the end of a sentence; of much, the last part.
    fn log_since(&mut self, start: u64) -> String {
        let start = start.max(self.log_size().saturating_sub(LOG_TAIL));
        let mut bytes = Vec::new();
        let read = self.log.seek(SeekFrom::Start(start)).and_then(|_| self.log.read_to_end(&mut bytes));
        let text = String::from_utf8_lossy(&bytes);
        match (read, text.trim()) {
            (Err(e), _) => format!("; its log cannot be read: {e}"),
            (Ok(_), "") => String::new(),
            (Ok(_), text) => format!("; it logged {text:?}"),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process removes its compiled copies of the assets when it ends by itself.
        self.requests = None;
        let _ = self.child.wait();
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorClass;

    #[test]
    fn an_interpreter_that_is_not_there_is_an_environment_error() {
        let error = CoreAi::start(Path::new("no/such/python"), BTreeMap::new()).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Environment);
        assert!(error.to_string().starts_with("no/such/python: cannot start Python"), "{error}");
        assert!(error.hint_text().is_some_and(|hint| hint.contains(PYTHON_VARIABLE)));
    }

    #[test]
    fn a_process_that_ends_without_a_word_is_an_environment_error() {
        let error = CoreAi::start(Path::new("true"), BTreeMap::new()).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Environment);
        assert!(error.to_string().contains("it closed the pipe: found exit status: 0"), "{error}");
    }

    #[test]
    fn the_given_interpreter_comes_first() {
        assert_eq!(interpreter(Some(Path::new("mine"))), Path::new("mine"));
    }

    #[test]
    fn an_asset_that_is_not_there_is_named_before_the_process_is_asked() {
        let mut ready = greeting_process(BTreeMap::from([(Asset::Decoder, PathBuf::from("no/such.aimodel"))]));
        let error = ready.reset_states(Asset::Decoder, &[]).unwrap_err();
        assert_eq!(error.to_string(), "no/such.aimodel: not an asset: expected a folder that holds main.mlirb");
        let call = Call { asset: Asset::Vision, function: "main", inputs: Vec::new(), states: Vec::new() };
        assert_eq!(ready.run(&call).unwrap_err().to_string(), "the bundle has no vision asset");
    }

    #[test]
    fn a_kernel_that_cannot_run_here_is_told_from_a_failed_check() {
        let path = PathBuf::from("decoder.aimodel");
        let runtime = greeting_process(BTreeMap::from([(Asset::Decoder, path)]));
        let kernel = runtime.failed(Asset::Decoder, "function `decode`".to_owned(), "Unresolved symbol gather_qmm");
        assert_eq!(kernel.class(), ErrorClass::Environment);
        assert!(kernel.to_string().starts_with("decoder.aimodel: function `decode`: "), "{kernel}");
        assert!(kernel.hint_text().is_some_and(|hint| hint.contains("--moe native")));
        let other = runtime.failed(Asset::Decoder, "function `decode`".to_owned(), "ValueError: shape");
        assert_eq!(other.class(), ErrorClass::Check);
    }

    /// A runtime whose process is anything that runs.
    fn greeting_process(assets: BTreeMap<Asset, PathBuf>) -> CoreAi {
        let process = Process::start(Path::new("true")).unwrap();
        CoreAi { process, version: "1.0".to_owned(), assets, loaded: BTreeSet::new(), sent: Sent::default() }
    }
}
