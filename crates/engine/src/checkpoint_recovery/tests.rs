//! Recovery of checkpoint memory in a bucket: its order, where it ends, what is refused meanwhile.

use std::sync::Arc;

use base::env::sim::{Call, Effect, Fault, On};
use base::env::{Env, SimHandles};
use base::memory::PARTS;
use base::{Account, Cas, Datatype, DocKey, Heap, Part, Seqno};
use vbucket::{CursorId, Dropped, Range, RangeLimit};

use super::*;
use crate::bucket::Bucket;
use crate::config::BucketConfig;
use crate::keeper::LOOK_EVERY;
use crate::mutated::Mutated;
use crate::progress::Progress;
use crate::refusal::Refusal;
use crate::shard_guard::{Holder, ShardGuard};
use crate::store::{StoreMode, StoreRequest};

const VB: VbId = VbId(3);
/// The checkpoints' share of it is 1 MiB.
const QUOTA_BYTES: u64 = 5 << 20;

struct World {
    bucket: Bucket,
    handles: SimHandles,
    account: Account,
    written: u64,
}

impl World {
    fn new() -> World {
        let (mut env, handles) = Env::sim(1);
        let account = Account::new();
        env.heap = Heap::new(account.clone());
        let mut config = BucketConfig::new("test", "/data/test".into());
        (config.vbuckets, config.quota_bytes) = (8, QUOTA_BYTES);
        let store = kvstore::Couch::open(env.clone(), &config.dir, kvstore::CouchConfig::default());
        let store = Arc::new(store.expect("the disk works"));
        let bucket = Bucket::open(config, env, store).expect("the disk works");
        World { bucket, handles, account, written: 0 }
    }

    fn set_in(&self, vb: VbId, key: &str, bytes: usize) -> Result<Mutated, Refusal> {
        let request = StoreRequest {
            key: DocKey::new(key.as_bytes()),
            body: &vec![b'v'; bytes],
            datatype: Datatype::RAW,
            flags: 0,
            expiry: 0,
            mode: StoreMode::Set,
            cas: Cas::ANY,
            preserve_expiry: false,
        };
        self.bucket.documents.store(vb, &request, self.bucket.now())
    }

    /// Writes so many kilobytes under ever the same 40 keys; each is written to disk at once.
    fn write_kib(&mut self, vb: VbId, kib: u64) {
        for _ in 0..kib {
            self.written += 1;
            self.set_in(vb, &format!("k{}", self.written % 40), 1000).expect("there is room");
            assert!(self.bucket.flushing.flush_all());
        }
    }

    fn shard(&self, vb: VbId) -> ShardGuard<'_> {
        self.bucket.vbuckets.find(vb, Holder::FrontEnd).expect("it is there")
    }

    fn register(&self, vb: VbId, name: &str) -> CursorId {
        let mut shard = self.shard(vb);
        let from = shard.vb.high_seqno();
        shard.vb.checkpoints_mut().register_cursor(name, from).expect("it is in memory")
    }

    fn take(&self, vb: VbId, id: CursorId) -> Result<Option<Range>, Dropped> {
        let mut shard = self.shard(vb);
        shard.vb.checkpoints_mut().take_range(id, RangeLimit::NONE)
    }

    /// Runs the chores until none is due.
    fn keep(&self) {
        assert!((0..1000).any(|_| !self.bucket.maintenance.keep_step()), "it comes to an end");
        self.handles.clock.advance(LOOK_EVERY);
    }

    fn stats(&self) -> CheckpointMemoryStats {
        self.bucket.checkpoints.checkpoint_memory()
    }
}

#[test]
fn limits_adapt_to_the_quota_and_follow_the_settings() {
    let world = World::new();
    let stats = world.stats();
    assert_eq!((stats.share_bytes, stats.pressure), (QUOTA_BYTES / 5, Pressure::Calm));
    assert_eq!(stats.limits, CheckpointLimits { max_items: 10_000, max_bytes: 256 << 10 });
    let set = |name, value| {
        world.bucket.set_param(name, value).expect("it may be changed");
        world.keep();
        world.stats()
    };
    assert_eq!(set("max_size", "1GiB").limits.max_bytes, ((1 << 30) / 5 / 8 / 2) as u32);
    assert_eq!(set("max_size", "100GiB").limits.max_bytes, 16 << 20);
    assert_eq!(set("checkpoint_max_size", "1MiB").limits.max_bytes, 1 << 20);
    assert_eq!(set("chk_max_items", "7").limits.max_items, 7);
    let stats = set("checkpoint_memory_ratio", "0.1");
    assert_eq!(stats.share_bytes, (100 << 30) / 10);
    for key in 0..15 {
        world.set_in(VB, &format!("k{key}"), 10).expect("there is room");
    }
    let open_id = world.bucket.with_vbucket(VB, |vb| vb.checkpoints().open_id());
    assert_eq!(open_id, Some(3), "15 changes, 7 in each");
}

#[test]
fn the_slowest_stream_goes_back_to_the_disk_and_others_stay() {
    let mut world = World::new();
    let (slow, fast) = (world.register(VB, "slow"), world.register(VB, "fast"));
    let elsewhere = world.register(VbId(5), "elsewhere");
    world.write_kib(VbId(5), 20);
    world.write_kib(VB, 300);
    let range = world.take(VB, fast).expect("it is there").expect("there are changes");
    let end = range.end();
    assert!(world.shard(VB).vb.checkpoints_mut().advance(fast, end));
    while world.stats().pressure < Pressure::Recover {
        world.write_kib(VB, 1);
    }
    world.keep();
    let stats = world.stats();
    assert_eq!((stats.dropped_streams, stats.unfreed_items), (1, 0));
    assert!(stats.used_bytes <= stats.lower_mark_bytes && stats.pressure < Pressure::Recover);
    assert_eq!(world.take(VB, slow).err(), Some(Dropped), "it is told");
    assert!(world.take(VB, fast).expect("it is there").is_some());
    assert!(world.take(VbId(5), elsewhere).expect("it is there").is_some(), "it held hardly anything");
    assert_eq!(range.iter().count(), 300, "what was promised stays");
    assert!(range.iter().map(|v| v.meta().by_seqno).eq((1..=300).map(Seqno)));
}

#[test]
fn what_all_have_passed_goes_before_anybody_is_dropped() {
    let world = World::new();
    let stream = world.register(VB, "stream");
    // One large checkpoint, of which the stream has read most.
    world.bucket.set_param("checkpoint_max_size", "16MiB").expect("it may be changed");
    world.keep();
    for n in 0..920 {
        world.set_in(VB, &format!("k{n}"), 1000).expect("there is room");
    }
    let range = world.take(VB, stream).expect("it is there").expect("there are changes");
    assert!(world.bucket.flushing.flush_all());
    assert!(world.shard(VB).vb.checkpoints_mut().advance(stream, Seqno(800)));
    world.keep();
    let stats = world.stats();
    assert_eq!((stats.expelled_items, stats.dropped_streams, stats.removed_items), (768, 0, 0));
    assert!(stats.used_bytes <= stats.lower_mark_bytes);
    assert_eq!(range.iter().count(), 920, "what was promised stays");
    let rest = world.take(VB, stream).expect("it is there").expect("there are changes");
    assert_eq!((rest.start(), rest.items()), (Seqno(801), 120));
}

#[test]
fn what_the_disk_has_not_taken_is_never_given_up_and_changes_are_refused() {
    let mut world = World::new();
    let stream = world.register(VB, "stream");
    world.handles.disk.plan(Fault::for_ever(On::Kind(Call::Sync), 1, Effect::IO_ERROR));
    let mut refused = None;
    for n in 0..10_000 {
        match world.set_in(VB, &format!("k{n}"), 1000) {
            Ok(_) => {}
            Err(refusal) => {
                assert_eq!(refusal, Refusal::OverQuota);
                refused = Some(n);
                break;
            }
        }
    }
    let stored = refused.expect("the share is full, and memory is short");
    let memory = world.bucket.memory();
    assert!(memory.used_bytes() + 2000 > memory.low_watermark_bytes(), "{stored}");
    assert!(memory.used_bytes() < memory.low_watermark_bytes() + 10_000, "the quota has room");
    world.bucket.set_param("mem_low_wat_percent", "50").expect("it may be changed");
    assert_eq!(world.bucket.flushing.flush_step(), Progress::Failed);
    world.keep();
    let stats = world.stats();
    assert_eq!((stats.pressure, stats.dropped_streams, stats.refused), (Pressure::Full, 0, 1));
    let behind = world.bucket.with_vbucket(VB, |vb| vb.checkpoints().items());
    assert_eq!(behind, Some(stored), "nothing is lost");
    let deleted = world.bucket.documents.delete(VB, DocKey::new(b"k0"), Cas::ANY, world.bucket.now());
    assert_eq!(deleted.err(), Some(Refusal::OverQuota), "tombstones wait for the disk as well");

    world.handles.disk.heal();
    assert!(world.bucket.flushing.flush_all());
    // The stream holds everything until somebody drops it, which is what happens now.
    assert_eq!(world.stats().pressure, Pressure::Full);
    world.keep();
    assert_eq!((world.stats().pressure, world.stats().dropped_streams), (Pressure::Calm, 1));
    assert_eq!(world.take(VB, stream).err(), Some(Dropped));
    world.write_kib(VB, 1);
    assert_eq!(world.bucket.with_vbucket(VB, |vb| vb.checkpoints().items()), Some(0));
}

#[test]
fn the_flusher_gathers_no_longer_when_half_of_the_share_is_taken_and_memory_is_short() {
    let world = World::new();
    world.bucket.set_param("mem_low_wat_percent", "1").expect("it may be changed");
    let mut n = 0;
    while world.stats().pressure == Pressure::Calm {
        world.set_in(VbId(n % 8), &format!("k{n}"), 1000).expect("there is room");
        n += 1;
    }
    assert!((450..600).contains(&n), "{n} of 1 MiB");
    let mut group = Vec::new();
    let early = crate::flush_queue::Due::Gathered(world.bucket.env.clock.monotonic());
    world.bucket.flush.take(&mut group, early);
    assert!(group.is_empty(), "nobody has called yet");
    world.bucket.set_param("mem_low_wat_percent", "75").expect("it may be changed");
    world.set_in(VB, "one more", 10).expect("there is room");
    world.bucket.flush.take(&mut group, early);
    assert!(group.is_empty(), "it may go on gathering while there is memory");
    world.bucket.set_param("mem_low_wat_percent", "1").expect("it may be changed");
    world.set_in(VB, "one more", 10).expect("there is room");
    world.bucket.flush.take(&mut group, early);
    assert_eq!(group.len(), 8);
}

#[test]
fn large_amounts_are_freed_in_steps_by_the_housekeeper() {
    let mut world = World::new();
    world.bucket.set_param("max_size", "1GiB").expect("it may be changed");
    world.keep();
    world.bucket.context.checkpoints.set_most_kept(0);
    let before = world.account.exact();
    for n in 0..3000 {
        world.set_in(VB, &format!("k{}", n % 10), 100).expect("there is room");
        if n % 3 == 0 {
            world.shard(VB).vb.checkpoints_mut().close();
        }
    }
    assert!(world.bucket.flushing.flush_all());
    let unfreed = world.stats().unfreed_items;
    assert!(unfreed > 1024, "{unfreed}");
    assert_eq!(world.stats().used_bytes, world.stats().used_bytes.min(10_000), "they have left the queue");
    let held = world.account.exact()[Part::Documents as usize];
    world.keep();
    assert_eq!(world.stats().unfreed_items, 0);
    let left = world.account.exact();
    assert!(left[Part::Documents as usize] < held / 10);
    let grown = left[Part::Checkpoints as usize] - before[Part::Checkpoints as usize];
    assert!(grown.abs() < 2000, "{grown}");
    world.write_kib(VB, 3);
    let World { bucket, handles, account, .. } = world;
    drop((bucket, handles));
    assert_eq!(account.exact(), [0; PARTS], "a bucket that is gone has nothing");
}

#[test]
fn what_is_on_disk_is_kept_for_a_while_and_within_a_part_of_the_quota() {
    let world = World::new();
    world.bucket.set_param("max_size", "100MiB").expect("it may be changed");
    world.keep();
    for n in 0..2000 {
        world.set_in(VB, &format!("k{n}"), 1000).expect("there is room");
        if n % 10 == 0 {
            assert!(world.bucket.flushing.flush_all());
        }
    }
    assert!(world.bucket.flushing.flush_all());
    let start = || world.shard(VB).vb.checkpoints().memory_start();
    let kept = world.bucket.context.checkpoints.kept_bytes();
    assert!((16 << 10..=1 << 16).contains(&kept), "{kept} bytes: a sixteenth of a hundredth for one vBucket");
    assert!(start() <= Seqno(1960), "those sealed last are there: {:?}", start());
    // It is forgotten when it has become old, and at once when memory is short.
    for _ in 0..3 {
        world.handles.clock.advance(KEPT_TIME);
        world.keep();
    }
    assert_eq!((start(), world.bucket.context.checkpoints.kept_bytes()), (Seqno(2001), 0));
    world.set_in(VB, "one more", 10).expect("there is room");
    assert!(world.bucket.flushing.flush_all());
    assert_eq!(start(), Seqno(2001));
    world.bucket.set_param("mem_low_wat_percent", "1").expect("it may be changed");
    world.handles.clock.advance(LOOK_EVERY);
    world.keep();
    assert_eq!(start(), Seqno(2002));
}
