//! Where the program is.

use std::env;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;

/// The program: the one given, `STAVE_BIN`, one on the `PATH`, one of the repository, or one that is built there.
pub fn find_binary(given: Option<&str>) -> Result<String, Error> {
    let named =
        given.map(str::to_owned).or_else(|| env::var("STAVE_BIN").ok().filter(|name| !name.is_empty()));
    if let Some(named) = named {
        return match is_program(Path::new(&named)) {
            true => Ok(named),
            false => {
                Err(Error(format!("{named} is not an executable file: give the path of the stave program")))
            }
        };
    }
    if let Some(path) = on_path("stave") {
        return Ok(path.display().to_string());
    }
    for root in repositories() {
        let built = ["release", "debug"].map(|profile| root.join("target").join(profile).join("stave"));
        if let Some(path) = built.iter().find(|path| is_program(path)) {
            return Ok(path.display().to_string());
        }
        if on_path("cargo").is_some() {
            build(&root)?;
            return Ok(built[0].display().to_string());
        }
    }
    Err(Error(
        "no stave program was found: give Options::binary, set STAVE_BIN, put stave on the PATH, or build it with \
         `cargo build --release` in the Stave repository"
            .to_owned(),
    ))
}

fn build(root: &Path) -> Result<(), Error> {
    eprintln!("building stave in {}, which takes minutes", root.display());
    let mut cargo = Command::new("cargo");
    let status = cargo.args(["build", "--release", "--package", "stave"]).current_dir(root).status();
    let status = status.map_err(|error| Error::io("cannot run cargo", error))?;
    match status.success() {
        true => Ok(()),
        false => {
            Err(Error(format!("cargo build --release failed in {}: see what it printed", root.display())))
        }
    }
}

/// The Stave repositories around the working directory and this package.
fn repositories() -> Vec<PathBuf> {
    let here = env::current_dir().unwrap_or_default();
    let starts = [here, PathBuf::from(env!("CARGO_MANIFEST_DIR"))];
    let is_root = |folder: &&Path| folder.join("crates/stave/Cargo.toml").is_file();
    starts.iter().flat_map(|start| start.ancestors().filter(is_root).map(Path::to_owned)).collect()
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(name)).find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}
