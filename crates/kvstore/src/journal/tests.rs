//! Tests of the log layer: a model of what was appended, and runs of random calls that are held against it.

mod crash;
mod damage;
mod faults;
mod layout;
mod model;
mod threads;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::env::sim::{SimDisk, SplitMix64};
use base::env::{Disk, Env};
use base::{
    Cas, CollectionId, Datatype, DocKey, ItemKind, NewVersion, RevSeqno, Seqno, VbId, VbState, Version,
    VersionMeta,
};

use super::{Filed, Frame, Journal, JournalConfig, Record, Replayed, ReplayedState, State};
use crate::failure::Failure;
use crate::state::{FailoverEntry, StateNumbers, VbStateDoc};

pub(super) fn dir() -> PathBuf {
    PathBuf::from("/bucket")
}

pub(super) fn env_on(disk: &SimDisk) -> Env {
    let (env, _) = Env::sim(disk.changes());
    Env { disk: Arc::new(disk.clone()), ..env }
}

pub(super) fn fresh_disk() -> SimDisk {
    let disk = SimDisk::new();
    disk.create_dir_all_synced(&dir()).expect("a folder");
    disk
}

pub(super) fn version(key: &str, seqno: u64, value: &[u8]) -> Version {
    let meta = VersionMeta {
        cas: Cas(seqno << 16),
        by_seqno: Seqno(seqno),
        rev_seqno: RevSeqno(seqno % 7),
        flags: seqno as u32,
        expiry: 3,
        datatype: Datatype((seqno % 8) as u8),
        kind: [ItemKind::Mutation, ItemKind::Deletion, ItemKind::Expiration, ItemKind::SystemEvent]
            [(seqno % 4) as usize],
        sync_write: base::SyncWrite::No,
    };
    let key = DocKey { collection: CollectionId((seqno % 300) as u32), key: key.as_bytes() };
    NewVersion::new(base::Heap::shared(), meta, key, &[value]).publish()
}

/// A record that owns what it is made of.
#[derive(Clone, Debug)]
pub(super) enum Owned {
    Save { vb: VbId, doc: VbStateDoc, is_whole: bool, items: Vec<Version> },
    Filed(Filed),
    Dropped(VbId),
    RolledBack(Filed),
}

impl Owned {
    pub(super) fn record(&self) -> Record<'_> {
        match self {
            Owned::Save { vb, doc, is_whole: true, items } => {
                Record::Save { vb: *vb, state: State::Whole(doc), items, is_repeat: false }
            }
            Owned::Save { vb, doc, is_whole: false, items } => {
                Record::Save { vb: *vb, state: State::Numbers(doc), items, is_repeat: false }
            }
            Owned::Filed(filed) => Record::Filed(*filed),
            Owned::Dropped(vb) => Record::Dropped(*vb),
            Owned::RolledBack(filed) => Record::RolledBack(*filed),
        }
    }

    /// Changes the table as a reader of the journal would.
    pub(super) fn note(&self, table: &mut Table) {
        match self {
            Owned::Filed(filed) | Owned::RolledBack(filed) => {
                table.insert(filed.vb, *filed);
            }
            Owned::Dropped(vb) => {
                table.remove(vb);
            }
            Owned::Save { .. } => {}
        }
    }

    /// A save as text; seqnos make each one its own.
    pub(super) fn save(&self) -> Option<String> {
        let Owned::Save { vb, doc, is_whole, items } = self else { return None };
        let state = if *is_whole {
            ReplayedState::Whole(doc.clone())
        } else {
            ReplayedState::Numbers(StateNumbers::of(doc))
        };
        Some(save_text(*vb, &state, items))
    }
}

fn save_text(vb: VbId, state: &ReplayedState, items: &[Version]) -> String {
    let item =
        |item: &Version| format!("{item:?} {:08x} {}", crc32c::crc32c(item.value()), item.value().len());
    let items: Vec<String> = items.iter().map(item).collect();
    format!("{vb} {state:?} {items:?}")
}

pub(super) type Table = BTreeMap<VbId, Filed>;

/// What a recovery told.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    pub(super) saves: Vec<(Frame, String)>,
    pub(super) table: Table,
    pub(super) any: bool,
}

impl Told {
    fn add(&mut self, frame: Frame, replayed: Replayed) {
        self.any = true;
        match replayed {
            Replayed::Save { vb, state, items, .. } => {
                self.saves.push((frame, save_text(vb, &state, &items)))
            }
            Replayed::Filed(filed) | Replayed::RolledBack(filed) => {
                self.table.insert(filed.vb, filed);
            }
            Replayed::Dropped(vb) => {
                self.table.remove(&vb);
            }
        }
    }
}

pub(super) fn recover(disk: &SimDisk, config: JournalConfig) -> Result<(Journal, Told), Failure> {
    recover_in(env_on(disk), &dir(), config)
}

pub(super) fn recover_in(env: Env, dir: &Path, config: JournalConfig) -> Result<(Journal, Told), Failure> {
    let mut told = Told::default();
    let mut last = Frame(0);
    let journal = Journal::recover(env, dir, config, &mut |frame, replayed| {
        assert!(frame >= last, "frames are told in order");
        last = frame;
        told.add(frame, replayed);
        Ok(())
    })?;
    assert!(journal.next_frame() > last);
    Ok((journal, told))
}

pub(super) fn small() -> JournalConfig {
    JournalConfig { segment_bytes: 32 << 10, frame_bytes: 8 << 10, spare_segments: 2, compresses: false }
}

/// Makes random records; their seqnos tell them apart.
pub(super) struct Maker {
    pub(super) rng: SplitMix64,
    /// Of its own, so that events leave the other records of a seed as they are.
    events: SplitMix64,
    pub(super) seqno: u64,
    pub(super) most_value: u64,
}

impl Maker {
    pub(super) fn new(seed: u64) -> Maker {
        Maker { rng: SplitMix64::new(seed), events: SplitMix64::new(seed), seqno: 0, most_value: 1500 }
    }

    pub(super) fn doc(&mut self) -> VbStateDoc {
        VbStateDoc {
            state: VbState::Active,
            failover_table: vec![FailoverEntry { id: self.rng.next_u64(), seq: 0 }],
            max_cas: self.rng.next_u64(),
            hlc_epoch: -1,
            snap_end: self.seqno,
            might_contain_xattrs: self.rng.chance(1, 2),
            ..VbStateDoc::default()
        }
    }

    fn item(&mut self) -> Version {
        self.seqno += 1;
        let len = match self.rng.below(12) {
            0 => 0,
            1 => self.rng.below(self.most_value * 8),
            _ => self.rng.below(self.most_value),
        };
        let value: Vec<u8> = (0..len).map(|i| (i ^ self.seqno) as u8).collect();
        version(&format!("key-{}", self.seqno), self.seqno, &value)
    }

    pub(super) fn save(&mut self, most_items: u64) -> Owned {
        let n = self.rng.below(most_items + 1);
        let items = (0..n).map(|_| self.item()).collect();
        // without items the state alone must tell it apart
        let doc = self.doc();
        Owned::Save { vb: VbId(self.rng.below(5) as u16), doc, is_whole: self.rng.chance(1, 3), items }
    }

    /// The same system events in these vBuckets, as changes of the manifest make them.
    pub(super) fn event(&mut self, vbs: impl Iterator<Item = VbId>) -> Vec<Owned> {
        self.seqno += 1;
        let mut event = || {
            self.seqno += 1;
            let value = vec![self.seqno as u8; self.events.below(200) as usize];
            let kind = [ItemKind::SystemEvent, ItemKind::Deletion][self.events.below(2) as usize];
            (format!("\0{}", self.seqno), value, kind)
        };
        let first = event();
        let shared: Vec<_> = if first.1.len() > 100 { vec![first, event(), event()] } else { vec![first] };
        let mut item = |(key, value, kind): &(String, Vec<u8>, ItemKind)| {
            self.seqno += 1;
            let meta = VersionMeta {
                cas: Cas(self.events.next_u64()),
                by_seqno: Seqno(self.seqno),
                rev_seqno: RevSeqno(1 + self.events.below(3)),
                kind: *kind,
                ..VersionMeta::default()
            };
            let key = DocKey { collection: CollectionId::SYSTEM, key: key.as_bytes() };
            NewVersion::new(base::Heap::shared(), meta, key, &[value]).publish()
        };
        let mut save = |vb| {
            let items: Vec<Version> = shared.iter().map(&mut item).collect();
            let last = items.last().expect("there is one").meta();
            let doc = VbStateDoc { max_cas: last.cas.0, snap_end: last.by_seqno.0, ..VbStateDoc::default() };
            Owned::Save { vb, doc, is_whole: false, items }
        };
        vbs.map(&mut save).collect()
    }

    pub(super) fn record(&mut self, through: Frame) -> Owned {
        self.seqno += 1;
        let vb = VbId(self.rng.below(5) as u16);
        let filed = Filed {
            vb,
            through,
            revision: 1 + self.rng.below(3),
            header_offset: 4096 * self.seqno,
            checksum: Some(1 + self.rng.below(1 << 30) as u32).filter(|it| it % 4 > 0),
        };
        match self.rng.below(12) {
            0 | 1 => Owned::Filed(filed),
            2 => Owned::Dropped(vb),
            3 => Owned::RolledBack(filed),
            4 => self.save(40),
            _ => self.save(5),
        }
    }

    pub(super) fn call(&mut self, through: Frame) -> Vec<Owned> {
        let n = 1 + self.rng.below(4);
        let mut call: Vec<Owned> = (0..n).map(|_| self.record(through)).collect();
        if self.events.chance(1, 4) {
            let event = self.event((0..5).map(VbId));
            call.splice(0..0, event);
        }
        call
    }
}

pub(super) fn records(call: &[Owned]) -> Vec<Record<'_>> {
    call.iter().map(Owned::record).collect()
}

pub(super) fn entries(table: &Table) -> Vec<Filed> {
    table.values().copied().collect()
}
