//! Whether a node has the user and the password of its cluster: what is kept beside the document proves it, and tells
//! neither.

use ::cluster::keys;
use ::cluster::store::{Snapshot, Store, Swap, Swapped, Version};
use base::env::Env;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use super::ClusterError;
use crate::config::UserSpec;
use crate::sasl::digest::Mechanism;

/// How often the password is hashed (OWASP Password Storage Cheat Sheet, PBKDF2-HMAC-SHA512).
const ITERATIONS: u32 = 210_000;
/// More than this is nothing of ours: whoever writes to the store must not keep nodes busy.
const MOST_ITERATIONS: u32 = 10_000_000;
const FORMAT: u32 = 1;

/// What is in the store.
#[derive(Debug, Serialize, Deserialize)]
struct Verifier {
    format: u32,
    /// In Base64.
    salt: String,
    iterations: u32,
    /// PBKDF2 of user and password by HMAC-SHA-512, in Base64.
    hash: String,
}

impl Verifier {
    fn of(user: &UserSpec, env: &Env) -> Verifier {
        let mut salt = [0; 16];
        env.random.fill(&mut salt);
        let hash = BASE64.encode(hash(user, &salt, ITERATIONS));
        Verifier { format: FORMAT, salt: BASE64.encode(salt), iterations: ITERATIONS, hash }
    }

    /// Nothing if it cannot be read.
    fn is_of(&self, user: &UserSpec) -> Option<bool> {
        if self.format != FORMAT || !(1..=MOST_ITERATIONS).contains(&self.iterations) {
            return None;
        }
        let (salt, known) = (BASE64.decode(&self.salt).ok()?, BASE64.decode(&self.hash).ok()?);
        Some(hash(user, &salt, self.iterations).ct_eq(&known).into())
    }
}

/// Of both at once: the length keeps one from running into the other.
fn hash(user: &UserSpec, salt: &[u8], iterations: u32) -> Vec<u8> {
    let both = format!("{}:{}:{}", user.name.len(), user.name, user.password);
    Mechanism::Sha512.pbkdf2(both.as_bytes(), salt, iterations).bytes().to_vec()
}

/// What the store says about a node's user and password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// They are the cluster's.
    Ours,
    /// They are not.
    Others,
    /// Nobody has written yet which these are.
    Nothing,
}

/// Compares.
pub(super) fn compare(snapshot: &Snapshot, user: &UserSpec) -> Known {
    let Some(entry) = snapshot.entries.get(keys::CREDENTIALS) else { return Known::Nothing };
    // What a later version may have written is not judged.
    match serde_json::from_slice::<Verifier>(&entry.value).ok().and_then(|verifier| verifier.is_of(user)) {
        Some(false) => Known::Others,
        Some(true) | None => Known::Ours,
    }
}

/// Writes which these are, if nobody else has done so. What came of it is read again.
pub(super) fn write(store: &dyn Store, user: &UserSpec, env: &Env) -> Result<(), ClusterError> {
    let json = serde_json::to_vec(&Verifier::of(user, env)).unwrap_or_default();
    let swap =
        Swap { key: keys::CREDENTIALS, expected: Some(Version::ABSENT), value: Some(&json), lease: None };
    store.swap(swap)?;
    Ok(())
}

/// Writes that these are the ones from now on, unless they are already.
pub(super) fn change(store: &dyn Store, user: &UserSpec, env: &Env) -> Result<(), ClusterError> {
    let snapshot = store.read()?;
    if compare(&snapshot, user) == Known::Ours {
        return Ok(());
    }
    let expected = Some(snapshot.version_of(keys::CREDENTIALS));
    let json = serde_json::to_vec(&Verifier::of(user, env)).unwrap_or_default();
    let swap = Swap { key: keys::CREDENTIALS, expected, value: Some(&json), lease: None };
    match store.swap(swap)? {
        Swapped::Done(_) => Ok(()),
        Swapped::Conflict | Swapped::NoLease => Err(ClusterError::Busy),
    }
}

#[cfg(test)]
mod tests {
    use ::cluster::MemoryStore;

    use super::*;
    use crate::config::Role;

    fn user(name: &str, password: &str) -> UserSpec {
        UserSpec { name: name.to_owned(), password: password.to_owned(), role: Role::Admin, buckets: None }
    }

    #[test]
    fn the_first_one_decides() {
        let (env, _) = Env::sim(1);
        let store = MemoryStore::new(env.clock.clone());
        let ours = user("ada", "secret-1");
        assert_eq!(compare(&store.read().expect("it is read"), &ours), Known::Nothing);
        write(&store, &ours, &env).expect("it is written");
        write(&store, &user("ada", "secret-2"), &env).expect("somebody was first");
        let snapshot = store.read().expect("it is read");
        assert_eq!(compare(&snapshot, &ours), Known::Ours);
        for other in [user("ada", "secret-2"), user("eve", "secret-1"), user("adas", "ecret-1")] {
            assert_eq!(compare(&snapshot, &other), Known::Others, "{other:?}");
        }
        let text = String::from_utf8(snapshot.entries[keys::CREDENTIALS].value.clone()).expect("JSON");
        assert!(!text.contains("ada") && !text.contains("secret"), "{text}");
    }
}
