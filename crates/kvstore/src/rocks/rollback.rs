//! Going back: to any of the last commits of a vBucket whose replaced versions are kept, or to nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Seqno, VbId};
use logstore::Entry;
use rocksdb::WriteBatch;

use super::commit::key_in_undo;
use super::database::{Database, Family};
use super::layout::{
    Head, Intent, UNDO_PREFIX, head_of, intent_of, key_of, past_head_of, put_entry, seqno_of, take_entry,
    undo_of,
};
use super::store::{Rocks, at_of, item_in, stored_of};
use crate::compaction::RolledBack;
use crate::failure::Failure;
use crate::files::BeforeRollback;

/// What a rollback does to a key.
#[derive(Default)]
struct Restored {
    /// What it had as of the commit that is gone back to.
    then: Option<Entry>,
    /// What it had since.
    since: Vec<u64>,
}

impl Rocks {
    /// Goes back, and calls `before` with the commit that is about to be in force, which a start can make if this is cut
    /// off behind that.
    pub(super) fn roll_back(
        &self,
        vb: VbId,
        to: Seqno,
        before: &BeforeRollback<'_>,
    ) -> Result<RolledBack, Failure> {
        let slot = self.slot(vb);
        let turn = slot.turn.lock();
        let Some(head) = self.head(vb) else { return Ok(RolledBack::default()) };
        if head.high_seqno <= to.0 {
            let seqno = Seqno(head.high_seqno);
            return Ok(RolledBack { seqno, stored: Some(stored_of(&head)) });
        }
        let Some(over) = self.oldest_above(vb, &head, to)? else {
            before(None)?;
            // Nothing is left of it, whether or not a failure keeps that from being durable.
            drop(turn);
            self.delete(vb)?;
            return Ok(RolledBack::default());
        };
        let intent = Intent { over, epoch: head.epoch + 1, commit: head.commit + 1 };
        let mut out = WriteBatch::default();
        out.put_cf(self.database.family(Family::State), intent_of(vb), intent.encode());
        self.write(vb, out)?;
        self.flush(vb)?;
        slot.seen.lock().undecided = Some(intent);
        let next = Head { epoch: intent.epoch, commit: intent.commit, ..Head::new() };
        before(Some(at_of(&next)))?;
        let stored = self.end_rollback(vb, intent)?;
        self.flush(vb)?;
        Ok(RolledBack { seqno: Seqno(stored.high_seqno), stored: Some(stored_of(&stored)) })
    }

    /// The oldest commit that has to be gone back over, if the one before it is kept.
    fn oldest_above(&self, vb: VbId, head: &Head, to: Seqno) -> Result<Option<u64>, Failure> {
        for kept in head.kept.iter().rev() {
            if self.past_head(vb, kept.commit)?.high_seqno <= to.0 {
                return Ok(Some(kept.commit));
            }
        }
        Ok(None)
    }

    /// The head before a commit.
    fn past_head(&self, vb: VbId, commit: u64) -> Result<Head, Failure> {
        let bytes = self.database.get(vb, Family::State, &past_head_of(vb, commit))?;
        let bytes =
            bytes.ok_or_else(|| self.database.damaged(vb, "the state before a kept commit is missing"))?;
        Head::decode(&bytes).map_err(|what| self.database.damaged(vb, what))
    }

    /// Makes what an intent says, and forgets the intent, in one write. The caller holds the vBucket's turn, or nothing else
    /// runs yet.
    pub(super) fn end_rollback(&self, vb: VbId, intent: Intent) -> Result<Arc<Head>, Failure> {
        let slot = self.slot(vb);
        let then = self.past_head(vb, intent.over)?;
        // As of now: what was kept then may have been forgotten since.
        let mut kept = self.head(vb).map(|now| now.kept.clone()).unwrap_or_default();
        kept.retain(|kept| kept.commit < intent.over);
        let head = Arc::new(Head { epoch: intent.epoch, commit: intent.commit, kept, ..then });
        let mut out = WriteBatch::default();
        let restored = restored(&self.database, vb, intent.over, head.high_seqno)?;
        write_restored(&self.database, vb, &restored, &mut out)?;
        remove_above(&self.database, vb, head.high_seqno, &restored, &mut out)?;
        let [undo, state] = [Family::Undo, Family::State].map(|family| self.database.family(family));
        out.delete_range_cf(undo, undo_of(vb, intent.over, b""), undo_of(vb, u64::MAX, b""));
        out.delete_range_cf(state, past_head_of(vb, intent.over), intent_of(vb));
        out.delete_cf(state, intent_of(vb));
        out.put_cf(state, head_of(vb), head.encode());
        self.write(vb, out)?;
        let mut seen = slot.seen.lock();
        seen.generation += 1;
        (seen.head, seen.undecided) = (Some(Arc::clone(&head)), None);
        Ok(head)
    }
}

/// Keys that commits since `over` replaced, with what they had before it: nothing if that is above the highest seqno of
/// then, as it came with one of these commits.
fn restored(
    database: &Database,
    vb: VbId,
    over: u64,
    high_seqno: u64,
) -> Result<BTreeMap<Vec<u8>, Restored>, Failure> {
    let mut restored: BTreeMap<Vec<u8>, Restored> = BTreeMap::new();
    let mut walk = database.walk(vb, Family::Undo, &undo_of(vb, over, b""));
    // In the order of commits: the first that replaced a key has what the key had before all of them.
    while let Some((key, value)) = walk.item().filter(|(key, _)| key.len() >= UNDO_PREFIX) {
        let entry = (!value.is_empty()).then(|| take_entry(value));
        let damaged = || database.damaged(vb, "what a commit replaced makes no sense");
        let entry = entry.map(|entry| entry.ok_or_else(damaged)).transpose()?;
        let key = key_in_undo(key).unwrap_or_default().to_vec();
        match restored.entry(key) {
            std::collections::btree_map::Entry::Vacant(place) => {
                let then = entry.filter(|entry| entry.seqno <= high_seqno);
                let since = entry.filter(|entry| entry.seqno > high_seqno).map(|entry| entry.seqno);
                place.insert(Restored { then, since: since.into_iter().collect() });
            }
            std::collections::btree_map::Entry::Occupied(mut place) => {
                place.get_mut().since.extend(entry.map(|entry| entry.seqno));
            }
        }
        walk.next();
    }
    walk.status().map_err(database.failed(vb, "read"))?;
    Ok(restored)
}

fn write_restored(
    database: &Database,
    vb: VbId,
    restored: &BTreeMap<Vec<u8>, Restored>,
    out: &mut WriteBatch,
) -> Result<(), Failure> {
    let [keys, seqnos] = [Family::Keys, Family::Seqnos].map(|family| database.family(family));
    let now = database.entries(vb, restored.keys().map(|key| &key[..]))?;
    for ((key, Restored { then, since }), now) in restored.iter().zip(now) {
        let kept = then.map(|then| then.seqno);
        let gone = since.iter().copied().chain(now.map(|now| now.seqno));
        gone.filter(|seqno| Some(*seqno) != kept)
            .for_each(|seqno| out.delete_cf(seqnos, seqno_of(vb, seqno)));
        match then {
            Some(then) => out.put_cf(keys, key_of(vb, key), put_entry(then)),
            None => out.delete_cf(keys, key_of(vb, key)),
        }
    }
    Ok(())
}

/// Removes what is above a seqno, and the keys that had nothing before.
fn remove_above(
    database: &Database,
    vb: VbId,
    high_seqno: u64,
    restored: &BTreeMap<Vec<u8>, Restored>,
    out: &mut WriteBatch,
) -> Result<(), Failure> {
    let [keys, seqnos] = [Family::Keys, Family::Seqnos].map(|family| database.family(family));
    let mut walk = database.walk(vb, Family::Seqnos, &seqno_of(vb, high_seqno + 1));
    while let Some((key, value)) = walk.item() {
        let item = item_in(database, vb, (0, value), None)?;
        if !restored.contains_key(item.key) {
            out.delete_cf(keys, key_of(vb, item.key));
        }
        out.delete_cf(seqnos, key);
        walk.next();
    }
    walk.status().map_err(database.failed(vb, "read"))
}
