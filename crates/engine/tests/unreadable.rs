//! A stored value that is not what its datatype says is refused wherever it is needed: it is never taken for an empty one.

mod common;
#[cfg(debug_assertions)]
#[path = "../../simulation/src/known.rs"]
mod known;

use std::ops::ControlFlow;
use std::sync::Arc;

use base::{Cas, Datatype, Seqno};
use common::{VB, Watched, doc};
use engine::{BackfillReading, CounterRequest, End, Follower, Progress, Refusal, WriteChanges, value};
use kvstore::{Change, Values};
use subdoc::request::{self, Features};

const XATTRS: Features = Features { xattr: true, multiple_xattr_keys: false };

/// A bucket whose document is in memory with a value that cannot be read.
fn spoiled(plain: &str, xattr: bool) -> Watched {
    let world = Watched::new(1);
    world.set("k", plain);
    if xattr {
        let extras = [0, 2, 5];
        let request = request::parse_single_mutation(0xc8, &extras, b"_s{}", &XATTRS);
        let request = request.unwrap_or_else(|refusal| panic!("{}", refusal.context));
        world
            .bucket
            .documents()
            .subdoc_mutate(VB, doc("k"), &request, true, world.bucket.now())
            .expect("changed");
    }
    assert!(world.bucket.flushing().flush_all());
    assert_eq!(world.bucket.eviction().evict_value(VB, doc("k")), Ok(true));
    world.spy.spoiled.lock().insert("k".to_owned());
    world
        .settle("k", || world.bucket.documents().get(VB, doc("k"), world.bucket.now()))
        .expect("it is there");
    world
}

#[test]
fn whoever_needs_the_value_is_refused() {
    let world = spoiled("1", false);
    let (bucket, now) = (&world.bucket, world.bucket.now());
    let found = bucket.documents().get(VB, doc("k"), now).expect("it is there");
    assert_eq!(value::plain(&found.version), Err(Refusal::Unreadable));

    let extras = [0, 1, 0];
    let lookup = request::parse_single_lookup(0xc5, &extras, b"n", &XATTRS);
    let lookup = lookup.unwrap_or_else(|refusal| panic!("{}", refusal.context));
    let looked = bucket.documents().subdoc_lookup(VB, doc("k"), &lookup, now, |outcome, _| outcome.status);
    assert_eq!(looked, Err(Refusal::Unreadable));

    let change = request::parse_single_mutation(0xc8, &[0, 1, 1], b"n1", &XATTRS);
    let change = change.unwrap_or_else(|refusal| panic!("{}", refusal.context));
    let changed = bucket.documents().subdoc_mutate(VB, doc("k"), &change, true, now).map(drop);
    assert_eq!(changed, Err(Refusal::Unreadable));

    for end in [End::Front, End::Back] {
        let joined = bucket.documents().join(VB, doc("k"), b"x", Datatype::RAW, end, Cas::ANY, now).map(drop);
        assert_eq!(joined, Err(Refusal::Unreadable));
    }
    let count = CounterRequest {
        key: doc("k"),
        increment: true,
        delta: 1,
        initial: Some(5),
        expiry: 0,
        preserve_expiry: false,
    };
    assert_eq!(bucket.documents().count(VB, &count, now).map(drop), Err(Refusal::Unreadable));
    // What needs no old value mends the document.
    world.set("k", "2");
    assert_eq!(world.get("k"), Ok("2".to_owned()));
}

#[test]
fn xattrs_that_cannot_be_read_are_not_dropped() {
    let world = spoiled("1", true);
    let (bucket, now) = (&world.bucket, world.bucket.now());
    assert_eq!(bucket.documents().delete(VB, doc("k"), Cas::ANY, now).map(drop), Err(Refusal::Unreadable));
    assert_eq!(
        world.bucket.documents().store(VB, &common::set(doc("k"), "2"), now).map(drop),
        Err(Refusal::Unreadable)
    );
}

#[test]
fn a_value_is_not_cut_where_its_datatype_has_no_end() {
    for plain in [&b"\0\0"[..], &[0, 0, 0, 9, 1], &[255; 8]] {
        assert_eq!(value::split(plain, Datatype::XATTR).map(drop), Err(Refusal::Unreadable));
    }
    for block in [&b""[..], b"no block", &[5, 0, b'a'], &[255; 9]] {
        assert_eq!(value::plain_of(block, Datatype::SNAPPY), Err(Refusal::Unreadable), "{block:?}");
    }
}

/// Makes a line of every change but one that it cannot read.
struct Unread(Seqno);

impl WriteChanges for Unread {
    fn write(&mut self, change: &Change<'_>, out: &mut Vec<u8>) -> Result<ControlFlow<()>, Refusal> {
        if change.meta.by_seqno == self.0 {
            return Err(Refusal::Unreadable);
        }
        out.extend_from_slice(b"line");
        Ok(ControlFlow::Continue(()))
    }
}

#[test]
fn a_backfill_ends_with_an_error_at_a_change_that_cannot_be_read() {
    let world = Watched::new(1);
    for key in ["a", "b", "c"] {
        world.set(key, "1");
    }
    assert!(world.bucket.flushing().flush_all());
    let follower = Follower::new(8, || {});
    let by_key = Some(base::CollectionId::DEFAULT);
    for (by_key, unread) in [(None, 1), (None, 2), (None, 3), (by_key, 1), (by_key, 3)] {
        let reading = BackfillReading {
            values: Values::Read,
            by_key,
            is_urgent: false,
            with_prepares: false,
            with_past: false,
        };
        let before = world.bucket.fetching().fetch_stats().unreadable;
        let writer = Box::new(Unread(Seqno(unread)));
        let backfill = world.bucket.streams().backfills().begin(VB, Seqno(0), reading, writer, &follower);
        assert_eq!(world.bucket.streams().backfills().step(), Progress::Failed);
        let taken = world.bucket.streams().backfills().take(&Arc::clone(&backfill), usize::MAX);
        assert!(taken.has_failed && !taken.is_done, "{by_key:?} {unread}");
        assert_eq!(world.bucket.fetching().fetch_stats().unreadable, before + 1);
    }
}

/// Mistakes in the product that these tests show (`base::planted`).
#[test]
#[cfg(debug_assertions)]
fn mistakes_in_the_product_are_found() {
    known::must_find(known::Simulator::Values, |seed| {
        // Nothing in them depends on it.
        if seed == 0 {
            whoever_needs_the_value_is_refused();
        }
        Ok(())
    });
}
