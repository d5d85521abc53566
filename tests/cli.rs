//! The command line as people meet it: each file in `tests/cli` is a list of commands and what they print.
//!
//! `TRYCMD=overwrite cargo test --test cli` writes the files anew.

use std::process::{Command, Output, Stdio};

#[test]
fn commands_print_what_the_files_say() {
    trycmd::TestCases::new()
        // Texts are wrapped for this width.
        .env("COLUMNS", "100")
        .case("tests/cli/*.trycmd")
        .case("tests/cli/*.toml");
}

fn aimodel(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_aimodel"));
    command.args(args).env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE").stdin(Stdio::null());
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_closed_pipe_is_no_error() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = aimodel(&["completions", "bash"]).stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_under_stdout_is_an_error() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = aimodel(&["completions", "bash"]).stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(stderr(&output).starts_with("error: stdout: "), "{}", stderr(&output));
}

#[test]
fn colours_are_for_terminals_or_on_demand() {
    let is_coloured = |command: &mut Command| stderr(&command.output().unwrap()).contains('\u{1b}');
    assert!(!is_coloured(&mut aimodel(&["inspect", "nowhere"])));
    assert!(is_coloured(aimodel(&["inspect", "nowhere"]).env("CLICOLOR_FORCE", "1")));
    assert!(!is_coloured(aimodel(&["inspect", "nowhere"]).env("NO_COLOR", "1")));
}
