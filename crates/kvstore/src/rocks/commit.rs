//! What a save changes in the database.
//!
//! *Invariant:* what is in `seqnos` beside the newest version of each key is what `undo` names, so that a rollback finds
//! it and a scan passes it over.

use base::VbId;
use logstore::{Entry, Item, Replaced};
use rocksdb::WriteBatch;

use super::database::{Database, Family};
use super::layout::{
    Head, KeptCommit, UNDO_PREFIX, entry_of, head_of, key_of, past_head_of, put_entry, put_version, seqno_of,
    take_entry, undo_of,
};
use crate::failure::Failure;
use crate::log::item::{advance, item_of};
use crate::store::SaveBatch;

/// So many commits of a vBucket can be gone back over.
const MOST_COMMITS: usize = 16;
/// So many items may they have together: a snapshot knows the replaced ones, and a rollback is one write.
const MOST_ITEMS: u64 = 64 << 10;
/// So many bytes may what they replaced take, or a tenth of what is live.
const MOST_BYTES: u64 = 4 << 20;

/// What a commit replaced that can be forgotten now.
pub(super) struct Forgotten {
    commit: u64,
    /// Keys in `undo`.
    keys: Vec<Vec<u8>>,
    /// Versions in `seqnos`.
    seqnos: Vec<u64>,
}

/// A save that is worked out: writing it cannot fail halfway.
pub(super) struct Commit<'a> {
    vb: VbId,
    batch: SaveBatch<'a>,
    changes: Vec<Replaced>,
    /// The head before, if this commit can be gone back over.
    before: Option<Head>,
    high_before: u64,
    forgotten: Vec<Forgotten>,
    pub(super) head: Head,
}

/// Whether all that commits keep for a rollback is within its limits.
fn are_within(kept: &[KeptCommit], live_bytes: u64) -> bool {
    let (items, bytes) =
        kept.iter().fold((0, 0), |(items, bytes), one| (items + one.items, bytes + one.bytes));
    kept.len() <= MOST_COMMITS && items <= MOST_ITEMS && bytes <= MOST_BYTES.max(live_bytes / 10)
}

/// Looks up what a commit replaced.
pub(super) fn forgotten(database: &Database, vb: VbId, commit: u64) -> Result<Forgotten, Failure> {
    let prefix = undo_of(vb, commit, b"");
    let mut forgotten = Forgotten { commit, keys: Vec::new(), seqnos: Vec::new() };
    let mut walk = database.walk(vb, Family::Undo, &prefix);
    while let Some((key, value)) = walk.item().filter(|(key, _)| key.starts_with(&prefix)) {
        forgotten.keys.push(key.to_vec());
        if !value.is_empty() {
            let entry = take_entry(value).ok_or_else(|| database.damaged(vb, "what a commit replaced"))?;
            forgotten.seqnos.push(entry.seqno);
        }
        walk.next();
    }
    walk.status().map_err(database.failed(vb, "read"))?;
    Ok(forgotten)
}

impl Forgotten {
    pub(super) fn write(&self, database: &Database, vb: VbId, out: &mut WriteBatch) {
        let [undo, seqnos, state] =
            [Family::Undo, Family::Seqnos, Family::State].map(|family| database.family(family));
        self.keys.iter().for_each(|key| out.delete_cf(undo, key));
        self.seqnos.iter().for_each(|seqno| out.delete_cf(seqnos, seqno_of(vb, *seqno)));
        out.delete_cf(state, past_head_of(vb, self.commit));
    }
}

/// Works out a save. The caller holds the vBucket's turn to write until it is written.
pub(super) fn prepare<'a>(
    database: &Database,
    vb: VbId,
    batch: SaveBatch<'a>,
    before: Option<&Head>,
) -> Result<Commit<'a>, Failure> {
    let items = batch.items;
    let olds = database.entries(vb, items.iter().map(|item| item.stored_key()))?;
    let new = Head::new();
    let was = before.unwrap_or(&new);
    // What is stored already, or is older than what is, was saved before: a start repeats what the journal has.
    let is_new =
        |(at, old): &(usize, Option<Entry>)| old.is_none_or(|old| old.seqno < items[*at].meta().by_seqno.0);
    let changes: Vec<Replaced> =
        olds.into_iter().enumerate().filter(is_new).map(|(at, old)| Replaced { at, old }).collect();
    let (state, purged) = advance(was.state.clone(), batch, was.high_seqno, &changes);
    let replaced_bytes: u64 = changes.iter().filter_map(|one| one.old).map(|old| u64::from(old.bytes)).sum();
    let mut scratch = Vec::new();
    let added: u64 = changes.iter().map(|one| u64::from(item_of(&items[one.at], &mut scratch).bytes())).sum();
    let seqnos = changes.iter().map(|one| items[one.at].meta().by_seqno.0);
    let high_seqno = seqnos.max().unwrap_or(0).max(was.high_seqno);
    let mut head = Head {
        epoch: was.epoch,
        commit: was.commit + 1,
        high_seqno,
        purge_seqno: was.purge_seqno.max(purged.0),
        live_bytes: (was.live_bytes + added).saturating_sub(replaced_bytes),
        kept: was.kept.clone(),
        state,
    };
    let own = KeptCommit { commit: head.commit, items: changes.len() as u64, bytes: replaced_bytes };
    let is_kept = before.is_some() && are_within(&[own], head.live_bytes);
    let mut gone: Vec<u64> = Vec::new();
    if is_kept {
        head.kept.push(own);
        while !are_within(&head.kept, head.live_bytes) {
            gone.push(head.kept.remove(0).commit);
        }
    } else {
        // Nothing goes back beyond a commit that is not kept.
        gone.extend(head.kept.drain(..).map(|kept| kept.commit));
    }
    let forgotten: Result<Vec<_>, _> =
        gone.into_iter().map(|commit| forgotten(database, vb, commit)).collect();
    Ok(Commit {
        vb,
        batch,
        changes,
        before: before.filter(|_| is_kept).cloned(),
        high_before: was.high_seqno,
        forgotten: forgotten?,
        head,
    })
}

impl Commit<'_> {
    /// Puts it into a batch that is written as a whole.
    pub(super) fn write(&self, database: &Database, out: &mut WriteBatch) {
        let mut scratch = Vec::new();
        for Replaced { at, old } in &self.changes {
            let item = item_of(&self.batch.items[*at], &mut scratch);
            self.put(database, &item, old.as_ref(), out);
        }
        self.forgotten.iter().for_each(|one| one.write(database, self.vb, out));
        let state = database.family(Family::State);
        if let Some(before) = &self.before {
            out.put_cf(state, past_head_of(self.vb, self.head.commit), before.encode());
        }
        out.put_cf(state, head_of(self.vb), self.head.encode());
    }

    fn put(&self, database: &Database, item: &Item<'_>, old: Option<&Entry>, out: &mut WriteBatch) {
        let [keys, seqnos, undo] =
            [Family::Keys, Family::Seqnos, Family::Undo].map(|family| database.family(family));
        let (vb, commit) = (self.vb, self.head.commit);
        out.put_cf(keys, key_of(vb, item.key), put_entry(&entry_of(item)));
        out.put_cf(seqnos, seqno_of(vb, item.seqno), put_version(item));
        match (old, self.before.is_some()) {
            (Some(old), true) => out.put_cf(undo, undo_of(vb, commit, item.key), put_entry(old)),
            (Some(old), false) => out.delete_cf(seqnos, seqno_of(vb, old.seqno)),
            // A rollback finds what is new by its seqno, unless that is not above what was there before.
            (None, true) if item.seqno <= self.high_before => {
                out.put_cf(undo, undo_of(vb, commit, item.key), b"");
            }
            (None, _) => {}
        }
    }
}

/// The stored key in a key of `undo`.
pub(super) fn key_in_undo(key: &[u8]) -> Option<&[u8]> {
    key.get(UNDO_PREFIX..)
}
