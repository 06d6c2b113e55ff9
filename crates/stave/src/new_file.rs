//! A new file that a command writes from its beginning to its end.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use base::env::{Disk, Env, File, OpenMode};

use crate::cli::WrongArguments;

/// A new file. If it is dropped before [`NewFile::keep`], it is removed: a command that fails leaves no half of one.
pub(crate) struct NewFile {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    file: Arc<dyn File>,
    end: u64,
    is_kept: bool,
}

impl NewFile {
    /// Makes the file, for its owner alone. A file that is there already is a wrong argument.
    pub(crate) fn create(env: &Env, path: &Path) -> anyhow::Result<NewFile> {
        let file = env.disk.open(path, OpenMode::CreateNew).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                WrongArguments(format!("{} is there already: name another file", path.display())).into()
            }
            _ => anyhow::Error::new(error).context(format!("cannot write {}", path.display())),
        })?;
        Ok(NewFile { disk: Arc::clone(&env.disk), path: path.to_owned(), file, end: 0, is_kept: false })
    }

    /// Makes it durable and keeps it; its length in bytes.
    pub(crate) fn keep(mut self) -> anyhow::Result<u64> {
        self.file.sync_data().with_context(|| format!("cannot write {}", self.path.display()))?;
        self.is_kept = true;
        Ok(self.end)
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write_at(bytes, self.end)?;
        self.end += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_kept {
            // What cannot be removed is no worse than what failed before.
            let _ = self.disk.remove_file(&self.path);
        }
    }
}
