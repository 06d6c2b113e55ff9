//! The key of the salts that are shown for names without a user.
//!
//! *Guarantee:* the salts of SCRAM do not tell which names have a user, over restarts and on several nodes, because the key
//! is kept where the users are (record 202).

use base::env::Env;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::sasl::digest::Mechanism;
use crate::sasl::scram::ScramSecret;

/// The key, as text. It has no `Debug` that shows it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct DecoyKey(String);

impl DecoyKey {
    pub(super) fn new(env: &Env) -> DecoyKey {
        let mut bytes = [0; 32];
        env.random.fill(&mut bytes);
        DecoyKey(STANDARD.encode(bytes))
    }

    /// For users that a version without such a key has kept: strangers do not know what is made of their passwords. `None`
    /// if there are none.
    pub(super) fn of<'a>(users: impl Iterator<Item = (&'a str, &'a [ScramSecret])>) -> Option<DecoyKey> {
        let secrets: Vec<_> = users.collect();
        if secrets.is_empty() {
            return None;
        }
        // All of it is made of names and words.
        let text = serde_json::to_vec(&secrets).unwrap_or_default();
        Some(DecoyKey(STANDARD.encode(Mechanism::Sha256.hmac(b"decoys", &[&text]).bytes())))
    }

    pub(super) fn bytes(&self) -> [u8; 32] {
        let digest = Mechanism::Sha256.hmac(self.0.as_bytes(), &[b"salts"]);
        let mut bytes = [0; 32];
        bytes.copy_from_slice(&digest.bytes()[..32]);
        bytes
    }
}
