//! The users who may log in, with what is needed to check them. The passwords of users of the configuration are kept for
//! the moment in which other salts are asked for; those of others never are.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use base::env::Random;
use subtle::ConstantTimeEq;

use crate::config::UserSpec;
use crate::kept_users::KeptUsers;
use crate::node_login::{NODE_USER, NodeSecret};
use crate::privilege::{Privilege, Privileges};
use crate::roles::{Grant, Rights};
use crate::sasl::digest::{Digest, Mechanism};
use crate::sasl::hash::{HashKeys, HashSecret, Hashing};
use crate::sasl::scram::ScramKeys;

/// No password of a kept user is longer, and no longer one is kept until it is checked.
pub(crate) const MOST_PASSWORD_BYTES: usize = 1_024;

/// What passwords of users of an earlier version are checked with, if they come as they are.
const PLAIN_BY: Mechanism = Mechanism::Sha512;

/// What a password is checked with, and never the password.
#[derive(Clone)]
pub(crate) struct LoginKeys {
    /// By mechanism.
    pub(crate) scram: [ScramKeys; 3],
    /// For passwords that come as they are. Users of the configuration have none, since a digest is in memory, and kept
    /// ones of earlier versions have none until their next login.
    pub(crate) hash: Option<HashKeys>,
}

impl LoginKeys {
    /// Whether both are of the same password, set at the same time.
    pub(crate) fn is_same_password(&self, other: &LoginKeys) -> bool {
        self.scram.iter().zip(&other.scram).all(|(a, b)| a.is_same(b))
    }
}

/// A user.
pub struct User {
    name: String,
    grants: Box<[Grant]>,
    /// A keyed digest of the password, once it is known: a login that was right costs no more derivations.
    plain: OnceLock<Digest>,
    keys: LoginKeys,
}

impl User {
    /// One of the configuration, whose salts are those that would be shown if there were no such user: strangers who see
    /// them on several nodes, or over a restart, cannot tell.
    fn new(spec: &UserSpec, users: &Users) -> User {
        let scram = Mechanism::ALL.map(|mechanism| {
            let salt = decoy_salt(&users.decoy_noise(mechanism, spec.name.as_bytes()));
            ScramKeys::derive(mechanism, spec.password.as_bytes(), salt, users.hashing.scram_iterations)
        });
        User {
            name: spec.name.clone(),
            grants: spec.grants().into(),
            plain: plain_digest(&users.pepper, spec.password.as_bytes()).into(),
            keys: LoginKeys { scram, hash: None },
        }
    }

    /// The user that nodes are. A random secret needs no stretching, and no password logs this user in as it is.
    fn of_node(secret: &NodeSecret) -> User {
        let salt = Mechanism::Sha256.hmac(secret.id().as_bytes(), &[b"salt"]);
        let scram = Mechanism::ALL.map(|mechanism| {
            let mut of = [0; 16];
            of.copy_from_slice(&salt.bytes()[..16]);
            ScramKeys::derive(mechanism, secret.secret_bytes(), of, 1)
        });
        User {
            name: NODE_USER.to_owned(),
            grants: [Grant::of_node()].into(),
            plain: OnceLock::new(),
            keys: LoginKeys { scram, hash: None },
        }
    }

    /// Whether this is another node, and no user.
    pub(crate) fn is_node(&self) -> bool {
        self.grants.iter().any(Grant::is_of_node)
    }

    /// The same user, who logs in as before, with these roles.
    fn with_grants(&self, grants: Vec<Grant>) -> User {
        let (plain, keys) = (self.plain.clone(), self.keys.clone());
        User { name: self.name.clone(), grants: grants.into(), plain, keys }
    }

    /// Whether both are checked with the same password.
    fn is_same_login(&self, other: &User) -> bool {
        self.name == other.name && self.keys.is_same_password(&other.keys)
    }

    /// The same of users of the configuration, which may have got other salts.
    fn is_same_plain(&self, other: &User) -> bool {
        let both = self.plain.get().zip(other.plain.get());
        self.name == other.name && both.is_some_and(|(a, b)| a.bytes().ct_eq(b.bytes()).into())
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The keys for one SCRAM mechanism.
    pub fn scram(&self, mechanism: Mechanism) -> &ScramKeys {
        &self.keys.scram[mechanism as usize]
    }

    /// What the password is checked with.
    pub(crate) fn keys(&self) -> &LoginKeys {
        &self.keys
    }

    /// The roles, and where they hold.
    pub fn grants(&self) -> &[Grant] {
        &self.grants
    }

    /// Whether the user may do everything, in every bucket.
    pub fn is_admin(&self) -> bool {
        self.grants.iter().any(|grant| grant.row().name == "admin")
    }

    /// Whether the user may select `bucket`: any right in it is enough. Exporting figures is none in a bucket.
    pub fn may_select(&self, bucket: &str) -> bool {
        let (whole, narrow) = Rights::in_bucket(&self.grants, bucket);
        let whole = whole.without(Privilege::StatsExport);
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
    password: Box<[u8]>,
    given: Digest,
    /// What it is checked with.
    against: Against,
    /// Of a user of an earlier version, if there is one who has none but these: what is checked with a hash is made to
    /// take as long.
    beside: Option<ScramKeys>,
    hashing: Hashing,
    /// Of the hash of a user who has none.
    salt: [u8; 16],
}

enum Against {
    Hash(HashKeys),
    /// A user of an earlier version.
    Scram(ScramKeys),
}

/// What keys that were derived from a password say.
pub(crate) struct Derived {
    /// The user, if the password is right.
    pub(crate) user: Option<Arc<User>>,
    /// What is to be kept of the password from now on.
    pub(crate) gained: Option<HashSecret>,
}

impl Derivation {
    /// The memory that it takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        match &self.against {
            Against::Hash(hash) => hash.memory_bytes(),
            Against::Scram(_) => self.hashing.memory_bytes(),
        }
    }

    /// Derives them. Takes milliseconds, as many if there is no such user.
    pub(crate) fn run(self) -> Derived {
        let (is_right, gained) = match &self.against {
            Against::Hash(hash) => {
                let is_right = hash.is_of(&self.password);
                if let Some(keys) = &self.beside {
                    std::hint::black_box(keys.is_of(&self.password));
                }
                (is_right, None)
            }
            // Hashed whether it is right or not: a wrong one takes as long.
            Against::Scram(keys) => {
                let hash = HashKeys::derive(&self.password, self.salt, self.hashing);
                (keys.is_of(&self.password), Some(hash.to_secret()))
            }
        };
        let user = self.user.filter(|_| is_right).inspect(|user| {
            // Another thread may have found the same out meanwhile.
            let _ = user.plain.set(self.given);
        });
        Derived { gained: gained.filter(|_| user.is_some()), user }
    }
}

/// All users: those of the configuration, whose keys are derived when it is read, and those that are kept.
#[derive(Clone)]
pub struct Users {
    configured: HashMap<String, Arc<User>>,
    /// A name of the configuration comes first.
    kept: HashMap<String, Arc<User>>,
    /// Of the kept users without a hash, the one whose password takes longest.
    unhashed: Option<Arc<User>>,
    /// Other nodes, by the name with which they log in.
    nodes: Vec<(String, Arc<User>)>,
    /// As the configuration has them: other salts need their passwords.
    specs: Arc<[UserSpec]>,
    /// Secret of this process: keys the digests of plain passwords.
    pepper: [u8; 32],
    /// Keys the salts of users of the configuration, and those shown for users who do not exist. A secret of this process
    /// until it is known which one is kept with the users.
    decoy_key: [u8; 32],
    nobody: Digest,
    /// Made up: checks passwords of users who do not exist.
    noise: [u8; 32],
    /// How much work passwords are that are set from now on.
    hashing: Hashing,
}

fn plain_digest(pepper: &[u8], password: &[u8]) -> Digest {
    Mechanism::Sha256.hmac(pepper, &[b"plain", password])
}

impl Users {
    /// Derives the keys of all users.
    pub fn new(specs: &[UserSpec], random: &dyn Random) -> Users {
        Users::hashed(specs, Hashing::default(), random)
    }

    /// The same with so much work.
    pub fn hashed(specs: &[UserSpec], hashing: Hashing, random: &dyn Random) -> Users {
        let (mut pepper, mut noise, mut decoy_key) = ([0; 32], [0; 32], [0; 32]);
        random.fill(&mut pepper);
        random.fill(&mut noise);
        random.fill(&mut decoy_key);
        let nobody = plain_digest(&pepper, &noise);
        let (configured, kept, nodes) = (HashMap::new(), HashMap::new(), Vec::new());
        let (unhashed, specs_before) = (None, [].into());
        let none = Users {
            configured,
            kept,
            unhashed,
            nodes,
            nobody,
            specs: specs_before,
            pepper,
            decoy_key,
            noise,
            hashing,
        };
        none.changed_to(specs)
    }

    /// A secret of this process for something else, which tells nothing of the others.
    pub(crate) fn secret_for(&self, purpose: &[u8]) -> [u8; 32] {
        let digest = Mechanism::Sha256.hmac(&self.pepper, &[b"secret", purpose]);
        *digest.bytes().first_chunk().expect("a digest has 32 bytes")
    }

    /// How much work passwords are that are set from now on.
    pub fn hashing(&self) -> Hashing {
        self.hashing
    }

    /// The same users; passwords that are set from now on are so much work.
    pub(crate) fn with_hashing(&self, hashing: Hashing) -> Users {
        Users { hashing, ..self.clone() }
    }

    /// Other users of the configuration in the place of these. One that is as before stays the same value; one with
    /// other roles and the same password keeps its keys, so that its sessions go on: see [`Users::now`].
    pub fn changed_to(&self, specs: &[UserSpec]) -> Users {
        let one = |spec: &UserSpec| {
            let before = self.configured.get(&spec.name);
            let given = plain_digest(&self.pepper, spec.password.as_bytes());
            let same = before.filter(|user| {
                user.plain.get().is_some_and(|plain| plain.bytes().ct_eq(given.bytes()).into())
            });
            let user = match same {
                Some(user) => updated(user, spec.grants()),
                None => Arc::new(User::new(spec, self)),
            };
            (spec.name.clone(), user)
        };
        Users { configured: specs.iter().map(one).collect(), specs: specs.into(), ..self.clone() }
    }

    /// The same with another key of salts; users of the configuration stay who they are.
    fn with_decoy_key(self, decoy_key: [u8; 32]) -> Users {
        if self.decoy_key == decoy_key {
            return self;
        }
        let next = Users { decoy_key, ..self };
        let one = |spec: &UserSpec| (spec.name.clone(), Arc::new(User::new(spec, &next)));
        Users { configured: next.specs.iter().map(one).collect(), ..next }
    }

    /// The same with these kept users.
    pub(crate) fn with_kept(&self, kept: &KeptUsers) -> Users {
        let one = |(name, keys, grants): (&str, LoginKeys, Vec<Grant>)| {
            let new = User { name: name.to_owned(), grants: grants.into(), plain: OnceLock::new(), keys };
            let user = match self.kept.get(name).filter(|user| user.is_same_login(&new)) {
                Some(user) if user.keys.hash == new.keys.hash => updated(user, new.grants.into_vec()),
                Some(user) => Arc::new(User { plain: user.plain.clone(), ..new }),
                None => Arc::new(new),
            };
            (name.to_owned(), user)
        };
        let logins: HashMap<String, Arc<User>> = kept.logins().map(one).collect();
        let without_hash = logins.values().filter(|user| user.keys.hash.is_none());
        let unhashed = without_hash.max_by_key(|user| user.scram(PLAIN_BY).iterations()).cloned();
        let users = Users { kept: logins, unhashed, ..self.clone() };
        users.with_decoy_key(kept.decoy_key().unwrap_or(self.decoy_key))
    }

    /// The same where nodes with one of these secrets are let in.
    pub(crate) fn with_nodes(&self, secrets: &[NodeSecret]) -> Users {
        let one = |secret: &NodeSecret| {
            let (name, new) = (secret.login_name(), User::of_node(secret));
            let before = self.nodes.iter().find(|(of, user)| *of == name && user.is_same_login(&new));
            (name, before.map_or_else(|| Arc::new(new), |(_, user)| Arc::clone(user)))
        };
        Users { nodes: secrets.iter().map(one).collect(), ..self.clone() }
    }

    /// A user who logged in, as that user is now; `None` if the user is gone, or has another password.
    pub fn now(&self, user: &User) -> Option<&Arc<User>> {
        if user.is_node() {
            return self.nodes.iter().map(|(_, there)| there).find(|there| there.is_same_login(user));
        }
        let is_same = |there: &&Arc<User>| {
            there.is_same_login(user)
                || (self.configured.contains_key(&user.name) && there.is_same_plain(user))
        };
        self.get(user.name.as_bytes()).filter(is_same)
    }

    /// Whether a user is one of the configuration.
    pub fn is_configured(&self, name: &str) -> bool {
        self.configured.contains_key(name)
    }

    /// Whether a user that was made while the node ran does not count, since one of the configuration has its name.
    pub fn is_hidden(&self, name: &str) -> bool {
        self.configured.contains_key(name) && self.kept.contains_key(name)
    }

    /// The names of such users.
    pub(crate) fn hidden(&self) -> impl Iterator<Item = &str> {
        self.configured.keys().map(String::as_str).filter(|name| self.kept.contains_key(*name))
    }

    /// Whether a user that was made while the node ran counts.
    pub(crate) fn has_kept(&self, name: &str) -> bool {
        self.kept.contains_key(name) && !self.configured.contains_key(name)
    }

    /// Whether the secret with which nodes of a cluster log in is known.
    pub(crate) fn has_nodes(&self) -> bool {
        !self.nodes.is_empty()
    }

    /// The user with this name.
    pub fn get(&self, name: &[u8]) -> Option<&Arc<User>> {
        let name = std::str::from_utf8(name).ok()?;
        self.configured.get(name).or_else(|| self.kept.get(name))
    }

    /// The user who logs in by SCRAM with this name: also another node, which logs in by nothing else.
    pub(crate) fn by_scram(&self, name: &[u8]) -> Option<&Arc<User>> {
        let node = self.nodes.iter().find(|(of, _)| of.as_bytes() == name);
        node.map(|(_, user)| user).or_else(|| self.get(name))
    }

    /// Looks at a name and a password: at once if that takes a hash, otherwise what has to be derived is told. Where users
    /// are kept, a wrong name costs the same derivation as a wrong password of any user, and so does the first right
    /// password of a kept user.
    pub fn check(&self, name: &[u8], password: &[u8], random: &dyn Random) -> PasswordCheck {
        let user = self.get(name);
        let given = plain_digest(&self.pepper, password);
        let expected = user.and_then(|user| user.plain.get()).unwrap_or(&self.nobody);
        if let (Some(user), true) = (user, bool::from(given.bytes().ct_eq(expected.bytes()))) {
            return PasswordCheck::Right(Arc::clone(user));
        }
        if self.kept.is_empty() || password.len() > MOST_PASSWORD_BYTES {
            return PasswordCheck::Wrong;
        }
        // The digest of a user of the configuration is known: this is not the password, and is refused like any name.
        let kept = user.filter(|user| !self.configured.contains_key(&user.name));
        let against = match kept.map(|user| &**user) {
            Some(User { keys: LoginKeys { hash: Some(hash), .. }, .. }) => Against::Hash(hash.clone()),
            Some(user) => Against::Scram(user.scram(PLAIN_BY).clone()),
            None => Against::Hash(HashKeys::decoy(self.noise, self.hashing)),
        };
        let beside = self.unhashed.as_ref().map(|user| user.scram(PLAIN_BY).clone());
        let mut salt = [0; 16];
        random.fill(&mut salt);
        let (user, password, hashing) = (kept.cloned(), password.into(), self.hashing);
        PasswordCheck::Derive(Box::new(Derivation { user, password, given, against, beside, hashing, salt }))
    }

    /// Keys for a name that nobody has, always the same ones for the same name, so that strangers cannot tell.
    pub fn decoy(&self, mechanism: Mechanism, name: &[u8]) -> ScramKeys {
        let noise = self.decoy_noise(mechanism, name);
        ScramKeys::decoy(mechanism, decoy_salt(&noise), noise, self.hashing.scram_iterations)
    }

    fn decoy_noise(&self, mechanism: Mechanism, name: &[u8]) -> Digest {
        mechanism.hmac(&self.decoy_key, &[b"decoy", name])
    }
}

fn decoy_salt(noise: &Digest) -> [u8; 16] {
    let mut salt = [0; 16];
    salt.copy_from_slice(&noise.bytes()[..16]);
    salt
}

/// A user with these roles: the same value if they are the present ones.
fn updated(user: &Arc<User>, grants: Vec<Grant>) -> Arc<User> {
    if *user.grants == *grants { Arc::clone(user) } else { Arc::new(user.with_grants(grants)) }
}

#[cfg(test)]
impl Derivation {
    /// The memory of the hash that is made, and how often the password is hashed beside that.
    pub(crate) fn work(&self) -> (usize, Option<u32>) {
        let beside = match &self.against {
            Against::Hash(_) => self.beside.as_ref(),
            Against::Scram(keys) => Some(keys),
        };
        (self.memory_bytes(), beside.map(ScramKeys::iterations))
    }
}

#[cfg(test)]
impl Users {
    /// The user, if name and password are right.
    pub(crate) fn authenticate(&self, name: &[u8], password: &[u8]) -> Option<Arc<User>> {
        let (env, _) = base::env::Env::sim(2);
        match self.check(name, password, &*env.random) {
            PasswordCheck::Right(user) => Some(user),
            PasswordCheck::Wrong => None,
            PasswordCheck::Derive(derivation) => derivation.run().user,
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
        let after = before.changed_to(&after);
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

    /// Two nodes, or one before and after a restart, show the same for each name once users are kept.
    #[test]
    fn salts_do_not_tell_who_is_there() {
        let (env, _) = Env::sim(3);
        let specs = [spec("configured", "p", Role::Admin)];
        let starts = [1, 2].map(|seed| Users::new(&specs, &*Env::sim(seed).0.random));
        let shown = |users: &Users, name: &[u8]| {
            let user = users.get(name).map(|user| user.scram(Mechanism::Sha512).clone());
            user.unwrap_or_else(|| users.decoy(Mechanism::Sha512, name)).to_secret()
        };
        let [one, other] = &starts;
        for name in [&b"configured"[..], b"nobody"] {
            assert!(shown(one, name) != shown(other, name), "nothing is kept");
        }
        let mut kept = KeptUsers::default();
        kept.keep_decoy_key(&env);
        let [one, other] = starts.each_ref().map(|users| users.with_kept(&kept));
        for name in [&b"configured"[..], b"nobody"] {
            assert!(shown(&one, name) == shown(&other, name));
        }
        assert!(shown(&one, b"nobody") != shown(&one, b"another"));
        // Who has logged in before that goes on, and the password is as before.
        let before = starts[0].get(b"configured").expect("there");
        assert!(one.now(before).is_some() && one.authenticate(b"configured", b"p").is_some());
        let changed = one.changed_to(&[spec("configured", "q", Role::Admin)]);
        assert!(changed.now(before).is_none());
    }
}
