//! The way through the tables of vBuckets, a few versions at a time.

use base::{VbId, VbState, Version};

use crate::documents::Documents;
use crate::shard::Shard;
use crate::shard_guard::Holder;

/// Versions that are looked at under a vBucket's lock at once: a cache miss each, so some 10 microseconds.
pub(super) const CHUNK_VERSIONS: usize = 64;

/// vBuckets of one kind are learnt about and evicted from together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Class {
    /// Replica, pending and dead ones: nobody reads them, so they come first.
    Replica,
    /// Those that clients read.
    Active,
}

impl Class {
    fn of(state: VbState) -> Class {
        if state == VbState::Active { Class::Active } else { Class::Replica }
    }
}

/// A way through the tables of vBuckets.
#[derive(Default)]
pub(super) struct Walk {
    pub(super) vbuckets: Vec<Stop>,
    pub(super) at: usize,
    pub(super) cursor: u64,
}

#[derive(Clone, Copy)]
pub(super) struct Stop {
    pub(super) vb: VbId,
    pub(super) class: Class,
    pub(super) incarnation: u64,
    pub(super) bytes: u64,
    pub(super) residents: u64,
}

impl Walk {
    /// All vBuckets that have documents in memory: replicas before active ones, the largest of each first.
    pub(super) fn new(documents: &Documents) -> Walk {
        let mut vbuckets = Vec::with_capacity(usize::from(documents.core.vbuckets()));
        for vb in (0..documents.core.vbuckets()).map(VbId) {
            let shard = documents.core.vbuckets.hold(vb, Holder::Pager);
            if shard.exists && shard.unloaded.is_none() && !shard.vb.table().is_empty() {
                let (class, counts) = (Class::of(shard.vb.state()), shard.vb.counts());
                vbuckets.push(Stop {
                    vb,
                    class,
                    incarnation: shard.incarnation,
                    bytes: counts.bytes,
                    residents: counts.documents - counts.without_value,
                });
            }
        }
        vbuckets.sort_by_key(|stop| (stop.class as usize, std::cmp::Reverse(stop.bytes)));
        Walk { vbuckets, at: 0, cursor: 0 }
    }

    pub(super) fn stop(&self) -> Option<Stop> {
        self.vbuckets.get(self.at).copied()
    }

    /// Looks at some versions of the present vBucket, and goes on. Whether that was its end.
    pub(super) fn look(
        &mut self,
        documents: &Documents,
        stop: Stop,
        mut see: impl FnMut(&Shard, &Version),
    ) -> bool {
        let next = {
            let shard = documents.core.vbuckets.hold(stop.vb, Holder::Pager);
            let is_same = shard.exists && shard.unloaded.is_none() && shard.incarnation == stop.incarnation;
            if is_same {
                shard.vb.table().visit(self.cursor, CHUNK_VERSIONS, |version| see(&shard, version))
            } else {
                None
            }
        };
        self.cursor = next.unwrap_or(0);
        self.at += usize::from(next.is_none());
        next.is_none()
    }
}
