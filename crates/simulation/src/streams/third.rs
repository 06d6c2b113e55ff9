//! A third party that follows a node's streams, whatever the node is, and checks each whole snapshot.

use std::sync::Arc;

use base::{CollectionId, VbId, VbState};
use engine::Bucket;

use super::copy::{Branch, Record, latest};
use super::counts::StreamCounts;
use super::histories::{Histories, all_of, bucket_of};
use crate::dice::Dice;
use crate::nodes::Nodes;
use crate::strict::{Consumer, Documents, Truth, Wanted, name_of};

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
        let body = |record: &Record| {
            let plain = &record.value;
            text(engine::value::split(plain, base::Datatype(record.datatype)).expect("readable").1)
        };
        let named = |key| name_of(CollectionId::DEFAULT, key);
        documents.map(|(key, record)| (named(key), (record.seqno, body(record)))).collect()
    }

    fn passes_over(&self, vb: VbId, after: u64, before: u64) -> bool {
        let is_between = |(_, record): &&(String, Record)| after < record.seqno && record.seqno < before;
        let documents = self.branches[usize::from(vb.0)].iter().filter(is_between).count() as u64;
        documents + 1 < before.saturating_sub(after)
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
    /// The node's place.
    pub node: usize,
    consumer: Consumer,
}

impl Third {
    /// Of a node that has so many vBuckets; a plain one knows of no collections.
    pub fn new(node: usize, vbuckets: u16, is_plain: bool) -> Third {
        let consumer = if is_plain { Consumer::plain(node, vbuckets) } else { Consumer::new(node, vbuckets) };
        Third { node, consumer }
    }

    fn view(&self, nodes: &Nodes, histories: &Histories) -> Result<View, String> {
        let branches = all_of(nodes, self.node).map(|at| histories.branch(nodes, at).cloned());
        let branches = branches.collect::<Result<_, _>>()?;
        Ok(View { bucket: Arc::clone(bucket_of(nodes, self.node)), branches })
    }

    /// Does one thing.
    pub fn act(&mut self, nodes: &Nodes, histories: &Histories, dice: &mut Dice) -> Result<(), String> {
        let view = self.view(nodes, histories)?;
        self.consumer.act(&view, dice);
        Ok(())
    }

    /// Looks at everything that has been sent, before the node gets another history.
    pub fn catch_up(&mut self, nodes: &Nodes, histories: &Histories) -> Result<(), String> {
        if self.consumer.has_received() {
            self.consumer.look_at_all(&self.view(nodes, histories)?);
        }
        Ok(())
    }

    /// Its connection breaks.
    pub fn disconnect(&mut self) {
        self.consumer.disconnect();
    }

    /// It has what the node has in the end.
    pub fn finish(
        &mut self,
        nodes: &Nodes,
        histories: &Histories,
        dice: &mut Dice,
        counts: &mut StreamCounts,
    ) -> Result<(), String> {
        let view = self.view(nodes, histories)?;
        let is_served = |vb: VbId| view.bucket.state_of(vb) != Some(VbState::Dead);
        assert!(all_of(nodes, self.node).all(|at| is_served(at.vb)));
        self.consumer.finish(&view, dice);
        for at in all_of(nodes, self.node) {
            let has = self.consumer.documents(at.vb);
            if has != view.documents(at.vb, u64::MAX, self.consumer.wanted(at.vb)) {
                return Err(format!("the third party has something else of {:?}", at.vb));
            }
        }
        counts.third_snapshots = self.consumer.counts.snapshots;
        counts.third_rollbacks = self.consumer.counts.rollbacks;
        counts.third_broken_off = self.consumer.counts.state_changed;
        self.consumer.disconnect();
        Ok(())
    }
}
