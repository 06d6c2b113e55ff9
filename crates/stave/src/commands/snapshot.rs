//! `stave snapshot`: the snapshots that nodes keep: of a bucket, all vBuckets as of one moment (record 0197), and by file, for
//! clients which copy vBuckets as files (record 0167).

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::Context;
use base::VbId;
use base::env::Env;
use clap::{Args, Subcommand};
use protocol::{RequestParts, Status, opcode};
use serde_json::{Value, json};

use crate::cli::{Outcome, ServerFlags, WrongArguments};
use crate::client::dcp::{KeptOnNode, end_on, kept_on, make_snapshot, members};
use crate::client::{Client, ClientError, Dialect, Target};
use crate::units::{bytes, duration};

/// The group of stats with the snapshots.
const STATS: &str = "snapshot-details";
const NS_IN_MS: u64 = 1_000_000;
const NS_IN_US: u64 = 1_000;

/// Snapshots that nodes keep: make one of a bucket, look at them, and end them.
#[derive(Clone, Debug, Args)]
pub struct SnapshotFlags {
    #[command(subcommand)]
    command: SnapshotCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum SnapshotCommand {
    /// Have the nodes keep all vBuckets of a bucket as of one moment
    #[command(
        after_help = "Examples:\n  stave snapshot make --bucket travel\n  stave backup --to /backups --bucket travel --snapshot f7970e20-ca1b-4059-8542-3196e93f6927\n\nThe nodes hold changes together for some milliseconds; reads go on. Nothing is copied: a node keeps the files that it has.\nThe snapshot ends when nothing was read or asked of it for ten minutes, or by `stave snapshot drop`."
    )]
    Make(ListFlags),
    /// List the snapshots of a bucket, on all nodes
    #[command(
        after_help = "Examples:\n  stave snapshot list --bucket travel\n  stave snapshot list --bucket travel --json\n\nA snapshot of the bucket has all vBuckets as of one moment; one by file has the file of one vBucket, for a client that\ncopies it. It keeps files on the disk, also after they were compacted, until its client ends it or reads nothing of it\nfor ten minutes."
    )]
    List(ListFlags),
    /// End snapshots: what keeps their files goes on without them
    #[command(
        after_help = "Examples:\n  stave snapshot drop f7970e20-ca1b-4059-8542-3196e93f6927 --bucket travel\n  stave snapshot drop --all --bucket travel\n\nThe client that reads a snapshot gets `no such key` from then on, and begins again. Needs the administrator. Ends with\n1 if there is no such snapshot."
    )]
    Drop(DropFlags),
}

#[derive(Clone, Debug, Args)]
struct ListFlags {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerFlags,
}

#[derive(Clone, Debug, Args)]
struct DropFlags {
    /// The snapshots, by the UUIDs that `list` shows
    #[arg(value_name = "UUID", required_unless_present = "all")]
    uuids: Vec<String>,
    /// All snapshots of the bucket
    #[arg(long, conflicts_with = "uuids")]
    all: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerFlags,
}

/// Runs the command.
pub fn run(env: &Env, flags: &SnapshotFlags) -> anyhow::Result<Outcome> {
    let mut out = std::io::stdout().lock();
    match &flags.command {
        SnapshotCommand::Make(flags) => {
            make(env, &flags.server.target(Dialect::Couchbase)?, flags.json, &mut out)
        }
        SnapshotCommand::List(flags) => {
            list(env, &flags.server.target(Dialect::Couchbase)?, flags.json, &mut out)
        }
        SnapshotCommand::Drop(flags) => {
            let target = flags.server.target(Dialect::Couchbase)?;
            end(env, &target, (!flags.all).then_some(&*flags.uuids), flags.json, &mut out)
        }
    }
}

/// A snapshot that a node keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct KeptSnapshot {
    vb: u16,
    uuid: String,
    seqno: u64,
    file: String,
    size: u64,
    read_bytes: u64,
    age_ms: u64,
    ends_after_ms: u64,
}

/// The snapshots in an answer to [`STATS`].
fn parse(stats: &[(String, String)]) -> anyhow::Result<Vec<KeptSnapshot>> {
    let mut found: BTreeMap<u16, KeptSnapshot> = BTreeMap::new();
    for (name, value) in stats {
        let parts = name.strip_prefix("vb_").and_then(|name| name.split_once(':'));
        let (vb, field) =
            parts.with_context(|| format!("the node answers `{name}`, which is of no snapshot"))?;
        let vb = vb.parse().with_context(|| format!("the node answers `{name}`"))?;
        let one = found.entry(vb).or_insert_with(|| KeptSnapshot { vb, ..KeptSnapshot::default() });
        let number = || value.parse::<u64>().with_context(|| format!("the node answers {name} = `{value}`"));
        match field {
            "uuid" => one.uuid.clone_from(value),
            "file" => one.file.clone_from(value),
            "seqno" => one.seqno = number()?,
            "size" => one.size = number()?,
            "read_bytes" => one.read_bytes = number()?,
            "age_ms" => one.age_ms = number()?,
            "ends_after_ms" => one.ends_after_ms = number()?,
            _ => {}
        }
    }
    Ok(found.into_values().collect())
}

fn of_node(client: &mut Client) -> anyhow::Result<Vec<KeptSnapshot>> {
    match client.stats(STATS) {
        Ok(lines) => parse(&lines),
        // Who may copy a bucket is not told of all that others keep of it.
        Err(ClientError::Refused { status_code, .. }) if status_code == Status::Eaccess.code() => {
            Ok(Vec::new())
        }
        Err(error) => Err(error.into()),
    }
}

fn json_of(node: &str, one: &KeptSnapshot) -> Value {
    json!({
        "node": node,
        "vbucket": one.vb,
        "uuid": one.uuid,
        "seqno": one.seqno,
        "file": one.file,
        "bytes": one.size,
        "read_bytes": one.read_bytes,
        "age_ms": one.age_ms,
        "ends_after_ms": one.ends_after_ms,
    })
}

/// What a node keeps of a snapshot of the bucket.
fn bucket_json(node: &str, one: &KeptOnNode) -> Value {
    json!({
        "node": node,
        "uuid": one.id,
        "vbuckets": one.vbuckets.len(),
        "waiting": one.waiting,
        "lost": one.lost,
        "held_us": one.held_us,
        "age_ms": one.age_ms,
        "ends_after_ms": one.ends_after_ms,
    })
}

fn make(env: &Env, target: &Target, is_json: bool, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let made = make_snapshot(env, target)?;
    let held_us = made.held.as_micros() as u64;
    if is_json {
        let vbuckets: Vec<Value> =
            made.vbuckets.iter().map(|(vb, at)| json!([vb.0, at.uuid.0, at.seqno.0])).collect();
        writeln!(out, "{}", json!({ "uuid": made.id, "held_us": held_us, "vbuckets": vbuckets }))?;
    } else {
        let held = duration(held_us * NS_IN_US);
        writeln!(out, "{} of {} vBuckets; changes were held for {held}", made.id, made.vbuckets.len())?;
    }
    Ok(Outcome::Done)
}

fn list(env: &Env, target: &Target, is_json: bool, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let (mut objects, mut of_buckets, mut text) = (Vec::new(), Vec::new(), String::new());
    for member in members(env, target)? {
        let mut client = Client::open(env, &member)?;
        for one in kept_on(&mut client)? {
            let (age, left) = (duration(one.age_ms * NS_IN_MS), duration(one.ends_after_ms * NS_IN_MS));
            let (waiting, lost) = (one.waiting, one.lost.len());
            let (vbuckets, id) = (one.vbuckets.len(), &one.id);
            text.push_str(&format!(
                "{:<24}   all {id} {vbuckets:>5} vBuckets, {waiting} wait for the disk, {lost} lost, {age} old, ends in {left}\n",
                member.addr,
            ));
            of_buckets.push(bucket_json(&member.addr, &one));
        }
        for one in of_node(&mut client)? {
            let (age, left) = (duration(one.age_ms * NS_IN_MS), duration(one.ends_after_ms * NS_IN_MS));
            text.push_str(&format!(
                "{:<24} {:>5} {} {:>10} {:>10} read, {age} old, ends in {left}\n",
                member.addr,
                one.vb,
                one.uuid,
                bytes(one.size),
                bytes(one.read_bytes)
            ));
            objects.push(json_of(&member.addr, &one));
        }
    }
    if objects.is_empty() && of_buckets.is_empty() {
        text.push_str("no snapshots\n");
    }
    if is_json {
        writeln!(out, "{}", json!({ "snapshots": objects, "of_bucket": of_buckets }))?;
    } else {
        out.write_all(text.as_bytes())?;
    }
    Ok(Outcome::Done)
}

/// Ends the snapshots with these UUIDs, or all of them.
fn end(
    env: &Env,
    target: &Target,
    uuids: Option<&[String]>,
    is_json: bool,
    out: &mut dyn Write,
) -> anyhow::Result<Outcome> {
    if let Some(wrong) = uuids.into_iter().flatten().find(|uuid| !is_uuid(uuid)) {
        anyhow::bail!(WrongArguments(format!(
            "`{wrong}` is no UUID of a snapshot; `stave snapshot list` shows them"
        )));
    }
    let (mut ended, mut of_buckets) = (Vec::new(), Vec::new());
    for member in members(env, target)? {
        let mut client = Client::open(env, &member)?;
        for one in kept_on(&mut client)? {
            if uuids.is_none_or(|uuids| uuids.contains(&one.id)) && end_on(&mut client, &one.id)? {
                of_buckets.push((member.addr.clone(), one));
            }
        }
        for one in of_node(&mut client)? {
            let is_wanted = uuids.is_none_or(|uuids| uuids.contains(&one.uuid));
            if is_wanted && release(&mut client, &one)? {
                ended.push((member.addr.clone(), one));
            }
        }
    }
    let is_ended = |uuid: &&String| {
        ended.iter().any(|(_, one)| one.uuid == **uuid) || of_buckets.iter().any(|(_, one)| one.id == **uuid)
    };
    let missing: Vec<&String> = uuids.into_iter().flatten().filter(|uuid| !is_ended(uuid)).collect();
    if is_json {
        let objects: Vec<Value> = ended.iter().map(|(node, one)| json_of(node, one)).collect();
        let of_buckets: Vec<Value> = of_buckets.iter().map(|(node, one)| bucket_json(node, one)).collect();
        let object = json!({ "ended": objects, "ended_of_bucket": of_buckets, "missing": missing });
        writeln!(out, "{object}")?;
    } else {
        for (node, one) in &ended {
            writeln!(out, "ended {} of vBucket {} on {node}", one.uuid, one.vb)?;
        }
        for (node, one) in &of_buckets {
            writeln!(out, "ended {} of {} vBuckets on {node}", one.id, one.vbuckets.len())?;
        }
        missing.iter().try_for_each(|uuid| writeln!(out, "there is no snapshot {uuid}"))?;
        if ended.is_empty() && of_buckets.is_empty() && uuids.is_none() {
            writeln!(out, "no snapshots")?;
        }
    }
    Ok(if missing.is_empty() { Outcome::Done } else { Outcome::NotFound })
}

/// Ends one; false if it has ended by itself meanwhile.
fn release(client: &mut Client, one: &KeptSnapshot) -> anyhow::Result<bool> {
    const OPERATION: &str = "release snapshot";
    let (key, vbucket) = (one.uuid.as_bytes(), VbId(one.vb));
    let parts = RequestParts { opcode: opcode::RELEASE_SNAPSHOT, key, vbucket, ..RequestParts::default() };
    let answer = client.request(OPERATION, parts)?;
    match Status::from_code(answer.status_code) {
        Some(Status::Success) => Ok(true),
        Some(Status::KeyEnoent) => Ok(false),
        _ => Err(answer.refused(OPERATION).into()),
    }
}

fn is_uuid(text: &str) -> bool {
    let digits = text.bytes().filter(u8::is_ascii_hexdigit).count();
    text.len() == 36 && digits == 32 && text.split('-').map(str::len).eq([8, 4, 4, 4, 12])
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test waits for the disk")]
mod tests {
    use base::Datatype;

    use super::*;
    use crate::test_server::TestServer;

    fn prepare(client: &mut Client, vbucket: VbId) {
        let (datatype, value) = (Datatype::JSON.0, &b"{}"[..]);
        let opcode = opcode::PREPARE_SNAPSHOT;
        let parts = RequestParts { opcode, vbucket, datatype, value, ..RequestParts::default() };
        for _ in 0..400 {
            let answer = client.request("prepare snapshot", parts).expect("an answer");
            match Status::from_code(answer.status_code) {
                Some(Status::Success) => return,
                // Nothing of the vBucket is on disk yet.
                Some(Status::Etmpfail) => std::thread::sleep(std::time::Duration::from_millis(10)),
                other => panic!("{other:?}"),
            }
        }
        panic!("nothing was saved");
    }

    fn listed(server: &TestServer) -> Vec<Value> {
        let mut out = Vec::new();
        list(&Env::real(), &server.target(), true, &mut out).expect("listed");
        let told: Value = serde_json::from_slice(&out).expect("an object");
        told["snapshots"].as_array().expect("a list").clone()
    }

    #[test]
    fn snapshots_are_listed_and_ended() {
        let (mut server, env) = (TestServer::start(), Env::real());
        let mut client = server.client();
        for at in 0..40 {
            client.set(format!("k{at}").as_bytes(), b"v", 0).expect("stored");
        }
        assert!(listed(&server).is_empty());
        (0..3).for_each(|vb| prepare(&mut client, VbId(vb)));
        let all = listed(&server);
        let vbuckets: Vec<u64> = all.iter().filter_map(|one| one["vbucket"].as_u64()).collect();
        assert_eq!(vbuckets, [0, 1, 2]);
        assert!(
            all.iter().all(|one| one["bytes"].as_u64() > Some(0) && one["ends_after_ms"].as_u64() > Some(0))
        );
        let drop = |uuids: Option<&[String]>| {
            let mut out = Vec::new();
            let outcome = end(&env, &server.target(), uuids, false, &mut out).expect("an answer");
            (outcome, String::from_utf8(out).expect("text"))
        };
        let uuid = all[1]["uuid"].as_str().expect("text").to_owned();
        let (outcome, said) = drop(Some(std::slice::from_ref(&uuid)));
        assert!(outcome == Outcome::Done && said.contains(&uuid) && said.contains("vBucket 1"), "{said}");
        let (outcome, said) = drop(Some(&[uuid]));
        assert!(outcome == Outcome::NotFound && said.contains("there is no snapshot"), "{said}");
        assert_eq!(listed(&server).len(), 2);
        assert_eq!(drop(None).0, Outcome::Done);
        assert!(listed(&server).is_empty());
        let wrong = end(&env, &server.target(), Some(&["x".to_owned()]), false, &mut Vec::new());
        assert!(wrong.expect_err("no UUID").to_string().contains("`x` is no UUID"));
        std::mem::drop(client);
        server.stop();
    }

    #[test]
    fn a_snapshot_of_the_bucket_is_made_listed_copied_and_ended() {
        let (mut server, env) = (TestServer::start(), Env::real());
        let mut client = server.client();
        for at in 0..40 {
            client.set(format!("k{at}").as_bytes(), b"1", 0).expect("stored");
        }
        let mut out = Vec::new();
        make(&env, &server.target(), true, &mut out).expect("made");
        let made: Value = serde_json::from_slice(&out).expect("an object");
        let id = made["uuid"].as_str().expect("text").to_owned();
        assert!(is_uuid(&id) && made["vbuckets"].as_array().map(Vec::len) == Some(4), "{made}");
        client.set(b"k0", b"later", 0).expect("stored");
        client.set(b"more", b"later", 0).expect("stored");
        let mut out = Vec::new();
        list(&env, &server.target(), true, &mut out).expect("listed");
        let told: Value = serde_json::from_slice(&out).expect("an object");
        assert_eq!(
            (&told["of_bucket"][0]["uuid"], &told["of_bucket"][0]["waiting"]),
            (&made["uuid"], &json!(0))
        );
        // What is copied of it is older than what there is; it stays.
        let folder = tempfile::tempdir().expect("a folder");
        let repository = crate::backup::Repository::new(&env, folder.path());
        let take = |snapshot: Option<String>| {
            let options = crate::backup::TakeOptions { snapshot, is_full: true, ..Default::default() };
            let not_interrupted = &crate::test_server::NOT_INTERRUPTED;
            crate::backup::take(&env, &server.target(), &repository, &options, not_interrupted, &mut |_| {})
        };
        for _ in 0..2 {
            let taken = take(Some(id.clone())).expect("a backup");
            assert_eq!(taken.manifest.total().documents, 40);
            assert_eq!(taken.manifest.snapshot.as_ref(), Some(&id));
        }
        let taken = take(None).expect("a backup");
        assert_eq!((taken.manifest.total().documents, taken.without_moment), (41, None));
        assert!(taken.manifest.snapshot.is_some_and(|other| other != id));
        let drop = |uuid: &str| end(&env, &server.target(), Some(&[uuid.to_owned()]), true, &mut Vec::new());
        assert_eq!(drop(&id).expect("an answer"), Outcome::Done);
        assert_eq!(drop(&id).expect("an answer"), Outcome::NotFound);
        let refused = take(Some(id)).expect_err("it is gone");
        assert!(format!("{refused:#}").contains("cannot be copied"), "{refused:#}");
        std::mem::drop(client);
        server.stop();
    }

    #[test]
    fn stats_that_are_no_snapshots_are_refused() {
        let stat = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let found = parse(&[stat("vb_7:uuid", "u"), stat("vb_7:size", "5"), stat("vb_7:later", "x")]);
        assert_eq!(
            found.expect("one"),
            [KeptSnapshot { vb: 7, uuid: "u".to_owned(), size: 5, ..Default::default() }]
        );
        for (name, value) in [("other", "1"), ("vb_x:uuid", "1"), ("vb_1:size", "-1")] {
            assert!(parse(&[stat(name, value)]).is_err(), "{name}");
        }
    }
}
