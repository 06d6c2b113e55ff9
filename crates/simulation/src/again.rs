//! Tests of whole processes, which run again in a process that has the mistake of this thread.

use std::process::Command;

use base::planted;

/// Runs a test of this program again; an error if it fails.
pub fn again(test: &str) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args([test, "--exact"]);
    if let Some(bug) = planted::planted() {
        command.env(planted::OF_PROCESS, format!("{bug:?}"));
    }
    let output = command.output().map_err(|error| error.to_string())?;
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.contains("running 1 test"), "there is no test {test}: {told}");
    if output.status.success() { Ok(()) } else { Err(format!("{test} fails")) }
}
