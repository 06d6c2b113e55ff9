//! Keys of encrypted backups (record 0176): each bucket's folder has data keys, wrapped by a key that the operator has.
//!
//! # Guarantees
//!
//! - Without the wrapping key nothing of an encrypted backup is read, and nothing is written in its place.
//! - If a key is given, everything that is written is encrypted with it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};

use base::encryption::{KeyError, KeyRing, Sealer, WrappingKeys};
use base::env::Env;
use clap::Args;

use super::BackupError;
use super::manifest::BackupManifest;
use crate::key_source::{KEY_COMMAND_LIMIT, KeySource, warn_of_rights};

/// The environment variable with the key itself.
const KEY: &str = "STAVE_BACKUP_KEY";
/// What an encrypted manifest is bound to, with the identifier of its backup.
const MANIFEST_LABEL: &[u8] = b"stave backup manifest ";

/// What these flags are under in help texts.
const HEADING: &str = "Encrypted backups";

/// Where the key of backups comes from.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct BackupKeyFlags {
    /// The key of encrypted backups, in a file: 64 hexadecimal digits, as `openssl rand -hex 32` prints; further lines hold
    /// earlier keys, which only decrypt. The key itself may be in STAVE_BACKUP_KEY
    #[arg(long, value_name = "FILE", env = "STAVE_BACKUP_KEY_FILE", help_heading = HEADING)]
    pub(super) key_file: Option<PathBuf>,
    /// A command of the shell that prints that key, for keys that a service keeps
    #[arg(
        long,
        value_name = "COMMAND",
        env = "STAVE_BACKUP_KEY_COMMAND",
        conflicts_with = "key_file",
        help_heading = HEADING
    )]
    pub(super) key_command: Option<String>,
}

impl BackupKeyFlags {
    /// The key that was given.
    pub(super) fn keys(&self, env: &Env) -> anyhow::Result<Option<WrappingKeys>> {
        let source = KeySource {
            file: self.key_file.as_deref(),
            command: self.key_command.as_deref(),
            command_flag: "--key-command",
            variable: KEY,
            limit: KEY_COMMAND_LIMIT,
        };
        warn_of_rights(self.key_file.as_deref());
        source.read(env, &AtomicBool::new(false))
    }
}

/// The key that was given, and what it has unwrapped, by the folder of the bucket.
#[derive(Default)]
pub(super) struct BackupKeys {
    wrapping: Option<WrappingKeys>,
    sealers: Mutex<BTreeMap<PathBuf, Option<Sealer>>>,
}

impl BackupKeys {
    pub(super) fn new(wrapping: Option<WrappingKeys>) -> BackupKeys {
        BackupKeys { wrapping, sealers: Mutex::default() }
    }

    /// Whether there is a key.
    pub(super) fn is_given(&self) -> bool {
        self.wrapping.is_some()
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Option<Sealer>>> {
        self.sealers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What reads the backups in a folder of a bucket; `None` if none of them is encrypted.
    pub(super) fn to_read(&self, env: &Env, folder: &Path) -> Result<Option<Sealer>, BackupError> {
        if let Some(known) = self.known().get(folder) {
            return Ok(known.clone());
        }
        let place = folder.display().to_string();
        let found = KeyRing::look(env, folder, &place, self.wrapping.as_ref());
        let keys = found.map_err(|error| refused(folder, error))?;
        let sealer = keys.and_then(|keys| Sealer::new(env, &keys));
        self.known().insert(folder.to_owned(), sealer.clone());
        Ok(sealer)
    }

    /// What encrypts what is written there, with keys that are made if there are none; `None` if nothing is to be encrypted.
    pub(super) fn to_write(&self, env: &Env, folder: &Path) -> Result<Option<Sealer>, BackupError> {
        let (place, encrypts) = (folder.display().to_string(), self.wrapping.is_some());
        let wrapping = self.wrapping.as_ref();
        let ring = KeyRing::open(env, folder, &place, wrapping, encrypts, |_| ());
        let ring = ring.map_err(|error| refused(folder, error))?;
        let sealer = ring.and_then(|ring| Sealer::new(env, ring.keys()));
        self.known().insert(folder.to_owned(), sealer.clone());
        Ok(sealer)
    }
}

/// The same as an error of a node's keys, in the words of this command's flags.
fn refused(folder: &Path, error: KeyError) -> BackupError {
    let folder = folder.display();
    match error {
        KeyError::NotGiven(_) => BackupError::Key(format!(
            "the backups in {folder} are encrypted, and no key was given: give it with --key-file, --key-command or in {KEY}"
        )),
        KeyError::Other { wanted, given, .. } => BackupError::Key(format!(
            "the backups in {folder} are encrypted under the key {wanted}, and the keys that were given are {given}: give the \
             right one with --key-file, --key-command or in {KEY}"
        )),
        KeyError::File(error) => error.into(),
        other => BackupError::Key(other.to_string()),
    }
}

fn bound(id: &str) -> Vec<u8> {
    [MANIFEST_LABEL, id.as_bytes()].concat()
}

/// The content of an encrypted manifest.
pub(super) fn seal_manifest(sealer: &Sealer, id: &str, content: &[u8]) -> Vec<u8> {
    let mut piece = Vec::new();
    sealer.seal(&bound(id), content, &mut piece);
    piece
}

/// The manifest in it. `path` is for errors.
pub(super) fn open_manifest(
    sealer: Option<&Sealer>,
    id: &str,
    piece: &[u8],
    path: &Path,
) -> Result<BackupManifest, BackupError> {
    let sealer = sealer.ok_or_else(|| no_keys(path))?;
    let content = sealer.open(&bound(id), piece);
    let content = content.map_err(|fault| BackupError::damaged(path, fault.to_string()))?;
    serde_json::from_slice(&content).map_err(|error| BackupError::damaged(path, error.to_string()))
}

/// A file is encrypted, and the folder has lost its keys.
pub(super) fn no_keys(path: &Path) -> BackupError {
    BackupError::Key(format!(
        "{} is encrypted, and the file encryption-keys of its bucket's folder is missing: put that file back from a copy",
        path.display()
    ))
}
