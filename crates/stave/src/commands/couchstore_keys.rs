//! The keys of encrypted couchstore files of the original: a flag of the commands that read its files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use base::env::Env;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use couchstore::{Failure, OriginalKeys};
use serde::Deserialize;

use crate::cli::key_error;
use crate::key_source::read_text;

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
    use super::*;

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
