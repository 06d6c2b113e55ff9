//! A third party that follows a node's streams, whatever the node is, and checks each whole snapshot.

use std::sync::Arc;

use base::{VbId, VbState};
use engine::Bucket;

use crate::copy::{Branch, latest};
use crate::strict::{Consumer, Documents};
use crate::{Counts, Dice, VBUCKETS, world};

/// A node as the strict consumer sees it.
pub struct World {
    pub bucket: Arc<Bucket>,
    branches: Vec<Branch>,
}

impl World {
    /// The documents of a vBucket as of a seqno, in the history that the node is in.
    pub fn documents(&self, vb: VbId, until: u64) -> Documents {
        let all = latest(&self.branches[usize::from(vb.0)], until).into_iter();
        let documents = all.filter(|(_, record)| !record.kind.is_deleted());
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        let body = |record: &crate::copy::Record| {
            let plain = &record.value;
            text(engine::value::split(plain, base::Datatype(record.datatype)).1)
        };
        documents.map(|(key, record)| (key.to_owned(), (record.seqno, body(record)))).collect()
    }
}

/// A consumer of one node.
pub struct Third {
    pub at: usize,
    consumer: Consumer,
}

impl Third {
    pub fn new(at: usize) -> Third {
        Third { at, consumer: Consumer::new(at, VBUCKETS) }
    }

    fn view(&self, world: &world::World) -> Result<World, String> {
        let branches = (0..VBUCKETS).map(|vb| world.branch(self.at, VbId(vb)).cloned());
        let branches = branches.collect::<Result<_, _>>()?;
        Ok(World { bucket: Arc::clone(&world.nodes[self.at].bucket), branches })
    }

    pub fn act(&mut self, world: &world::World, dice: &mut Dice) -> Result<(), String> {
        let view = self.view(world)?;
        self.consumer.act(&view.bucket, &view, dice);
        Ok(())
    }

    /// Looks at everything that has been sent, before the node gets another history.
    pub fn catch_up(&mut self, world: &world::World) -> Result<(), String> {
        self.consumer.look_at_all(&self.view(world)?);
        Ok(())
    }

    pub fn disconnect(&mut self, dice: &mut Dice) {
        self.consumer.disconnect(dice);
    }

    /// It has what the node has in the end.
    pub fn finish(
        &mut self,
        world: &world::World,
        dice: &mut Dice,
        counts: &mut Counts,
    ) -> Result<(), String> {
        let view = self.view(world)?;
        let is_served = |vb: u16| view.bucket.state_of(VbId(vb)) != Some(VbState::Dead);
        assert!((0..VBUCKETS).all(is_served));
        self.consumer.finish(&view, dice);
        for vb in (0..VBUCKETS).map(VbId) {
            if self.consumer.documents(vb) != view.documents(vb, u64::MAX) {
                return Err(format!("the third party has something else of {vb:?}"));
            }
        }
        counts.third_snapshots += self.consumer.counts.snapshots;
        counts.third_rollbacks += self.consumer.counts.rollbacks;
        Ok(())
    }
}
