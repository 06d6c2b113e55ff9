//! The users who may log in, with what is needed to check them: never their passwords.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use base::env::Random;
use subtle::ConstantTimeEq;

use crate::config::UserSpec;
use crate::kept_users::KeptUsers;
use crate::privilege::{Privilege, Privileges};
use crate::roles::{Grant, Rights};
use crate::sasl::digest::{Digest, Mechanism};
use crate::sasl::scram::ScramKeys;

/// No password of a kept user is longer, and no longer one is kept until it is checked.
pub(crate) const MOST_PASSWORD_BYTES: usize = 1_024;

/// A user.
pub struct User {
    name: String,
    grants: Box<[Grant]>,
    /// What the digest of the password is, once it is known: a login that was right costs no more derivations.
    plain: OnceLock<Digest>,
    scram: [ScramKeys; 3],
}

impl User {
    fn new(spec: &UserSpec, pepper: &[u8], random: &dyn Random) -> User {
        User {
            name: spec.name.clone(),
            grants: spec.grants().into(),
            plain: plain_digest(pepper, spec.password.as_bytes()).into(),
            scram: Mechanism::ALL.map(|mechanism| {
                let mut salt = [0; 16];
                random.fill(&mut salt);
                ScramKeys::derive(mechanism, spec.password.as_bytes(), salt)
            }),
        }
    }

    /// The same user, who logs in as before, with these roles.
    fn with_grants(&self, grants: Vec<Grant>) -> User {
        let (plain, scram) = (self.plain.clone(), self.scram.clone());
        User { name: self.name.clone(), grants: grants.into(), plain, scram }
    }

    /// Whether both are checked with the same password.
    fn is_same_login(&self, other: &User) -> bool {
        self.name == other.name && self.scram.iter().zip(&other.scram).all(|(a, b)| a.is_same(b))
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

/// What a name and a password are found to be.
pub enum PasswordCheck {
    /// Right: the user's.
    Right(Arc<User>),
    /// Wrong.
    Wrong,
    /// It takes milliseconds to know.
    Derive(Box<Derivation>),
}

/// A password that is not known to be right or wrong until keys are derived from it.
pub struct Derivation {
    user: Option<Arc<User>>,
    keys: ScramKeys,
    password: Box<[u8]>,
    given: Digest,
}

impl Derivation {
    /// Derives them: the user, if the password is right. Takes milliseconds, as many if there is no such user.
    pub fn run(self) -> Option<Arc<User>> {
        let is_right = self.keys.is_of(&self.password);
        let user = self.user.filter(|_| is_right)?;
        // Another thread may have found the same out meanwhile.
        let _ = user.plain.set(self.given);
        Some(user)
    }
}

/// All users: those of the configuration, whose keys are derived when it is read, and those that are kept.
#[derive(Clone)]
pub struct Users {
    configured: HashMap<String, Arc<User>>,
    /// A name of the configuration comes first.
    kept: HashMap<String, Arc<User>>,
    /// Secret of this process: keys the digests of plain passwords and the salts shown for users who do not exist.
    pepper: [u8; 32],
    nobody: Digest,
    /// Checks passwords that are wrong anyway.
    nobodys_keys: ScramKeys,
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
        let nobody = plain_digest(&pepper, &noise);
        let nobodys_keys = ScramKeys::decoy(Mechanism::Sha512, [0; 16], Mechanism::Sha512.hash(&noise));
        let (configured, kept) = (HashMap::new(), HashMap::new());
        Users { configured, kept, nobody, pepper, nobodys_keys }.changed_to(specs, random)
    }

    /// Other users of the configuration in the place of these. One that is as before stays the same value; one with
    /// other roles and the same password keeps its keys, so that its sessions go on: see [`Users::now`].
    pub fn changed_to(&self, specs: &[UserSpec], random: &dyn Random) -> Users {
        let one = |spec: &UserSpec| {
            let before = self.configured.get(&spec.name);
            let given = plain_digest(&self.pepper, spec.password.as_bytes());
            let same = before.filter(|user| {
                user.plain.get().is_some_and(|plain| plain.bytes().ct_eq(given.bytes()).into())
            });
            let user = match same {
                Some(user) => updated(user, spec.grants()),
                None => Arc::new(User::new(spec, &self.pepper, random)),
            };
            (spec.name.clone(), user)
        };
        let nobodys_keys = self.nobodys_keys.clone();
        let configured = specs.iter().map(one).collect();
        Users { configured, kept: self.kept.clone(), pepper: self.pepper, nobody: self.nobody, nobodys_keys }
    }

    /// The same with these kept users.
    pub(crate) fn with_kept(&self, kept: &KeptUsers) -> Users {
        let one = |(name, scram, grants): (&str, [ScramKeys; 3], Vec<Grant>)| {
            let new = User { name: name.to_owned(), grants: grants.into(), plain: OnceLock::new(), scram };
            let user = match self.kept.get(name).filter(|user| user.is_same_login(&new)) {
                Some(user) => updated(user, new.grants.into_vec()),
                None => Arc::new(new),
            };
            (name.to_owned(), user)
        };
        let Users { configured, pepper, nobody, nobodys_keys, .. } = self;
        let (configured, nobodys_keys) = (configured.clone(), nobodys_keys.clone());
        Users {
            configured,
            kept: kept.logins().map(one).collect(),
            pepper: *pepper,
            nobody: *nobody,
            nobodys_keys,
        }
    }

    /// A user who logged in, as that user is now; `None` if the user is gone, or has another password.
    pub fn now(&self, user: &User) -> Option<&Arc<User>> {
        self.get(user.name.as_bytes()).filter(|there| there.is_same_login(user))
    }

    /// Whether a user is one of the configuration.
    pub fn is_configured(&self, name: &str) -> bool {
        self.configured.contains_key(name)
    }

    /// The user with this name.
    pub fn get(&self, name: &[u8]) -> Option<&Arc<User>> {
        let name = std::str::from_utf8(name).ok()?;
        self.configured.get(name).or_else(|| self.kept.get(name))
    }

    /// Looks at a name and a password: at once if that takes a hash, otherwise what has to be derived is told. Where users
    /// are kept, a wrong name costs one derivation like a wrong password, and so does the first right password of a kept
    /// user.
    pub fn check(&self, name: &[u8], password: &[u8]) -> PasswordCheck {
        let user = self.get(name);
        let given = plain_digest(&self.pepper, password);
        let expected = user.and_then(|user| user.plain.get()).unwrap_or(&self.nobody);
        if let (Some(user), true) = (user, bool::from(given.bytes().ct_eq(expected.bytes()))) {
            return PasswordCheck::Right(Arc::clone(user));
        }
        if self.kept.is_empty() || password.len() > MOST_PASSWORD_BYTES {
            return PasswordCheck::Wrong;
        }
        let keys = user.map_or(&self.nobodys_keys, |user| user.scram(Mechanism::Sha512)).clone();
        let (user, password) = (user.cloned(), password.into());
        PasswordCheck::Derive(Box::new(Derivation { user, keys, password, given }))
    }

    /// Keys for a name that nobody has, always the same ones for the same name, so that strangers cannot tell.
    pub fn decoy(&self, mechanism: Mechanism, name: &[u8]) -> ScramKeys {
        let digest = mechanism.hmac(&self.pepper, &[b"decoy", name]);
        let mut salt = [0; 16];
        salt.copy_from_slice(&digest.bytes()[..16]);
        ScramKeys::decoy(mechanism, salt, digest)
    }
}

/// A user with these roles: the same value if they are the present ones.
fn updated(user: &Arc<User>, grants: Vec<Grant>) -> Arc<User> {
    if *user.grants == *grants { Arc::clone(user) } else { Arc::new(user.with_grants(grants)) }
}

#[cfg(test)]
impl Users {
    /// The user, if name and password are right.
    pub(crate) fn authenticate(&self, name: &[u8], password: &[u8]) -> Option<Arc<User>> {
        match self.check(name, password) {
            PasswordCheck::Right(user) => Some(user),
            PasswordCheck::Wrong => None,
            PasswordCheck::Derive(derivation) => derivation.run(),
        }
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
        let was = |name: &str| before.get(name.as_bytes()).expect("there before");
        assert_eq!(names.map(|name| after.now(was(name)).is_some()), [true, false, true, false]);
        assert!(Arc::ptr_eq(after.now(was("same")).expect("there"), was("same")));
        let role = after.now(was("role")).expect("the password is the same");
        assert!(role.privileges().has(Privilege::Upsert) && !was("role").privileges().has(Privilege::Upsert));
        let may =
            |name: &str, password: &str| after.authenticate(name.as_bytes(), password.as_bytes()).is_some();
        assert!(may("same", "p") && may("password", "q") && !may("password", "p") && may("new", "p"));
        assert!(!may("gone", "p"));
    }
}
