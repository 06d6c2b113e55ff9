//! Going back: an older header's trees become those of the next header.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use base::env::{Disk, OpenMode};

use crate::chunk::Source;
use crate::failure::Failure;
use crate::file::{Commit, CouchFile, open_source};
use crate::header::Header;
use crate::snapshot::Snapshot;

impl CouchFile {
    /// Goes back to the newest commit whose seqno is `to_seqno` or lower and whose trees and bodies can all be read.
    /// Returns its seqno; it is in force with the next commit. Nothing if no header fits, for instance because the
    /// file was compacted since; then nothing changed.
    ///
    /// Everything is read, not the roots only: a header may stand in the file that was never in force, because the
    /// sync of its data failed.
    pub fn rollback(&mut self, to_seqno: u64) -> Result<Option<u64>, Failure> {
        self.rollback_where(to_seqno, |_| Ok(()))
    }

    /// The same, but passes over commits with which `accept` finds a fault: not all that stands in a file need be of the
    /// one that the file is now.
    pub fn rollback_where(
        &mut self,
        to_seqno: u64,
        accept: impl Fn(&Snapshot) -> Result<(), Failure>,
    ) -> Result<Option<u64>, Failure> {
        self.writer.check()?;
        let current = self.snapshot().header;
        assert!(
            *current == self.header && self.writer.end() == self.writer.written_end(),
            "nothing is half saved"
        );
        if self.last_commit().is_none() {
            return Ok(None);
        }
        if current.update_seqno <= to_seqno {
            return Ok(Some(current.update_seqno));
        }
        let Some(found) = find(self.writer.source(), &current, to_seqno, &accept)? else { return Ok(None) };
        self.header = Header { version: current.version, ..found };
        Ok(Some(self.header.update_seqno))
    }

    /// Writes the next header, for which everything it points to is durable already, makes it durable and returns the
    /// commit. It is in force after [`CouchFile::finish_commit`].
    pub fn commit_header(&mut self, timestamp_ns: u64) -> Result<Commit, Failure> {
        self.write_data()?;
        self.write_header(timestamp_ns)?;
        self.writer.sync()?;
        Ok(self.written_commit())
    }
}

impl Snapshot {
    /// The newest commit of a file, its header being before `below`, of which everything can be read and with which
    /// `accept` finds no fault. `None` if there is none. The file is not changed.
    pub fn newest_whole(
        disk: &dyn Disk,
        path: &Path,
        below: u64,
        mut accept: impl FnMut(&Snapshot) -> Result<(), Failure>,
    ) -> Result<Option<Snapshot>, Failure> {
        let source = open_source(disk, path, OpenMode::Read)?;
        let len = source.file.len().map_err(|error| Failure::Io {
            operation: "measure",
            path: source.path.clone(),
            offset: 0,
            source: error,
        })?;
        let mut found = None;
        let mut is_whole = |header: &Header, source: &Source| {
            let snapshot = Snapshot::new(source.clone(), Arc::new(header.clone()), header.end());
            accept(&snapshot)?;
            snapshot.read_everything()?;
            found = Some(snapshot);
            Ok(())
        };
        Header::search(&source, len.min(below), &mut is_whole)?;
        Ok(found)
    }

    /// Reads all of the file as of its header: every node and every body.
    ///
    /// # Errors
    ///
    /// At the first that cannot be read.
    pub fn read_everything(&self) -> Result<(), Failure> {
        read_everything(self)
    }
}

/// The newest header before `current` that fits. Links, where headers have them, only save the search.
fn find(
    source: &Source,
    current: &Header,
    to_seqno: u64,
    accept: &dyn Fn(&Snapshot) -> Result<(), Failure>,
) -> Result<Option<Header>, Failure> {
    let checksum = source.checksum;
    let mut fits = |header: &Header, source: &Source| {
        if source.checksum != checksum || header.update_seqno > to_seqno {
            return Err(source.damaged(header.offset, "this header does not fit"));
        }
        let snapshot = Snapshot::new(source.clone(), Arc::new(header.clone()), header.offset);
        accept(&snapshot)?;
        read_everything(&snapshot)
    };
    Header::search(source, current.offset, &mut fits)
}

/// Reads all of a file as of one header.
fn read_everything(file: &Snapshot) -> Result<(), Failure> {
    let mut stored = Vec::new();
    let mut records = 0u64;
    file.changes_since(0, |info| {
        file.stored_body(&info, &mut stored)?;
        records += 1;
        Ok::<_, Failure>(ControlFlow::Continue(()))
    })?;
    file.scan_ids(&[], |_| {
        records = records.wrapping_sub(1);
        Ok::<_, Failure>(ControlFlow::Continue(()))
    })?;
    file.scan_locals(|_, _| ())?;
    if records == 0 { Ok(()) } else { Err(file.source.damaged(file.header.offset, "the trees disagree")) }
}
