//! Commits of a vBucket's file of which everything can be read, and a new revision that begins with one of them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::env::{Disk, Env, File, OpenMode};
use base::planted::{self, Bug};
use base::{Seqno, VbId, VbState};
use couchstore::{CouchFile, LocalUpdate, Snapshot};

use super::file::{OTHER_HEADER, at_of, load_tally, read_state};
use super::identity::{IDENTITY_ID, Identity};
use super::{UNFINISHED, file_name};
use crate::catalog::{Listed, StoreId};
use crate::compaction::FileAt;
use crate::failure::Failure;
use crate::state::{FailoverEntry, STATE_ID, VbStateDoc};

/// How much is copied at once.
const COPY_BYTES: usize = 1 << 20;
/// A failover table has no more entries.
const MOST_HISTORIES: usize = 25;

/// A commit that can be read as a whole.
#[derive(Clone, Debug)]
pub(crate) struct Whole {
    pub(crate) path: PathBuf,
    pub(crate) revision: u64,
    pub(crate) header_offset: u64,
    /// Where its header ends.
    pub(crate) end: u64,
    pub(crate) high_seqno: Seqno,
    pub(crate) documents: u64,
    pub(crate) timestamp_ns: u64,
    pub(crate) state: VbStateDoc,
}

/// Files of a folder.
pub(crate) struct Files<'a> {
    pub(crate) disk: &'a dyn Disk,
    pub(crate) dir: &'a Path,
    /// Whose they must be, if that is known.
    pub(crate) store: Option<StoreId>,
}

impl Files<'_> {
    /// The commit at a header that was promised, or why it cannot be used.
    pub(crate) fn at(&self, vb: VbId, listed: &Listed) -> Result<Result<Whole, String>, Failure> {
        let FileAt { revision, header_offset, checksum } = listed.at;
        let path = self.dir.join(file_name(vb, revision));
        let opened = if header_offset == FileAt::LAST {
            CouchFile::open_read(self.disk, &path)
        } else {
            CouchFile::open_read_at(self.disk, &path, header_offset)
        };
        let looked = opened.and_then(|file| {
            file.read_everything()?;
            Ok(file)
        });
        let file = match looked {
            Ok(file) => file,
            Err(failure) => return unusable(vb, failure).map(Err),
        };
        if checksum.is_some_and(|checksum| checksum != file.header_checksum()) {
            return Ok(Err(OTHER_HEADER.to_owned()));
        }
        self.describe(vb, revision, &file)
    }

    /// The newest commit of a revision that can be used.
    pub(crate) fn newest(&self, vb: VbId, revision: u64) -> Result<Option<Whole>, Failure> {
        let path = self.dir.join(file_name(vb, revision));
        let found = Snapshot::newest_whole(self.disk, &path, u64::MAX, |_| Ok(()));
        match found {
            Ok(Some(file)) => Ok(self.describe(vb, revision, &file)?.ok()),
            Ok(None) => Ok(None),
            Err(failure) => unusable(vb, failure).map(|_| None),
        }
    }

    fn describe(&self, vb: VbId, revision: u64, file: &Snapshot) -> Result<Result<Whole, String>, Failure> {
        let identity = Identity { store: self.store, vb, revision };
        let looked = || {
            let found = file.local(IDENTITY_ID).map_err(|source| Failure::File { vb, source })?;
            identity.check(file.path(), found.as_deref())?;
            let tally = load_tally(file).map_err(|source| Failure::File { vb, source })?;
            Ok((read_state(vb, file)?, tally))
        };
        let (state, tally) = match looked() {
            Ok(looked) => looked,
            Err(Failure::File { vb, source }) => return unusable(vb, source).map(Err),
            Err(failure) => return Ok(Err(failure.to_string())),
        };
        let info = file.info();
        Ok(Ok(Whole {
            path: file.path().to_owned(),
            revision,
            header_offset: info.header_offset,
            end: info.file_bytes,
            high_seqno: Seqno(info.update_seqno),
            documents: tally.documents(),
            timestamp_ns: info.timestamp_ns,
            state,
        }))
    }

    /// The store that the file of a vBucket says it is of.
    pub(crate) fn store_of(&self, vb: VbId, revision: u64) -> Option<StoreId> {
        let path = self.dir.join(file_name(vb, revision));
        let file = CouchFile::open_read(self.disk, &path).ok()?;
        Identity::store_in(&file.local(IDENTITY_ID).ok()??)
    }
}

/// In words, unless the disk refused: that says nothing of what is there.
fn unusable(vb: VbId, failure: couchstore::Failure) -> Result<String, Failure> {
    match failure {
        couchstore::Failure::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            Ok("it is missing".to_owned())
        }
        source @ couchstore::Failure::Io { .. } => Err(Failure::File { vb, source }),
        other => Ok(other.to_string()),
    }
}

/// Begins a new history at a seqno, if the vBucket is active: a replica takes its active's.
pub(crate) fn begin_history(env: &Env, state: &mut VbStateDoc, at: Seqno) {
    if state.state != VbState::Active || planted::is(Bug::RepairKeepsHistory) {
        return;
    }
    let id = (env.random.next_u64() & 0xffff_ffff_ffff).max(1);
    state.failover_table.retain(|entry| entry.seq <= at.0);
    state.failover_table.insert(0, FailoverEntry { id, seq: at.0 });
    state.failover_table.truncate(MOST_HISTORIES);
}

/// Makes a revision of a vBucket's file that holds what a commit of another one holds, with a state; durable when this
/// returns.
pub(crate) fn rewrite(
    env: &Env,
    dir: &Path,
    vb: VbId,
    whole: &Whole,
    identity: (StoreId, u64),
    state: &VbStateDoc,
) -> Result<FileAt, Failure> {
    let (store, revision) = identity;
    let (path, disk) = (dir.join(file_name(vb, revision)), &*env.disk);
    let unfinished = dir.join(file_name(vb, revision) + UNFINISHED);
    copy(disk, &whole.path, &unfinished, whole.end)?;
    let of_file = |source| Failure::File { vb, source };
    let cut = CouchFile::open_cut(disk, &unfinished, whole.header_offset, |_| Ok(()));
    let mut file = cut.map_err(of_file)?;
    let identity = Identity { store: Some(store), vb, revision }.to_json();
    let state = state.to_json();
    let locals = [
        LocalUpdate { id: IDENTITY_ID, value: identity.as_deref() },
        LocalUpdate { id: STATE_ID, value: Some(&state) },
    ];
    file.save_locals(&locals).and_then(|()| file.commit(env.clock.unix_ns())).map_err(of_file)?;
    let at = at_of(revision, &file.snapshot());
    let failed = |operation, path: &Path, source| Failure::Disk { operation, path: path.to_owned(), source };
    disk.rename(&unfinished, &path).map_err(|source| failed("rename", &unfinished, source))?;
    disk.sync_dir(dir).map_err(|source| failed("sync folder", dir, source))?;
    Ok(at)
}

/// Copies the first bytes of a file, durably but for the name.
pub(crate) fn copy(disk: &dyn Disk, from: &Path, to: &Path, bytes: u64) -> Result<(), Failure> {
    let copy = || {
        let (source, target) = (disk.open(from, OpenMode::Read)?, disk.open(to, OpenMode::Create)?);
        target.set_len(0)?;
        copy_bytes(&source, &target, bytes)?;
        target.sync_data()
    };
    copy().map_err(|source| Failure::Disk { operation: "copy", path: from.to_owned(), source })
}

fn copy_bytes(source: &Arc<dyn File>, target: &Arc<dyn File>, bytes: u64) -> io::Result<()> {
    let (mut buffer, mut at) = (vec![0; COPY_BYTES], 0);
    while at < bytes {
        let wanted = buffer.len().min(usize::try_from(bytes - at).unwrap_or(usize::MAX));
        let read = source.read_at(&mut buffer[..wanted], at)?;
        if read == 0 {
            break;
        }
        target.write_at(&buffer[..read], at)?;
        at += read as u64;
    }
    Ok(())
}
