//! What a start makes of a database that is as a crash left it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use base::env::Env;
use base::{CollectionId, DocKey, NewVersion, RevSeqno, Seqno, VbId, Version, VersionMeta};

use super::store::Rocks;
use crate::catalog::Catalog;
use crate::compaction::{Compaction, FileAt};
use crate::failure::Failure;
use crate::files::{Files, OnRecord};
use crate::rocks_config::RocksConfig;
use crate::state::VbStateDoc;
use crate::store::{KvStore, SaveBatch};

const VB: VbId = VbId(3);

fn version(key: &str, seqno: u64) -> Version {
    let meta = VersionMeta { by_seqno: Seqno(seqno), rev_seqno: RevSeqno(1), ..VersionMeta::default() };
    let key = DocKey { collection: CollectionId::DEFAULT, key: key.as_bytes() };
    NewVersion::new(base::Heap::shared(), meta, key, &[&seqno.to_le_bytes()]).publish()
}

/// Opens a folder as a journal does that has these commits on record.
fn open(dir: &Path, record: &BTreeMap<VbId, FileAt>) -> Rocks {
    let env = Env::real();
    let catalog = Arc::new(Catalog::open(&env, dir).expect("a catalog"));
    let record = OnRecord { commits: record, missing: &BTreeSet::new(), told: None };
    Rocks::open_with(env, dir, RocksConfig::default(), catalog, Some(&record)).expect("it opens")
}

fn file(store: &Rocks, items: &[Version]) -> FileAt {
    let batch = SaveBatch { items, state: &VbStateDoc::default() };
    store.file_group(&[(VB, batch)]).pop().expect("an answer").expect("it is filed")
}

fn seqnos(store: &Rocks) -> Vec<u64> {
    let mut all = Vec::new();
    store
        .scan(VB, Seqno(0), crate::store::Values::Leave, &mut |version| {
            all.push(version.meta().by_seqno.0);
            std::ops::ControlFlow::Continue(())
        })
        .expect("a scan");
    all
}

/// Three commits: two keys, one of them replaced, one new.
fn filled(dir: &Path) -> (Rocks, Vec<FileAt>) {
    let store = open(dir, &BTreeMap::new());
    let at = vec![
        file(&store, &[version("a", 1), version("b", 2)]),
        file(&store, &[version("a", 3)]),
        file(&store, &[version("a", 5), version("c", 4)]),
    ];
    assert_eq!(seqnos(&store), [2, 4, 5]);
    (store, at)
}

fn refused() -> Failure {
    Failure::Disk { operation: "write", path: "journal".into(), source: std::io::Error::other("refused") }
}

/// A rollback is in force once it is on record, whether or not the process lived to see it.
#[test]
fn a_rollback_that_was_cut_off_is_ended_if_it_is_on_record() {
    for to in [2, 3] {
        let dir = tempfile::tempdir().expect("a folder");
        let (store, at) = filled(dir.path());
        let named = std::cell::Cell::new(None);
        // It is on record, and the process ends before the store goes back.
        let cut = store.rollback_with(VB, Seqno(to), &|at| {
            named.set(at);
            Err(refused())
        });
        assert!(cut.is_err());
        assert_eq!((store.undecided().len(), seqnos(&store)), (1, vec![2, 4, 5]));
        drop(store);
        let named = named.get().expect("a commit");
        assert!(named.revision > at[2].revision && named.header_offset > at[2].header_offset);
        let store = open(dir.path(), &BTreeMap::from([(VB, named)]));
        let expected: &[u64] = if to == 2 { &[1, 2] } else { &[2, 3] };
        assert_eq!((store.positions(), seqnos(&store)), (vec![(VB, named)], expected.to_vec()));
        assert!(store.get(VB, DocKey::new(b"c")).expect("it is read").is_none());
        assert_eq!(store.counts(VB).expect("counts").documents, 2);
        assert!(store.undecided().is_empty());
        // Another history goes on from there, through another start.
        let next = file(&store, &[version("a", 4)]);
        drop(store);
        let store = open(dir.path(), &BTreeMap::from([(VB, next)]));
        assert_eq!(seqnos(&store), [2, 4]);
    }
}

#[test]
fn a_rollback_that_is_not_on_record_never_was() {
    let dir = tempfile::tempdir().expect("a folder");
    let (store, at) = filled(dir.path());
    assert!(store.rollback_with(VB, Seqno(3), &|_| Err(refused())).is_err());
    drop(store);
    let store = open(dir.path(), &BTreeMap::from([(VB, at[2])]));
    assert_eq!(seqnos(&store), [2, 4, 5]);
    assert!(store.undecided().is_empty());
    // The same process decides it, once what is in use is on record again.
    assert!(store.rollback_with(VB, Seqno(3), &|_| Err(refused())).is_err());
    let undecided = store.undecided().pop().expect("one");
    store.decide(&undecided).expect("it is decided");
    assert!(store.undecided().is_empty());
    assert_eq!(store.rollback_with(VB, Seqno(3), &|_| Ok(())).expect("a rollback").seqno, Seqno(3));
    assert_eq!(seqnos(&store), [2, 3]);
}

/// The database may have been flushed behind what is on record: the journal has the same, and files it again.
#[test]
fn a_database_that_is_newer_than_the_record_is_taken_and_filed_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let (store, at) = filled(dir.path());
    drop(store);
    let store = open(dir.path(), &BTreeMap::from([(VB, at[0])]));
    assert_eq!(seqnos(&store), [2, 4, 5]);
    // An older version does not replace a newer one, and nothing is counted twice.
    file(&store, &[version("a", 3)]);
    file(&store, &[version("a", 5), version("c", 4)]);
    assert_eq!(seqnos(&store), [2, 4, 5]);
    assert_eq!(store.counts(VB).expect("counts").documents, 3);
}

/// What is not on record is void; what is on record and not there is damage of that vBucket.
#[test]
fn what_is_not_on_record_goes_and_what_is_missing_is_damage() {
    let dir = tempfile::tempdir().expect("a folder");
    let (store, mut at) = filled(dir.path());
    let last = at.pop().expect("three");
    drop(store);
    let ahead = FileAt { header_offset: last.header_offset + 1, ..last };
    let store = open(dir.path(), &BTreeMap::from([(VB, ahead)]));
    let refused = Files::stored(&store, VB).expect_err("commits are missing");
    assert!(refused.is_damage() && refused.to_string().contains("on record"), "{refused}");
    assert_eq!(store.positions(), [(VB, ahead)]);
    drop(store);
    let store = open(dir.path(), &BTreeMap::new());
    assert!(store.known().is_empty() && seqnos(&store).is_empty());
    drop(store);
    assert!(open(dir.path(), &BTreeMap::new()).known().is_empty());
}

/// What only a rollback needs is bounded, and goes with a compaction.
#[test]
fn what_is_kept_for_rollbacks_is_bounded() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(dir.path(), &BTreeMap::new());
    for seqno in 1..=100 {
        file(&store, &[version("a", seqno)]);
    }
    let kept = store.head(VB).expect("it is there").kept.len();
    assert_eq!(kept, 16);
    let versions = |store: &Rocks| {
        let mut walk = store.database.walk_all(super::database::Family::Seqnos);
        let mut found = 0;
        while walk.valid() {
            found += 1;
            walk.next();
        }
        found
    };
    assert_eq!(versions(&store), 17);
    assert_eq!(seqnos(&store), [100]);
    store.compact(VB, &Compaction::default()).expect("a compaction");
    assert_eq!((versions(&store), store.head(VB).expect("it is there").kept.len()), (1, 0));
    assert!(store.rollback_with(VB, Seqno(99), &|_| Ok(())).expect("a rollback").stored.is_none());
    assert!(store.known().is_empty());
}
