//! Users and groups as entries of the coordination store: one for each, and one that guards all of them (record 95).
//!
//! *Guarantee:* an entry that this version cannot read keeps its user out, and no other one; it is not written over.
//! What is read was the content of the store at one moment.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ::cluster::store::{MAX_PUTS, Put, Snapshot, Version};
use base::env::Env;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::decoys::DecoyKey;
use super::security::SecuritySettings;
use super::{EntryKind, KeptGroup, KeptUser, KeptUsers, PasswordPolicy, check_roles};

/// The entry with which each change is compared, and which each change writes.
pub(crate) const GUARD: &str = "guard";
const POLICY: &str = "policy";
const SECURITY: &str = "security";
const DECOYS: &str = "decoys";
const USERS: &str = "user/";
const GROUPS: &str = "group/";
/// What the entries' fields are; another number is another version's.
const FORMAT: u32 = 1;
/// Revisions that are remembered, to tell an older state of the store from another one.
const PAST: usize = 1_024;
/// So much is written at once.
const BATCH_BYTES: usize = 512 << 10;

/// What all entries have in common: whether this version can read it.
#[derive(Deserialize)]
struct Formatted {
    format: u32,
}

/// How far the users have come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Guard {
    format: u32,
    /// Goes up with each change.
    revision: u64,
    /// Tells two changes that have the same revision apart.
    id: String,
    /// The node that has begun to move its own users here, and has not finished.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    moving: String,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct UserEntry {
    format: u32,
    title: String,
    roles: Vec<String>,
    /// Identities: a group that is made again under its name is another one.
    groups: Vec<String>,
    password_changed_s: u64,
    secrets: Vec<crate::sasl::scram::ScramSecret>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hash: Option<crate::sasl::hash::HashSecret>,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct GroupEntry {
    format: u32,
    id: String,
    description: String,
    ldap_group_ref: String,
    roles: Vec<String>,
}

#[derive(Clone, Serialize, Deserialize)]
struct PolicyEntry {
    format: u32,
    policy: PasswordPolicy,
}

#[derive(Clone, Serialize, Deserialize)]
struct SecurityEntry {
    format: u32,
    security: SecuritySettings,
}

#[derive(Clone, Serialize, Deserialize)]
struct DecoysEntry {
    format: u32,
    key: DecoyKey,
}

/// The users of a cluster, as they were in the store at one moment.
#[derive(Clone, Default)]
pub(crate) struct StoredUsers {
    /// The version of the guard.
    version: Version,
    guard: Guard,
    kept: Arc<KeptUsers>,
    /// The identity of each group.
    groups: BTreeMap<String, String>,
    /// The changes that this node has seen, the last one included.
    past: VecDeque<String>,
}

/// How what was read stands to what was known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compared {
    /// It is the same.
    Same,
    /// It is an answer of a moment ago, or the store itself has gone back.
    Behind,
    /// It was written anew, and is what was known before.
    Older,
    /// It is newer.
    Other,
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let formatted: Formatted =
        serde_json::from_slice(bytes).map_err(|error| format!("it is damaged: {error}"))?;
    if formatted.format != FORMAT {
        return Err(format!("it has format {}, and this version reads {FORMAT}", formatted.format));
    }
    serde_json::from_slice(bytes).map_err(|error| format!("it is damaged: {error}"))
}

fn write(entry: &impl Serialize) -> Vec<u8> {
    // All of it is made of names, numbers and words.
    serde_json::to_vec(entry).unwrap_or_default()
}

impl UserEntry {
    fn user(self, by_id: &BTreeMap<&str, &str>) -> Result<KeptUser, String> {
        check_roles(&self.roles)?;
        let mut groups: Vec<String> = self
            .groups
            .iter()
            .filter_map(|id| by_id.get(id.as_str()))
            .map(|name| (*name).to_owned())
            .collect();
        groups.sort();
        let UserEntry { title, roles, password_changed_s, secrets, hash, .. } = self;
        let user = KeptUser { title, roles, groups, password_changed_s, secrets, hash };
        user.keys().ok_or("its secrets cannot be read")?;
        Ok(user)
    }
}

impl StoredUsers {
    /// What a store holds. `Err` if what guards the entries cannot be read: then nothing is known of them.
    pub(crate) fn read(snapshot: &Snapshot) -> Result<StoredUsers, String> {
        let guard = snapshot.entries.get(GUARD);
        let mut stored = StoredUsers { version: snapshot.version_of(GUARD), ..StoredUsers::default() };
        if let Some(entry) = guard {
            stored.guard = read(&entry.value).map_err(|why| format!("entry {GUARD}: {why}"))?;
        }
        stored.past.push_back(stored.guard.id.clone());
        let (mut kept, mut entries) = (KeptUsers::default(), BTreeMap::new());
        for (key, entry) in &snapshot.entries {
            if let Some(name) = key.strip_prefix(GROUPS) {
                stored.read_group(&mut kept, name, &entry.value);
            } else if let Some(name) = key.strip_prefix(USERS) {
                entries.insert(name, &entry.value);
            } else if key == POLICY {
                match read::<PolicyEntry>(&entry.value) {
                    Ok(entry) => kept.policy = entry.policy,
                    // What was asked for is not known: nothing weaker than the longest is let in.
                    Err(why) => return Err(format!("entry {POLICY}: {why}")),
                }
            } else if key == SECURITY {
                let entry = read::<SecurityEntry>(&entry.value);
                let entry = entry.and_then(|entry| entry.security.check().map(|()| entry));
                // As with the policy: what is not understood is not taken for what the configuration says.
                kept.security = entry.map_err(|why| format!("entry {SECURITY}: {why}"))?.security;
            } else if key == DECOYS {
                // One that cannot be read lets no user in who is to be kept out.
                kept.decoys = read::<DecoysEntry>(&entry.value).ok().map(|entry| entry.key);
            }
        }
        let by_id = stored.groups.iter().map(|(name, id)| (id.as_str(), name.as_str())).collect();
        for (name, bytes) in entries {
            match read::<UserEntry>(bytes).and_then(|entry| entry.user(&by_id)) {
                Ok(user) => drop(kept.users.insert(name.to_owned(), user)),
                Err(why) => drop(kept.refused.insert((EntryKind::User, name.to_owned()), why)),
            }
        }
        stored.kept = Arc::new(kept);
        Ok(stored)
    }

    fn read_group(&mut self, kept: &mut KeptUsers, name: &str, bytes: &[u8]) {
        let entry = read::<GroupEntry>(bytes).and_then(|entry| check_roles(&entry.roles).map(|()| entry));
        match entry {
            Ok(GroupEntry { id, description, ldap_group_ref, roles, .. }) => {
                self.groups.insert(name.to_owned(), id);
                kept.groups.insert(name.to_owned(), KeptGroup { description, ldap_group_ref, roles });
            }
            Err(why) => drop(kept.refused.insert((EntryKind::Group, name.to_owned()), why)),
        }
    }

    /// The users.
    pub(crate) fn kept(&self) -> &KeptUsers {
        &self.kept
    }

    /// The same, for readers that take their time.
    pub(crate) fn shared(&self) -> &Arc<KeptUsers> {
        &self.kept
    }

    /// The version of the guard.
    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// How often they changed.
    pub(crate) fn revision(&self) -> u64 {
        self.guard.revision
    }

    /// The identity of the last change; empty if there was none.
    pub(crate) fn id(&self) -> &str {
        &self.guard.id
    }

    /// Whether nobody has written here.
    pub(crate) fn is_new(&self) -> bool {
        self.version == Version::ABSENT
    }

    /// Whether this node has begun to move its users here.
    pub(crate) fn is_moved_by(&self, uuid: &str) -> bool {
        self.guard.moving == uuid
    }

    /// The entries that cannot be read, and why.
    pub(crate) fn refused(&self) -> impl Iterator<Item = (EntryKind, &str, &str)> {
        self.kept.refused.iter().map(|((kind, name), why)| (*kind, name.as_str(), why.as_str()))
    }

    /// How `read` stands to what is known. As long as the store itself does not go back, versions say what is newer.
    pub(crate) fn compare(&self, read: &StoredUsers) -> Compared {
        match self.past.iter().position(|id| *id == read.guard.id) {
            _ if read.version < self.version => Compared::Behind,
            // An entry may have been damaged, or changed by hand, without the guard.
            Some(at) if at + 1 == self.past.len() && self.kept != read.kept => Compared::Other,
            Some(at) if at + 1 == self.past.len() => Compared::Same,
            Some(_) => Compared::Older,
            None => Compared::Other,
        }
    }

    /// Whether what was read is nothing that this node has not seen: the store was restored, or has lost its entries.
    pub(crate) fn has_seen(&self, read: &StoredUsers) -> bool {
        read.is_new() || self.past.contains(&read.guard.id)
    }

    /// The same as seen by a node that knew `before`.
    pub(crate) fn after(mut self, before: &StoredUsers) -> StoredUsers {
        self.past = before.past.iter().filter(|id| **id != self.guard.id).cloned().collect();
        self.past.push_back(self.guard.id.clone());
        while self.past.len() > PAST {
            self.past.pop_front();
        }
        self
    }

    fn user_entry(&self, user: &KeptUser) -> UserEntry {
        let groups = user.groups.iter().filter_map(|name| self.groups.get(name)).cloned();
        UserEntry {
            format: FORMAT,
            title: user.title.clone(),
            roles: user.roles.clone(),
            groups: groups.collect(),
            password_changed_s: user.password_changed_s,
            secrets: user.secrets.clone(),
            hash: user.hash.clone(),
        }
    }

    fn group_entry(&self, name: &str, group: &KeptGroup) -> GroupEntry {
        GroupEntry {
            format: FORMAT,
            id: self.groups.get(name).cloned().unwrap_or_default(),
            description: group.description.clone(),
            ldap_group_ref: group.ldap_group_ref.clone(),
            roles: group.roles.clone(),
        }
    }

    /// The next change of these users: to `kept`, with the identities that groups have in `groups` if they have some. It
    /// is not written yet.
    fn next(&self, kept: KeptUsers, groups: &BTreeMap<String, String>, env: &Env) -> StoredUsers {
        let identity = || format!("{:016x}", env.random.next_u64());
        let id = |name: &String| {
            let known = groups.get(name).cloned();
            (name.clone(), known.unwrap_or_else(identity))
        };
        let guard = Guard {
            format: FORMAT,
            revision: self.guard.revision + 1,
            id: identity(),
            moving: String::new(),
        };
        let groups = kept.groups.keys().map(id).collect();
        let (kept, past) = (Arc::new(kept), self.past.clone());
        StoredUsers { version: self.version, guard, kept, groups, past }
    }

    /// What has to be written to make of what the store has (`self`) what `next` is.
    fn puts(&self, next: &StoredUsers) -> Vec<Put> {
        let mut puts = Vec::new();
        let mut put = |key: String, value: Option<Vec<u8>>| puts.push(Put { key, value });
        for (name, group) in &next.kept.groups {
            let entry = next.group_entry(name, group);
            let before = self.kept.groups.get(name).map(|group| self.group_entry(name, group));
            if before.as_ref() != Some(&entry) {
                put(format!("{GROUPS}{name}"), Some(write(&entry)));
            }
        }
        // Members of groups that go keep their identities, which no other group ever has.
        let live: BTreeSet<&String> = next.groups.values().collect();
        for (name, user) in &next.kept.users {
            let entry = next.user_entry(user);
            let before = self.kept.users.get(name).map(|user| {
                let mut before = self.user_entry(user);
                before.groups.retain(|id| live.contains(id));
                before
            });
            if before.as_ref() != Some(&entry) {
                put(format!("{USERS}{name}"), Some(write(&entry)));
            }
        }
        if self.kept.policy != next.kept.policy {
            let entry = PolicyEntry { format: FORMAT, policy: next.kept.policy.clone() };
            put(POLICY.to_owned(), Some(write(&entry)));
        }
        if self.kept.security != next.kept.security {
            let entry = SecurityEntry { format: FORMAT, security: next.kept.security.clone() };
            put(SECURITY.to_owned(), Some(write(&entry)));
        }
        if let Some(key) = next.kept.decoys.as_ref().filter(|_| self.kept.decoys != next.kept.decoys) {
            put(DECOYS.to_owned(), Some(write(&DecoysEntry { format: FORMAT, key: key.clone() })));
        }
        let gone = |kind: EntryKind, name: &String| match kind {
            EntryKind::User => !next.kept.users.contains_key(name),
            EntryKind::Group => !next.kept.groups.contains_key(name),
        };
        let users = self.kept.users.keys().map(|name| (EntryKind::User, name));
        let groups = self.kept.groups.keys().map(|name| (EntryKind::Group, name));
        let refused = self.kept.refused.keys().filter(|key| !next.kept.refused.contains_key(*key));
        let refused = refused.map(|(kind, name)| (*kind, name));
        for (kind, name) in users.chain(groups).chain(refused).filter(|(kind, name)| gone(*kind, name)) {
            let prefix = if kind == EntryKind::User { USERS } else { GROUPS };
            put(format!("{prefix}{name}"), None);
        }
        puts
    }
}

/// A change of the users in several parts, each of which the store takes at once; mostly it is one.
pub(crate) struct Change {
    next: StoredUsers,
    puts: VecDeque<Put>,
    moving: String,
}

impl Change {
    /// From what the store has to `kept`.
    pub(crate) fn of(stored: &StoredUsers, kept: KeptUsers, env: &Env) -> Box<Change> {
        let next = stored.next(kept, &stored.groups, env);
        Box::new(Change { puts: stored.puts(&next).into(), next, moving: String::new() })
    }

    /// From an older state that the store has back to what this node knows.
    pub(crate) fn back(older: &StoredUsers, known: &StoredUsers, env: &Env) -> Box<Change> {
        let mut kept = KeptUsers::clone(&known.kept);
        kept.refused = older.kept.refused.clone();
        let mut next = known.next(kept, &known.groups, env);
        next.version = older.version;
        Box::new(Change { puts: older.puts(&next).into(), next, moving: String::new() })
    }

    /// The users that a node had while it was alone, into a store that has none of their names.
    pub(crate) fn moving(stored: &StoredUsers, own: KeptUsers, uuid: &str, env: &Env) -> Box<Change> {
        let mut kept = KeptUsers::clone(&stored.kept);
        let decoys = own.present_decoys();
        own.groups.into_iter().for_each(|(name, group)| {
            kept.groups.entry(name).or_insert(group);
        });
        own.users.into_iter().for_each(|(name, user)| {
            kept.users.entry(name).or_insert(user);
        });
        // Also where a crash has left the move half done: they are among the last parts.
        if stored.is_new() || stored.is_moved_by(uuid) {
            (kept.policy, kept.security) = (own.policy, own.security);
            kept.decoys = decoys.or(kept.decoys);
        }
        let mut change = Change::of(stored, kept, env);
        uuid.clone_into(&mut change.moving);
        change
    }

    /// The next part with the version that the guard must have.
    pub(crate) fn part(&mut self) -> (Version, Vec<Put>) {
        let mut bytes = 0;
        let fits = |put: &&Put| {
            bytes += put.bytes();
            bytes <= BATCH_BYTES
        };
        let count = self.puts.iter().take(MAX_PUTS - 1).take_while(fits).count();
        let mut puts: Vec<Put> = self.puts.drain(..count.max(1).min(self.puts.len())).collect();
        let mut guard = self.next.guard.clone();
        if !self.puts.is_empty() {
            guard.moving.clone_from(&self.moving);
            // What others read in between is another state than the last.
            guard.id.push_str(&format!("-{}", self.puts.len()));
            self.next.past.push_back(guard.id.clone());
        }
        puts.push(Put { key: GUARD.to_owned(), value: Some(write(&guard)) });
        (self.next.version, puts)
    }

    /// A part was written. The users as they are then, once all of it is.
    pub(crate) fn written(mut self: Box<Change>, version: Version) -> Result<StoredUsers, Box<Change>> {
        self.next.version = version;
        if !self.puts.is_empty() {
            return Err(self);
        }
        let before = self.next.clone();
        Ok(self.next.after(&before))
    }
}

#[cfg(test)]
mod tests;
