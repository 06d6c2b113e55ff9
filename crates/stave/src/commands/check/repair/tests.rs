//! What is damaged is told with what would be lost; nothing changes without `--yes`; what is repaired is sound, also after
//! a crash at each step.

use std::path::Path;
use std::sync::Arc;

use base::env::sim::{Fault, SimDisk, SimHandles};
use base::env::{Disk, Env, OpenMode};
use base::{Seqno, VbId, VbUuid};
use engine::{Bucket, BucketConfig, Follower, StreamRefusal, StreamWanted};
use kvstore::{FilesConfig, Journaled, JournaledConfig, KvStore, LogConfig, StorageBackend};
use vbucket::ResumePoint;

use super::*;
use crate::commands::check::tests::{checked, encrypted_worlds, flip, write_bucket};

const DATA: &str = "/data";
const FOLDER: &str = "/data/buckets/orders";
/// In vBucket 0.
const DOCUMENTS: u64 = 50;

fn repaired(env: &Env, path: &str, yes: bool, json: bool) -> (Outcome, String) {
    let mut out = Vec::new();
    let place = Place::find(&*env.disk, Path::new(path)).expect("there is something");
    let outcome = run(env, &place, json, yes, &mut out).expect("the disk works");
    (outcome, String::from_utf8(out).expect("text"))
}

fn env_of(disk: &SimDisk) -> Env {
    SimHandles::new(33).with_disk(disk.clone()).env()
}

fn in_folder(name: &str) -> PathBuf {
    Path::new(FOLDER).join(name)
}

/// A stopped node of which the last header of vBucket 2, the file of vBucket 3 and a copy of the bucket's UUID are damaged.
fn damaged() -> SimDisk {
    let (env, handles) = Env::sim(31);
    write_bucket(&env, Path::new(FOLDER));
    env.disk.create_dir_all_synced(Path::new("/data/buckets/sessions")).expect("a folder");
    assert_eq!(repaired(&env, DATA, true, false), (Outcome::Done, "nothing is damaged\n".to_owned()));
    assert_eq!(repaired(&env, DATA, true, true), (Outcome::Done, "{\"type\":\"clean\"}\n".to_owned()));
    let file = couchstore::CouchFile::open_read(&*env.disk, &in_folder("2.couch.1")).expect("sound");
    flip(&*env.disk, &in_folder("2.couch.1"), file.info().header_offset + 20);
    env.disk.remove_file(&in_folder("3.couch.1")).expect("it is there");
    flip(&*env.disk, &in_folder("uuid.copy"), 30);
    env.disk.sync_dir(Path::new(FOLDER)).expect("the disk works");
    sync_all(&handles.disk);
    handles.disk
}

/// What a test has written by hand is on disk.
fn sync_all(disk: &SimDisk) {
    for path in disk.contents().into_iter().map(|(path, _)| path) {
        let file = disk.open(&path, OpenMode::Read).expect("it is there");
        file.sync_data().expect("the disk works");
    }
}

/// Each vBucket that damage was told of, with what is kept: seqno, and documents.
fn kept(told: &str) -> Vec<(u64, u64, u64)> {
    let lines = told.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("an object"));
    let number = |line: &serde_json::Value, key: &str| line[key].as_u64().expect("a number");
    let of = |line: serde_json::Value| {
        (number(&line, "vbucket"), number(&line, "kept_seqno"), number(&line, "documents"))
    };
    lines.filter(|line| line["type"] == "damage").map(of).collect()
}

/// A vBucket after a start: highest seqno, documents, and its failover table, newest first.
type Started = (u64, u64, Vec<(u64, u64)>);

/// Starts the bucket.
fn start(env: &Env) -> Bucket {
    let couch = kvstore::Couch::open(env.clone(), Path::new(FOLDER), kvstore::CouchConfig::default());
    let mut config = BucketConfig::new("orders", FOLDER.into());
    config.vbuckets = 4;
    Bucket::open(config, env.clone(), Arc::new(couch.expect("sound"))).expect("sound")
}

/// Starts the bucket, and stops it.
fn started(env: &Env) -> Vec<Started> {
    let bucket = start(env);
    let of = |vb: &vbucket::VBucket| {
        let table = vb.failover().entries().iter().map(|entry| (entry.uuid.0, entry.seqno.0)).collect();
        (vb.high_seqno().0, vb.documents(), table)
    };
    let started = (0..4).map(|vb| bucket.with_vbucket(VbId(vb), of).expect("it is there")).collect();
    bucket.close().expect("the disk works");
    started
}

#[test]
fn what_would_be_lost_is_told_and_nothing_changes() {
    let disk = damaged();
    let env = env_of(&disk);
    let before = disk.contents();
    for path in [DATA, FOLDER] {
        let (outcome, out) = repaired(&env, path, false, false);
        assert_eq!(outcome, Outcome::Faults, "{out}");
        assert!(before == disk.contents(), "nothing was changed");
        let row = |vb: &str| {
            let is_of = |line: &&str| line.split_whitespace().take(2).eq(["orders", vb]);
            out.lines().find(is_of).unwrap_or_else(|| panic!("vBucket {vb} has no row: {out}"))
        };
        let second: Vec<&str> = row("2").split_whitespace().collect();
        let (kept, lost) = (second[2].parse::<u64>().expect("a seqno"), second[3]);
        assert!(kept > 0 && lost.starts_with(&format!("{}-", kept + 1)), "{out}");
        assert_eq!(second[5], "2.couch.1", "{out}");
        assert!(row("3").contains(" 0 ") && row("3").ends_with("nothing: it begins empty"), "{out}");
        assert!(out.contains("uuid.copy") || out.contains("orders/uuid: "), "{out}");
        assert!(out.contains("vBucket 3: it is missing"), "{out}");
        assert!(out.ends_with("nothing was changed; --yes repairs this\n"), "{out}");
    }
    let (_, told) = repaired(&env, DATA, false, true);
    let of_second = kept(&told)[0];
    assert!(of_second.0 == 2 && of_second.1 > 0 && of_second.2 > 0, "{told}");
    assert!(told.contains("\"may_be_more\":false"), "{told}");
    assert_eq!(repaired(&env, "/data/buckets/sessions", true, false).0, Outcome::Done, "it is sound");
}

#[test]
fn a_repair_keeps_what_was_told_and_begins_new_histories() {
    let disk = damaged();
    let env = env_of(&disk);
    let sound = {
        let (env, _) = Env::sim(31);
        write_bucket(&env, Path::new(FOLDER));
        started(&env)
    };
    let (_, told) = repaired(&env, DATA, false, true);
    let (outcome, out) = repaired(&env, DATA, true, false);
    assert_eq!(outcome, Outcome::Done, "{out}");
    let aside = out.rsplit_once("what was damaged is in ").expect("it is told").1.trim();
    assert!(aside.starts_with("/data/quarantine/repair-"), "{aside}");
    let is_kept = |name: &str| disk.contents().iter().any(|(path, _)| *path == Path::new(aside).join(name));
    assert!(is_kept("orders/2.couch.1") && is_kept("orders/uuid.copy"), "{out}");
    assert_eq!(checked(&env, DATA, false).0, Outcome::Done);
    assert_eq!(repaired(&env, DATA, true, false), (Outcome::Done, "nothing is damaged\n".to_owned()));
    let kept = kept(&told);
    assert_eq!(kept.iter().map(|(vb, ..)| *vb).collect::<Vec<_>>(), [2, 3]);
    let now = started(&env);
    assert_eq!(now[..2], sound[..2], "sound vBuckets go on as they were");
    for (vb, seqno, documents) in kept {
        let (high, found, table) = &now[vb as usize];
        assert_eq!((*high, *found, table[0].1), (seqno, documents, seqno), "vBucket {vb}");
        assert!(sound[vb as usize].2.iter().all(|old| old.0 != table[0].0), "vBucket {vb}: {table:?}");
    }
    assert_eq!(now[2].2[1..], sound[2].2, "readers of the history before find where they part");
}

/// A reader that had everything before the damage is sent back to what is kept, and goes on from there.
#[test]
fn readers_of_what_was_lost_are_told_to_roll_back() {
    let disk = damaged();
    let env = env_of(&disk);
    let before = {
        let (env, _) = Env::sim(31);
        write_bucket(&env, Path::new(FOLDER));
        started(&env)
    };
    let lost: Vec<(u64, u64)> =
        kept(&repaired(&env, DATA, false, true).1).into_iter().map(|(vb, seqno, _)| (vb, seqno)).collect();
    assert_eq!(repaired(&env, DATA, true, false).0, Outcome::Done);
    let bucket = start(&env);
    let follower = Follower::new(4, || {});
    let begin = |vb: u64, uuid: u64, seqno: u64| {
        let seqno = Seqno(seqno);
        let at = ResumePoint {
            start: seqno,
            uuid: VbUuid(uuid),
            snapshot_start: seqno,
            snapshot_end: seqno,
            ..ResumePoint::default()
        };
        bucket
            .streams()
            .begin_stream(VbId(vb as u16), &follower, &at, StreamWanted::Everything, true)
            .map(drop)
    };
    for (vb, (high, _, table)) in (0..).zip(&before) {
        let uuid = table[0].0;
        let kept = lost.iter().find(|(of, _)| *of == vb).map(|(_, seqno)| *seqno);
        let expected = kept.map_or(Ok(()), |kept| Err(StreamRefusal::RollBack(Seqno(kept))));
        assert_eq!(begin(vb, uuid, *high), expected, "vBucket {vb}");
        assert_eq!(begin(vb, uuid, kept.unwrap_or(*high)), Ok(()), "vBucket {vb}");
    }
    assert!(lost.len() == 2 && lost.iter().any(|(_, seqno)| *seqno > 0), "{lost:?}");
}

#[test]
fn a_repair_that_is_cut_off_anywhere_is_finished_by_the_next() {
    let told = kept(&repaired(&env_of(&damaged()), DATA, false, true).1);
    let mut steps = 0;
    loop {
        let disk = damaged();
        disk.plan(Fault::power_off_at(steps + 1));
        let place = Place::find(&disk, Path::new(DATA)).expect("there is something");
        let ended = run(&env_of(&disk), &place, true, true, &mut Vec::new());
        if !disk.is_off() {
            assert_eq!(ended.expect("no fault was met"), Outcome::Done);
            break;
        }
        assert!(ended.is_err(), "step {steps}");
        let disk = disk.crash(steps);
        let env = env_of(&disk);
        assert_eq!(repaired(&env, DATA, true, true).0, Outcome::Done, "step {steps}");
        assert_eq!(checked(&env, DATA, false).0, Outcome::Done, "step {steps}");
        let now = started(&env);
        for (vb, seqno, documents) in &told {
            let (high, found, table) = &now[*vb as usize];
            assert_eq!((high, found, table[0].1), (seqno, documents, *seqno), "step {steps}, vBucket {vb}");
        }
        assert_eq!(now[0].1, DOCUMENTS, "step {steps}");
        steps += 1;
    }
    assert!(steps > 20, "{steps} steps were cut off");
}

#[test]
fn one_file_and_a_member_of_a_cluster_are_refused() {
    let disk = damaged();
    let env = env_of(&disk);
    let refused = |path: &str| {
        let place = Place::find(&disk, Path::new(path)).expect("there is something");
        format!("{:#}", run(&env, &place, false, true, &mut Vec::new()).expect_err("it is refused"))
    };
    let file = in_folder("1.couch.1");
    let said = refused(&file.to_string_lossy());
    assert!(
        said.starts_with("--repair needs a data directory") && said.ends_with("nothing was changed"),
        "{said}"
    );
    let membership = disk.open(Path::new("/data/cluster-buckets.json"), OpenMode::Create).expect("a file");
    membership.write_at(b"{}", 0).expect("a write");
    let before = disk.contents();
    let said = refused(DATA);
    assert!(
        said.starts_with("/data belongs to a node of a cluster") && said.ends_with("nothing was changed"),
        "{said}"
    );
    assert!(before == disk.contents(), "nothing was changed");
}

/// A bucket of a node that encrypts, in either store, with one damaged file.
#[test]
fn an_encrypted_bucket_is_repaired_with_its_keys() {
    for (is_log, name) in [(false, "2.couch.1"), (true, "0-1.seg")] {
        let (raw, _) = Env::sim(31);
        let worlds = || encrypted_worlds(&raw, Path::new(DATA), Path::new(FOLDER));
        let (of_node, env) = worlds();
        write_bucket(&of_node, Path::new(FOLDER));
        if is_log {
            let (folder, backend) = (Path::new(FOLDER), StorageBackend::LogStructured);
            let migrated = kvstore::migrate::migrate(&env, folder, backend, &mut |_| ());
            migrated.expect("it is sound");
            kvstore::replace::Replacement::of(&env, Path::new(FOLDER)).remove_old().expect("the disk works");
        }
        let (of_node, env) = worlds();
        let len = raw.disk.open(&in_folder(name), OpenMode::Read).and_then(|file| file.len());
        flip(&*raw.disk, &in_folder(name), len.expect("it is there") / 2);
        assert_eq!(repaired(&env, DATA, true, false).0, Outcome::Done, "{name}");
        drop((of_node, env));
        let (of_node, env) = worlds();
        assert_eq!(checked(&env, DATA, false).0, Outcome::Done, "{name}");
        let files = if is_log { FilesConfig::Log(LogConfig::default()) } else { FilesConfig::default() };
        let config = JournaledConfig { files, ..JournaledConfig::default() };
        let store = Journaled::open(of_node.clone(), Path::new(FOLDER), config).expect("its keys are there");
        let counts: Vec<u64> =
            (0..4).map(|vb| store.counts(VbId(vb)).map_or(0, |counts| counts.documents)).collect();
        assert_eq!((counts[1], counts[3]), (DOCUMENTS - 10, DOCUMENTS - 10), "{name}: {counts:?}");
    }
}
