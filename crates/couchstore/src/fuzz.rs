//! Bodies for fuzzers: what must hold for any bytes.

use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use base::env::sim::SimDisk;
use base::env::{Disk, File, OpenMode};

use crate::check::{Fault, Watcher, check_with};
use crate::{
    Choice, Compaction, CouchFile, DocInfo, Failure, Fate, OriginalKeys, Reading, RecordSummary, RevMeta,
    Snapshot, Tuning, Want,
};

/// A disk that holds one file of fixed bytes.
pub struct OneFile(pub Arc<[u8]>);

impl Disk for OneFile {
    fn open(&self, _path: &Path, _mode: OpenMode) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(OneFile(self.0.clone())))
    }

    fn create_dir_all(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }

    fn read_dir(&self, _path: &Path) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn rename(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn remove_file(&self, _path: &Path) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn sync_dir(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }
}

impl File for OneFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|at| self.0.get(at..)).unwrap_or_default();
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }

    fn write_at(&self, _buf: &[u8], _offset: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
}

/// Everything a reader can ask of a file of any bytes ends in values or a failure, never in a panic.
pub fn fuzz_damaged_file(bytes: &[u8]) {
    // a failure is as good an answer as any
    let _ = read_everything(bytes);
    let mut keys = OriginalKeys::default();
    // Of the golden files, which fuzzers begin with.
    keys.insert("k-1".to_owned(), std::array::from_fn(|at| 0x10 + at as u8));
    check_with(&OneFile(bytes.into()), Path::new("fuzz.couch.1"), &keys, &mut Deaf);
}

/// Takes no notice of what a check meets.
struct Deaf;

impl Watcher for Deaf {
    fn fault(&mut self, _fault: Fault) {}

    fn step(&mut self, _documents: u64) {}
}

fn read_everything(bytes: &[u8]) -> Result<(), Failure> {
    let disk = OneFile(bytes.into());
    let snapshot = CouchFile::open_read(&disk, Path::new("fuzz.couch.1"))?;
    let _ = snapshot.info();
    let (mut stored, mut body) = (Vec::new(), Vec::new());
    let mut first = None;
    snapshot.changes_since(0, |info| {
        let _ = RevMeta::decode(info.rev_meta);
        let _ = snapshot.body(&info, &mut stored, &mut body);
        first.get_or_insert_with(|| info.id.to_vec());
        Ok::<_, Failure>(ControlFlow::Continue(()))
    })?;
    read_in_large_pieces(&snapshot);
    snapshot.scan_ids(&[], |_| Ok::<_, Failure>(ControlFlow::Continue(())))?;
    snapshot.scan_locals(|_, _| ())?;
    if let Some(id) = first {
        snapshot.get(&id, |_| ())?;
    }
    CouchFile::open(&disk, Path::new("fuzz.couch.1"))?.rollback(snapshot.info().update_seqno / 2)?;
    copy_everything(snapshot)
}

/// A record with its stored body.
type Read = (u64, Vec<u8>, Vec<u8>, Vec<u8>);

fn read(info: &DocInfo<'_>, body: &[u8]) -> Read {
    (info.seqno, info.id.to_vec(), info.rev_meta.to_vec(), body.to_vec())
}

/// Reading many documents finds what reading them one by one does, up to the first one that is damaged at most.
///
/// # Panics
///
/// If it does not.
pub fn read_in_large_pieces(snapshot: &Snapshot) {
    let mut one_by_one = Vec::new();
    let mut stored = Vec::new();
    let outcome = snapshot.changes_since(0, |info| {
        one_by_one.push(read(&info, snapshot.stored_body(&info, &mut stored)?));
        Ok::<_, Failure>(ControlFlow::Continue(()))
    });
    let mut reading = Reading::default();
    for max_bytes in [1, 3_000, usize::MAX] {
        let mut together = Vec::new();
        let mut next = Ok(Some(0));
        while let Ok(Some(from)) = next {
            next = snapshot.read_since(
                from,
                max_bytes,
                &mut reading,
                |_| Want::Body,
                |info, body| {
                    together.push(read(info, body));
                    Ok::<_, Failure>(ControlFlow::Continue(()))
                },
            );
            assert!(!matches!(next, Ok(Some(to)) if to <= from), "it goes on");
        }
        let is_sound = outcome.is_ok() && one_by_one.is_sorted_by(|a, b| a.0 < b.0);
        assert!(next.is_ok() || !is_sound, "{next:?} where nothing is damaged");
        if is_sound {
            assert!(together == one_by_one, "{} in place of {}", together.len(), one_by_one.len());
        }
    }
}

/// A copy of what can be copied is sound.
fn copy_everything(old: Snapshot) -> Result<(), Failure> {
    let (disk, path) = (SimDisk::new(), Path::new("/fuzz.couch.2"));
    let mut copy =
        Compaction::start(&disk, path, old.clone(), Tuning::default()).expect("an empty disk takes a file");
    while !copy.step(1 << 12, &mut KeepAll)?.is_done {}
    copy.finish(&old, &[])?.commit(1)?;
    let copied = CouchFile::open_read(&disk, path).expect("it was just written");
    assert_eq!(copied.info().seqno_count, copied.info().live_count + copied.info().deleted_count);
    Ok(())
}

struct KeepAll;

impl Choice for KeepAll {
    fn fate(&mut self, _: &DocInfo<'_>) -> Fate {
        Fate::Keep
    }

    fn leaves_out_late(&mut self, _: &DocInfo<'_>) -> bool {
        false
    }

    fn brought_over(&mut self, _: &[u8], _: RecordSummary, _: Option<RecordSummary>) {}
}
