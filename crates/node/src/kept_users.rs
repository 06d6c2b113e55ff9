//! Users, groups, the password policy and settings of security that were made while the node ran: a small file of the data directory
//! (records 57 and 86), or entries of the coordination store (record 95).
//!
//! *Guarantee:* passwords are never kept, only what SCRAM checks them with. What is in memory is what is in the file. A
//! file that is damaged lets no kept user in, and is not written over.

mod decoys;
pub mod security;
pub(crate) mod stored;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use base::env::Env;
use base::{SmallFile, SmallFileError};
use serde::{Deserialize, Serialize};

pub use crate::password_policy::{MOST_MIN_LENGTH, PasswordPolicy};
use crate::roles::Grant;
use crate::sasl::digest::Mechanism;
use crate::sasl::hash::{HashKeys, HashSecret, Hashing};
use crate::sasl::scram::{ScramKeys, ScramSecret};
use crate::user::{LoginKeys, User};
use crate::user_names::{NAME_RULE, is_user_name};
use crate::written;
use decoys::DecoyKey;
use security::SecuritySettings;
use stored::StoredUsers;

/// What is said of a user who is not there, and of a group: SDKs tell these two apart by the text.
pub const UNKNOWN_USER: &str = "Unknown user.";
/// The same of a group.
pub const UNKNOWN_GROUP: &str = "Unknown group.";

const FILE: &str = "users.json";
/// More than this is no file of ours.
const MAX_BYTES: u64 = 16 << 20;
/// Users, and as many groups.
const MOST_USERS: usize = 4_096;
/// Roles of one user or group.
const MOST_GRANTS: usize = 256;
/// Bytes of other texts.
const MOST_TEXT_BYTES: usize = 1_024;

/// The file of a data directory.
pub fn file(folder: &Path) -> SmallFile {
    SmallFile::new(folder, FILE).at_most(MAX_BYTES)
}

/// What is wrong with a file, if anything is.
pub fn check(bytes: &[u8], version: u16) -> Result<(), String> {
    parse(bytes, version).map(drop)
}

fn parse(bytes: &[u8], _version: u16) -> Result<KeptUsers, String> {
    let kept: KeptUsers = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let grants =
        kept.users.values().map(|user| &user.roles).chain(kept.groups.values().map(|group| &group.roles));
    grants.into_iter().try_for_each(|roles| check_roles(roles))?;
    kept.security.check()?;
    match kept.users.iter().find(|(_, user)| user.keys().is_none()) {
        Some((name, _)) => Err(format!("user {name:?} has secrets that cannot be read")),
        None => Ok(kept),
    }
}

fn check_roles(roles: &[String]) -> Result<(), String> {
    match roles.iter().find(|role| Grant::parse(role).is_none()) {
        Some(wrong) => Err(format!("role {wrong:?} is none of this version")),
        None => Ok(()),
    }
}

/// A user.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeptUser {
    /// How people call the user.
    title: String,
    /// Own roles, as text.
    roles: Vec<String>,
    groups: Vec<String>,
    /// When the password was set, in seconds since 1970.
    password_changed_s: u64,
    /// By mechanism.
    secrets: Vec<ScramSecret>,
    /// What a password is checked with that comes as it is. Users of earlier versions have none until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hash: Option<HashSecret>,
}

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
            .map_err(|error| wrong(format!("It is not what GET /settings/rbac/backup returns: {error}")))?;
        let mut user = KeptUser::without_password();
        hash.clone().put_into(&mut user);
        match user.keys() {
            Some(_) => Ok(hash),
            None => Err(wrong("Its secrets cannot be read by this version.".to_owned())),
        }
    }

    fn put_into(self, user: &mut KeptUser) {
        let PasswordHash { changed_s, secrets, hash } = self;
        (user.password_changed_s, user.secrets, user.hash) = (changed_s, secrets, hash);
    }
}

/// A group: its members have its roles.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeptGroup {
    /// For people.
    pub description: String,
    /// Accepted and shown; nothing looks it up.
    pub ldap_group_ref: String,
    roles: Vec<String>,
}

/// Why users are not changed.
#[derive(Debug)]
pub enum UsersRefusal {
    /// A field is not valid.
    Field(&'static str, String),
    /// There is no such user or group.
    NotFound(&'static str),
    /// The caller may not do that.
    Forbidden(String),
    /// Users cannot be kept here.
    NotHere(String),
    /// What is kept cannot be read; what to do about it.
    Damaged(String),
    /// It cannot be read or changed now; what to do about it.
    Away(String),
    /// The file could not be written.
    File(SmallFileError),
}

/// A new password, and what is kept of it: that is derived once, however often a change is tried again.
#[derive(Clone)]
pub struct NewPassword {
    text: String,
    hashing: Hashing,
    secrets: OnceLock<Secrets>,
}

/// What is kept of a password.
#[derive(Clone)]
struct Secrets {
    scram: Vec<ScramSecret>,
    hash: HashSecret,
}

impl NewPassword {
    /// A password as it was given.
    pub fn new(text: String, hashing: Hashing) -> NewPassword {
        NewPassword { text, hashing, secrets: OnceLock::new() }
    }

    /// The memory that deriving takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.hashing.memory_bytes()
    }

    /// Derives what is kept of it, which takes milliseconds and much memory: later it is there.
    pub(crate) fn derive(&self, env: &Env) {
        self.secrets(env);
    }

    fn secrets(&self, env: &Env) -> &Secrets {
        let salt = || {
            let mut salt = [0; 16];
            env.random.fill(&mut salt);
            salt
        };
        let password = self.text.as_bytes();
        let iterations = self.hashing.scram_iterations;
        self.secrets.get_or_init(|| Secrets {
            scram: Mechanism::ALL
                .map(|mechanism| ScramKeys::derive(mechanism, password, salt(), iterations).to_secret())
                .to_vec(),
            hash: HashKeys::derive(password, salt(), self.hashing).to_secret(),
        })
    }
}

/// What is asked of a user.
#[derive(Default)]
pub struct UserForm {
    /// Another password; a new user needs one.
    pub password: Option<NewPassword>,
    /// How people call the user.
    pub title: Option<String>,
    /// Roles.
    pub roles: Vec<Grant>,
    /// Groups.
    pub groups: Vec<String>,
    /// What checks the password, as a backup has it; in place of a password.
    pub hash: Option<PasswordHash>,
}

/// Refuses a new password that the policy does not allow.
fn check_password(policy: &PasswordPolicy, password: &str) -> Result<(), UsersRefusal> {
    policy.fault(password).map_or(Ok(()), |fault| Err(UsersRefusal::Field("password", fault)))
}

/// Users, groups, and the policy for passwords.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeptUsers {
    users: BTreeMap<String, KeptUser>,
    groups: BTreeMap<String, KeptGroup>,
    #[serde(default)]
    policy: PasswordPolicy,
    /// How connections are protected.
    #[serde(default, skip_serializing_if = "SecuritySettings::is_unset")]
    security: SecuritySettings,
    /// Makes the salts that are shown for names without a user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    decoys: Option<DecoyKey>,
    /// What the coordination store has and this version cannot read, by kind and name, and why.
    #[serde(skip)]
    refused: BTreeMap<(EntryKind, String), String>,
}

/// What is kept under a name of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryKind {
    /// A user.
    User,
    /// A group.
    Group,
}

fn grants_of(roles: &[String]) -> Vec<Grant> {
    roles.iter().filter_map(|role| Grant::parse(role)).collect()
}

/// Texts of roles, each once.
fn texts_of(grants: &[Grant]) -> Result<Vec<String>, UsersRefusal> {
    if grants.len() > MOST_GRANTS {
        return Err(UsersRefusal::Field("roles", format!("At most {MOST_GRANTS} roles can be assigned.")));
    }
    Ok(grants.iter().map(Grant::to_string).collect())
}

/// Only a full administrator gives or takes an administrator's role.
fn check_guarded<'a>(actor: &User, grants: impl IntoIterator<Item = &'a Grant>) -> Result<(), UsersRefusal> {
    let guarded = grants.into_iter().find(|grant| grant.row().is_guarded);
    match guarded.filter(|_| !actor.is_admin()) {
        Some(grant) => Err(UsersRefusal::Forbidden(format!(
            "Only a full administrator may give or take the role {grant}, or change a user who has it"
        ))),
        None => Ok(()),
    }
}

/// Names of users and groups go into addresses and logs.
fn check_name(field: &'static str, name: &str) -> Result<(), UsersRefusal> {
    if is_user_name(name) { Ok(()) } else { Err(UsersRefusal::Field(field, NAME_RULE.to_owned())) }
}

fn check_text(field: &'static str, text: &str) -> Result<(), UsersRefusal> {
    if text.len() > MOST_TEXT_BYTES || text.chars().any(char::is_control) {
        let what = "The text must be at most 1,024 bytes, without control characters.".to_owned();
        return Err(UsersRefusal::Field(field, what));
    }
    Ok(())
}

impl KeptUser {
    fn keys(&self) -> Option<LoginKeys> {
        let [sha1, sha256, sha512] = &self.secrets[..] else { return None };
        let [a, b, c] = Mechanism::ALL;
        let hash = match &self.hash {
            Some(hash) => Some(hash.keys()?),
            None => None,
        };
        Some(LoginKeys { scram: [sha1.keys(a)?, sha256.keys(b)?, sha512.keys(c)?], hash })
    }

    /// What checks the user's password.
    pub fn password_hash(&self) -> PasswordHash {
        let KeptUser { password_changed_s, secrets, hash, .. } = self;
        PasswordHash { changed_s: *password_changed_s, secrets: secrets.clone(), hash: hash.clone() }
    }

    fn without_password() -> KeptUser {
        KeptUser {
            title: String::new(),
            roles: Vec::new(),
            groups: Vec::new(),
            password_changed_s: 0,
            secrets: Vec::new(),
            hash: None,
        }
    }

    fn set_password(&mut self, password: &NewPassword, env: &Env) {
        self.password_changed_s = env.clock.unix_ns() / 1_000_000_000;
        let Secrets { scram, hash } = password.secrets(env).clone();
        (self.secrets, self.hash) = (scram, Some(hash));
    }

    /// How people call the user.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// Own roles.
    pub fn grants(&self) -> Vec<Grant> {
        grants_of(&self.roles)
    }

    /// Groups.
    pub fn groups(&self) -> &[String] {
        &self.groups
    }

    /// When the password was set, in seconds since 1970.
    pub fn password_changed_s(&self) -> u64 {
        self.password_changed_s
    }
}

impl KeptGroup {
    /// Its roles.
    pub fn grants(&self) -> Vec<Grant> {
        grants_of(&self.roles)
    }
}

impl KeptUsers {
    /// Reads the file of a data directory; nobody if there is none.
    pub fn read(folder: &Path, env: &Env) -> Result<KeptUsers, SmallFileError> {
        let say = |fault: &str| tracing::error!(event = "file_copy_damaged", "{fault}");
        let found = written::open(&*env.disk, folder, &file(folder), parse, say)?;
        Ok(found.unwrap_or_default())
    }

    /// Writes it.
    pub(crate) fn write(&self, folder: &Path, env: &Env) -> Result<(), SmallFileError> {
        // All of it is made of names, numbers and words.
        let bytes = serde_json::to_vec_pretty(self).unwrap_or_default();
        written::write(&*env.disk, folder, &file(folder), &bytes)
    }

    /// The users by name.
    pub fn users(&self) -> &BTreeMap<String, KeptUser> {
        &self.users
    }

    /// The groups by name.
    pub fn groups(&self) -> &BTreeMap<String, KeptGroup> {
        &self.groups
    }

    /// What new passwords must have.
    pub fn policy(&self) -> &PasswordPolicy {
        &self.policy
    }

    /// Each user with the keys that check a password, and all roles, those of groups included.
    pub(crate) fn logins(&self) -> impl Iterator<Item = (&str, LoginKeys, Vec<Grant>)> {
        self.users
            .iter()
            .filter_map(|(name, user)| Some((name.as_str(), user.keys()?, self.all_grants(user))))
    }

    /// The roles of a user and of the user's groups, each once.
    pub fn all_grants(&self, user: &KeptUser) -> Vec<Grant> {
        let groups = user.groups.iter().filter_map(|name| self.groups.get(name));
        let mut grants: Vec<Grant> = user.grants();
        grants.extend(groups.flat_map(KeptGroup::grants));
        grants.sort();
        grants.dedup();
        grants
    }

    /// Refuses what cannot be read: another version may know more of it than would be written over it.
    pub fn check_readable(&self, kind: EntryKind, name: &str) -> Result<(), UsersRefusal> {
        match self.refused.get(&(kind, name.to_owned())) {
            None => Ok(()),
            Some(why) => Err(UsersRefusal::Damaged(format!(
                "the entry of {name} in the coordination store cannot be read by this version: {why}; delete {name} and \
                 make it again, or run the version that wrote it on all nodes"
            ))),
        }
    }

    /// Removes what cannot be read, if that is meant. What roles it gives is not known.
    fn remove_refused(&mut self, actor: &User, kind: EntryKind, name: &str) -> Result<bool, UsersRefusal> {
        let key = (kind, name.to_owned());
        if !self.refused.contains_key(&key) {
            return Ok(false);
        }
        if !actor.is_admin() {
            let what = format!("Only a full administrator may delete {name}, whose roles cannot be read");
            return Err(UsersRefusal::Forbidden(what));
        }
        self.refused.remove(&key);
        Ok(true)
    }

    /// Makes a user, or puts other roles, groups, a name and perhaps another password in the place of what there is.
    pub fn put_user(
        &mut self,
        actor: &User,
        name: &str,
        form: &UserForm,
        env: &Env,
    ) -> Result<(), UsersRefusal> {
        // One that is there keeps its name, whatever names were when it was made.
        if !self.users.contains_key(name) {
            check_name("name", name)?;
        }
        self.check_readable(EntryKind::User, name)?;
        form.title.iter().try_for_each(|title| check_text("name", title))?;
        let missing: Vec<&str> = form
            .groups
            .iter()
            .filter(|group| !self.groups.contains_key(*group))
            .map(String::as_str)
            .collect();
        if !missing.is_empty() {
            let what = format!("Groups do not exist: {}", missing.join(","));
            return Err(UsersRefusal::Field("groups", what));
        }
        let present = self.users.get(name);
        check_guarded(actor, &present.map(|user| self.all_grants(user)).unwrap_or_default())?;
        let mut user = present.cloned().unwrap_or_else(KeptUser::without_password);
        user.roles = texts_of(&form.roles)?;
        user.groups = form.groups.clone();
        user.groups.sort();
        user.groups.dedup();
        user.title = form.title.clone().unwrap_or_default();
        check_guarded(actor, &self.all_grants(&user))?;
        if let Some(hash) = &form.hash {
            if !actor.is_admin() {
                let what = "Only a full administrator may put back what checks a password".to_owned();
                return Err(UsersRefusal::Forbidden(what));
            }
            hash.clone().put_into(&mut user);
        }
        match &form.password {
            Some(password) => {
                check_password(&self.policy, &password.text)?;
                user.set_password(password, env);
            }
            None if user.secrets.is_empty() => {
                return Err(UsersRefusal::Field("password", "Password is required for new user.".to_owned()));
            }
            None => {}
        }
        if !self.users.contains_key(name) && self.users.len() >= MOST_USERS {
            return Err(UsersRefusal::Field(
                "name",
                format!("There are {MOST_USERS} users, which is the most."),
            ));
        }
        self.users.insert(name.to_owned(), user);
        Ok(())
    }

    /// Gives a user another password, which is the user's own wish.
    pub fn set_password(
        &mut self,
        name: &str,
        password: &NewPassword,
        env: &Env,
    ) -> Result<(), UsersRefusal> {
        check_password(&self.policy, &password.text)?;
        let user = self.users.get_mut(name).ok_or(UsersRefusal::NotFound(UNKNOWN_USER))?;
        user.set_password(password, env);
        Ok(())
    }

    /// Keeps the hash of a password that was right, if the user still has that password, and no hash.
    pub(crate) fn gain_hash(
        &mut self,
        name: &str,
        of: &LoginKeys,
        hash: &HashSecret,
    ) -> Result<(), UsersRefusal> {
        let user = self
            .users
            .get_mut(name)
            .filter(|user| user.hash.is_none() && user.keys().is_some_and(|keys| keys.is_same_password(of)));
        user.ok_or(UsersRefusal::NotFound(UNKNOWN_USER))?.hash = Some(hash.clone());
        Ok(())
    }

    /// Removes a user.
    pub fn remove_user(&mut self, actor: &User, name: &str) -> Result<(), UsersRefusal> {
        if self.remove_refused(actor, EntryKind::User, name)? {
            return Ok(());
        }
        let user = self.users.get(name).ok_or(UsersRefusal::NotFound(UNKNOWN_USER))?;
        check_guarded(actor, &self.all_grants(user))?;
        self.users.remove(name);
        Ok(())
    }

    /// Who may not change a user may not do so by a group of that user's either.
    fn check_members(&self, actor: &User, group: &str) -> Result<(), UsersRefusal> {
        let members = self.users.values().filter(|user| user.groups.iter().any(|name| name == group));
        members.map(|user| self.all_grants(user)).try_for_each(|grants| check_guarded(actor, &grants))
    }

    /// Makes a group, or puts other roles in the place of its present ones.
    pub fn put_group(
        &mut self,
        actor: &User,
        name: &str,
        (description, ldap_group_ref): (&str, &str),
        roles: &[Grant],
    ) -> Result<(), UsersRefusal> {
        if !self.groups.contains_key(name) {
            check_name("name", name)?;
        }
        self.check_readable(EntryKind::Group, name)?;
        check_text("description", description)?;
        check_text("ldap_group_ref", ldap_group_ref)?;
        let present = self.groups.get(name).map(KeptGroup::grants).unwrap_or_default();
        check_guarded(actor, present.iter().chain(roles))?;
        self.check_members(actor, name)?;
        if !self.groups.contains_key(name) && self.groups.len() >= MOST_USERS {
            return Err(UsersRefusal::Field(
                "name",
                format!("There are {MOST_USERS} groups, which is the most."),
            ));
        }
        let group = KeptGroup {
            description: description.to_owned(),
            ldap_group_ref: ldap_group_ref.to_owned(),
            roles: texts_of(roles)?,
        };
        self.groups.insert(name.to_owned(), group);
        Ok(())
    }

    /// Removes a group, also from its members.
    pub fn remove_group(&mut self, actor: &User, name: &str) -> Result<(), UsersRefusal> {
        if self.remove_refused(actor, EntryKind::Group, name)? {
            return Ok(());
        }
        let group = self.groups.get(name).ok_or(UsersRefusal::NotFound(UNKNOWN_GROUP))?;
        check_guarded(actor, &group.grants())?;
        self.check_members(actor, name)?;
        self.groups.remove(name);
        self.users.values_mut().for_each(|user| user.groups.retain(|group| group != name));
        Ok(())
    }

    /// Keys the salts that are shown for names without a user; `None` while no user was ever kept.
    pub(crate) fn decoy_key(&self) -> Option<[u8; 32]> {
        self.present_decoys().map(|key| key.bytes())
    }

    /// The same as it is kept.
    fn present_decoys(&self) -> Option<DecoyKey> {
        let secrets = self.users.iter().map(|(name, user)| (name.as_str(), &user.secrets[..]));
        self.decoys.clone().or_else(|| DecoyKey::of(secrets))
    }

    /// Has the key be kept with the next change: the one that counts until then.
    pub(crate) fn keep_decoy_key(&mut self, env: &Env) {
        self.decoys = self.present_decoys().or_else(|| Some(DecoyKey::new(env)));
    }

    /// How connections are protected, as far as that was set while the node ran.
    pub fn security(&self) -> &SecuritySettings {
        &self.security
    }

    /// Changes that.
    pub fn set_security(&mut self, security: SecuritySettings) {
        self.security = security;
    }

    /// Changes what new passwords must have.
    pub fn set_policy(&mut self, policy: PasswordPolicy) -> Result<(), UsersRefusal> {
        if policy.min_length > MOST_MIN_LENGTH {
            let what = format!("The value of \"minLength\" must be in range from 0 to {MOST_MIN_LENGTH}");
            return Err(UsersRefusal::Field("minLength", what));
        }
        self.policy = policy;
        Ok(())
    }
}

/// Where a node keeps its users.
#[derive(Default)]
pub(crate) enum KeptState {
    /// Nowhere, and why.
    #[default]
    Nowhere,
    /// In the coordination store, which has not been read yet.
    Unread(String),
    /// The file is damaged.
    Damaged(String),
    /// In the file.
    File(Arc<KeptUsers>),
    /// In the coordination store.
    Stored(Arc<StoredUsers>),
}

impl KeptState {
    /// What is kept, or why nothing can be.
    pub(crate) fn kept(&self) -> Result<&Arc<KeptUsers>, UsersRefusal> {
        Err(match self {
            KeptState::File(kept) => return Ok(kept),
            KeptState::Stored(stored) => return Ok(stored.shared()),
            KeptState::Nowhere => UsersRefusal::NotHere("this node has no data directory".to_owned()),
            KeptState::Unread(why) => UsersRefusal::Away(why.clone()),
            KeptState::Damaged(what) => UsersRefusal::Damaged(format!(
                "{what}: no user of it can log in, and it is not written over; stop the node, and put back a copy of \
                 the file, or move it away to begin without users"
            )),
        })
    }
}

#[cfg(test)]
mod tests;
