//! A configuration that was read again takes effect while the node runs, as far as that is possible.
//!
//! *Guarantee:* what cannot take effect is told and changes nothing. Buckets change only in what the configuration says
//! differently than when it was read last, so that what was changed while the node ran stays.

use std::fmt;

use engine::settings::{Key, SETTINGS};

use crate::at_rest::rekey;
use crate::audit::events::AuditEvent;
use crate::audit::record::AuditRecord;
use crate::config::{BucketSpec, Config};
use crate::management::BucketChange;
use crate::node::Node;

/// What became of a configuration that was read again.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// What is different now.
    pub taken: Vec<String>,
    /// What is different in the configuration, and takes effect with the next start only.
    pub waiting: Vec<String>,
    /// What was refused, and why.
    pub refused: Vec<String>,
}

impl fmt::Display for Reloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |list: &[String]| if list.is_empty() { "nothing".to_owned() } else { list.join("; ") };
        let Reloaded { taken, waiting, refused } = self;
        write!(f, "taken: {}; needs a restart: {}", list(taken), list(waiting))?;
        if refused.is_empty() { Ok(()) } else { write!(f, "; refused: {}", refused.join("; ")) }
    }
}

/// Has the node go by `new` instead of `present`, which becomes what the node goes by. Blocks while the disk works.
pub fn reload(node: &Node, present: &mut Config, mut new: Config) -> Reloaded {
    let mut told = Reloaded::default();
    if new.password_was_generated && present.password_was_generated {
        // It was made up again, and was shown to no one.
        new.users[0].password.clone_from(&present.users[0].password);
    }
    reload_users(node, present, &mut new, &mut told);
    if new.sasl != present.sasl {
        node.accounts().offer().set(new.sasl);
        present.sasl = new.sasl;
        told.taken.push("sasl-mechanisms, tls-sasl-mechanisms, for logins from now on".to_owned());
    }
    if new.hashing != present.hashing {
        node.accounts().change_hashing(node, new.hashing);
        present.hashing = new.hashing;
        let names =
            "scram-iterations, argon2id-memory, argon2id-time, for passwords that are set from now on";
        told.taken.push(names.to_owned());
    }
    if new.audit != present.audit {
        node.audit.follow(&new.audit);
        present.audit.clone_from(&new.audit);
        told.taken.push("the table [audit]".to_owned());
    }
    if new.slow_limits != present.slow_limits {
        node.events().slow.limits.follow(&new.slow_limits);
        present.slow_limits.clone_from(&new.slow_limits);
        told.taken.push("the table [slow-operations]".to_owned());
    }
    reload_wrapping_key(node, present, &new, &mut told);
    if !present.is_member {
        reload_buckets(node, present, &new, &mut told);
    }
    told.waiting.extend(needs_restart(present, &new).into_iter().map(str::to_owned));
    told
}

/// Has the audit log say what became of a configuration.
pub fn record(node: &Node, told: &Reloaded) {
    let record = AuditRecord::new(AuditEvent::ConfigurationReloaded);
    let record = record.with("taken", told.taken.as_slice()).with("needs_restart", told.waiting.as_slice());
    node.audit.record(record.with("refused", told.refused.as_slice()));
}

/// Has the audit log say that a configuration was refused as a whole. Why is in the node's log alone: what is wrong with a
/// file may be a password in the wrong place.
pub fn record_refused(node: &Node) {
    let refused = vec!["all of it: the node's log says why".to_owned()];
    record(node, &Reloaded { refused, ..Reloaded::default() });
}

/// Why the wrapping keys of `new` cannot be taken: the one in use is not among them. A start would refuse them, too. With
/// a wrong file in the place of the right one, everything would be wrapped with a key that is nowhere else.
pub fn why_not_keys(present: &Config, new: &Config) -> Option<String> {
    let (before, after) = (present.encryption.as_ref()?, new.encryption.as_ref()?);
    let (first, given) = (before.first(), after.shown());
    (!after.holds_first_of(before)).then(|| {
        format!(
            "encryption-key-*: the folder of data is encrypted under the wrapping key {first}, and the keys that were given are \
             {given}: put the key in use back, behind the new one if there is to be a new one"
        )
    })
}

/// Exchanges what the keys of files are wrapped with. Whether files are encrypted at all is looked at by a start alone.
fn reload_wrapping_key(node: &Node, present: &mut Config, new: &Config, told: &mut Reloaded) {
    let (Some(before), Some(after)) = (&present.encryption, &new.encryption) else { return };
    if before == after {
        return;
    }
    if let Some(why) = why_not_keys(present, new) {
        told.refused.push(why);
        return;
    }
    match rekey::rewrap(node, after) {
        Ok(()) => {
            present.encryption = Some(after.clone());
            told.taken.push("encryption-key-*: earlier keys are not needed any more".to_owned());
        }
        Err(left) => told.refused.push(format!(
            "encryption-key-*: {left}: give the earlier keys behind the new one until this was taken or the node has \
             started"
        )),
    }
}

fn reload_users(node: &Node, present: &mut Config, new: &mut Config, told: &mut Reloaded) {
    if present.is_member && new.users[0] != present.users[0] {
        let changed = match node.cluster() {
            Some(cluster) => cluster.secrets().change_credentials(&new.users[0]),
            None => Err("this node has not joined its cluster yet".to_owned()),
        };
        if let Err(why) = changed {
            told.refused.push(format!("username or password: {why}"));
            new.users[0] = present.users[0].clone();
        }
    }
    if new.users == present.users {
        return;
    }
    node.accounts().change_configured(node, &new.users);
    let names = |of: &Config| of.users.iter().map(|user| user.name.clone()).collect::<Vec<_>>();
    let (before, after) = (names(present), names(new));
    let users = node.accounts().users();
    let word = |name: &String| match present.users.iter().find(|user| user.name == *name) {
        None if users.is_hidden(name) => Some(format!(
            "user {name:?} was added, and hides the one of that name that was made while the node ran: that one counts again \
             once this one is gone, unless it is deleted (stave user delete)"
        )),
        None => Some(format!("user {name:?} was added")),
        Some(user) => (!new.users.contains(user)).then(|| format!("user {name:?} was changed")),
    };
    told.taken.extend(after.iter().filter_map(word));
    let gone = before.iter().filter(|name| !after.contains(name));
    told.taken.extend(gone.map(|name| match users.has_kept(name) {
        true => format!(
            "user {name:?} was removed: the one of that name that was made while the node ran counts again, with its own password \
             and roles"
        ),
        false => format!("user {name:?} was removed"),
    }));
    present.users.clone_from(&new.users);
}

fn reload_buckets(node: &Node, present: &mut Config, new: &Config, told: &mut Reloaded) {
    for spec in &new.buckets {
        let Some(old) = present.buckets.iter_mut().find(|old| old.name == spec.name) else {
            told.waiting.push(format!("bucket {:?}, which is new", spec.name));
            continue;
        };
        if (spec.kind, spec.backend) != (old.kind, old.backend) {
            told.waiting.push(format!("the type of bucket {:?}", spec.name));
            continue;
        }
        let (change, names) = difference(old, spec);
        if names.is_empty() {
            continue;
        }
        let names = names.join(", ");
        match node.change_bucket(&spec.name, change) {
            Ok(()) => {
                told.taken.push(format!("bucket {:?}: {names}", spec.name));
                *old = spec.clone();
            }
            Err(error) => told.refused.push(format!("bucket {:?}: {names}: {error}", spec.name)),
        }
    }
    let is_left = |old: &&BucketSpec| new.buckets.iter().all(|spec| spec.name != old.name);
    let gone = present.buckets.iter().filter(is_left);
    told.waiting.extend(gone.map(|old| format!("bucket {:?}, which is not named any more", old.name)));
}

/// What makes one bucket the other, and what that is called.
fn difference(old: &BucketSpec, new: &BucketSpec) -> (BucketChange, Vec<&'static str>) {
    let differs = |key: Key| old.settings.get(key) != new.settings.get(key);
    let settings: Vec<(&'static str, String)> = SETTINGS
        .iter()
        .filter(|setting| differs(setting.key))
        .map(|setting| (setting.name, new.settings.show(setting.key)))
        .collect();
    let mut names: Vec<&'static str> = settings.iter().map(|(name, _)| *name).collect();
    let flush_enabled = (old.flush_enabled != new.flush_enabled).then_some(new.flush_enabled);
    names.extend(flush_enabled.map(|_| "flush-enabled"));
    (BucketChange { settings, flush_enabled, ..BucketChange::default() }, names)
}

/// Whether encrypted connections begin, end, or are taken or made elsewhere; the files are read again while the node
/// runs.
fn has_other_tls(present: &Config, new: &Config) -> bool {
    let fixed = |of: &Config| of.tls.as_ref().map(|tls| (tls.kv_addrs(), tls.http_addrs()));
    fixed(present) != fixed(new)
}

/// Whether what nodes say to each other is encrypted otherwise.
fn has_other_level(present: &Config, new: &Config) -> bool {
    let level = |of: &Config| of.tls.as_ref().map(|tls| tls.cluster_encryption);
    level(present).zip(level(new)).is_some_and(|(present, new)| present != new)
}

/// Names of settings that are different, and are looked at by a start alone.
fn needs_restart(present: &Config, new: &Config) -> Vec<&'static str> {
    let differs = [
        ("data", present.data_dir != new.data_dir),
        ("kv", present.plain_kv() != new.plain_kv()),
        ("http", present.plain_http() != new.plain_http()),
        ("tls-cert and tls-key, kv-tls, http-tls", has_other_tls(present, new)),
        ("cluster-encryption", has_other_level(present, new)),
        ("advertise", present.advertise != new.advertise),
        ("alternate-address", present.alternate != new.alternate),
        ("join", present.is_member != new.is_member),
        ("vbuckets", present.vbuckets != new.vbuckets),
        ("threads", present.threads != new.threads),
        ("max-connections*, max-http-connections*, login-timeout-s", present.limits != new.limits),
        ("metrics-login", present.metrics_login != new.metrics_login),
        ("trace-endpoint and trace-ca", present.trace_endpoint != new.trace_endpoint),
        ("journal", present.journal != new.journal),
        ("max-open-files", present.max_open_files != new.max_open_files),
        ("compaction-*, purge-age-s", present.compaction != new.compaction),
        ("memory-quota", present.memory_quota_bytes != new.memory_quota_bytes),
        ("quarantine-s", present.quarantine_s != new.quarantine_s),
        ("encryption-key-*", present.encryption != new.encryption),
    ];
    differs.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}
