//! What is stored with each commit of a vBucket beside its items: state document, counts, collections.

use base::{CollectionId, Seqno};
use logstore::Item;

use super::item::GONE;
use crate::collections::{CollectionStats, Owner, Tally, Weight, owner};
use crate::manifest::StoredManifest;
use crate::state::VbStateDoc;

/// First byte: how the rest is to be read.
const VERSION: u8 = 1;

/// A vBucket's state as of a commit.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogState {
    pub(crate) state: VbStateDoc,
    pub(crate) tally: Tally,
    pub(crate) manifest: StoredManifest,
    /// Tombstones and aborts.
    pub(crate) tombstones: u64,
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

struct StateParts<'a>(&'a [u8]);

impl<'a> StateParts<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.take(len as usize)
    }
}

impl LogState {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend_from_slice(&self.tombstones.to_le_bytes());
        let all = self.tally.all();
        out.extend_from_slice(&(all.len() as u32).to_le_bytes());
        for (id, stats) in all {
            out.extend_from_slice(&id.0.to_le_bytes());
            for n in [stats.item_count, stats.high_seqno.0, stats.disk_bytes] {
                out.extend_from_slice(&n.to_le_bytes());
            }
        }
        let locals = self.manifest.locals();
        out.extend_from_slice(&(locals.len() as u32).to_le_bytes());
        for (id, value) in &locals {
            put(&mut out, id.as_bytes());
            out.push(u8::from(value.is_some()));
            put(&mut out, value.as_deref().unwrap_or_default());
        }
        put(&mut out, &self.state.to_json());
        out
    }

    /// Says what is wrong if the bytes make no sense.
    pub(crate) fn decode(bytes: &[u8]) -> Result<LogState, String> {
        let mut parts = StateParts(bytes);
        if parts.take(1) != Some(&[VERSION]) {
            return Err(format!("it does not begin with version {VERSION}"));
        }
        let short = || "it is too short".to_owned();
        let (tombstones, tally, locals, json) = LogState::take(&mut parts).ok_or_else(short)?;
        let local = |id: &[u8]| {
            let found = locals.iter().find(|(name, _)| *name == id);
            Ok::<_, String>(found.and_then(|(_, value)| value.map(<[u8]>::to_vec)))
        };
        let manifest = StoredManifest::read(local)?.ok_or("its collections cannot be read")?;
        let state = VbStateDoc::from_json(json).map_err(|error| error.to_string())?;
        let mut tally = tally;
        tally.begin_default(&manifest);
        Ok(LogState { state, tally, manifest, tombstones })
    }

    /// The counts of collections alone: everything else takes much longer to decode.
    pub(crate) fn tally_of(bytes: &[u8]) -> Option<Tally> {
        let mut parts = StateParts(bytes);
        (parts.take(1)? == [VERSION]).then_some(())?;
        LogState::take_tally(&mut parts).map(|(_, tally)| tally)
    }

    fn take_tally(parts: &mut StateParts<'_>) -> Option<(u64, Tally)> {
        let tombstones = parts.u64()?;
        let mut tally = Tally::default();
        for _ in 0..parts.u32()? {
            let id = CollectionId(parts.u32()?);
            let (item_count, high_seqno) = (parts.u64()?, Seqno(parts.u64()?));
            tally.load(id, CollectionStats { item_count, high_seqno, disk_bytes: parts.u64()? });
        }
        Some((tombstones, tally))
    }

    #[expect(clippy::type_complexity, reason = "the parts, in order")]
    fn take<'a>(
        parts: &mut StateParts<'a>,
    ) -> Option<(u64, Tally, Vec<(&'a [u8], Option<&'a [u8]>)>, &'a [u8])> {
        let (tombstones, tally) = LogState::take_tally(parts)?;
        let mut locals = Vec::new();
        for _ in 0..parts.u32()? {
            let name = parts.bytes()?;
            let is_there = parts.take(1)? == [1];
            let value = parts.bytes()?;
            locals.push((name, is_there.then_some(value)));
        }
        Some((tombstones, tally, locals, parts.bytes()?))
    }
}

/// Counts of a commit of which items may be missing.
pub(crate) struct Recount {
    before: LogState,
    tally: Tally,
    tombstones: u64,
}

impl Recount {
    /// Of the commit with which `before` was stored.
    pub(crate) fn new(before: LogState) -> Recount {
        let mut tally = Tally::default();
        tally.begin_default(&before.manifest);
        Recount { before, tally, tombstones: 0 }
    }

    /// Counts an item that is there.
    pub(crate) fn add(&mut self, item: &Item<'_>) {
        let (seqno, deleted) = (Seqno(item.seqno), item.flags & GONE != 0);
        self.tombstones += u64::from(deleted);
        let is_counted = match owner(item.key) {
            // What was in a former collection of that number is not counted.
            Owner::Document(id) | Owner::Prepare(id) => {
                self.before.manifest.start_of(id).is_some_and(|start| start <= seqno)
            }
            Owner::CollectionEvent(_) => !deleted,
            Owner::Other => false,
        };
        if is_counted {
            let weight = Weight { seqno, deleted, disk_bytes: u64::from(item.bytes()) };
            self.tally.change(item.key, seqno, weight, None);
        }
    }

    /// What was stored, with the counts of what is there.
    pub(crate) fn end(self) -> LogState {
        let Recount { before, mut tally, tombstones } = self;
        tally.align(&before.tally);
        tally.take_changes();
        LogState { tally, tombstones, ..before }
    }

    /// What was stored.
    pub(crate) fn into_before(self) -> LogState {
        self.before
    }
}
