//! `aimodel completions`.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::failure::Failure;
use super::output::Output;
use super::{Cli, help};

/// Print a script that completes this command's words in a shell
#[derive(Debug, Args)]
#[command(after_help = help::with_exit_status(EXAMPLES))]
pub(super) struct Options {
    /// The shell
    shell: Shell,
}

const EXAMPLES: &str = "\
Examples:
  aimodel completions bash > ~/.local/share/bash-completion/completions/aimodel
  aimodel completions zsh > ~/.zfunc/_aimodel
  aimodel completions fish > ~/.config/fish/completions/aimodel.fish";

pub(super) fn run(options: &Options, output: &mut Output) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut Cli::command(), "aimodel", &mut script);
    Ok(output.text(&String::from_utf8_lossy(&script))?)
}
