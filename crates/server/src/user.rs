//! The users who may log in, with what is needed to check them: never their passwords.

use std::collections::HashMap;
use std::sync::Arc;

use base::env::Random;
use subtle::ConstantTimeEq;

use crate::config::{Role, UserSpec};
use crate::privilege::{Privilege, Privileges};
use crate::sasl::digest::{Digest, Mechanism};
use crate::sasl::scram::ScramKeys;

/// A user.
pub struct User {
    name: String,
    role: Role,
    buckets: Option<Vec<String>>,
    plain: Digest,
    scram: [ScramKeys; 3],
}

impl User {
    fn new(spec: &UserSpec, pepper: &[u8], random: &dyn Random) -> User {
        User {
            name: spec.name.clone(),
            role: spec.role,
            buckets: spec.buckets.clone(),
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

    /// Whether the user may do everything, in every bucket.
    pub fn is_admin(&self) -> bool {
        self.role == Role::Admin && self.buckets.is_none()
    }

    /// Whether the user may select `bucket`.
    pub fn may_select(&self, bucket: &str) -> bool {
        self.buckets.as_ref().is_none_or(|buckets| buckets.iter().any(|name| name == bucket))
    }

    /// What the user may do.
    pub fn privileges(&self) -> Privileges {
        use Privilege::*;
        match self.role {
            Role::Admin if self.is_admin() => Privileges::all(),
            // What all buckets share, and other users, are not theirs.
            Role::Admin => [NodeSupervisor, Administrator, Impersonate, SelectBucket]
                .into_iter()
                .fold(Privileges::all(), Privileges::without),
            Role::ReadWrite => Privileges::of(&[Read, Insert, Upsert, Delete, MetaRead, SimpleStats]),
            Role::ReadOnly => Privileges::of(&[Read, MetaRead, SimpleStats]),
        }
    }
}

/// All users. Derived once when the node starts, so that a login costs no key derivation.
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
        let by_name =
            specs.iter().map(|spec| (spec.name.clone(), Arc::new(User::new(spec, &pepper, random))));
        let mut noise = [0; 32];
        random.fill(&mut noise);
        Users { by_name: by_name.collect(), nobody: plain_digest(&pepper, &noise), pepper }
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
