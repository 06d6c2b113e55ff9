//! What a change of the manifest costs a bucket of 128 vBuckets, in operations of the disk: the same however many
//! collections there are, and no more files, reads or syncs than a bucket of one vBucket needs.

mod common;
#[cfg(debug_assertions)]
#[path = "../../simulation/src/known.rs"]
mod known;

use std::sync::Arc;
use std::time::Duration;

use base::env::sim::{Call, On};
use base::env::{Env, SimHandles};
use base::{CollectionId, ScopeId};
use engine::{Bucket, BucketConfig, ManifestRefusal, Progress};
use kvstore::KvStore;
use vbucket::Collection;

const VBUCKETS: u16 = 128;
/// The most that a bucket may have.
const MOST: u32 = 1_200;

struct World {
    handles: SimHandles,
    store: Arc<dyn KvStore>,
    bucket: Bucket,
}

/// What the disk was asked for, and what the journal took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cost {
    opened: u64,
    read: u64,
    syncs: u64,
    folder_syncs: u64,
    writes: u64,
    journal_syncs: u64,
    journal_bytes: u64,
}

impl std::ops::Sub for Cost {
    type Output = Cost;

    fn sub(self, before: Cost) -> Cost {
        Cost {
            opened: self.opened - before.opened,
            read: self.read - before.read,
            syncs: self.syncs - before.syncs,
            folder_syncs: self.folder_syncs - before.folder_syncs,
            writes: self.writes - before.writes,
            journal_syncs: self.journal_syncs - before.journal_syncs,
            journal_bytes: self.journal_bytes - before.journal_bytes,
        }
    }
}

impl World {
    fn new(vbuckets: u16) -> World {
        let (env, handles) = Env::sim(1);
        let store = common::stores::journaled(&env);
        let config =
            BucketConfig { vbuckets, quota_bytes: 4 << 30, ..BucketConfig::new("test", "/data/test".into()) };
        let bucket = Bucket::open(config, env, Arc::clone(&store)).expect("the disk works");
        World { handles, store, bucket }
    }

    fn cost(&self) -> Cost {
        let calls = |call| self.handles.disk.calls(On::Kind(call));
        let journal = self.store.stats().journal.expect("there is one");
        Cost {
            opened: calls(Call::Open),
            read: calls(Call::Read),
            syncs: calls(Call::Sync),
            folder_syncs: calls(Call::SyncDir),
            writes: calls(Call::Write),
            journal_syncs: journal.syncs,
            journal_bytes: journal.written_bytes,
        }
    }

    /// Makes collections in one change of the manifest.
    fn make(&self, count: u32) {
        let made = self.bucket.collections().change_manifest::<ManifestRefusal>(|present, ids| {
            let mut next = present.successor();
            for id in ids.collection.0..ids.collection.0 + count {
                let collection = Collection {
                    id: CollectionId(id),
                    scope: ScopeId(0),
                    name: format!("collection-{id:06}"),
                    max_ttl_s: None,
                    history: None,
                };
                next.add_collection(collection).expect("there is room");
            }
            Ok(next)
        });
        made.expect("the disk works");
    }

    /// Makes one collection, until it is durable in all vBuckets.
    fn cost_of_one(&self) -> Cost {
        let before = self.cost();
        self.make(1);
        assert!(self.bucket.flushing().flush_all());
        self.cost() - before
    }

    /// Brings the files up to date.
    fn file(&self) {
        self.handles.clock.advance(Duration::from_secs(2));
        while self.bucket.flushing().file_step() == Progress::Worked {}
        assert_eq!(self.store.stats().unfiled_bytes, 0);
    }

    fn collections(&self) -> u32 {
        self.bucket.collections().manifest().collections().count() as u32
    }
}

#[test]
fn the_last_collection_costs_what_the_first_one_costs() {
    let world = World::new(VBUCKETS);
    // Files, a segment of the journal, and the numbers of each vBucket's state are there.
    world.make(1);
    assert!(world.bucket.flushing().flush_all());
    world.file();
    // The first one behind a filing also puts on record what was filed.
    world.cost_of_one();
    let first = world.cost_of_one();
    assert_eq!(
        (first.journal_syncs, first.folder_syncs),
        (1, 1),
        "one append, and the names of the manifest's files"
    );
    assert_eq!(first.syncs - first.journal_syncs, 3, "the manifest's two files, and what vouches for them");
    assert_eq!(first.opened, 5, "two are read and written, one is written, and no vBucket's file is opened");
    // One record of all vBuckets, and the table of files once more; a save for each would be 264 bytes.
    assert!(first.journal_bytes <= 96 * u64::from(VBUCKETS) + 4096, "{first:?}");
    world.make(MOST - 10 - world.collections());
    assert!(world.bucket.flushing().flush_all());
    world.file();
    world.cost_of_one();
    while world.collections() < MOST {
        let cost = world.cost_of_one();
        assert!(cost.journal_bytes <= first.journal_bytes, "{cost:?}");
        assert_eq!(Cost { journal_bytes: first.journal_bytes, ..cost }, first);
    }
}

/// Mistakes in the product that this test shows (`base::planted`).
#[test]
#[cfg(debug_assertions)]
fn mistakes_in_the_product_are_found() {
    known::must_find(known::Simulator::ManifestCost, |seed| {
        // Nothing in it depends on it.
        if seed == 0 {
            the_last_collection_costs_what_the_first_one_costs();
        }
        Ok(())
    });
}
