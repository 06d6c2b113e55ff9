//! Compaction: what is left out. RocksDB gives back the room by itself.
//!
//! A vBucket is walked in the order of keys, at one moment. What is to be left out is removed in bounded pieces, each under
//! the vBucket's turn and only if it was not replaced meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{CollectionId, DurabilityLevel, Seqno, SyncWrite, VbId};
use logstore::Entry;
use rocksdb::WriteBatch;

use super::commit::forgotten;
use super::database::{Database, Family, Moment};
use super::layout::{Head, PREFIX, head_of, key_of, seqno_of, start_of, take_entry};
use super::store::{Rocks, at_of, item_in};
use crate::collections::{collection_of, event_prefix};
use crate::compaction::{Candidate, Compacted, Compaction, CompactionProgress, Reason};
use crate::failure::Failure;
use crate::files::BeforeSwitch;
use crate::log::item::{GONE, PREPARE, weigh};
use crate::store::Values;

/// So many versions are removed in one write at most.
const PIECE: usize = 512;
/// How often the end of a compaction is made durable without holding up saves, before it holds them up.
const QUIET_TRIES: usize = 3;

/// No other compaction of the vBucket begins while this lives.
struct CompactionTurn<'r>(&'r Rocks, VbId);

impl Drop for CompactionTurn<'_> {
    fn drop(&mut self) {
        self.0.compacting.lock().remove(&self.1);
    }
}

/// A version that is to be left out.
struct Left {
    key: Vec<u8>,
    entry: Entry,
    reason: Reason,
}

/// A compaction that is under way.
struct Pass<'c> {
    vb: VbId,
    request: &'c Compaction<'c>,
    generation: u64,
    /// Highest seqno at its moment.
    high_seqno: u64,
    /// Prepares up to here are committed.
    completed: Seqno,
    left: Vec<Left>,
    compacted: Compacted,
}

impl Rocks {
    /// Compacts as [`crate::KvStore::compact`] does, and calls `before` with the last commit while no other can happen.
    pub(super) fn compact_and_tell(
        &self,
        vb: VbId,
        request: &Compaction<'_>,
        before: &BeforeSwitch<'_>,
    ) -> Result<Compacted, Failure> {
        self.check(vb)?;
        if !self.compacting.lock().insert(vb) {
            return Err(Failure::CompactionRuns { vb });
        }
        let _turn = CompactionTurn(self, vb);
        self.compact_alone(vb, request, before)
    }

    fn compact_alone(
        &self,
        vb: VbId,
        request: &Compaction<'_>,
        before: &BeforeSwitch<'_>,
    ) -> Result<Compacted, Failure> {
        self.begin_writing()?;
        let slot = self.slot(vb);
        // Before the moment is taken: a deletion behind it ends this.
        let generation = slot.seen.lock().generation;
        let moment = Moment::of(&self.database);
        let bytes = moment.get(vb, Family::State, &head_of(vb))?.ok_or(Failure::NoVbucket { vb })?;
        let head = Head::decode(&bytes).map_err(|what| self.database.damaged(vb, what))?;
        let total_bytes = head.live_bytes;
        let mut pass = Pass {
            vb,
            request,
            generation,
            high_seqno: head.high_seqno,
            completed: Seqno(head.state.state.completed_seqno),
            left: Vec::new(),
            compacted: Compacted {
                before_bytes: head.live_bytes + head.kept_bytes(),
                ..Compacted::default()
            },
        };
        self.walk_keys(&moment, &mut pass, total_bytes)?;
        drop(moment);
        self.remove(&mut pass)?;
        let head = self.seal(&pass, before)?;
        pass.compacted.after_bytes = head.live_bytes.min(pass.compacted.before_bytes);
        pass.compacted.purge_seqno = Seqno(head.purge_seqno);
        Ok(pass.compacted)
    }

    fn walk_keys(&self, moment: &Moment, pass: &mut Pass<'_>, total_bytes: u64) -> Result<(), Failure> {
        let (vb, mut looked, mut done_bytes) = (pass.vb, 0usize, 0u64);
        let mut walk = moment.walk(vb, Family::Keys, &start_of(vb));
        while let Some((key, value)) = walk.item() {
            let entry = take_entry(value);
            let entry = entry.ok_or_else(|| self.database.damaged(vb, "an entry of a key makes no sense"))?;
            self.judge(moment, pass, &key[PREFIX..], entry)?;
            looked += 1;
            done_bytes += u64::from(entry.bytes);
            if looked.is_multiple_of(self.config.step_keys) {
                tell(pass, done_bytes, total_bytes)?;
                if pass.left.len() >= PIECE {
                    self.remove(pass)?;
                }
            }
            walk.next();
        }
        walk.status().map_err(self.database.failed(vb, "read"))?;
        tell(pass, total_bytes, total_bytes)
    }

    fn judge(
        &self,
        moment: &Moment,
        pass: &mut Pass<'_>,
        stored_key: &[u8],
        entry: Entry,
    ) -> Result<(), Failure> {
        if entry.seqno == pass.high_seqno {
            return Ok(());
        }
        let is_prepare = entry.flags & PREPARE != 0;
        let candidate = Candidate {
            stored_key,
            seqno: Seqno(entry.seqno),
            deleted: entry.flags & GONE != 0,
            expiry: Some(entry.time),
            sync_write: Some(match is_prepare {
                true => SyncWrite::Prepare(DurabilityLevel::Majority),
                false => SyncWrite::No,
            }),
        };
        let mut unread = None;
        let read = || {
            let bytes = moment.get(pass.vb, Family::Seqnos, &seqno_of(pass.vb, entry.seqno));
            let version = bytes.and_then(|bytes| {
                let Some(bytes) = bytes else { return Ok(None) };
                let item = item_in(&self.database, pass.vb, (entry.seqno, &bytes), Some(stored_key))?;
                self.maker(pass.vb).version(&item, Values::Leave).map(Some)
            });
            version.unwrap_or_else(|failure| {
                unread = Some(failure);
                None
            })
        };
        let reason = pass.request.judge(candidate, pass.completed, read);
        if let Some(failure) = unread {
            return Err(failure);
        }
        if let Some(reason) = reason {
            // What is replaced before it is left out has gone all the same.
            pass.compacted.count(reason);
            pass.left.push(Left { key: stored_key.to_vec(), entry, reason });
        }
        Ok(())
    }

    /// Removes what is to be left out so far.
    fn remove(&self, pass: &mut Pass<'_>) -> Result<(), Failure> {
        let left = std::mem::take(&mut pass.left);
        if left.is_empty() {
            return Ok(());
        }
        let slot = self.slot(pass.vb);
        let _turn = slot.turn.lock();
        let now = self.still(pass)?;
        let mut head = Head::clone(&now);
        let mut out = WriteBatch::default();
        self.forget_kept(pass.vb, &mut head, &mut out)?;
        let stored = self.database.entries(pass.vb, left.iter().map(|one| &one.key[..]))?;
        let [keys, seqnos] = [Family::Keys, Family::Seqnos].map(|family| self.database.family(family));
        let mut created: BTreeMap<CollectionId, Option<u64>> = BTreeMap::new();
        for (Left { key, entry, reason }, stored) in left.iter().zip(stored) {
            if *reason == Reason::Purged {
                head.purge_seqno = head.purge_seqno.max(entry.seqno);
            }
            if stored.is_none_or(|stored| stored.seqno != entry.seqno) {
                continue;
            }
            out.delete_cf(keys, key_of(pass.vb, key));
            out.delete_cf(seqnos, seqno_of(pass.vb, entry.seqno));
            head.live_bytes = head.live_bytes.saturating_sub(u64::from(entry.bytes));
            if entry.flags & GONE != 0 {
                head.state.tombstones = head.state.tombstones.saturating_sub(1);
            }
            if *reason != Reason::Dropped || !self.is_of_former(pass.vb, key, entry, &mut created)? {
                head.state.tally.leave_out(key, weigh(entry));
            }
        }
        head.state.tally.take_changes();
        self.put_head(pass.vb, head, out).map(drop)
    }

    /// The vBucket as it is now, unless it is another one than the compaction began with. The caller holds its turn.
    fn still(&self, pass: &Pass<'_>) -> Result<Arc<Head>, Failure> {
        let slot = self.slot(pass.vb);
        let seen = slot.seen.lock();
        match &seen.head {
            Some(head) if seen.generation == pass.generation => Ok(Arc::clone(head)),
            _ => Err(Failure::CompactionEnded { vb: pass.vb, why: "the vBucket was deleted or rolled back" }),
        }
    }

    /// Nothing goes back behind a compaction: what is kept for that goes, too.
    fn forget_kept(&self, vb: VbId, head: &mut Head, out: &mut WriteBatch) -> Result<(), Failure> {
        for kept in std::mem::take(&mut head.kept) {
            forgotten(&self.database, vb, kept.commit)?.write(&self.database, vb, out);
        }
        Ok(())
    }

    /// Makes the next commit of a vBucket, of what is in a batch. The caller holds its turn.
    fn put_head(&self, vb: VbId, mut head: Head, mut out: WriteBatch) -> Result<Arc<Head>, Failure> {
        head.commit += 1;
        out.put_cf(self.database.family(Family::State), head_of(vb), head.encode());
        self.write(vb, out)?;
        let head = Arc::new(head);
        self.slot(vb).seen.lock().head = Some(Arc::clone(&head));
        Ok(head)
    }

    /// Whether a record is of a collection that was dropped and created again since: it is not counted then.
    fn is_of_former(
        &self,
        vb: VbId,
        stored_key: &[u8],
        entry: &Entry,
        created: &mut BTreeMap<CollectionId, Option<u64>>,
    ) -> Result<bool, Failure> {
        let Some(collection) = collection_of(stored_key) else { return Ok(false) };
        if !created.contains_key(&collection) {
            created.insert(collection, created_at(&self.database, vb, collection)?);
        }
        Ok(created.get(&collection).copied().flatten().is_some_and(|at| entry.seqno < at))
    }

    /// The last commit of a compaction goes on record once it is durable.
    fn seal(&self, pass: &Pass<'_>, before: &BeforeSwitch<'_>) -> Result<Arc<Head>, Failure> {
        let (vb, slot) = (pass.vb, self.slot(pass.vb));
        {
            let _turn = slot.turn.lock();
            let mut head = Head::clone(&*self.still(pass)?);
            let mut out = WriteBatch::default();
            self.forget_kept(vb, &mut head, &mut out)?;
            pass.request.erases(&mut head.state.manifest);
            self.put_head(vb, head, out)?;
        }
        for tried in 1.. {
            let flushed = self.still(pass)?.commit;
            if tried <= QUIET_TRIES {
                self.flush(vb)?;
            }
            let _turn = slot.turn.lock();
            let head = self.still(pass)?;
            if head.commit != flushed && tried <= QUIET_TRIES {
                continue;
            }
            if tried > QUIET_TRIES {
                self.flush(vb)?;
            }
            before(at_of(&head))?;
            return Ok(head);
        }
        unreachable!("the last try holds up saves")
    }
}

/// Seqno of the event that created a collection.
fn created_at(database: &Database, vb: VbId, collection: CollectionId) -> Result<Option<u64>, Failure> {
    let prefix = key_of(vb, &event_prefix(collection));
    let walk = database.walk(vb, Family::Keys, &prefix);
    let event = walk.item().filter(|(key, _)| key.starts_with(&prefix));
    let event = event.and_then(|(_, value)| take_entry(value)).filter(|event| event.flags & GONE == 0);
    walk.status().map_err(database.failed(vb, "read"))?;
    Ok(event.map(|event| event.seqno))
}

/// Tells how far it is, and asks whether to go on.
fn tell(pass: &Pass<'_>, done_bytes: u64, total_bytes: u64) -> Result<(), Failure> {
    let progress = CompactionProgress { done_bytes: done_bytes.min(total_bytes), total_bytes };
    match (pass.request.observe)(progress).is_break() {
        true => Err(Failure::CompactionEnded { vb: pass.vb, why: "it was told to end" }),
        false => Ok(()),
    }
}
