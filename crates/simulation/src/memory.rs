//! Whether memory is accounted for: what is charged is what is there, and nothing stays charged when a bucket is gone.

use std::sync::{Arc, Weak};

use base::memory::PARTS;
use base::{Account, Heap, Part, VbId, VbState, VbUuid};
use engine::{Bucket, BucketKind};
use vbucket::{BucketContext, Origin, VBucket};

use crate::node::{BUCKET, Node};
use crate::nodes::Nodes;

/// A bucket that its node has no more.
pub struct Closed {
    bucket: Weak<Bucket>,
    account: Account,
}

impl Node {
    /// The bucket is closed, or gone with its process.
    pub fn close(&mut self) {
        self.store = None;
        if let Some(bucket) = self.bucket.take() {
            self.front_end.served().forget(BUCKET);
            self.front_end.announcer().tell();
            let account = bucket.memory().account().clone();
            self.closed.push(Closed { bucket: Arc::downgrade(&bucket), account });
        }
    }

    /// Nobody holds anything of buckets that were closed, and nothing is charged to them.
    fn check_closed(&self) -> Result<(), String> {
        for Closed { bucket, account } in &self.closed {
            if bucket.strong_count() > 0 {
                return Err(format!("node {} has closed a bucket that is still in use", self.at));
            }
            let charged = account.exact();
            if charged != [0; PARTS] {
                return Err(format!(
                    "node {} has closed a bucket, and {charged:?} is charged to it",
                    self.at
                ));
            }
        }
        Ok(())
    }
}

impl Nodes {
    /// Looks at the accounts of all buckets.
    pub fn check_accounts(&self) -> Result<(), String> {
        let check = |(at, bucket): (usize, Arc<Bucket>)| {
            check_account(&bucket).map_err(|what| format!("node {at}: {what}"))
        };
        self.buckets().into_iter().try_for_each(check)
    }

    /// When everything is over, what was opened is closed, and nothing is charged any more.
    pub fn check_all_closed(&mut self) -> Result<(), String> {
        for node in self.iter_mut() {
            node.end_links();
            node.waiting.clear();
            node.connections.clear();
        }
        for (at, bucket) in self.buckets() {
            // Nobody streams from it any more.
            let (charged, kept) =
                (charged(&bucket, Part::Streams), bucket.streams().backfills().buffer_bytes() as u64);
            if charged != kept {
                return Err(format!(
                    "node {at}: {charged} bytes are charged for streams, and {kept} are held"
                ));
            }
        }
        self.iter_mut().for_each(Node::close);
        self.iter().try_for_each(Node::check_closed)
    }
}

fn charged(bucket: &Bucket, part: Part) -> u64 {
    bucket.memory().account().exact()[part as usize].max(0) as u64
}

fn overhead_bytes(vb: &VBucket) -> u64 {
    vb.checkpoints().overhead_bytes()
}

/// A vBucket of such a bucket, without a change.
fn nothing(bucket: &Bucket) -> VBucket {
    let context = match bucket.config().kind {
        BucketKind::Persistent => BucketContext::new(0, 0, Heap::default()),
        BucketKind::Ephemeral => BucketContext::ephemeral(0, 0, Heap::default()),
    };
    VBucket::new(VbId(0), &context, Origin::empty(VbState::Dead, VbUuid(0)))
}

/// Each part that can be counted is charged as it is counted.
fn check_account(bucket: &Bucket) -> Result<(), String> {
    let figures = bucket.account_check();
    let sum = |of: fn(&VBucket) -> u64| -> u64 {
        (0..bucket.vbuckets()).filter_map(|vb| bucket.with_vbucket(VbId(vb), of)).sum()
    };
    // One that is not there has room for its first checkpoint all the same.
    let missing =
        (0..bucket.vbuckets()).filter(|vb| bucket.with_vbucket(VbId(*vb), |_| ()).is_none()).count();
    let held = [
        (Part::Documents, figures.heap.used_bytes),
        (Part::HashTables, sum(|vb| vb.table().allocated_bytes() as u64)),
        (Part::Checkpoints, sum(overhead_bytes) + missing as u64 * overhead_bytes(&nothing(bucket))),
    ];
    for (part, held) in held {
        let charged = figures.charged[part as usize];
        if charged != held as i64 {
            return Err(format!("{charged} bytes are charged for {}, and {held} are held", part.name()));
        }
    }
    let filters = sum(|vb| vb.filter_bytes() as u64);
    if charged(bucket, Part::Storage) < filters {
        return Err(format!("filters hold {filters} bytes, of which not all are charged"));
    }
    Ok(())
}
