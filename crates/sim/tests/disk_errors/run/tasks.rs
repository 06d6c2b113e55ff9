//! The background tasks of a bucket, each as what precedes it on a disk that is well and what it does on one that is not.

use std::path::{Path, PathBuf};

use base::env::{Disk, OpenMode};
use base::{DocKey, DurabilityLevel, Seqno, VbId, VbState};
use engine::{BackfillReading, CompactRequest, Follower, Progress};
use kvstore::{Change, KvStore as _, Values};

use super::model::Of;
use super::world::{
    ALONE, CHAINED, DIR, Kind, MOST_STEPS, PLAIN, PREPARED, QUARANTINE, REPLICA, VBUCKETS, World, manifest,
    name_of,
};

/// One task.
pub struct Task {
    pub name: &'static str,
    /// What of the engine it runs: threads by their `run_` method, chores by their name, methods of the store.
    pub covers: &'static [&'static str],
    /// Kinds of buckets that do it.
    pub kinds: &'static [Kind],
    /// Only calls on files whose name begins like this go wrong.
    pub only: Option<&'static str>,
    pub prepare: fn(&mut World),
    pub run: fn(&mut World),
    /// What is tried again until it is done: on the disk that is well, and after each start.
    pub again: fn(&mut World),
}

const STORED: &[Kind] = &[Kind::Journaled, Kind::Files, Kind::Full, Kind::Log];
const WITH_JOURNAL: &[Kind] = &[Kind::Journaled, Kind::Full, Kind::Log];
/// With a file for each vBucket.
const WITH_FILES: &[Kind] = &[Kind::Journaled, Kind::Files, Kind::Full];

const PLAIN_TASK: Task =
    Task { name: "", covers: &[], kinds: STORED, only: None, prepare: |_| {}, run: |_| {}, again: |_| {} };

/// All of them.
pub const TASKS: &[Task] = &[
    Task { name: "flush", covers: &["run_flusher", "save_group"], prepare: change, run: flush, ..PLAIN_TASK },
    Task {
        name: "inline flush",
        covers: &["inline_flush"],
        prepare: change,
        run: inline_flush,
        ..PLAIN_TASK
    },
    Task {
        name: "filing",
        covers: &["run_filer", "background_step"],
        kinds: WITH_JOURNAL,
        prepare: change_and_flush,
        run: |world| _ = world.file(),
        ..PLAIN_TASK
    },
    Task { name: "next segment", kinds: WITH_JOURNAL, run: fill_segments, ..PLAIN_TASK },
    Task {
        name: "file that cannot be filed, journal at its limit",
        kinds: &[Kind::Journaled, Kind::Full],
        only: Some("1.couch."),
        prepare: change_and_flush,
        run: fill_journal,
        ..PLAIN_TASK
    },
    Task {
        name: "compaction with changes meanwhile",
        covers: &["run_compactor", "help_compactor", "compact"],
        prepare: change_amid_compaction,
        run: |world| compact(world, CompactRequest::default()),
        ..PLAIN_TASK
    },
    Task { name: "purge of tombstones", prepare: change_and_flush, run: purge, ..PLAIN_TASK },
    Task {
        name: "erasure of a dropped collection",
        covers: &["run_keeper", "eraser"],
        prepare: drop_collection,
        run: erase,
        ..PLAIN_TASK
    },
    Task { name: "manifest record", kinds: &Kind::ALL, prepare: change, run: change_manifest, ..PLAIN_TASK },
    Task {
        name: "history of changes",
        covers: &["keep_history", "keeps_history", "history", "history_snapshot"],
        kinds: &[Kind::Log],
        prepare: change_and_flush,
        run: change_history,
        ..PLAIN_TASK
    },
    Task {
        name: "rollback",
        covers: &["rollback"],
        prepare: replicate,
        run: |world| roll_back(world, 3),
        ..PLAIN_TASK
    },
    Task { name: "far rollback", prepare: replicate, run: |world| roll_back(world, 11), ..PLAIN_TASK },
    Task { name: "rollback to 0", prepare: replicate, run: |world| roll_back(world, u64::MAX), ..PLAIN_TASK },
    Task { name: "changed role", prepare: change, run: change_role, ..PLAIN_TASK },
    Task {
        name: "deletion of a vBucket",
        covers: &["delete_vbucket"],
        prepare: retire,
        run: delete_vbucket,
        ..PLAIN_TASK
    },
    Task {
        name: "setting a damaged file aside",
        covers: &["set_aside"],
        kinds: WITH_FILES,
        prepare: damage_file,
        run: |world| drop(world.bucket().roles().set_aside(PLAIN, Path::new(QUARANTINE))),
        again: set_aside,
        ..PLAIN_TASK
    },
    Task { name: "removal of all documents", prepare: change_and_flush, run: remove_all, ..PLAIN_TASK },
    Task {
        name: "fetch",
        covers: &["run_fetcher", "get_many", "get"],
        prepare: load_keys,
        run: fetch,
        ..PLAIN_TASK
    },
    Task {
        name: "loading",
        covers: &["run_loader", "snapshot", "scan"],
        prepare: start_cold,
        run: load,
        ..PLAIN_TASK
    },
    Task {
        name: "backfill",
        covers: &["run_backfiller"],
        prepare: change_and_flush,
        run: backfill,
        ..PLAIN_TASK
    },
    Task {
        name: "snapshot by file",
        covers: &["vbucket_file"],
        kinds: WITH_FILES,
        prepare: change_and_flush,
        run: copy_file,
        ..PLAIN_TASK
    },
    Task {
        name: "start after a stop",
        covers: &["states", "was_closed", "store_id"],
        kinds: &Kind::ALL,
        prepare: stop,
        run: start,
        ..PLAIN_TASK
    },
    Task { name: "start after a kill", kinds: &Kind::ALL, prepare: kill, run: start, ..PLAIN_TASK },
    Task { name: "stop", covers: &["close"], prepare: change, run: stop, ..PLAIN_TASK },
];

fn change(world: &mut World) {
    world.change(3, 60);
    world.replicate(4);
    world.set_durably(CHAINED, 0, PREPARED[1], 0, Some(DurabilityLevel::MajorityAndPersistOnActive));
}

fn change_and_flush(world: &mut World) {
    change(world);
    assert!(world.bucket().flushing().flush_all(), "the disk is well");
    world.note();
}

fn flush(world: &mut World) {
    for _ in 0..3 {
        world.flush();
        world.change(1, 30);
    }
    world.flush();
}

fn inline_flush(world: &mut World) {
    for level in [DurabilityLevel::MajorityAndPersistOnActive, DurabilityLevel::PersistToMajority] {
        let bucket = world.bucket();
        let Some(inline_flush) = bucket.flushing().inline_flush() else { continue };
        world.set_durably(ALONE, 0, "stood-in", 0, Some(level));
        world.set_durably(PLAIN, 0, "stood-in", 0, Some(level));
        inline_flush.finish();
        world.note();
    }
}

fn fill_segments(world: &mut World) {
    for _ in 0..6 {
        world.change(1, 1500);
        world.flush();
    }
}

fn fill_journal(world: &mut World) {
    for _ in 0..24 {
        world.change(1, 1500);
        world.flush();
        world.file();
    }
}

/// A compaction finds changes that were saved since it began.
fn change_amid_compaction(world: &mut World) {
    change_and_flush(world);
    world.file();
    let bucket = world.bucket();
    let hook = move || {
        for name in ["amid", "k0", "k2"] {
            let name = name_of(name);
            let key = DocKey::new(&name);
            let _ = bucket.documents().store(
                ALONE,
                &super::world::request(key, b"amid a compaction"),
                bucket.now(),
            );
        }
        bucket.flushing().flush_step();
    };
    world.store.as_ref().expect("it runs").amid_compaction(Box::new(hook));
}

fn compact(world: &mut World, request: CompactRequest) {
    for vb in [ALONE, CHAINED] {
        drop(world.bucket().compaction().compact(vb, request));
        world.bucket().compaction().compact_step();
        world.note();
    }
}

fn purge(world: &mut World) {
    let purge_before_s = Some(world.bucket().now().unix_s() + 1000);
    compact(world, CompactRequest { purge_before_s, ..CompactRequest::default() });
}

fn drop_collection(world: &mut World) {
    change_and_flush(world);
    world.bucket().collections().set_manifest(manifest(2, &[8])).expect("the disk is well");
    world.manifests = vec![2];
    assert!(world.bucket().flushing().flush_all(), "the disk is well");
    world.note();
}

fn erase(world: &mut World) {
    for _ in 0..3 {
        world.handles.clock.advance(std::time::Duration::from_secs(2));
        world.bucket().maintenance().keep_step();
        for _ in 0..VBUCKETS {
            world.bucket().compaction().compact_step();
        }
        world.note();
    }
}

fn change_manifest(world: &mut World) {
    let mut last = 1;
    for (uid, collections) in [(2, &[8, 9, 10][..]), (3, &[8, 10])] {
        world.manifests.push(uid);
        if world.bucket().collections().set_manifest(manifest(uid, collections)).is_ok() {
            last = uid;
            world.manifests.retain(|known| *known >= last);
        }
        world.note();
        world.flush();
    }
    world.manifests.retain(|known| *known >= last);
}

/// A history of changes begins, ends, and begins again; it is read in between.
fn change_history(world: &mut World) {
    for seconds in ["3600", "0", "600"] {
        // What is refused has changed nothing, and is not tried again.
        let _ = world.bucket().set_param("history_retention_seconds", seconds);
        change(world);
        world.flush();
        for vb in (0..VBUCKETS).map(VbId) {
            let _ = world.store.as_ref().map(|store| store.history_snapshot(vb).map(drop));
        }
    }
}

fn replicate(world: &mut World) {
    for _ in 0..3 {
        world.replicate(4);
        assert!(world.bucket().flushing().flush_all(), "the disk is well");
    }
    world.note();
}

fn roll_back(world: &mut World, by: u64) {
    let high = world.bucket().inspect(REPLICA, |vb| vb.high_seqno()).unwrap_or_default();
    match world.bucket().roles().rollback(REPLICA, Seqno(high.0.saturating_sub(by))) {
        Ok(Ok(seqno)) => world.model.of(REPLICA).go_back(seqno),
        _ => {
            let now = world.bucket().inspect(REPLICA, |vb| (vb.state(), vb.high_seqno()));
            if let Some((VbState::Replica, high)) = now {
                world.model.of(REPLICA).go_back(high);
            }
            world.model.of(REPLICA).is_undecided = true;
        }
    }
    world.note();
    world.flush();
}

fn change_role(world: &mut World) {
    for state in [VbState::Replica, VbState::Active] {
        let _ = world.bucket().roles().set_vbucket_state(PLAIN, state, None);
        world.flush();
    }
}

fn retire(world: &mut World) {
    change_and_flush(world);
    world.bucket().roles().set_vbucket_state(PLAIN, VbState::Dead, None).expect("there is such a vBucket");
    assert!(world.bucket().flushing().flush_all(), "the disk is well");
}

fn delete_vbucket(world: &mut World) {
    world.model.of(PLAIN).is_retired = true;
    let _ = world.bucket().roles().delete_vbucket(PLAIN);
    world.flush();
}

/// After a clean stop the file of a vBucket is damaged.
fn damage_file(world: &mut World) {
    change_and_flush(world);
    world.close().expect("the disk is well");
    for path in files_of_plain(world, DIR) {
        let file = world.disk.open(&path, OpenMode::ReadWrite).expect("it is there");
        let len = file.len().expect("the disk is well") as usize;
        file.write_at(&vec![0xee; len], 0).expect("the disk is well");
        file.sync_data().expect("the disk is well");
    }
    world.open(false).expect("the rest is sound");
    assert_eq!(world.bucket().damaged(), [PLAIN]);
    world.model.of(PLAIN).is_retired = true;
}

fn files_of_plain(world: &World, folder: &str) -> Vec<PathBuf> {
    let is_its = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        path.parent() == Some(Path::new(folder)) && name.starts_with("3.couch.")
    };
    world.disk.contents().into_iter().map(|(path, _)| path).filter(is_its).collect()
}

/// What is damaged is set aside on a disk that is well, and kept.
fn set_aside(world: &mut World) {
    let Some(bucket) = world.bucket.clone() else { return };
    if bucket.is_damaged(PLAIN) {
        match bucket.roles().set_aside(PLAIN, Path::new(QUARANTINE)) {
            Ok(Ok(())) => {}
            other => world.wrong.get_mut().push(format!("it is not set aside: {other:?}")),
        }
    }
    if files_of_plain(world, QUARANTINE).len() != 1 {
        world.wrong.get_mut().push("what was damaged is not kept".to_owned());
    }
}

fn remove_all(world: &mut World) {
    let histories = |world: &World| -> Vec<_> {
        let newest = |vb| world.bucket().inspect(VbId(vb), |vb| vb.failover().entries()[0].uuid);
        (0..VBUCKETS).map(newest).collect()
    };
    let (before, old) = (world.model.clone(), histories(world));
    let removed = world.bucket().roles().remove_all_documents();
    let new = histories(world);
    for vb in (0..VBUCKETS).map(VbId) {
        // Its memory may be empty because all of it was evicted.
        let is_gone = old[usize::from(vb.0)] != new[usize::from(vb.0)];
        let before = before.vbuckets.get(&vb).cloned().unwrap_or_default();
        let of = world.model.of(vb);
        *of = if is_gone {
            Of { before: removed.is_err().then(|| Box::new(before)), ..Of::default() }
        } else {
            // A half that failed may show after a kill, never after a stop.
            Of { may_be_gone: true, ..before }
        };
    }
    world.note();
    world.flush();
}

fn load_keys(world: &mut World) {
    start_cold(world);
    while world.bucket().loading().load_step() == Progress::Worked {}
}

fn fetch(world: &mut World) {
    let bucket = world.bucket();
    for vb in (0..VBUCKETS).map(VbId) {
        let names = ["k0", "k2", "k4", "durable", "r1", "r2", "r4"];
        let waiting = names.map(|name| bucket.fetching().fetch(vb, DocKey::new(&name_of(name))));
        bucket.fetching().fetch_step();
        drop(waiting);
    }
}

fn start_cold(world: &mut World) {
    world.kill();
    world.open(true).expect("the disk is well");
}

fn load(world: &mut World) {
    for _ in 0..MOST_STEPS {
        let is_idle = world.bucket().loading().load_step() == Progress::Idle;
        if is_idle && world.bucket().loading().warm_step() == Progress::Idle {
            break;
        }
    }
}

/// Makes lines of changes: key and digest of the value.
struct Lines;

impl engine::WriteChanges for Lines {
    fn write(
        &mut self,
        change: &Change<'_>,
        out: &mut Vec<u8>,
    ) -> Result<std::ops::ControlFlow<()>, engine::Refusal> {
        let value = sim::Fingerprint::of_bytes([change.value.unwrap_or_default()]);
        let key = change.key().key.escape_ascii();
        out.extend_from_slice(format!("{} {} {key}\n", change.meta.by_seqno, value.0).as_bytes());
        Ok(std::ops::ControlFlow::Continue(()))
    }
}

/// What a stream is sent from the disk is what was written.
fn copy_file(world: &mut World) {
    let bucket = world.bucket();
    let snapshots = bucket.file_snapshots();
    let reader = engine::SnapshotReader::default();
    let Ok(made) = snapshots.prepare(PLAIN, None, &reader) else { return };
    let mut bytes = vec![0; made.len as usize];
    if snapshots.read(made.id, &mut bytes, 0).is_ok() {
        assert!(bytes.iter().any(|byte| *byte != 0), "a file has a header");
    }
    snapshots.release(PLAIN, &reader).expect("it was made");
}

fn backfill(world: &mut World) {
    let bucket = world.bucket();
    let follower = Follower::new(VBUCKETS, || {});
    for vb in [ALONE, PLAIN, REPLICA] {
        let reading = BackfillReading {
            values: Values::Read,
            by_key: None,
            is_urgent: false,
            with_prepares: false,
            with_past: false,
        };
        let backfill = bucket.streams().backfills().begin(vb, Seqno(0), reading, Box::new(Lines), &follower);
        for _ in 0..MOST_STEPS {
            bucket.streams().backfills().step();
            let taken = bucket.streams().backfills().take(&backfill, usize::MAX);
            let text: String =
                taken.frames.iter().map(|one| String::from_utf8_lossy(one).into_owned()).collect();
            text.lines().for_each(|line| check_line(world, vb, line));
            if taken.is_done || taken.is_over || taken.has_failed {
                break;
            }
        }
        bucket.streams().backfills().cancel(&backfill);
    }
}

fn check_line(world: &World, vb: VbId, line: &str) {
    let mut words = line.splitn(3, ' ');
    let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).unwrap_or_default();
    let (seqno, value) = (Seqno(number()), number());
    let versions = world.model.vbuckets.get(&vb).into_iter().flat_map(|of| of.docs.values());
    let known = versions.filter_map(|versions| versions.get(&seqno)).next();
    if known.is_some_and(|known| known.value.0 != value) {
        world.wrong.borrow_mut().push(format!("{vb}: a stream is sent another value: {line}"));
    }
}

fn stop(world: &mut World) {
    let _ = world.close();
}

fn kill(world: &mut World) {
    change_and_flush(world);
    world.kill();
}

fn start(world: &mut World) {
    let _ = world.open(false);
}

/// Whether a task is there with this store.
impl Task {
    pub fn is_with(&self, kind: Kind) -> bool {
        self.kinds.contains(&kind)
    }
}
