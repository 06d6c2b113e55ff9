//! Going back to an older commit: what it held is there again, and saves go on from it.

mod common;

use base::env::{Disk, OpenMode, RealDisk};
use common::{Doc, Docs, TestBatch, read_all};
use couchstore::{CouchFile, LocalUpdate};

struct Subject {
    dir: tempfile::TempDir,
    file: CouchFile,
    /// Seqno and content of each commit.
    commits: Vec<(u64, Docs)>,
}

impl Subject {
    fn new() -> Subject {
        let dir = tempfile::tempdir().expect("a folder");
        let file = CouchFile::create(&RealDisk, &dir.path().join("0.couch.1")).expect("a new file");
        Subject { dir, file, commits: Vec::new() }
    }

    /// Saves ten documents, of which some replace others.
    fn save(&mut self) {
        let (mut seqno, mut model) = self.commits.last().cloned().unwrap_or_default();
        let round = self.commits.len() as u64;
        let mut docs = Docs::new();
        for key in 0..10 {
            seqno += 1;
            let doc = Doc { seqno, deleted: key == 3, rev_seqno: round, cas: seqno, body: Vec::new() };
            let body = if key == 3 { Vec::new() } else { vec![round as u8; 100] };
            docs.insert(format!("k{}", round * 5 + key).into_bytes(), Doc { body, ..doc });
        }
        model.extend(docs.clone());
        self.file.save(&mut TestBatch::new(&docs)).expect("a save");
        let value = seqno.to_string();
        let local = LocalUpdate { id: b"_local/vbstate", value: Some(value.as_bytes()) };
        self.file.save_locals(&[local]).expect("a save");
        self.file.commit(round).expect("a commit");
        self.commits.push((seqno, model));
    }

    /// Goes back and forgets the commits behind.
    fn rollback(&mut self, to: u64) -> Option<u64> {
        let found = self.file.rollback(to).expect("a sound file")?;
        self.file.commit(99).expect("a commit");
        self.commits.retain(|(seqno, _)| *seqno <= to);
        Some(found)
    }

    #[track_caller]
    fn assert_content(&mut self) {
        for reopened in [false, true] {
            let (seqno, model) = self.commits.last().expect("a commit");
            let snapshot = self.file.snapshot();
            assert_eq!(snapshot.info().update_seqno, *seqno);
            assert_eq!(read_all(&snapshot).expect("a sound file"), *model, "reopened: {reopened}");
            let state = snapshot.local(b"_local/vbstate").expect("sound");
            assert_eq!(state, Some(seqno.to_string().into_bytes()));
            let path = self.dir.path().join("0.couch.1");
            self.file = CouchFile::open(&RealDisk, &path).expect("the file opens");
        }
    }
}

#[test]
fn the_newest_commit_that_fits_is_in_force_again() {
    for to in [10, 15, 19, 20, 39, 40, 49] {
        let mut subject = Subject::new();
        (0..5).for_each(|_| subject.save());
        let old = subject.file.snapshot();
        let before = subject.commits.last().cloned().expect("a commit");
        assert_eq!(subject.rollback(to), Some(to / 10 * 10));
        subject.assert_content();
        assert_eq!(read_all(&old).expect("an old snapshot stays"), before.1);
        (0..2).for_each(|_| subject.save());
        subject.assert_content();
        // and back again, over the way back
        let between = to / 10 * 10 + 13;
        assert_eq!(subject.rollback(between), Some(between / 10 * 10));
        subject.assert_content();
        assert_eq!(subject.rollback(10), Some(10));
        subject.assert_content();
    }
}

#[test]
fn nothing_changes_without_a_fitting_header() {
    let mut subject = Subject::new();
    assert_eq!(subject.file.rollback(5).expect("a sound file"), None);
    (0..3).for_each(|_| subject.save());
    let length = subject.file.snapshot().info().file_bytes;
    assert_eq!(subject.file.rollback(9).expect("a sound file"), None);
    assert_eq!(subject.file.rollback(30).expect("a sound file"), Some(30));
    assert_eq!(subject.file.rollback(31).expect("a sound file"), Some(30));
    assert_eq!(subject.file.snapshot().info().file_bytes, length);
    subject.assert_content();
    subject.save();
    subject.assert_content();
}

#[test]
fn a_header_whose_bodies_are_damaged_does_not_fit() {
    let mut subject = Subject::new();
    (0..4).for_each(|_| subject.save());
    // a document of the third commit, which the fourth does not replace
    let offset = subject.file.snapshot().get(b"k11", |info| info.body_offset).expect("sound").expect("there");
    let raw = RealDisk.open(&subject.dir.path().join("0.couch.1"), OpenMode::ReadWrite).expect("the file");
    raw.write_at(&[77], offset + 20).expect("a write");
    assert_eq!(subject.file.rollback(35).expect("a sound file"), Some(20));
    subject.file.commit(1).expect("a commit");
    subject.commits.truncate(2);
    subject.assert_content();
}
