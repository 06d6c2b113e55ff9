//! `stave backup drill`: restores into a throw-away node, compares, and says how long it took.
//!
//! # Guarantees
//!
//! - The node is a process of its own, listens on this machine only, and ends with this one.
//! - Its files are in a folder of their own, which is removed at the end, also after a failure.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the client's end is not part of a node"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, bail};
use base::env::Env;
use base::{Datatype, VbId};
use clap::Args;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::backup::{ChainReader, Repository, TakeOptions, Version, take};
use crate::cli::Outcome;
use crate::client::{Client, Dialect, HttpTarget, Patience, Secret, Target};
use crate::commands::dcp_tail::watch_interrupt;
use crate::commands::restore::{
    DocumentChoice, OpenedState, RestoreState, collection_names, each_version, restore_state,
};
use crate::commands::status_line::StatusLine;
use crate::units::{bytes, parse_bytes, thousands};
use crate::with_meta::Record;

/// The bucket of the throw-away node.
const BUCKET: &str = "drill";
const USERNAME: &str = "Administrator";
/// What its folder's name begins with.
const FOLDER: &str = "stave-drill-";
/// How long the node may take to start.
const PATIENCE: Duration = Duration::from_secs(60);
/// A document that expires within this is counted and not compared: it may be gone by then.
const SOON_S: u64 = 86_400;
/// Collections with differences that are named.
const MOST_DIFFERENCES: usize = 100;
const MIB: u64 = 1 << 20;
/// Bytes a second over the link that the estimate is about, 1 Gbit/s.
const LINK_BYTES_A_SECOND: f64 = 125e6;
/// Bytes of a request that sets a document with its metadata, beside its key and value.
const BYTES_OF_A_REQUEST: f64 = 54.0;

#[derive(Clone, Debug, Args)]
pub(super) struct DrillFlags {
    #[command(flatten)]
    state: RestoreState,
    /// The bucket whose backup is tried
    #[arg(long, value_name = "NAME", env = "STAVE_BUCKET", default_value = "default")]
    bucket: String,
    /// Where the throw-away node has its files, which are removed; a folder for temporary files if not given
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// The memory quota of the throw-away bucket, whose documents need not fit into it
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = parse_bytes)]
    quota: u64,
    /// Print the summary as a JSON object
    #[arg(long)]
    json: bool,
}

/// Documents of a collection, whatever their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CollectionDigest {
    documents: u64,
    bytes: u64,
    /// The sum of the checksums of all documents with their metadata.
    sum: u128,
}

/// What a state holds, by collection.
#[derive(Debug, Default)]
struct StateDigest {
    collections: BTreeMap<String, CollectionDigest>,
    tombstones: u64,
    /// Documents that are not compared.
    expiring: u64,
}

impl StateDigest {
    fn add(&mut self, collection: &str, record: &Record<'_>, soon_s: u64) {
        if record.deleted {
            self.tombstones += 1;
        } else if (1..=soon_s).contains(&u64::from(record.expiry)) {
            self.expiring += 1;
        } else {
            let one = match self.collections.get_mut(collection) {
                Some(one) => one,
                None => self.collections.entry(collection.to_owned()).or_default(),
            };
            one.documents += 1;
            one.bytes += (record.key.key.len() + record.value.len()) as u64;
            one.sum = one.sum.wrapping_add(checksum(record));
        }
    }

    fn total(&self) -> CollectionDigest {
        let mut total = CollectionDigest::default();
        for one in self.collections.values() {
            (total.documents, total.bytes) = (total.documents + one.documents, total.bytes + one.bytes);
        }
        total
    }
}

fn checksum(record: &Record<'_>) -> u128 {
    let mut hash = Sha256::new();
    hash.update((record.key.key.len() as u64).to_be_bytes());
    hash.update(record.key.key);
    hash.update(record.cas.to_be_bytes());
    hash.update(record.rev_seqno.to_be_bytes());
    hash.update(record.expiry.to_be_bytes());
    hash.update(record.flags.to_be_bytes());
    hash.update([record.datatype.without(Datatype::SNAPPY).0]);
    hash.update(record.value);
    let bytes: [u8; 32] = hash.finalize().into();
    u128::from_be_bytes(bytes[..16].try_into().expect("half of it"))
}

/// What a drill came to.
struct Drilled {
    state: OpenedState,
    expected: StateDigest,
    found: StateDigest,
    start: Duration,
    restore: Duration,
    compare: Duration,
}

impl Drilled {
    /// Collections that are not the same, each with what both sides have.
    fn differences(&self) -> Vec<String> {
        let names: BTreeSet<&String> =
            self.expected.collections.keys().chain(self.found.collections.keys()).collect();
        let of =
            |digest: &StateDigest, name: &String| digest.collections.get(name).copied().unwrap_or_default();
        let mut differences = Vec::new();
        for name in names {
            let (expected, found) = (of(&self.expected, name), of(&self.found, name));
            if expected != found {
                let what =
                    if expected.documents == found.documents { "other contents" } else { "other documents" };
                differences.push(format!(
                    "collection `{name}`: {what}: {} in the backup, {} restored",
                    thousands(expected.documents),
                    thousands(found.documents)
                ));
            }
        }
        if self.expected.expiring != self.found.expiring {
            differences.push(format!(
                "documents that expire soon: {} in the backup, {} restored",
                thousands(self.expected.expiring),
                thousands(self.found.expiring)
            ));
        }
        differences.truncate(MOST_DIFFERENCES);
        differences
    }

    /// How many seconds a restore of this state into a cluster takes: as fast as here, and at the least over the link.
    fn estimate(&self) -> (f64, f64) {
        let restore = self.restore.as_secs_f64().max(0.001);
        let sent = self.expected.total().bytes as f64 + self.overhead_bytes();
        let over_link = sent / LINK_BYTES_A_SECOND;
        (restore.max(over_link), over_link)
    }

    /// What a restore sends beside keys and values, and for documents that are not compared.
    fn overhead_bytes(&self) -> f64 {
        let total = self.expected.total();
        let documents = total.documents + self.expected.expiring + self.expected.tombstones;
        documents as f64 * BYTES_OF_A_REQUEST
    }

    fn text(&self) -> String {
        let (total, seconds) = (self.expected.total(), self.restore.as_secs_f64().max(0.001));
        let rate = |count: u64| (count as f64 / seconds) as u64;
        let rows = [
            ("state", self.state.name.clone()),
            ("collections", thousands(self.expected.collections.len() as u64)),
            ("documents compared", thousands(total.documents)),
            ("documents that expire within a day, only counted", thousands(self.expected.expiring)),
            ("tombstones, only sent", thousands(self.expected.tombstones)),
            ("keys and values", bytes(total.bytes)),
            ("seconds until the node served", format!("{:.1}", self.start.as_secs_f64())),
            ("seconds of the restore", format!("{seconds:.1}")),
            ("documents a second", thousands(rate(total.documents))),
            ("bytes a second", bytes(rate(total.bytes))),
            ("seconds of the comparison", format!("{:.1}", self.compare.as_secs_f64())),
            ("seconds of a real restore, at this rate", format!("{:.1}", self.estimate().0)),
            ("of them at the least over a link of 1 Gbit/s", format!("{:.1}", self.estimate().1)),
            ("differences", thousands(self.differences().len() as u64)),
        ];
        let mut text: String = rows.iter().map(|(name, value)| format!("{name:<52}  {value}\n")).collect();
        self.differences().iter().for_each(|one| text.push_str(&format!("{one}\n")));
        text
    }

    fn json(&self) -> Value {
        let total = self.expected.total();
        json!({
            "state": self.state.name,
            "documents": total.documents,
            "expiring": self.expected.expiring,
            "tombstones": self.expected.tombstones,
            "bytes": total.bytes,
            "start_seconds": self.start.as_secs_f64(),
            "restore_seconds": self.restore.as_secs_f64(),
            "compare_seconds": self.compare.as_secs_f64(),
            "real_restore_seconds": self.estimate().0,
            "real_restore_link_seconds": self.estimate().1,
            "differences": self.differences(),
        })
    }
}

/// Runs the command.
pub(super) fn run(env: &Env, flags: &DrillFlags) -> anyhow::Result<Outcome> {
    let interrupted = watch_interrupt(env)?;
    let program = std::env::current_exe().context("cannot find the program itself")?;
    let drilled = drill(env, flags, &program, &interrupted)?;
    super::print(flags.json, &drilled.json(), &drilled.text())?;
    Ok(if drilled.differences().is_empty() { Outcome::Done } else { Outcome::Faults })
}

fn drill(env: &Env, flags: &DrillFlags, program: &Path, interrupted: &AtomicBool) -> anyhow::Result<Drilled> {
    let soon_s = u64::from(env.clock.unix_s()) + SOON_S;
    let mut expected = StateDigest::default();
    let mut line = StatusLine::new(env);
    // Everything is read before a node is started: what cannot be restored is said at once.
    let state = each_version(env, &flags.state, &flags.bucket, &mut |vb, collection, version| {
        check(interrupted)?;
        line.show(|_| format!("vBucket {vb} of the backup"));
        if let Some(collection) = collection {
            expected.add(&collection.path(), &version.record, soon_s);
        }
        Ok(())
    })?;
    line.end();
    let now = || env.clock.monotonic();
    let begun = now();
    let scratch = Scratch::new(env, flags.scratch.as_deref())?;
    let node = ThrowAway::start(env, program, &scratch.0, state.vbuckets)?;
    node.make_bucket(env, flags.quota, state.by_time)?;
    let start = now() - begun;
    let begun = now();
    let sent = restore_state(
        env,
        &flags.state,
        &flags.bucket,
        &DocumentChoice::everything(),
        node.target(),
        interrupted,
    )?
    .1;
    if sent.conflicts > 0 {
        bail!(
            "the throw-away node kept {} documents of its own: that is a fault of this command",
            sent.conflicts
        );
    }
    let restore = now() - begun;
    let begun = now();
    let found = contents(env, &node, &scratch.0, soon_s, interrupted)?;
    let compare = now() - begun;
    // Without a clean stop, which would write files that are removed here.
    drop(node);
    drop(scratch);
    Ok(Drilled { state, expected, found, start, restore, compare })
}

fn check(interrupted: &AtomicBool) -> anyhow::Result<()> {
    if interrupted.load(Ordering::Relaxed) {
        bail!("interrupted; the throw-away node and its files are removed");
    }
    Ok(())
}

/// What the throw-away node holds, read as a backup reads it.
fn contents(
    env: &Env,
    node: &ThrowAway,
    scratch: &Path,
    soon_s: u64,
    interrupted: &AtomicBool,
) -> anyhow::Result<StateDigest> {
    let mut found = StateDigest::default();
    let mut line = StatusLine::new(env);
    let folder = scratch.join("compared");
    let repository = Repository::new(env, &folder);
    let show = &mut |now: &_| line.show(|seconds| super::how_far(now, seconds));
    let taken = take(env, &node.target(), &repository, &TakeOptions::default(), interrupted, show)?;
    let named = collection_names(&taken.manifest.collections);
    let chain = repository.chain(BUCKET, Some(&taken.manifest.id))?;
    let mut reader = ChainReader::open(&repository, &chain)?;
    for vb in 0..taken.manifest.vbuckets {
        let visit = &mut |version: &Version<'_>| -> anyhow::Result<()> {
            check(interrupted)?;
            line.show(|_| format!("vBucket {vb} of the throw-away node"));
            let record = &version.record;
            let name = named.get(&record.key.collection.0).map_or_else(String::new, |one| one.path());
            found.add(&name, record, soon_s);
            Ok(())
        };
        reader.newest(VbId(vb), visit)?;
    }
    line.end();
    Ok(found)
}

/// A folder that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(env: &Env, parent: Option<&Path>) -> anyhow::Result<Scratch> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_owned);
        let folder = std::path::absolute(parent)?.join(format!("{FOLDER}{:016x}", env.random.next_u64()));
        // Others on this machine are not to read what is restored.
        std::fs::DirBuilder::new().mode(0o700).create(&folder).with_context(|| {
            format!("cannot make {}; give --scratch with a folder that can be written to", folder.display())
        })?;
        Ok(Scratch(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("stave: cannot remove {}: {error}; remove it by hand", self.0.display());
        }
    }
}

/// The throw-away node, which ends with this value.
struct ThrowAway {
    child: Child,
    kv: String,
    http: String,
    password: Secret,
}

impl ThrowAway {
    fn start(env: &Env, program: &Path, scratch: &Path, vbuckets: u16) -> anyhow::Result<ThrowAway> {
        let password = Secret(format!("{:016x}{:016x}", env.random.next_u64(), env.random.next_u64()));
        let mut child = Command::new(program)
            .args(["dev", "--kv", "127.0.0.1:0", "--http", "127.0.0.1:0", "--threads", "2"])
            .args(["--with-parent", &std::process::id().to_string()])
            .args(["--bucket", "default:100MiB", "--vbuckets", &vbuckets.to_string(), "--username", USERNAME])
            .arg("--data")
            .arg(scratch.join("node"))
            .env("STAVE_PASSWORD", &password.0)
            .env("STAVE_LOG", "error")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the throw-away node")?;
        let stdout = child.stdout.take().expect("it is piped");
        let mut node = ThrowAway { child, kv: String::new(), http: String::new(), password };
        let (send, ready) = mpsc::channel();
        let read = move || {
            let mut line = String::new();
            // If this side has given up, it does not matter any more.
            let _ = BufReader::new(stdout).read_line(&mut line).map(|_| send.send(line));
        };
        env.spawn.spawn("drill", Box::new(read))?;
        let line = ready.recv_timeout(PATIENCE).unwrap_or_default();
        let field = |name: &str| {
            let mut fields = line.split_ascii_whitespace().filter_map(|word| word.split_once('='));
            fields.find(|(field, _)| *field == name).map(|(_, value)| value.to_owned())
        };
        let addresses = field("kv").zip(field("http")).filter(|_| line.starts_with("ready "));
        (node.kv, node.http) =
            addresses.context("the throw-away node did not start; what it said is above")?;
        Ok(node)
    }

    fn target(&self) -> Target {
        Target {
            addr: self.kv.clone(),
            dialect: Dialect::Couchbase,
            username: USERNAME.to_owned(),
            password: self.password.clone(),
            bucket: BUCKET.to_owned(),
            patience: Patience(PATIENCE),
            ..Target::default()
        }
    }

    fn http(&self) -> HttpTarget {
        self.target().over_http(self.http.clone())
    }

    /// Makes the bucket, and waits until it can be used.
    fn make_bucket(&self, env: &Env, quota: u64, by_time: bool) -> anyhow::Result<()> {
        let fields = [
            ("name", BUCKET.to_owned()),
            ("ramQuota", quota.div_ceil(MIB).to_string()),
            ("evictionPolicy", "fullEviction".to_owned()),
            ("replicaNumber", "0".to_owned()),
            ("conflictResolutionType", if by_time { "lww" } else { "seqno" }.to_owned()),
        ];
        let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (*name, &**value)).collect();
        self.http().form("/pools/default/buckets", &fields).context("cannot make the bucket of the drill")?;
        let until = env.clock.monotonic() + PATIENCE;
        loop {
            match Client::open(env, &self.target()) {
                // What expires while it is compared stays what it was.
                Ok(mut client) => return Ok(client.set_param("exp_pager_enabled", "false")?),
                Err(_) if env.clock.monotonic() < until => std::thread::sleep(Duration::from_millis(50)),
                Err(error) => return Err(error).context("the bucket of the drill does not serve"),
            }
        }
    }
}

impl Drop for ThrowAway {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use base::DocKey;

    use super::*;

    fn digest(documents: &[(&str, &str, u32)]) -> StateDigest {
        let mut digest = StateDigest::default();
        for (key, value, expiry) in documents {
            let record = Record {
                key: DocKey::new(key.as_bytes()),
                deleted: value.is_empty(),
                expired: false,
                cas: 7,
                rev_seqno: 1,
                expiry: *expiry,
                flags: 0,
                datatype: Datatype::JSON,
                value: value.as_bytes(),
            };
            digest.add("app.users", &record, 1_000);
        }
        digest
    }

    fn differences(expected: &[(&str, &str, u32)], found: &[(&str, &str, u32)]) -> Vec<String> {
        let state = OpenedState { name: "x".to_owned(), vbuckets: 4, by_time: false };
        let (start, restore, compare) = Default::default();
        Drilled { state, expected: digest(expected), found: digest(found), start, restore, compare }
            .differences()
    }

    #[test]
    fn a_real_restore_takes_what_this_one_took_or_what_the_link_takes() {
        let mut expected = digest(&[("a", "1", 0), ("b", "", 0), ("soon", "3", 999)]);
        let state = OpenedState { name: "one".to_owned(), vbuckets: 4, by_time: false };
        let (start, restore, compare) = (Duration::ZERO, Duration::from_secs(8), Duration::ZERO);
        expected.collections.get_mut("app.users").expect("it is there").bytes = 125_000_000 * 4;
        let mut drilled = Drilled { state, expected, found: StateDigest::default(), start, restore, compare };
        let (seconds, over_link) = drilled.estimate();
        assert!(seconds == 8.0 && (4.0..4.001).contains(&over_link), "{seconds} {over_link}");
        drilled.restore = Duration::from_secs(2);
        let (seconds, over_link) = drilled.estimate();
        assert!(seconds == over_link && over_link > 4.0, "{seconds} {over_link}");
        assert!(drilled.text().contains("seconds of a real restore, at this rate"), "{}", drilled.text());
        assert_eq!(drilled.json()["real_restore_seconds"], seconds);
    }

    #[test]
    fn any_difference_is_named_with_its_collection() {
        let backup = [("a", "1", 0), ("b", "2", 0), ("gone", "", 0), ("soon", "3", 999)];
        let turned = [("b", "2", 0), ("soon", "3", 999), ("a", "1", 0)];
        assert_eq!(
            differences(&backup, &turned),
            Vec::<String>::new(),
            "the order and tombstones do not count"
        );
        let swapped = [("a", "2", 0), ("b", "1", 0), ("soon", "3", 999)];
        let found = differences(&backup, &swapped);
        assert!(found.len() == 1 && found[0].contains("`app.users`: other contents"), "{found:?}");
        let found = differences(&backup, &[("a", "1", 0)]);
        assert!(found.len() == 2 && found[0].contains("2 in the backup, 1 restored"), "{found:?}");
        assert!(found[1].contains("expire soon"), "{found:?}");
        let found = differences(&[("a", "1", 2_000)], &[("a", "1", 3_000)]);
        assert_eq!(found.len(), 1, "expiry counts: {found:?}");
    }
}
