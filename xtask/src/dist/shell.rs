//! Completions and manual pages, which the program makes of itself.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use harness::child::output;

use super::archive::{self, Entry};

/// Shells, and where a package has their completions.
pub const SHELLS: [(&str, &str); 3] = [
    ("bash", "bash-completion/completions/stave"),
    ("zsh", "zsh/vendor-completions/_stave"),
    ("fish", "fish/vendor_completions.d/stave.fish"),
];

/// What shells and `man` are given.
pub struct ShellFiles {
    /// By shell, in the order of the table.
    pub completions: [Vec<u8>; SHELLS.len()],
    /// Manual pages by name.
    pub pages: Vec<(String, Vec<u8>)>,
}

impl ShellFiles {
    /// What a program says of itself; `out` is a folder for what lies around meanwhile.
    pub fn of(binary: &Path, out: &Path) -> Result<ShellFiles> {
        let mut completions = [const { Vec::new() }; SHELLS.len()];
        for ((shell, _), script) in SHELLS.iter().zip(&mut completions) {
            *script = output(Command::new(binary).args(["completions", shell]))?.into_bytes();
        }
        let folder = out.join("man");
        std::fs::create_dir_all(&folder)?;
        output(Command::new(binary).arg("man").arg(&folder))?;
        let mut pages = Vec::new();
        for page in std::fs::read_dir(&folder)? {
            let page = page?;
            let bytes = std::fs::read(page.path()).with_context(|| page.path().display().to_string())?;
            pages.push((page.file_name().to_string_lossy().into_owned(), bytes));
        }
        // The order of a folder is not the same everywhere.
        pages.sort();
        std::fs::remove_dir_all(&folder)?;
        Ok(ShellFiles { completions, pages })
    }

    /// Under `top`, as they are.
    pub fn in_archive(&self, top: &str) -> Vec<Entry> {
        let scripts = SHELLS.iter().zip(&self.completions).map(|((_, path), script)| {
            let name = path.rsplit('/').next().unwrap_or(path);
            let name = if name == "stave" { "stave.bash" } else { name };
            Entry::new(format!("{top}/completions/{name}"), script.clone(), 0o644)
        });
        let pages = self.pages.iter();
        let pages = pages.map(|(name, page)| Entry::new(format!("{top}/man/{name}"), page.clone(), 0o644));
        scripts.chain(pages).collect()
    }

    /// Where Debian's shells and `man` look.
    pub fn in_package(&self) -> Result<Vec<Entry>> {
        let scripts = SHELLS
            .iter()
            .zip(&self.completions)
            .map(|((_, path), script)| Ok(Entry::new(format!("./usr/share/{path}"), script.clone(), 0o644)));
        let pages = self.pages.iter().map(|(name, page)| {
            let path = format!("./usr/share/man/man1/{name}.gz");
            Ok(Entry::new(path, archive::gzip(page)?, 0o644))
        });
        scripts.chain(pages).collect()
    }
}
