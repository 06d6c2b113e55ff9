//! The README's first session, word for word, against the release binary.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use harness::child::{output, succeeds};
use harness::stave::{Start, Stave};
use harness::totals::Totals;
use harness::tree::{self, Scratch};

/// Where the README's server listens; the one started here has another port.
const ADDRESS: &str = "127.0.0.1:11210";

/// The README's script, what it needs and what it prints.
#[derive(Debug, PartialEq, Eq)]
struct Session<'a> {
    package: &'a str,
    script: &'a str,
    prints: &'a str,
}

/// Runs the session and compares what it prints.
pub fn run() -> Result<Totals> {
    let readme = fs::read_to_string(tree::root().join("README.md"))?;
    let session = session(&readme).context("README.md has no first session in the usual form")?;
    let mut scratch = Scratch::new("readme")?;
    let python = python_with(session.package, &scratch)?;
    let data = scratch.path().join("data");
    let server = Stave::start(&Start { data: &data, log: scratch.path().join("server.log"), more: &[] })?;
    let script = scratch.path().join("first.py");
    fs::write(&script, session.script.replace(ADDRESS, &server.kv))?;
    let printed = output(Command::new(python).arg(&script))?;
    server.stop()?;
    let agreed = printed.trim() == session.prints.trim();
    if !agreed {
        println!("FAIL the README's session printed:\n{printed}instead of:\n{}", session.prints);
        scratch.keep();
    }
    Ok(Totals::one(agreed))
}

/// Finds `pip install PACKAGE`, the text between `<<'PY'` and `PY`, and the block after `It prints:`.
fn session(readme: &str) -> Option<Session<'_>> {
    let package = readme.split_once("pip install ")?.1.lines().next()?;
    let script = readme.split_once("<<'PY'\n")?.1.split_once("\nPY\n")?.0;
    let prints = readme.split_once("It prints:\n\n```\n")?.1.split_once("```")?.0;
    Some(Session { package, script, prints })
}

/// A Python that has the package: the conformance tests' own, or a new environment.
fn python_with(package: &str, scratch: &Scratch) -> Result<PathBuf> {
    let ours = tree::root().join("tests/conformance/python/.venv/bin/python");
    let (name, version) = package.split_once("==").context("the README pins its SDK")?;
    let query = format!("import importlib.metadata as m; assert m.version('{name}') == '{version}'");
    let mut check = Command::new(&ours);
    check.args(["-c", &query]).stderr(Stdio::null());
    if ours.exists() && succeeds(&mut check)? {
        return Ok(ours);
    }
    install(package, &scratch.path().join("venv"))
}

fn install(package: &str, folder: &Path) -> Result<PathBuf> {
    ensure!(succeeds(Command::new("python3").args(["-m", "venv"]).arg(folder))?, "no virtual environment");
    let python = folder.join("bin/python");
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", package]);
    ensure!(succeeds(&mut pip)?, "cannot install {package}");
    Ok(python)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_session() {
        let readme =
            "pip install x==1\ncat > a <<'PY'\nprint(1)\nPY\npython a\n```\n\nIt prints:\n\n```\n1\n```\n";
        assert_eq!(session(readme), Some(Session { package: "x==1", script: "print(1)", prints: "1\n" }));
    }

    #[test]
    fn the_readme_has_one() {
        let readme = fs::read_to_string(tree::root().join("README.md")).unwrap();
        let session = session(&readme).unwrap();
        assert!(session.script.contains(ADDRESS) && session.package.contains("=="));
    }
}
