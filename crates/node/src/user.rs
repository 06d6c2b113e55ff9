//! The users who may log in, with what is needed to check them: never their passwords.

use std::collections::HashMap;
use std::sync::Arc;

use base::env::Random;
use subtle::ConstantTimeEq;

use crate::config::UserSpec;
use crate::privilege::{Privilege, Privileges};
use crate::roles::{Grant, Rights};
use crate::sasl::digest::{Digest, Mechanism};
use crate::sasl::scram::ScramKeys;

/// A user.
pub struct User {
    name: String,
    grants: Box<[Grant]>,
    plain: Digest,
    scram: [ScramKeys; 3],
}

impl User {
    fn new(spec: &UserSpec, pepper: &[u8], random: &dyn Random) -> User {
        User {
            name: spec.name.clone(),
            grants: spec.grants().into(),
            plain: plain_digest(pepper, spec.password.as_bytes()),
            scram: Mechanism::ALL.map(|mechanism| {
                let mut salt = [0; 16];
                random.fill(&mut salt);
                ScramKeys::derive(mechanism, spec.password.as_bytes(), salt)
            }),
        }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The keys for one SCRAM mechanism.
    pub fn scram(&self, mechanism: Mechanism) -> &ScramKeys {
        &self.scram[mechanism as usize]
    }

    /// The roles, and where they hold.
    pub fn grants(&self) -> &[Grant] {
        &self.grants
    }

    /// Whether the user may do everything, in every bucket.
    pub fn is_admin(&self) -> bool {
        self.grants.iter().any(|grant| grant.row().name == "admin")
    }

    /// Whether the user may select `bucket`: any right in it is enough.
    pub fn may_select(&self, bucket: &str) -> bool {
        let (whole, narrow) = Rights::in_bucket(&self.grants, bucket);
        whole.has(Privilege::SelectBucket) || !whole.is_empty() || !narrow.is_empty()
    }

    /// What the user may do in the whole of `bucket`, and beside buckets.
    pub fn privileges_in(&self, bucket: &str) -> Privileges {
        Rights::in_bucket(&self.grants, bucket).0
    }

    /// What the user may do where no bucket is meant.
    pub fn privileges(&self) -> Privileges {
        Rights::without_bucket(&self.grants).whole
    }

    /// What the user may do in the whole of a scope of `bucket`.
    pub fn privileges_in_scope(&self, bucket: &str, scope: &str) -> Privileges {
        let (whole, narrow) = Rights::in_bucket(&self.grants, bucket);
        narrow.iter().filter_map(|narrow| narrow.of_scope(scope)).fold(whole, Privileges::or)
    }
}

/// All users. Derived when the node starts, or a configuration is read again, so that a login costs no key derivation.
pub struct Users {
    by_name: HashMap<String, Arc<User>>,
    /// Secret of this process: keys the digests of plain passwords and the salts shown for users who do not exist.
    pepper: [u8; 32],
    nobody: Digest,
}

fn plain_digest(pepper: &[u8], password: &[u8]) -> Digest {
    Mechanism::Sha256.hmac(pepper, &[b"plain", password])
}

impl Users {
    /// Derives the keys of all users.
    pub fn new(specs: &[UserSpec], random: &dyn Random) -> Users {
        let mut pepper = [0; 32];
        random.fill(&mut pepper);
        let mut noise = [0; 32];
        random.fill(&mut noise);
        let none = Users { by_name: HashMap::new(), nobody: plain_digest(&pepper, &noise), pepper };
        none.changed_to(specs, random)
    }

    /// Other users in the place of these. One that is as before stays the same value, so that sessions of it go on: see
    /// [`Users::is_current`].
    pub fn changed_to(&self, specs: &[UserSpec], random: &dyn Random) -> Users {
        let one = |spec: &UserSpec| {
            let same = self.authenticate(spec.name.as_bytes(), spec.password.as_bytes());
            let same = same.filter(|user| *user.grants == *spec.grants());
            let user = same.map_or_else(|| Arc::new(User::new(spec, &self.pepper, random)), Arc::clone);
            (spec.name.clone(), user)
        };
        let Users { pepper, nobody, .. } = self;
        Users { by_name: specs.iter().map(one).collect(), pepper: *pepper, nobody: *nobody }
    }

    /// Whether a client that logged in as this user could do so now with the same password and rights.
    pub fn is_current(&self, user: &Arc<User>) -> bool {
        self.get(user.name.as_bytes()).is_some_and(|there| Arc::ptr_eq(there, user))
    }

    /// The user with this name.
    pub fn get(&self, name: &[u8]) -> Option<&Arc<User>> {
        self.by_name.get(std::str::from_utf8(name).ok()?)
    }

    /// The user, if name and password are right. Takes the same time whether the name or the password is wrong.
    pub fn authenticate(&self, name: &[u8], password: &[u8]) -> Option<&Arc<User>> {
        let user = self.get(name);
        let expected = user.map_or(&self.nobody, |user| &user.plain);
        let given = plain_digest(&self.pepper, password);
        let same = given.bytes().ct_eq(expected.bytes());
        if bool::from(same) { user } else { None }
    }

    /// Keys for a name that nobody has, always the same ones for the same name, so that strangers cannot tell.
    pub fn decoy(&self, mechanism: Mechanism, name: &[u8]) -> ScramKeys {
        let digest = mechanism.hmac(&self.pepper, &[b"decoy", name]);
        let mut salt = [0; 16];
        salt.copy_from_slice(&digest.bytes()[..16]);
        ScramKeys::decoy(mechanism, salt, digest)
    }
}

#[cfg(test)]
mod tests {
    use base::env::Env;

    use super::*;
    use crate::config::Role;

    fn spec(name: &str, password: &str, role: Role) -> UserSpec {
        UserSpec { name: name.to_owned(), password: password.to_owned(), role, buckets: None }
    }

    #[test]
    fn who_is_not_changed_stays_the_same() {
        let random = Env::sim(1).0.random;
        let names = ["same", "password", "role", "gone"];
        let before: Vec<_> = names.iter().map(|name| spec(name, "p", Role::ReadOnly)).collect();
        let before = Users::new(&before, &*random);
        let after = [
            spec("same", "p", Role::ReadOnly),
            spec("password", "q", Role::ReadOnly),
            spec("role", "p", Role::ReadWrite),
            spec("new", "p", Role::Admin),
        ];
        let after = before.changed_to(&after, &*random);
        let is_current = |name: &str| after.is_current(before.get(name.as_bytes()).expect("there before"));
        assert_eq!(names.map(is_current), [true, false, false, false]);
        let may =
            |name: &str, password: &str| after.authenticate(name.as_bytes(), password.as_bytes()).is_some();
        assert!(may("same", "p") && may("password", "q") && !may("password", "p") && may("new", "p"));
        assert!(!may("gone", "p"));
    }
}
