//! The keys of a log that is encrypted: in the folder of its file, wrapped like those of the folder of data (record 171).
//!
//! Whether the log is encrypted is decided at the start, as for all files of the node.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::encryption::{DataKeys, EncryptedDisk, KeyRing, WrappingKeys, key_of_file};
use base::env::{Disk, Env};
use node::Node;
use node::at_rest::{self, rekey};

/// What the file of the log is encrypted with.
#[derive(Default)]
pub(super) struct LogKeys {
    /// Whether it is; `None` before the start has decided it.
    is_encrypted: Option<bool>,
    /// The folder whose keys are in use.
    open: Option<(PathBuf, DataKeys)>,
    /// Keys that the node does not exchange yet.
    ring: Option<KeyRing>,
}

impl LogKeys {
    /// The start has a wrapping key, or has none.
    pub(super) fn decide(&mut self, is_encrypted: bool) {
        self.is_encrypted.get_or_insert(is_encrypted);
    }

    /// The disk that the log's file is written to. The first time for a folder, its keys are opened or made.
    pub(super) fn disk(
        &mut self,
        env: &Env,
        file: &Path,
        wrapping: Option<&WrappingKeys>,
        rotates: bool,
    ) -> Result<Arc<dyn Disk>, String> {
        let told = |error: &dyn std::fmt::Display| format!("log-file {}: {error}", file.display());
        if self.is_encrypted != Some(true) {
            // Plain lines behind encrypted ones could be read by no tool, and a start with the key would leave them so.
            return match key_of_file(&*env.beneath().disk, file) {
                Ok(Some(_)) => Err(told(
                    &"the file is encrypted, and no key is given: give the key (--encryption-key-file), or name another file",
                )),
                _ => Ok(Arc::clone(&env.disk)),
            };
        }
        let file = std::path::absolute(file).map_err(|error| told(&error))?;
        let folder = file.parent().unwrap_or(&file).to_owned();
        let keys = match &self.open {
            Some((open, keys)) if *open == folder => keys.clone(),
            _ => {
                let wrapping = wrapping
                    .ok_or_else(|| told(&"the log is encrypted, and the key is not given any more"))?;
                env.disk.create_dir_all(&folder).map_err(|error| told(&error))?;
                let ring = at_rest::of_log(env, &file, wrapping, rotates).map_err(|error| told(&error))?;
                let keys = ring.keys().clone();
                (self.open, self.ring) = (Some((folder, keys.clone())), Some(ring));
                keys
            }
        };
        Ok(EncryptedDisk::env(env, keys).disk)
    }

    /// Has a node exchange them with its own.
    pub(super) fn hand_over(&mut self, node: &Node) {
        if let Some(ring) = self.ring.take() {
            rekey::add_log(node, ring);
        }
    }
}

#[cfg(test)]
mod tests {
    use base::env::OpenMode;

    use super::*;

    #[test]
    fn without_the_key_nothing_is_written_to_an_encrypted_log() {
        let (env, folder) = (Env::real(), tempfile::tempdir().expect("a folder"));
        let file = folder.path().join("stave.log");
        let wrapping = WrappingKeys::parse(&"7".repeat(64), "the test").expect("a key");
        let log = |key: Option<&WrappingKeys>| {
            let mut keys = LogKeys::default();
            keys.decide(key.is_some());
            keys.disk(&env, &file, key, false)
        };
        assert!(log(None).is_ok(), "there is no file yet");
        let disk = log(Some(&wrapping)).expect("its keys are made");
        let opened = disk.open(&file, OpenMode::Create).expect("a file");
        opened.write_at(b"line", 0).expect("written");
        let why = log(None).err().expect("it is encrypted");
        assert!(why.contains("stave.log: the file is encrypted, and no key is given"), "{why}");
        assert!(log(Some(&wrapping)).is_ok());
        env.disk.remove_file(&file).expect("it goes");
        let plain = env.disk.open(&file, OpenMode::Create).expect("a file");
        plain.write_at(b"a line that is plain", 0).expect("written");
        assert!(log(None).is_ok());
    }
}
