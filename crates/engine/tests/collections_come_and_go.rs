//! 300 collections are made and dropped 40 times: memory returns, by the account and by the process, and the stop behind
//! it does no more than one behind two rounds.
//!
//! Alone in its file, as it looks at what the whole process has allocated.

mod common;

use std::sync::Arc;
use std::time::Duration;

use base::env::sim::{Call, On};
use base::env::{Env, SimHandles};
use base::memory::{PARTS, ProcessMemory};
use base::{CollectionId, DocKey, ScopeId, VbId};
use common::set;
use engine::{Bucket, BucketConfig, ManifestRefusal, Progress};
use kvstore::{Journaled, JournaledConfig, KvStore};
use vbucket::Collection;

const COLLECTIONS: u32 = 300;
const VBUCKETS: u16 = 4;
/// Small, so that filing is due within the rounds, too.
const JOURNAL_BYTES: u64 = 1 << 20;

/// So often the background tasks are given a turn.
const MOST_STEPS: u32 = 1_000;

/// What is left when all work is done, and what a stop costs then.
#[derive(Debug)]
struct Left {
    charged: [i64; PARTS],
    /// What the process gets back with the bucket and its store; the simulated disk stays.
    process_bytes: i64,
    stop_writes: u64,
    stop_syncs: u64,
}

struct World {
    handles: SimHandles,
    store: Arc<dyn KvStore>,
    bucket: Bucket,
}

impl World {
    fn new() -> World {
        let (env, handles) = Env::sim(1);
        let config = JournaledConfig { journal_bytes: JOURNAL_BYTES, ..JournaledConfig::default() };
        let store = Journaled::open(env.clone(), "/data/test".as_ref(), config).expect("the disk works");
        let store: Arc<dyn KvStore> = Arc::new(store);
        let config = BucketConfig { vbuckets: VBUCKETS, ..BucketConfig::new("test", "/data/test".into()) };
        let bucket = Bucket::open(config, env, Arc::clone(&store)).expect("the disk works");
        World { handles, store, bucket }
    }

    /// Makes and drops them, each kind in one change, with a document in each.
    fn round(&self, round: u32) {
        let first = 8 + round * COLLECTIONS;
        self.change(|next| {
            for id in first..first + COLLECTIONS {
                let (id, scope, name) = (CollectionId(id), ScopeId(0), format!("c{id}"));
                next.add_collection(Collection { id, scope, name, max_ttl_s: None, history: None })
                    .expect("there is room");
            }
        });
        for id in first..first + COLLECTIONS {
            let key = DocKey { collection: CollectionId(id), key: b"k" };
            let vb = VbId((id % u32::from(VBUCKETS)) as u16);
            self.bucket.documents().store(vb, &set(key, "value"), self.bucket.now()).expect("there is room");
        }
        assert!(self.bucket.flushing().flush_all());
        self.change(|next| {
            (first..first + COLLECTIONS).for_each(|id| next.remove_collection(CollectionId(id)))
        });
        assert!(self.bucket.flushing().flush_all());
        self.work();
    }

    fn change(&self, change: impl FnOnce(&mut vbucket::Manifest)) {
        let changed = self.bucket.collections().change_manifest::<ManifestRefusal>(|present, _| {
            let mut next = present.successor();
            change(&mut next);
            Ok(next)
        });
        changed.expect("the disk works, and there is room");
    }

    /// What background tasks do, until nothing is dropped and not erased, and everything is filed.
    fn work(&self) {
        for _ in 0..MOST_STEPS {
            self.handles.clock.advance(Duration::from_secs(2));
            self.bucket.maintenance().keep_step();
            while self.bucket.flushing().flush_step() == Progress::Worked {}
            while self.bucket.flushing().file_step() == Progress::Worked {}
            while self.bucket.compaction().compact_step() == Progress::Worked {}
            let mut dropped = 0;
            self.bucket.each_vbucket(|vb| dropped += vb.collections().dropped().len());
            if dropped == 0 && self.store.stats().unfiled_bytes == 0 {
                return;
            }
        }
        panic!("what was dropped is still there");
    }

    /// Ends the world.
    fn end(self, rounds: u32) -> Left {
        let charged = self.bucket.memory().account().exact();
        // The stop finds as much to do as a round leaves before its background tasks have done anything.
        let first = 8 + rounds * COLLECTIONS;
        self.change(|next| {
            for id in first..first + COLLECTIONS {
                let (id, scope, name) = (CollectionId(id), ScopeId(0), format!("c{id}"));
                next.add_collection(Collection { id, scope, name, max_ttl_s: None, history: None })
                    .expect("there is room");
            }
        });
        let calls = |call| self.handles.disk.calls(On::Kind(call));
        let before = (calls(Call::Write), calls(Call::Sync) + calls(Call::SyncDir));
        self.bucket.close().expect("the disk works");
        let stop_writes = calls(Call::Write) - before.0;
        let stop_syncs = calls(Call::Sync) + calls(Call::SyncDir) - before.1;
        let used = || ProcessMemory::now().system_used_bytes.expect("the system says so") as i64;
        let before = used();
        drop((self.bucket, self.store));
        Left { charged, process_bytes: before - used(), stop_writes, stop_syncs }
    }
}

fn after(rounds: u32) -> Left {
    let world = World::new();
    (0..rounds).for_each(|round| world.round(round));
    world.end(rounds)
}

#[test]
fn what_300_collections_took_returns_each_of_40_times() {
    let few = after(2);
    let many = after(40);
    let grown = many.charged.iter().sum::<i64>() - few.charged.iter().sum::<i64>();
    assert!(grown < 64 << 10, "{grown} bytes more are charged: {few:?} {many:?}");
    let grown = many.process_bytes - few.process_bytes;
    assert!(grown < 4 << 20, "the process has {grown} bytes more: {few:?} {many:?}");
    assert!(many.stop_writes <= few.stop_writes + u64::from(VBUCKETS), "{few:?} {many:?}");
    assert!(many.stop_syncs <= few.stop_syncs + 8, "{few:?} {many:?}");
}
