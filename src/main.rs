//! The `aimodel` command.

fn main() -> std::process::ExitCode {
    aimodel::cli::main()
}
