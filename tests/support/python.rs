//! Apple's tools, which come as Python packages.
//!
//! A machine without them has not run these tests: they fail and say what to install.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::LazyLock;

use aimodel::runtime::Asset;
use aimodel::runtime::coreai::{CoreAi, PYTHON_VARIABLE, interpreter};

static PYTHON: LazyLock<PathBuf> = LazyLock::new(|| {
    let python = interpreter(None);
    let check = Command::new(&python).args(["-c", "import coreai.runtime, coreai_doctor"]).output();
    let reason = match check {
        Ok(output) if output.status.success() => return python,
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    panic!(
        "{} has not the packages of tests/requirements.txt: {reason}\n\
         hint: run `make venv`, or name another interpreter with {PYTHON_VARIABLE}",
        python.display()
    );
});

/// The interpreter that has the packages of `tests/requirements.txt`.
pub fn python() -> PathBuf {
    PYTHON.clone()
}

/// Runs Python with these arguments to its end.
pub fn run(args: &[&str]) -> Output {
    Command::new(python()).args(args).output().unwrap()
}

/// Apple's runtime over these assets.
pub fn core_ai(assets: BTreeMap<Asset, PathBuf>) -> CoreAi {
    CoreAi::start(&python(), assets).unwrap()
}
