//! Sync writes of a replica: what it acknowledges, and what it does when it becomes active.

mod common;

use base::{Cas, DurabilityLevel, RevSeqno, Seqno, StoredKey, SyncWrite, VbState, VbUuid, VersionMeta};
use common::{VB, World, doc};
use engine::{Incoming, Refusal, ReplicaRefusal, ReplicaStream, topology_from_json};
use vbucket::{FailoverEntry, IncomingSnapshot, Misplaced, SnapshotKind};

const MEMORY: SnapshotKind = SnapshotKind::Memory;

struct Replica {
    world: World,
    stream: ReplicaStream,
}

fn connect(world: &World) -> ReplicaStream {
    let position = world.bucket.replicas().replica_position(VB).expect("it is a replica");
    let log = vec![FailoverEntry { uuid: VbUuid(7), seqno: Seqno(0) }];
    world.bucket.replicas().adopt_failover(&position, log).expect("it stands there")
}

impl Replica {
    fn new(seed: u64) -> Replica {
        let world = World::new(seed);
        world.bucket.roles().set_vbucket_state(VB, VbState::Replica, None).expect("there is such a vBucket");
        let stream = connect(&world);
        Replica { world, stream }
    }

    fn snapshot(&self, start: u64, end: u64, kind: SnapshotKind, high_completed: u64) {
        let snapshot = IncomingSnapshot {
            start: Seqno(start),
            end: Seqno(end),
            kind,
            begins_checkpoint: true,
            high_completed: Some(Seqno(high_completed)),
            ..IncomingSnapshot::default()
        };
        self.world.bucket.replicas().begin_snapshot(self.stream, &snapshot).expect("it fits");
    }

    fn version(&self, key: &str, seqno: u64, sync_write: SyncWrite) -> Incoming {
        let meta = VersionMeta {
            cas: Cas(seqno << 16),
            by_seqno: Seqno(seqno),
            rev_seqno: RevSeqno(1),
            sync_write,
            ..VersionMeta::default()
        };
        let value = format!("v{seqno}");
        Incoming::Version(
            self.world.bucket.replicas().received(meta, doc(key), value.as_bytes()).expect("it is sound"),
        )
    }

    fn prepare(&self, key: &str, seqno: u64, level: DurabilityLevel) {
        self.apply(self.version(key, seqno, SyncWrite::Prepare(level))).expect("it fits");
    }

    fn apply(&self, change: Incoming) -> Result<(), ReplicaRefusal> {
        self.world.bucket.replicas().apply_replicated(self.stream, &mut vec![change]).map(drop)
    }

    fn prepared(&self) -> u64 {
        self.world.bucket.durability().replica_prepared(VB).expect("it is a replica").0
    }

    fn in_flight(&self) -> usize {
        self.world
            .bucket
            .inspect(VB, |vb| vb.sync_writes().prepares_in_flight())
            .expect("there is such a vBucket")
    }

    fn read(&self, key: &str) -> Result<String, Refusal> {
        let found = self.world.bucket.documents().get_replica(VB, doc(key), self.world.now())?;
        Ok(String::from_utf8_lossy(found.version.value()).into_owned())
    }

    fn flush(&self) {
        assert!(self.world.bucket.flushing().flush_all(), "the disk works");
    }
}

fn key(key: &str) -> StoredKey {
    doc(key).to_stored()
}

fn commit(of: &str, prepared: u64, seqno: u64) -> Incoming {
    Incoming::Commit { key: key(of), prepared: Seqno(prepared), seqno: Seqno(seqno) }
}

fn abort(of: &str, prepared: u64, seqno: u64) -> Incoming {
    Incoming::Abort { key: key(of), prepared: Seqno(prepared), seqno: Seqno(seqno) }
}

#[test]
fn it_acknowledges_complete_snapshots() {
    let replica = Replica::new(1);
    replica.snapshot(0, 2, MEMORY, 0);
    replica.prepare("a", 1, DurabilityLevel::Majority);
    assert_eq!(replica.prepared(), 0);
    replica.prepare("b", 2, DurabilityLevel::PersistToMajority);
    assert_eq!(replica.prepared(), 1);
    replica.flush();
    assert_eq!((replica.prepared(), replica.in_flight()), (2, 2));
    assert_eq!(replica.read("a"), Err(Refusal::NotFound));
    replica.snapshot(3, 4, MEMORY, 0);
    replica.apply(commit("a", 1, 3)).expect("it is prepared");
    replica.apply(abort("b", 2, 4)).expect("it is prepared");
    assert_eq!((replica.read("a").as_deref(), replica.read("b")), (Ok("v1"), Err(Refusal::NotFound)));
    replica.world.bucket.inspect(VB, |vb| {
        assert_eq!((vb.sync_writes().high_completed_seqno(), vb.max_visible_seqno()), (Seqno(2), Seqno(3)));
        assert_eq!((vb.sync_writes().prepares_in_flight(), vb.counts().documents), (0, 1));
    });
}

#[test]
fn of_a_snapshot_from_a_disk_all_must_be_on_this_one() {
    let replica = Replica::new(2);
    replica.snapshot(0, 3, SnapshotKind::Disk, 0);
    replica.prepare("a", 1, DurabilityLevel::Majority);
    replica.flush();
    replica.apply(replica.version("b", 3, SyncWrite::No)).expect("it fits");
    assert_eq!(replica.prepared(), 0);
    replica.flush();
    assert_eq!(replica.prepared(), 1);
}

#[test]
fn a_snapshot_from_a_disk_ends_what_it_does_not_name() {
    let replica = Replica::new(3);
    replica.snapshot(0, 4, MEMORY, 0);
    for (at, name) in (1..).zip(["changed", "gone", "prepared again", "aborted"]) {
        replica.prepare(name, at, DurabilityLevel::Majority);
    }
    replica.snapshot(5, 12, SnapshotKind::Disk, 4);
    replica.apply(replica.version("changed", 6, SyncWrite::No)).expect("it fits");
    replica.apply(abort("never heard of", 2, 8)).expect("it fits");
    replica.prepare("prepared again", 9, DurabilityLevel::Majority);
    assert_eq!(replica.in_flight(), 3, "gone, prepared again, aborted");
    replica.apply(abort("aborted", 4, 10)).expect("it fits");
    replica.apply(replica.version("other", 12, SyncWrite::No)).expect("it fits");
    assert_eq!((replica.in_flight(), replica.read("changed").as_deref()), (1, Ok("v6")));
}

#[test]
fn a_commit_of_nothing_is_refused() {
    let replica = Replica::new(4);
    replica.snapshot(0, 5, MEMORY, 0);
    let refused = Err(ReplicaRefusal::Misplaced(Misplaced::NotPrepared));
    assert_eq!(replica.apply(commit("a", 1, 2)), refused);
    replica.prepare("a", 3, DurabilityLevel::Majority);
    assert_eq!(replica.apply(commit("a", 1, 4)), refused);
    replica.apply(commit("a", 0, 4)).expect("whoever names no prepare means the one that is there");
    assert_eq!(replica.read("a").as_deref(), Ok("v3"));
}

#[test]
fn whoever_becomes_active_commits_what_it_has() {
    for flushed in [false, true] {
        let replica = Replica::new(5);
        replica.snapshot(0, 2, MEMORY, 0);
        replica.prepare("a", 1, DurabilityLevel::PersistToMajority);
        replica.prepare("b", 2, DurabilityLevel::Majority);
        if flushed {
            replica.flush();
        }
        let topology = |json: serde_json::Value| Some(topology_from_json(&json).expect("it is a topology"));
        let two = topology(serde_json::json!([["n_1", "n_2"]]));
        let Replica { world, .. } = replica;
        world.bucket.roles().set_vbucket_state(VB, VbState::Active, two).expect("there is such a vBucket");
        assert_eq!(
            (world.get("a"), world.set("a", "x")),
            (Err(Refusal::ReCommitInProgress), Err(Refusal::ReCommitInProgress)),
            "whoever was active before may have committed it, and told so"
        );
        world.bucket.durability().acknowledged(VB, "n_2", Seqno(2));
        assert!(world.bucket.flushing().flush_all(), "the disk works");
        assert_eq!((world.get("a").as_deref(), world.get("b").as_deref()), (Ok("v1"), Ok("v2")));
        world.set("a", "x").expect("nothing is in the way any more");
    }
}

#[test]
fn what_it_commits_then_takes_the_place_of_what_is_on_disk_alone() {
    let replica = Replica::new(7);
    replica
        .world
        .bucket
        .set_params(&[("item_eviction_policy", "full_eviction")])
        .expect("there is such a policy");
    replica.snapshot(0, 1, MEMORY, 0);
    replica.apply(replica.version("a", 1, SyncWrite::No)).expect("it fits");
    replica.flush();
    assert_eq!(replica.world.bucket.eviction().evict_whole(VB, doc("a")), Ok(true));
    replica.snapshot(1, 2, MEMORY, 0);
    replica.prepare("a", 2, DurabilityLevel::Majority);
    let Replica { world, .. } = replica;
    let alone = topology_from_json(&serde_json::json!([["n_1"]])).expect("it is a topology");
    world
        .bucket
        .roles()
        .set_vbucket_state(VB, VbState::Active, Some(alone))
        .expect("there is such a vBucket");
    assert!(world.bucket.flushing().flush_all(), "the disk works");
    assert_eq!(world.get("a").as_deref(), Ok("v2"));
    // Nobody looked whether there was such a document: that is counted anew.
    while world.bucket.compaction().compact_step() != engine::Progress::Idle {}
    let stats = world.bucket.vbucket_stats(VB).expect("there is such a vBucket");
    assert_eq!((stats.documents, stats.evicted_documents), (1, 0));
}

#[test]
fn prepares_survive_a_restart_of_the_replica() {
    let replica = Replica::new(6);
    replica.snapshot(0, 3, MEMORY, 0);
    replica.apply(replica.version("a", 1, SyncWrite::No)).expect("it fits");
    replica.prepare("a", 2, DurabilityLevel::Majority);
    replica.prepare("b", 3, DurabilityLevel::Majority);
    replica.flush();
    let world = replica.world.restart();
    let replica = Replica { stream: connect(&world), world };
    assert_eq!((replica.in_flight(), replica.prepared()), (2, 3));
    assert_eq!(replica.read("a").as_deref(), Ok("v1"));
    replica.snapshot(4, 5, MEMORY, 0);
    replica.apply(commit("a", 2, 4)).expect("it is prepared");
    replica.apply(abort("b", 3, 5)).expect("it is prepared");
    assert_eq!((replica.read("a").as_deref(), replica.in_flight()), (Ok("v2"), 0));
}
