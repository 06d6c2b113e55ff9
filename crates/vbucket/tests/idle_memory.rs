//! What an idle vBucket costs: there are thousands of them in a node.

use base::{DocKey, NewVersion, Seqno, VbUuid, VersionMeta};
use vbucket::{BucketContext, CheckpointManager, FailoverEntry, FailoverTable, HashTable, RangeLimit};

struct Idle {
    table: HashTable,
    checkpoints: CheckpointManager,
    failover: FailoverTable,
}

impl Idle {
    fn bytes(&self) -> usize {
        let failover = size_of_val(self.failover.entries());
        let heap = self.table.allocated_bytes() + self.checkpoints.overhead_bytes() as usize + failover;
        size_of::<Idle>() + heap
    }
}

#[test]
fn an_idle_vbucket_is_small_before_and_after_work() {
    let context = BucketContext::new(1, 2, base::Heap::default());
    let mut idle = Idle {
        table: HashTable::new(&context),
        checkpoints: CheckpointManager::new(&context, Seqno(0)),
        failover: FailoverTable::new(VbUuid(1)),
    };
    assert!(size_of::<FailoverEntry>() == 16 && idle.bytes() < 800, "{} bytes", idle.bytes());

    let cursor = idle.checkpoints.register_cursor("flusher", Seqno(0)).expect("memory starts there");
    for seqno in 1..=2000_u64 {
        let meta = VersionMeta { by_seqno: Seqno(seqno), ..VersionMeta::default() };
        let bytes = (seqno % 1500).to_be_bytes();
        let key = DocKey::new(&bytes);
        let version = NewVersion::new(base::Heap::shared(), meta, key, &[b"value"]).publish();
        let old = idle.table.find_slot(context.seed.hash(key), key).set(version.clone());
        drop(idle.checkpoints.queue(version, old.map(|old| old.meta().by_seqno)));
        if seqno % 300 == 0 {
            let range =
                idle.checkpoints.take_range(cursor, RangeLimit::NONE).expect("it is there").expect("changes");
            idle.checkpoints.advance(cursor, range.end());
        }
    }
    assert!(idle.checkpoints.overhead_bytes() > 2000 * 8);
    assert!(idle.checkpoints.bytes() > idle.checkpoints.items() * 56);
    drop(idle.table.take());
    let range = idle.checkpoints.take_range(cursor, RangeLimit::NONE).expect("it is there").expect("changes");
    idle.checkpoints.advance(cursor, range.end());
    drop((idle.checkpoints.remove_closed(), range));
    assert_eq!((idle.checkpoints.items(), idle.checkpoints.bytes()), (0, 0));
    assert!(idle.bytes() < 1200, "{} bytes with room for four cursors", idle.bytes());
}
