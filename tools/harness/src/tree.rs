//! Where things are in the tree, and which files belong to it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The root of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("it lies two folders deep").to_owned()
}

/// Cargo's output folder.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The release binary.
pub fn release_binary() -> PathBuf {
    target().join("release/stave")
}

/// The cargo that started us.
pub fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

/// Folders that hold no source of ours.
const FOREIGN: [&str; 6] = ["target", ".git", ".venv", "node_modules", "__pycache__", "golden"];

/// All source files and documents of the tree whose names end in one of `extensions`, with paths relative to the root.
pub fn files(extensions: &[&str]) -> Result<Vec<PathBuf>> {
    let root = root();
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
            let entry = entry?;
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type()?.is_dir() {
                if !FOREIGN.contains(&name.as_str()) {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|e| extensions.iter().any(|wanted| e == *wanted)) {
                found.push(path.strip_prefix(&root).expect("it lies under the root").to_owned());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// A folder of its own under the output folder, removed when it is dropped unless it is kept.
pub struct Scratch {
    path: PathBuf,
    keep: bool,
}

impl Scratch {
    /// Makes an empty one.
    pub fn new(name: &str) -> Result<Scratch> {
        let path = target().join("xtask").join(format!("{name}-{}", std::process::id()));
        if path.exists() {
            fs::remove_dir_all(&path)?;
        }
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Scratch { path, keep: false })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves it in place, for whoever looks for the reason of a failure.
    pub fn keep(&mut self) {
        self.keep = true;
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.keep {
            eprintln!("kept for a look: {}", self.path.display());
        } else {
            // Nothing is lost if this fails: `cargo clean` takes it too.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}
