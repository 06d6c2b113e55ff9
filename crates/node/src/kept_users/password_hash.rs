//! What checks the password of a user, as a backup of the users has it.

use serde::{Deserialize, Serialize};

use super::{KeptUser, UsersRefusal};
use crate::sasl::hash::HashSecret;
use crate::sasl::scram::ScramSecret;

/// What checks a password, and when that was set. It has no `Debug` that shows it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PasswordHash {
    changed_s: u64,
    secrets: Vec<ScramSecret>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hash: Option<HashSecret>,
}

impl PasswordHash {
    /// Reads it from a field of a form.
    ///
    /// # Errors
    ///
    /// It is not what [`KeptUser::password_hash`] gives, or its secrets cannot be used.
    pub fn parse(text: &str) -> Result<PasswordHash, UsersRefusal> {
        let wrong = |what: String| UsersRefusal::Field("passwordHash", what);
        let hash: PasswordHash = serde_json::from_str(text)
            .map_err(|error| wrong(format!("It is not what GET /settings/rbac/backup tells: {error}")))?;
        let mut user = KeptUser::without_password();
        hash.clone().put_into(&mut user);
        match user.keys() {
            Some(_) => Ok(hash),
            None => Err(wrong("Its secrets cannot be read by this version.".to_owned())),
        }
    }

    pub(super) fn put_into(self, user: &mut KeptUser) {
        let PasswordHash { changed_s, secrets, hash } = self;
        (user.password_changed_s, user.secrets, user.hash) = (changed_s, secrets, hash);
    }
}

impl KeptUser {
    /// What checks the user's password.
    pub fn password_hash(&self) -> PasswordHash {
        let KeptUser { password_changed_s, secrets, hash, .. } = self;
        PasswordHash { changed_s: *password_changed_s, secrets: secrets.clone(), hash: hash.clone() }
    }

    pub(super) fn without_password() -> KeptUser {
        KeptUser {
            title: String::new(),
            roles: Vec::new(),
            groups: Vec::new(),
            password_changed_s: 0,
            secrets: Vec::new(),
            hash: None,
        }
    }
}
