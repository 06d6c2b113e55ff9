//! The keys of encrypted files: flags of `stave serve` and of commands that read files. What wraps the keys of a node's files,
//! and the keys of couchstore files that the original has encrypted.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, anyhow, bail};
use base::encryption::{EncryptedDisk, WrappingKeys};
use base::env::Env;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use couchstore::{Failure, OriginalKeys};
use node::Settings;
use serde::Deserialize;

use crate::cli::key_error;
use crate::key_source::{KEY_COMMAND_LIMIT, KeySource, read_text, warn_of_rights};

/// The environment variable with the key itself.
const KEY: &str = "STAVE_ENCRYPTION_KEY";

/// Where the key comes from.
#[derive(Clone, Debug, Default, Args)]
pub struct EncryptionFlags {
    /// The key of encrypted files, in a file of the node's user alone: 64 hexadecimal digits, as `openssl rand -hex 32`
    /// prints; further lines hold earlier keys, which only decrypt. The key itself may be in STAVE_ENCRYPTION_KEY
    #[arg(long, value_name = "FILE", env = "STAVE_ENCRYPTION_KEY_FILE")]
    encryption_key_file: Option<PathBuf>,
    /// A command of the shell that prints that key, for keys that a service keeps
    #[arg(
        long,
        value_name = "COMMAND",
        env = "STAVE_ENCRYPTION_KEY_COMMAND",
        conflicts_with = "encryption_key_file"
    )]
    encryption_key_command: Option<String>,
}

impl EncryptionFlags {
    /// As settings, which the configuration file may have, too.
    pub fn settings(self) -> Settings {
        Settings {
            encryption_key_file: self.encryption_key_file,
            encryption_key_command: self.encryption_key_command,
            ..Settings::default()
        }
    }

    /// As if a file with the key had been named.
    #[cfg(test)]
    pub(super) fn of_file(encryption_key_file: Option<PathBuf>) -> EncryptionFlags {
        EncryptionFlags { encryption_key_file, ..EncryptionFlags::default() }
    }

    /// The world in which encrypted files are read and written with the keys of their folders.
    pub fn world(&self, env: &Env) -> anyhow::Result<Env> {
        Ok(world_with(env, self.keys(env)?))
    }

    /// The key that was given.
    pub fn keys(&self, env: &Env) -> anyhow::Result<Option<WrappingKeys>> {
        warn_of_rights(self.encryption_key_file.as_deref());
        wrapping_keys(env, &self.clone().settings(), &AtomicBool::new(false))
    }
}

/// That world, with a key that was read already.
pub fn world_with(env: &Env, keys: Option<WrappingKeys>) -> Env {
    Env { disk: Arc::new(EncryptedDisk::finding(env, keys, node::node_files::BUCKET)), ..env.clone() }
}

/// The key that was given, from the first of file, command and environment that there is. A command is ended early once it is
/// `cancelled`.
pub fn wrapping_keys(
    env: &Env,
    settings: &Settings,
    cancelled: &AtomicBool,
) -> anyhow::Result<Option<WrappingKeys>> {
    let source = KeySource {
        file: settings.encryption_key_file.as_deref(),
        command: settings.encryption_key_command.as_deref(),
        command_flag: "--encryption-key-command",
        variable: KEY,
        limit: KEY_COMMAND_LIMIT,
    };
    source.read(env, cancelled)
}

/// The cipher of all keys that are known.
const CIPHER: &str = "AES-256-GCM";

/// Where those keys are.
#[derive(Clone, Debug, Default, Args)]
pub struct CouchstoreKeyFlags {
    /// The keys of encrypted couchstore files that the original wrote: a JSON file with what its dump-keys prints, or
    /// {"keys": [{"id": ID, "cipher": "AES-256-GCM", "key": BASE64}]}
    #[arg(long, value_name = "FILE", env = "STAVE_COUCHSTORE_KEY_FILE")]
    couchstore_key_file: Option<PathBuf>,
}

impl CouchstoreKeyFlags {
    /// The keys that were given: none without the flag.
    pub(super) fn read(&self, env: &Env) -> anyhow::Result<OriginalKeys> {
        let Some(path) = &self.couchstore_key_file else { return Ok(OriginalKeys::default()) };
        parse(&read_text(env, path)?).with_context(|| refused(path))
    }

    /// As if a file had been named.
    #[cfg(test)]
    pub(super) fn of_file(path: PathBuf) -> CouchstoreKeyFlags {
        CouchstoreKeyFlags { couchstore_key_file: Some(path) }
    }
}

/// What is said of a file that cannot be read. A failure names its source itself, so that the chain of sources would say it
/// again. That a key is missing decides what the command ends with.
pub(super) fn said_once(failure: Failure) -> anyhow::Error {
    match &failure {
        Failure::Io { source, .. } if key_error(source).is_some() => failure.into(),
        Failure::Encrypted { .. } => anyhow!("{failure}; give it with --couchstore-key-file"),
        _ => anyhow::Error::msg(failure.to_string()),
    }
}

fn refused(path: &Path) -> String {
    format!("{}, which --couchstore-key-file names, cannot be used", path.display())
}

/// What holds keys: a key store, or what dump-keys answers for each identifier.
#[derive(Deserialize)]
#[serde(untagged)]
enum Keys {
    Store { keys: Vec<StoredKey> },
    Dumped(BTreeMap<String, Dumped>),
}

#[derive(Deserialize)]
struct StoredKey {
    id: String,
    cipher: String,
    key: String,
}

#[derive(Deserialize)]
struct Dumped {
    result: String,
    response: serde_json::Value,
}

fn parse(text: &str) -> anyhow::Result<OriginalKeys> {
    // What is wrong with the text may be part of a key, so the parser's own words are not passed on.
    let forms = "it is neither {\"keys\": [{\"id\": ..., \"cipher\": \"AES-256-GCM\", \"key\": BASE64}]} nor what dump-keys prints";
    let mut keys = OriginalKeys::default();
    match serde_json::from_str(text).map_err(|_| anyhow!(forms))? {
        Keys::Store { keys: stored } => {
            for StoredKey { id, cipher, key } in stored {
                if cipher != CIPHER {
                    bail!("the key {id:?} is for the cipher {cipher:?}: only {CIPHER} is known");
                }
                keys.insert(id.clone(), decode(&id, &key)?);
            }
        }
        Keys::Dumped(dumped) => {
            for (id, Dumped { result, response }) in dumped {
                let key = response.get("key").and_then(serde_json::Value::as_str);
                let Some(key) = key.filter(|_| result != "error") else {
                    bail!("dump-keys could not print the key {id:?}: print those again that the files name");
                };
                keys.insert(id.clone(), decode(&id, key)?);
            }
        }
    }
    if keys.is_empty() {
        bail!("it holds no key");
    }
    Ok(keys)
}

fn decode(id: &str, key: &str) -> anyhow::Result<[u8; 32]> {
    let bytes = STANDARD.decode(key).map_err(|_| anyhow!("the key {id:?} is no base64"))?;
    let len = bytes.len();
    bytes.try_into().map_err(|_| anyhow!("the key {id:?} has {len} bytes in place of 32"))
}

#[cfg(test)]
mod tests {
    use base::env::OpenMode;

    use super::*;

    #[test]
    fn a_key_comes_from_a_file_or_a_command() {
        let env = Env::real();
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        let digits = "5".repeat(64);
        let file = env.disk.open(&path, OpenMode::CreateNew).expect("a file");
        file.write_at(format!("{digits}\n").as_bytes(), 0).expect("a write");
        let of = |file: Option<&Path>, command: Option<String>| {
            let settings = Settings {
                encryption_key_file: file.map(Path::to_owned),
                encryption_key_command: command,
                ..Settings::default()
            };
            wrapping_keys(&env, &settings, &AtomicBool::new(false))
        };
        let given = of(Some(&path), None).expect("it is read");
        assert!(given.is_some() && given == of(None, Some(format!("echo {digits}"))).expect("it runs"));
        for (command, expected) in [
            ("echo 12", "is no encryption key"),
            ("echo no such key >&2; exit 3", ": no such key"),
            ("exit 3", ": it said nothing"),
        ] {
            let error = of(None, Some(command.to_owned())).expect_err("refused").to_string();
            assert!(error.contains(expected), "{error}");
        }
        let error = of(Some(Path::new("/nowhere/key")), None).expect_err("it is missing");
        assert!(format!("{error:#}").contains("/nowhere/key"), "{error:#}");
    }

    #[test]
    fn keys_come_as_a_store_or_as_they_are_dumped() {
        let key = STANDARD.encode([7; 32]);
        let store = format!(r#"{{"active":"a","keys":[{{"cipher":"AES-256-GCM","id":"a","key":"{key}"}}]}}"#);
        let dumped = format!(r#"{{"a":{{"result":"raw-aes-gcm","response":{{"key":"{key}"}}}}}}"#);
        for text in [store, dumped] {
            assert_eq!(
                format!("{:?}", parse(&text).expect("keys")),
                r#"{"a"}"#,
                "identifiers alone are shown"
            );
        }
    }

    #[test]
    fn what_is_wrong_with_keys_is_said_without_them() {
        for (text, expected) in [
            ("c2VjcmV0", "neither"),
            (r#"{"keys":[]}"#, "it holds no key"),
            (r#"{"keys":[{"id":"a","cipher":"AES-128-CBC","key":"c2VjcmV0"}]}"#, "only AES-256-GCM is known"),
            (
                r#"{"keys":[{"id":"a","cipher":"AES-256-GCM","key":"c2VjcmV0"}]}"#,
                "has 6 bytes in place of 32",
            ),
            (r#"{"keys":[{"id":"a","cipher":"AES-256-GCM","key":"c2V-jcmV0"}]}"#, "is no base64"),
            (r#"{"a":{"result":"error","response":"c2VjcmV0"}}"#, "could not print the key \"a\""),
        ] {
            let error = format!("{:#}", parse(text).expect_err("refused"));
            assert!(error.contains(expected) && !error.contains("c2V"), "{text}: {error}");
        }
    }
}
