//! Going back.

use std::collections::BTreeMap;

use kvstore::Compaction;

use super::*;

pub(super) fn run<S: Subject>(fresh: &impl Fn() -> S) {
    to_a_commit_or_the_nearest_below(fresh());
    to_nothing(fresh());
    not_beyond_what_is_there(fresh());
    collections_are_counted_as_then(fresh());
    again_and_again(fresh());
    not_behind_a_compaction(fresh());
}

/// What a store holds: seqno and value by key.
type Content = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;

fn content(store: &dyn KvStore) -> Content {
    let all = scan(store, VB, 0);
    let entry = |v: &Version| (v.stored_key().to_vec(), (v.meta().by_seqno.0, v.value().to_vec()));
    all.iter().map(entry).collect()
}

/// Saves ten versions, the first of which has the seqno `from`; every second batch also deletes one.
fn save_ten(store: &dyn KvStore, from: u64) -> Content {
    let mut items: Vec<Version> = (from..from + 10)
        .map(|seqno| match seqno % 20 {
            13 => tombstone(0, &format!("k{}", seqno * 7 % 16), seqno, ItemKind::Deletion),
            _ => version(0, &format!("k{}", seqno * 7 % 16), seqno, format!("{seqno}").as_bytes()),
        })
        .collect();
    items.sort_by(|a, b| a.stored_key().cmp(b.stored_key()));
    items.dedup_by(|a, b| a.stored_key() == b.stored_key());
    let state = VbStateDoc { max_cas: from, ..VbStateDoc::default() };
    store.save(VB, SaveBatch { items: &items, state: &state }).expect("a save");
    content(store)
}

#[track_caller]
fn assert_content(store: &dyn KvStore, expected: &Content, high_seqno: u64, max_cas: u64) {
    assert_eq!(content(store), *expected);
    let counts = store.counts(VB).expect("counts");
    let found = stored(store, VB).expect("it is there");
    assert_eq!((found.high_seqno.0, found.state.max_cas), (high_seqno, max_cas));
    let tombstones = scan(store, VB, 0).iter().filter(|version| version.is_deleted()).count() as u64;
    assert_eq!(counts.tombstones, tombstones);
    assert_eq!(counts.documents, expected.len() as u64 - tombstones);
    let items = found.collections.first().map(|(_, stats)| stats.item_count);
    assert_eq!(items, Some(counts.documents));
    for (key, (seqno, _)) in expected {
        let got =
            store.get(VB, DocKey::parse(key).expect("a stored key")).expect("a get").expect("it is there");
        assert_eq!(got.meta().by_seqno.0, *seqno);
    }
}

fn to_a_commit_or_the_nearest_below(mut subject: impl Subject) {
    for to in [10, 14, 19, 20, 25, 39] {
        let contents: Vec<Content> = (0..4).map(|i| save_ten(subject.store(), i * 10 + 1)).collect();
        let rolled_back = subject.store().rollback(VB, Seqno(to)).expect("a rollback");
        let batches = to / 10;
        let expected = &contents[batches as usize - 1];
        assert_eq!(rolled_back.seqno, Seqno(batches * 10));
        let found = rolled_back.stored.expect("something fits");
        assert_eq!((found.high_seqno, found.state.max_cas), (rolled_back.seqno, batches * 10 - 9));
        assert_content(subject.store(), expected, batches * 10, batches * 10 - 9);
        subject.restart();
        assert_content(subject.store(), expected, batches * 10, batches * 10 - 9);
        // another history begins
        let seqno = batches * 10 + 1;
        let next = save_ten(subject.store(), seqno);
        subject.restart();
        assert_content(subject.store(), &next, seqno + 9, seqno);
        subject.store().delete_vbucket(VB).expect("a delete");
    }
}

fn to_nothing(mut subject: impl Subject) {
    let empty = subject.store().rollback(VB, Seqno(5)).expect("nothing is stored");
    assert_eq!((empty.seqno, empty.stored.is_none()), (Seqno(0), true));
    for to in [0, 9] {
        (0..3).for_each(|i| drop(save_ten(subject.store(), i * 10 + 1)));
        let rolled_back = subject.store().rollback(VB, Seqno(to)).expect("a rollback");
        assert_eq!((rolled_back.seqno, rolled_back.stored.is_none()), (Seqno(0), true));
        for _ in 0..2 {
            assert!(stored(subject.store(), VB).is_none());
            assert!(content(subject.store()).is_empty());
            subject.restart();
        }
        let next = save_ten(subject.store(), 1);
        subject.restart();
        assert_content(subject.store(), &next, 10, 1);
    }
    // a state without documents is a commit, too
    subject.store().delete_vbucket(VB).expect("a delete");
    let state = VbStateDoc { max_cas: 77, ..VbStateDoc::default() };
    subject.store().save_state(VB, &state).expect("a save");
    save_ten(subject.store(), 1);
    let rolled_back = subject.store().rollback(VB, Seqno(0)).expect("a rollback");
    assert_eq!(rolled_back.stored.map(|stored| stored.state.max_cas), Some(77));
    subject.restart();
    assert!(content(subject.store()).is_empty());
}

fn not_beyond_what_is_there(mut subject: impl Subject) {
    let expected = save_ten(subject.store(), 1);
    for to in [10, 11, u64::MAX >> 16] {
        let rolled_back = subject.store().rollback(VB, Seqno(to)).expect("a rollback");
        assert_eq!(rolled_back.seqno, Seqno(10));
        assert_content(subject.store(), &expected, 10, 1);
        subject.restart();
    }
}

fn collections_are_counted_as_then(mut subject: impl Subject) {
    save(
        subject.store(),
        VB,
        vec![version(0, "a", 1, b""), version(9, "a", 2, b""), version(9, "b", 3, b"")],
    );
    let then = settled(subject.store(), VB).collections;
    save(subject.store(), VB, vec![version(9, "a", 4, b"longer"), version(8, "c", 5, b"")]);
    subject.store().rollback(VB, Seqno(4)).expect("a rollback");
    for _ in 0..2 {
        assert_eq!(settled(subject.store(), VB).collections, then);
        subject.restart();
    }
    save(subject.store(), VB, vec![version(9, "a", 4, b"x")]);
    let found = settled(subject.store(), VB).collections;
    let counts: Vec<_> =
        found.iter().map(|(id, stats)| (id.0, stats.item_count, stats.high_seqno.0)).collect();
    assert_eq!(counts, [(0, 1, 1), (9, 2, 4)]);
}

fn again_and_again(mut subject: impl Subject) {
    let mut contents = vec![(0, Content::new())];
    let mut turn = 0u64;
    for to in [35, 12, 20, 44, 10, 31] {
        while contents.len() < 6 {
            let seqno = contents.last().expect("at least nothing").0 + 1;
            contents.push((seqno + 9, save_ten(subject.store(), seqno)));
        }
        let rolled_back = subject.store().rollback(VB, Seqno(to)).expect("a rollback");
        contents.retain(|(seqno, _)| *seqno <= to);
        if subject.keeps_commits() {
            assert_eq!(contents.last().map(|(seqno, _)| *seqno), Some(rolled_back.seqno.0));
        }
        contents.retain(|(seqno, _)| *seqno <= rolled_back.seqno.0);
        let (seqno, expected) = contents.last().expect("at least nothing");
        assert_eq!(rolled_back.seqno.0, *seqno, "it goes back to a commit");
        if *seqno == 0 {
            assert!(content(subject.store()).is_empty());
            continue;
        }
        turn += 1;
        if turn.is_multiple_of(2) {
            subject.restart();
        }
        assert_content(subject.store(), expected, *seqno, *seqno - 9);
    }
}

fn not_behind_a_compaction(subject: impl Subject) {
    (0..3).for_each(|i| drop(save_ten(subject.store(), i * 10 + 1)));
    subject.store().compact(VB, &Compaction::default()).expect("a compaction");
    let expected = content(subject.store());
    save_ten(subject.store(), 31);
    let rolled_back = subject.store().rollback(VB, Seqno(35)).expect("a rollback");
    assert_eq!(rolled_back.seqno, Seqno(30));
    assert_content(subject.store(), &expected, 30, 21);
    let rolled_back = subject.store().rollback(VB, Seqno(20)).expect("a rollback");
    assert!(rolled_back.stored.is_none());
}
