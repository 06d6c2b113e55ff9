//! The store as a journal uses it, and what a start makes of the database.
//!
//! A start takes what is there if it is as new as what is on record, or newer: everything that follows is in the journal
//! still, and a version that is stored already is not stored again. Only a rollback makes what is stored void, and one that
//! is on record has its [`Intent`] in the database.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use base::env::FolderAccess;
use base::{Seqno, VbId};
use rocksdb::WriteBatch;

use super::database::Family;
use super::layout::{Head, Intent, OWNER, intent_of, split};
use super::store::{MOST_AT_ONCE, Rocks, RocksRefusal, RocksSlot, at_of, stored_of};
use crate::catalog::{Believe, Listed};
use crate::compaction::{Compacted, Compaction, FileAt, RolledBack};
use crate::failure::Failure;
use crate::files::{BeforeRollback, BeforeSwitch, Files, OnRecord, Undecided, make_folder};
use crate::rocks_config::FOLDER;
use crate::store::{SaveBatch, StoredVb};

/// What the database has of each vBucket, before anything is decided.
type Found = BTreeMap<VbId, (Result<Option<Head>, String>, Option<Intent>)>;

impl Rocks {
    /// Takes in what the database has, as the journal has it on record, or else as the catalog lists it.
    pub(super) fn take_in(&mut self, record: Option<&OnRecord<'_>>) -> Result<(), Failure> {
        let found = self.heads()?;
        let believes_list = record.is_none() && self.catalog.believe() == Some(Believe::Files);
        if believes_list {
            self.refuse_unlisted(&found)?;
        }
        let (mut void, mut is_changed) = (WriteBatch::default(), false);
        let mut to_end: Vec<(VbId, Intent)> = Vec::new();
        for (vb, (head, intent)) in found {
            let at = self.on_record.get(&vb).map(|at| at.unmarked());
            if let Some(record) = record
                && at.is_none()
                && !record.missing.contains(&vb)
            {
                self.erase(vb, &mut void);
                is_changed = true;
                continue;
            }
            match head {
                Ok(head) => self.slot(vb).seen.lock().head = head.map(Arc::new),
                Err(what) => self.refuse_damaged(vb, what),
            }
            let Some(intent) = intent else { continue };
            let is_on_record = |at: FileAt| (at.revision, at.header_offset) == (intent.epoch, intent.commit);
            match record.is_some() && at.is_some_and(is_on_record) {
                true => to_end.push((vb, intent)),
                false => void.delete_cf(self.database.family(Family::State), intent_of(vb)),
            }
            is_changed = true;
        }
        if is_changed {
            self.change_at_start(void, to_end)?;
        }
        self.compare_with_record();
        Ok(())
    }

    /// What a start decides is durable before anything else happens. A database that is only read is not changed: what is
    /// void is not shown, and a vBucket whose rollback is to be ended is refused.
    fn change_at_start(&self, void: WriteBatch, to_end: Vec<(VbId, Intent)>) -> Result<(), Failure> {
        if self.database.is_read_only() {
            for (vb, _) in to_end {
                let what = "a rollback is on record that the next start of the node ends; start it first";
                self.refused.lock().insert(vb, RocksRefusal::Unread(what.to_owned()));
            }
            return Ok(());
        }
        let failed = |error: rocksdb::Error| Failure::Disk {
            operation: "write what the start decided to",
            path: self.database.folder().to_owned(),
            source: std::io::Error::other(error.to_string()),
        };
        self.database.write(void).map_err(failed)?;
        for (vb, intent) in to_end {
            if let Err(failure) = self.end_rollback(vb, intent) {
                self.refuse(vb, &failure);
            }
        }
        self.database.flush().map_err(failed)
    }

    fn heads(&self) -> Result<Found, Failure> {
        let mut found = Found::new();
        let mut walk = self.database.walk_all(Family::State);
        while let Some((key, value)) = walk.item() {
            if let Some((vb, rest)) = split(key).filter(|_| key != OWNER) {
                match rest {
                    [0] => found.entry(vb).or_insert((Ok(None), None)).0 = Head::decode(value).map(Some),
                    [2] => found.entry(vb).or_insert((Ok(None), None)).1 = Intent::decode(value),
                    _ => {}
                }
            }
            walk.next();
        }
        // Without the states it is not known what is there.
        walk.status().map_err(|error| Failure::Catalog {
            dir: self.dir.clone(),
            what: format!("RocksDB cannot read the states of vBuckets: {error}"),
        })?;
        Ok(found)
    }

    fn refuse_damaged(&self, vb: VbId, what: String) {
        self.refused.lock().insert(vb, RocksRefusal::Damaged(what));
    }

    /// A catalog that lists the last commits lists them all: one that does not is an older one.
    fn refuse_unlisted(&self, found: &Found) -> Result<(), Failure> {
        for (vb, (head, _)) in found {
            let Ok(Some(head)) = head else { continue };
            let what = match self.on_record.get(vb).map(|at| at.unmarked().header_offset) {
                Some(at) if at == FileAt::LAST || at >= head.commit => continue,
                Some(at) => {
                    format!(
                        "it lists commit {at} as the last one of vBucket {vb}, which has commit {}",
                        head.commit
                    )
                }
                None => format!("it does not list vBucket {vb}, which has commit {}", head.commit),
            };
            let what = format!(
                "{what}: it is older than the documents; put the newer catalog back, or restore the bucket from a copy"
            );
            return Err(Failure::Catalog { dir: self.dir.clone(), what });
        }
        Ok(())
    }

    /// vBuckets of which the database has less than is on record are damaged.
    fn compare_with_record(&self) {
        for (vb, at) in &self.on_record {
            if at.is_lost() {
                let what = "an earlier life of the node gave up what is missing";
                self.refused.lock().insert(*vb, RocksRefusal::Lost(what.into()));
                continue;
            }
            let (wanted, found) = (at.header_offset, self.head(*vb).map_or(0, |head| head.commit));
            if found < wanted && wanted != FileAt::LAST && !self.refused.lock().contains_key(vb) {
                let what = format!(
                    "the database has commit {found}, and commit {wanted} is on record: it is older than the journal or \
                     the catalog, or was damaged"
                );
                self.refuse_damaged(*vb, what);
            }
        }
    }

    /// The last commit of a vBucket. If it cannot be read, the one that was on record, so that it is served once it can be
    /// read; or else the last place there could be.
    fn position(&self, vb: VbId) -> Option<FileAt> {
        let refused = self.refused.lock().get(&vb).cloned();
        let at = match (&refused, self.head(vb)) {
            (None, head) => at_of(&*head?),
            (Some(_), head) => {
                let on_record = self.on_record.get(&vb).map(|at| at.unmarked());
                on_record.or(head.map(|head| at_of(&head))).unwrap_or(FileAt::last_of(1))
            }
        };
        Some(if matches!(refused, Some(RocksRefusal::Lost(_))) { at.marked_lost() } else { at })
    }
}

impl Files for Rocks {
    fn dir(&self) -> &Path {
        &self.dir
    }

    fn most_at_once(&self) -> usize {
        MOST_AT_ONCE
    }

    fn file_group(&self, group: &[(VbId, SaveBatch<'_>)]) -> Vec<Result<FileAt, Failure>> {
        self.commit_group(group)
    }

    fn positions(&self) -> Vec<(VbId, FileAt)> {
        let position = |vb| Some((vb, self.position(vb)?));
        Files::known(self).into_iter().filter_map(position).collect()
    }

    fn known(&self) -> Vec<VbId> {
        let slots: Vec<_> = self.vbuckets.lock().iter().map(|(vb, slot)| (*vb, Arc::clone(slot))).collect();
        let there = slots.into_iter().filter(|(_, slot)| slot.seen.lock().head.is_some());
        let mut all: Vec<VbId> = there.map(|(vb, _)| vb).collect();
        all.extend(self.refused.lock().keys().copied());
        all.sort_unstable();
        all.dedup();
        all
    }

    fn stored(&self, vb: VbId) -> Result<Option<StoredVb>, Failure> {
        self.check(vb)?;
        Ok(self.head(vb).map(|head| stored_of(&head)))
    }

    fn rollback_with(&self, vb: VbId, to: Seqno, before: &BeforeRollback<'_>) -> Result<RolledBack, Failure> {
        self.check(vb)?;
        self.note(self.roll_back(vb, to, before))
    }

    fn compact_with(
        &self,
        vb: VbId,
        request: &Compaction<'_>,
        before: &BeforeSwitch<'_>,
    ) -> Result<Compacted, Failure> {
        self.note(self.compact_and_tell(vb, request, before))
    }

    fn move_files(&self, vb: VbId, to: &Path) -> Result<(), Failure> {
        make_folder(&self.env, to)?;
        // vBuckets share tables: all of the database is kept, in links to its files.
        let aside = to.join(format!("{FOLDER}.{vb}"));
        let Some(FolderAccess::Whole(path)) = self.env.disk.on_file_system(&aside) else {
            let what = "RocksDB can put nothing aside there".to_owned();
            return Err(Failure::OtherStore { dir: aside, what });
        };
        self.env.disk.remove_dir_all(&aside).map_err(|source| Failure::Disk {
            operation: "remove what an earlier try left in",
            path: aside.clone(),
            source,
        })?;
        self.database.link_to(&path).map_err(self.database.failed(vb, "link the files"))?;
        let synced = self.env.disk.sync_dir(to);
        synced.map_err(|source| Failure::Disk { operation: "sync", path: to.to_owned(), source })
    }

    fn refuse(&self, vb: VbId, failure: &Failure) {
        let what = format!("it could not be read at the start ({failure}); start again");
        let refusal =
            if failure.is_damage() { RocksRefusal::Damaged(what) } else { RocksRefusal::Unread(what) };
        self.refused.lock().entry(vb).or_insert(refusal);
    }

    fn miss(&self, vb: VbId, what: String) {
        self.refused.lock().insert(vb, RocksRefusal::Lost(what.into()));
    }

    fn give_up(&self, vb: VbId) -> FileAt {
        self.position(vb).unwrap_or(FileAt::last_of(1)).marked_lost()
    }

    fn are_listed(&self) -> bool {
        self.catalog.believe() == Some(Believe::Files)
    }

    fn undecided(&self) -> Vec<Undecided> {
        let slots: Vec<_> = self.vbuckets.lock().iter().map(|(vb, slot)| (*vb, Arc::clone(slot))).collect();
        let is_undecided = |(_, slot): &(VbId, Arc<RocksSlot>)| slot.seen.lock().undecided.is_some();
        let all: Vec<_> = slots.into_iter().filter(is_undecided).collect();
        let refused = self.refused.lock();
        // Of one whose changes are missing it is not known what is on record.
        let known = all.into_iter().filter(|(vb, _)| !matches!(refused.get(vb), Some(RocksRefusal::Lost(_))));
        known.map(|(vb, _)| Undecided { vb, revisions: Vec::new() }).collect()
    }

    fn decide(&self, undecided: &Undecided) -> Result<(), Failure> {
        let vb = undecided.vb;
        let mut out = WriteBatch::default();
        out.delete_cf(self.database.family(Family::State), intent_of(vb));
        self.write(vb, out)?;
        self.flush(vb)?;
        self.slot(vb).seen.lock().undecided = None;
        Ok(())
    }

    /// There is nothing behind a commit.
    fn cut_tails(&self) -> Result<(), Failure> {
        self.database.flush().map_err(|error| Failure::Disk {
            operation: "flush",
            path: self.database.folder().to_owned(),
            source: std::io::Error::other(error.to_string()),
        })
    }

    fn promise_files(&self, generations: u64) -> Result<(), Failure> {
        let listed = |(vb, at)| (vb, Listed { at, high_seqno: None, is_tail_void: true });
        let files: BTreeMap<VbId, Listed> = self.positions().into_iter().map(listed).collect();
        self.catalog.believe_files(files, generations)
    }
}
