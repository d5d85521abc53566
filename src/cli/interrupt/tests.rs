use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use super::*;
use crate::bundle::{Staging, Target};

/// Where the other process publishes to.
const OUTPUT: &str = "AIMODEL_TEST_OUTPUT";
/// Whether the other process never looks at the token.
const DEAF: &str = "AIMODEL_TEST_DEAF";

#[test]
#[ignore = "the other process of the tests below"]
fn works_until_it_is_told_to_stop() {
    let Some(output) = std::env::var_os(OUTPUT) else { return };
    let cancel = cancel_on_signals().unwrap();
    let staging = Staging::begin(&Target::new(Path::new(&output), false, false).unwrap(), None, None).unwrap();
    std::fs::write(staging.folder().join("half"), "written").unwrap();
    println!("working");
    let deaf = std::env::var_os(DEAF).is_some();
    while deaf || cancel.check().is_ok() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The other process, at work. Its output stays open for as long as it runs.
struct Worker {
    child: Child,
    _stdout: BufReader<ChildStdout>,
}

impl Worker {
    fn start(output: &Path, deaf: bool) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "cli::interrupt::tests::works_until_it_is_told_to_stop", "--ignored", "--nocapture"]);
        if deaf {
            command.env(DEAF, "1");
        }
        let mut child = command.env(OUTPUT, output).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let begun = stdout.by_ref().lines().map_while(Result::ok).any(|line| line.ends_with("working"));
        assert!(begun, "the other process did not begin");
        Self { child, _stdout: stdout }
    }

    fn send(&self, signal: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }
}

#[test]
fn a_signal_leaves_nothing_behind() {
    for signal in ["-INT", "-TERM", "-HUP"] {
        let folder = tempfile::tempdir().unwrap();
        let mut worker = Worker::start(&folder.path().join("out"), false);
        assert!(folder.path().read_dir().unwrap().next().is_some(), "the work folder is there");
        worker.send(signal);
        worker.child.wait().unwrap();
        assert_eq!(folder.path().read_dir().unwrap().count(), 0, "{signal}");
    }
}

#[test]
fn a_second_signal_ends_work_that_does_not_listen() {
    let folder = tempfile::tempdir().unwrap();
    let mut worker = Worker::start(&folder.path().join("out"), true);
    while worker.child.try_wait().unwrap().is_none() {
        worker.send("-INT");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(worker.child.wait().unwrap().code(), Some(INTERRUPTED));
}
