//! What is there again after a stop, clean or not.

mod common;

use base::{Cas, Datatype, DocKey, ItemKind, RevSeqno, VbState, VersionMeta};
use common::{VB, World};
use engine::{Progress, WithMetaRequest};

fn key(key: &str) -> DocKey<'_> {
    DocKey::new(key.as_bytes())
}

#[test]
fn a_clean_stop_keeps_everything_and_the_history() {
    let world = World::new(1);
    let first = world.set("k", "v").expect("stored");
    world.set("gone", "v").expect("stored");
    world.bucket.documents().delete(VB, key("gone"), Cas::ANY, world.now()).expect("deleted");
    world.bucket.close().expect("closed");
    let world = world.restart();
    assert_eq!(world.get("k"), Ok("v".into()));
    let found = world.bucket.documents().get(VB, key("k"), world.now()).expect("found");
    assert_eq!((found.cas, found.version.meta().flags), (first.cas, 7));
    assert!(world.bucket.documents().peek(VB, key("gone"), world.now()).expect("served").is_some());
    let again = world.set("k", "w").expect("stored");
    assert_eq!((again.uuid, again.seqno.0), (first.uuid, 4));
    assert!(again.cas > first.cas);
}

#[test]
fn an_unclean_stop_keeps_what_was_persisted_and_begins_a_new_history() {
    let world = World::new(2);
    let first = world.set("k", "v").expect("stored");
    assert_eq!(world.bucket.flushing().flush_step(), Progress::Worked);
    world.set("k", "lost").expect("stored");
    let observed = world.bucket.documents().observe_seqno(VB, first.uuid).expect("served");
    assert_eq!((observed.persisted_seqno.0, observed.high_seqno.0), (1, 2));
    let world = world.restart();
    assert_eq!(world.get("k"), Ok("v".into()));
    let observed = world.bucket.documents().observe_seqno(VB, first.uuid).expect("the old history is known");
    assert_eq!(observed.old_history_end, Some(base::Seqno(1)));
    assert_ne!(observed.uuid, first.uuid);
}

#[test]
fn who_waits_for_persistence_is_told_once_it_is_true() {
    let world = World::new(3);
    let stored = world.set("k", "v").expect("stored");
    let waiting = world.bucket.durability().persisted(VB, stored.seqno).expect("served").expect("not yet");
    assert_eq!(waiting.try_take(), None);
    assert_eq!(world.bucket.flushing().flush_step(), Progress::Worked);
    assert_eq!(waiting.try_take(), Some(()));
    assert!(world.bucket.durability().persisted(VB, stored.seqno).expect("served").is_none());
}

#[test]
fn many_versions_of_a_key_are_written_as_one() {
    let world = World::new(4);
    for round in 0..50 {
        world.set("k", &format!("{round}")).expect("stored");
    }
    assert!(world.bucket.flushing().flush_all());
    let world = world.restart();
    assert_eq!(world.get("k"), Ok("49".into()));
    assert_eq!(world.bucket.with_vbucket(VB, |vb| vb.counts().documents), Some(1));
}

#[test]
fn a_deleted_vbucket_stays_dead_over_a_restart() {
    let world = World::new(5);
    world.set("k", "v").expect("stored");
    assert!(world.bucket.flushing().flush_all());
    assert_eq!(world.bucket.roles().delete_vbucket(VB).err(), Some(engine::Refusal::Invalid));
    world.bucket.roles().set_vbucket_state(VB, base::VbState::Dead, None).expect("it is there");
    world.bucket.roles().delete_vbucket(VB).expect("it is dead").expect("the disk works");
    assert_eq!(world.bucket.state_of(VB), None);
    world.bucket.close().expect("closed");
    let world = world.restart();
    assert_eq!(world.bucket.state_of(VB), Some(base::VbState::Dead));
    assert_eq!(world.get("k"), Err(engine::Refusal::NotMyVbucket));
    world.bucket.roles().set_vbucket_state(VB, base::VbState::Active, None).expect("it can be made again");
    assert_eq!(world.get("k"), Err(engine::Refusal::NotFound));
    assert_eq!(world.set("k", "new").expect("stored").seqno.0, 1);
}

/// Stores a document that brings its CAS along.
fn set_with_cas(world: &World, name: &str, cas: Cas) {
    let meta =
        VersionMeta { cas, rev_seqno: RevSeqno(1), kind: ItemKind::Mutation, ..VersionMeta::default() };
    let request = WithMetaRequest {
        key: key(name),
        meta,
        value: b"v",
        datatype: Datatype::RAW,
        add: false,
        expected: Cas::ANY,
        force: true,
        regenerate_cas: false,
        late: None,
    };
    world.bucket.documents().apply_with_meta(VB, &request, world.now()).expect("it is stored");
}

#[test]
fn a_cas_from_the_far_future_carries_no_other_document_away() {
    let world = World::new(7);
    let far = Cas(0x7fff_0000_0000_0000);
    set_with_cas(&world, "far", far);
    let near = |cas: Cas, world: &World| cas.0 < world.now().0 + 1_000_000_000;
    let stored = world.set("k", "v").expect("stored");
    assert!(near(stored.cas, &world), "{:x}", stored.cas.0);
    let found = world.bucket.documents().get(VB, key("far"), world.now()).expect("found");
    assert_eq!(found.cas, far, "the document keeps it");
    drop(found);
    let changed = world.set("far", "w").expect("stored").cas;
    assert_eq!(changed, Cas(far.0 + 1), "and goes on from there");
    let lock = world.bucket.documents().get_and_lock(VB, key("far"), 10, world.now()).expect("locked").cas;
    assert_eq!(lock, Cas(far.0 + 2));
    world.bucket.documents().unlock(VB, key("far"), lock, world.now()).expect("unlocked");
    let gone = world.bucket.documents().delete(VB, key("far"), Cas::ANY, world.now()).expect("deleted").cas;
    assert_eq!(gone, Cas(far.0 + 3));
    world.bucket.close().expect("closed");
    let world = world.restart();
    assert!(near(world.set("k", "w").expect("stored").cas, &world));
    assert_eq!(world.set("far", "x").expect("stored").cas, Cas(far.0 + 4), "its tombstone is asked first");
    world.bucket.roles().set_vbucket_state(VB, VbState::Replica, None).expect("it is there");
    world.bucket.roles().set_vbucket_state(VB, VbState::Active, None).expect("it is there");
    assert!(near(world.set("k", "x").expect("stored").cas, &world));
}
