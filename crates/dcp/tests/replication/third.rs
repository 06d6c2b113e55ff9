//! A third party that follows a node's streams, whatever the node is, and checks each whole snapshot.

use std::sync::Arc;

use base::{CollectionId, VbId, VbState};
use engine::Bucket;

use crate::copy::{Branch, latest};
use crate::dice::Dice;
use crate::strict::{Consumer, Documents, Truth, Wanted, name_of};
use crate::{Counts, VBUCKETS, world};

/// A node as the strict consumer sees it.
struct View {
    bucket: Arc<Bucket>,
    branches: Vec<Branch>,
}

impl Truth for View {
    fn bucket(&self) -> &Arc<Bucket> {
        &self.bucket
    }

    /// In the history that the node is in; all are in the default collection.
    fn documents(&self, vb: VbId, until: u64, _: Wanted) -> Documents {
        let all = latest(&self.branches[usize::from(vb.0)], until).into_iter();
        let documents = all.filter(|(_, record)| !record.kind.is_deleted());
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        let body = |record: &crate::copy::Record| {
            let plain = &record.value;
            text(engine::value::split(plain, base::Datatype(record.datatype)).expect("readable").1)
        };
        let named = |key| name_of(CollectionId::DEFAULT, key);
        documents.map(|(key, record)| (named(key), (record.seqno, body(record)))).collect()
    }

    /// Each of the vBuckets in one of two ways.
    fn choose(&self, vb: VbId, _: &mut Dice) -> Wanted {
        match vb.0 % 2 {
            0 => Wanted::Everything,
            _ => Wanted::Collection(CollectionId::DEFAULT),
        }
    }
}

/// A consumer of one node.
pub struct Third {
    pub at: usize,
    consumer: Consumer,
}

impl Third {
    /// Of the node `at`; a plain one knows of no collections.
    pub fn new(at: usize, is_plain: bool) -> Third {
        let consumer = if is_plain { Consumer::plain(at, VBUCKETS) } else { Consumer::new(at, VBUCKETS) };
        Third { at, consumer }
    }

    fn view(&self, world: &world::World) -> Result<View, String> {
        let branches = (0..VBUCKETS).map(|vb| world.branch(self.at, VbId(vb)).cloned());
        let branches = branches.collect::<Result<_, _>>()?;
        Ok(View { bucket: Arc::clone(&world.nodes[self.at].bucket), branches })
    }

    pub fn act(&mut self, world: &world::World, dice: &mut Dice) -> Result<(), String> {
        let view = self.view(world)?;
        self.consumer.act(&view, dice);
        Ok(())
    }

    /// Looks at everything that has been sent, before the node gets another history.
    pub fn catch_up(&mut self, world: &world::World) -> Result<(), String> {
        self.consumer.look_at_all(&self.view(world)?);
        Ok(())
    }

    pub fn disconnect(&mut self) {
        self.consumer.disconnect();
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
            if self.consumer.documents(vb) != view.documents(vb, u64::MAX, self.consumer.wanted(vb)) {
                return Err(format!("the third party has something else of {vb:?}"));
            }
        }
        counts.third_snapshots += self.consumer.counts.snapshots;
        counts.third_rollbacks += self.consumer.counts.rollbacks;
        counts.third_broken_off += self.consumer.counts.state_changed;
        Ok(())
    }
}
