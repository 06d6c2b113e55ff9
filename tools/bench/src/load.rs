//! The load generator, `stave bench`, run against a server.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use harness::stave::{BUCKET, PASSWORD, Stave, USER};
use harness::tree;
use serde_json::Value;

/// A server under load.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its name in tables.
    pub name: &'static str,
    /// What it speaks, as `stave bench` calls it.
    pub protocol: &'static str,
    /// HOST:PORT.
    pub address: String,
    /// Its process.
    pub pid: u32,
    /// The CA that has signed its certificate, if it is spoken with by TLS.
    pub ca: Option<PathBuf>,
}

impl Peer {
    /// Our own server.
    pub fn stave(name: &'static str, server: &Stave) -> Peer {
        Peer { name, protocol: "couchbase", address: server.kv.clone(), pid: server.pid(), ca: None }
    }

    /// Runs the load generator to its end; what it printed as JSON.
    pub fn load<S: AsRef<str>>(&self, arguments: &[S]) -> Result<Value> {
        self.load_by(&tree::release_binary(), arguments)
    }

    /// The same with the load generator of another program.
    pub fn load_by<S: AsRef<str>>(&self, program: &Path, arguments: &[S]) -> Result<Value> {
        let mut command = self.plain(program, arguments);
        command.arg("--json");
        self.finish(command)
    }

    /// Runs the load generator to its end; it prints its tables.
    pub fn show<S: AsRef<str>>(&self, arguments: &[S]) -> Result<()> {
        let status =
            self.plain(&tree::release_binary(), arguments).status().context("cannot run stave bench")?;
        ensure!(status.success(), "stave bench against {} ended with {status}", self.name);
        Ok(())
    }

    fn plain<S: AsRef<str>>(&self, program: &Path, arguments: &[S]) -> Command {
        let mut command = Command::new(program);
        command.args(["bench", "--quiet", "--addr", &self.address, "--protocol", self.protocol]);
        command.args(["--username", USER, "--password", PASSWORD, "--bucket", BUCKET]);
        command.args(["--server-pid", &self.pid.to_string()]);
        if let Some(ca) = &self.ca {
            command.arg("--tls-ca").arg(ca);
        }
        command.args(arguments.iter().map(AsRef::as_ref));
        command
    }

    fn finish(&self, mut command: Command) -> Result<Value> {
        let output = command.stderr(Stdio::inherit()).output().context("cannot run stave bench")?;
        ensure!(output.status.success(), "stave bench against {} ended with {}", self.name, output.status);
        let text = String::from_utf8_lossy(&output.stdout);
        last_json(&text).context("stave bench printed no JSON")
    }
}

/// The last line of JSON in what a program printed.
pub fn last_json(text: &str) -> Option<Value> {
    text.lines().rev().find_map(|line| line.starts_with('{').then(|| serde_json::from_str(line).ok())?)
}

/// Refuses a run in which anything was not as it should be.
pub fn ensure_clean(name: &str, result: &Value) -> Result<()> {
    let (misses, errors) = (number(result, "/misses")?, &result["errors"]);
    if misses > 0.0 || errors.as_object().is_none_or(|errors| !errors.is_empty()) {
        bail!("{name}: {misses} keys were not found, errors {errors}: the figures would say nothing");
    }
    Ok(())
}

/// A figure.
pub fn number(result: &Value, pointer: &str) -> Result<f64> {
    let value = result.pointer(pointer).and_then(Value::as_f64);
    value.with_context(|| format!("there is no `{pointer}` in what was reported"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_last_line_of_json_counts() {
        assert_eq!(last_json("{\"a\":1}\ntext\n{\"a\":2}\n{no\n\n"), Some(json!({ "a": 2 })));
        assert_eq!(last_json("text\n"), None);
    }

    #[test]
    fn an_error_spoils_a_run() {
        assert!(ensure_clean("x", &json!({ "misses": 0, "errors": {} })).is_ok());
        assert!(ensure_clean("x", &json!({ "misses": 1, "errors": {} })).is_err());
        assert!(ensure_clean("x", &json!({ "misses": 0, "errors": { "ETMPFAIL": 1 } })).is_err());
        assert!(ensure_clean("x", &json!({ "misses": 0 })).is_err());
    }
}
