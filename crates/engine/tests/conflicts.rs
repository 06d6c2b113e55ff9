//! Two clusters that give a document the same CAS and revision at the same moment end with the same version, wherever it is
//! held and in which form.

mod common;

use std::time::Duration;

use base::env::Env;
use base::{Cas, Datatype, ItemKind, Version, VersionMeta};
use common::{VB, Watched, doc, pack};
use engine::settings::Key;
use engine::{ConflictRule, EvictionPolicy, Mutated, Refusal, Settings, WithMetaRequest, value};

/// A bucket whose clock stands at the same time as that of every other one made so.
fn cluster(rule: ConflictRule, policy: EvictionPolicy) -> Watched {
    let settings = Settings::default();
    settings.put(Key::EvictionPolicy, policy as u64);
    settings.put(Key::ConflictResolution, u64::from(rule == ConflictRule::TimeWins));
    let (env, handles) = Env::sim(1);
    let world = Watched::open_with(env, handles, 256 << 20, &settings);
    world.load();
    assert!(world.bucket.settings().conflict_rule() == rule);
    world
}

/// What one of the two does with a document.
#[derive(Clone, Copy, Debug)]
enum Write<'a> {
    Plain(&'a str),
    Packed(&'a str),
    Deletion,
}

/// Stores a document, and replaces or deletes it.
fn write(world: &Watched, key: &str, write: Write<'_>) -> Version {
    world.set(key, "before");
    let stored = match write {
        Write::Plain(text) => world.try_store_as(key, text.as_bytes(), Datatype::RAW),
        Write::Packed(text) => world.try_store_as(key, &pack(text.as_bytes()), Datatype::SNAPPY),
        Write::Deletion => world.bucket.documents().delete(VB, doc(key), Cas::ANY, world.bucket.now()),
    };
    stored.expect("taken");
    held(world, key)
}

/// What there is for a key, with its value.
fn held(world: &Watched, key: &str) -> Version {
    let look = || {
        let seen = world.bucket.documents().peek_as_is(VB, doc(key), world.bucket.now())?;
        seen.expect("there").whole()
    };
    Version::clone(&world.settle(key, look).expect("readable"))
}

/// What two clusters have to agree on: kind, CAS, revision, what the value is, and the plain value.
fn agreed(world: &Watched, key: &str) -> (bool, Cas, u64, Datatype, Vec<u8>) {
    let version = held(world, key);
    let VersionMeta { kind, cas, rev_seqno, datatype, .. } = version.meta();
    let plain = value::plain_of(version.value(), datatype).expect("readable").into_owned();
    (kind.is_deleted(), cas, rev_seqno.0, datatype.without(Datatype::SNAPPY), plain)
}

fn with_meta_of(version: &Version) -> WithMetaRequest<'_> {
    WithMetaRequest {
        key: version.key(),
        value: version.value(),
        datatype: version.meta().datatype,
        meta: version.meta(),
        add: false,
        expected: Cas::ANY,
        force: false,
        regenerate_cas: false,
        late: None,
    }
}

fn send(version: &Version, to: &Watched) -> Result<Mutated, Refusal> {
    let request = with_meta_of(version);
    let key = std::str::from_utf8(version.key().key).expect("text");
    to.settle(key, || to.bucket.documents().apply_with_meta(VB, &request, to.bucket.now()))
}

/// Takes what is known of a document out of memory as far as the bucket's policy lets it; a tombstone has no value.
fn evict(world: &Watched, key: &str, policy: EvictionPolicy) {
    let is_deleted = held(world, key).meta().kind.is_deleted();
    assert!(world.bucket.flushing().flush_all());
    let is_evicted = match policy {
        EvictionPolicy::Full => world.bucket.eviction().evict_whole(VB, doc(key)),
        _ if is_deleted => return,
        _ => world.bucket.eviction().evict_value(VB, doc(key)),
    };
    assert_eq!(is_evicted, Ok(true), "{key}");
}

#[test]
fn the_same_moment_on_both_sides_ends_in_one_version() {
    let long = "tomatoes ".repeat(60);
    let longer = format!("{long}!");
    let pairs = [
        (Write::Plain("a"), Write::Plain("b")),
        (Write::Plain("a"), Write::Plain("a")),
        (Write::Plain("{\"a\":1}"), Write::Plain("text")),
        (Write::Packed(&long), Write::Packed(&longer)),
        (Write::Packed(&long), Write::Plain(&long)),
        (Write::Plain("a"), Write::Deletion),
        (Write::Deletion, Write::Deletion),
    ];
    for rule in [ConflictRule::RevisionWins, ConflictRule::TimeWins] {
        for policy in [EvictionPolicy::ValueOnly, EvictionPolicy::Full] {
            for (of_east, of_west) in pairs {
                for evicts in [false, true] {
                    let what = format!("{rule:?}, {policy:?}, {of_east:?}, {of_west:?}, evicted: {evicts}");
                    let sides = [(); 2].map(|()| cluster(rule, policy));
                    become_one(&sides, [of_east, of_west], evicts.then_some(policy), &what);
                    sides.into_iter().for_each(Watched::end);
                }
            }
        }
    }
}

/// Both sides write, and each is sent what the other one has written.
fn become_one(
    [east, west]: &[Watched; 2],
    writes: [Write<'_>; 2],
    evicts: Option<EvictionPolicy>,
    what: &str,
) {
    let [one, other] = [write(east, "k", writes[0]), write(west, "k", writes[1])];
    let rank = |version: &Version| (version.meta().cas, version.meta().rev_seqno);
    assert_eq!(rank(&one), rank(&other), "both write at the same moment: {what}");
    if let Some(policy) = evicts {
        [east, west].into_iter().for_each(|world| evict(world, "k", policy));
    }
    let sent = [send(&one, west), send(&other, east)];
    assert_eq!(agreed(east, "k"), agreed(west, "k"), "{what}");
    // One side at the most takes what the other one has; what is sent once more changes nothing.
    let taken = sent.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!(taken, usize::from(value_of(&one) != value_of(&other)), "{what}: {sent:?}");
    for (version, to) in [(held(east, "k"), west), (held(west, "k"), east)] {
        assert_eq!(send(&version, to).err(), Some(Refusal::Exists), "{what}");
    }
}

fn value_of(version: &Version) -> (bool, Vec<u8>) {
    let datatype = version.meta().datatype;
    let plain = value::plain_of(version.value(), datatype).expect("readable").into_owned();
    (version.meta().kind == ItemKind::Mutation, plain)
}

#[test]
fn a_value_that_loses_is_told_from_one_that_is_there() {
    let (east, west) = [(); 2].map(|()| cluster(ConflictRule::TimeWins, EvictionPolicy::ValueOnly)).into();
    let (less, more) = (write(&east, "k", Write::Plain("a")), write(&west, "k", Write::Plain("b")));
    assert_eq!(send(&less, &west).err(), Some(Refusal::TieLost));
    assert_eq!(send(&more, &west).err(), Some(Refusal::Exists));
    send(&more, &east).expect("it wins");
    assert_eq!(send(&less, &east).err(), Some(Refusal::TieLost));
}

/// What both sides have of a document, its expiry included.
fn agreed_on_all(sides: &[Watched; 2], key: &str) -> bool {
    let of = |world: &Watched| (agreed(world, key), held(world, key).meta().expiry);
    of(&sides[0]) == of(&sides[1])
}

#[test]
fn a_longest_life_on_one_side_ends_documents_on_both() {
    for rule in [ConflictRule::RevisionWins, ConflictRule::TimeWins] {
        let sides = [(); 2].map(|()| cluster(rule, EvictionPolicy::ValueOnly));
        let [east, west] = &sides;
        west.bucket.set_param("max_ttl", "100").expect("a good value");
        let expiry = |world: &Watched, key: &str| held(world, key).meta().expiry;
        let begun = east.bucket.now().unix_s();
        for (key, life) in [("never", 0), ("long", 5000), ("short", 50)] {
            east.set(key, "v");
            east.bucket.documents().touch(VB, doc(key), life, east.bucket.now()).expect("touched");
            send(&held(east, key), west).expect("it is new there");
        }
        let capped = ["never", "long", "short"].map(|key| expiry(west, key) - begun);
        assert_eq!(capped, [100, 100, 50]);
        // What is sent once more, as behind a checkpoint that was lost, does not live longer for it.
        sides.iter().for_each(|world| world.handles.clock.advance(Duration::from_secs(10)));
        for key in ["never", "long", "short"] {
            assert_eq!(send(&held(east, key), west).err(), Some(Refusal::Exists), "{key}");
        }
        assert_eq!(["never", "long", "short"].map(|key| expiry(west, key) - begun), capped);
        // An expiry wins over none; the longer one of two wins, as in the original, until the shorter one is over.
        send(&held(west, "never"), east).expect("it has an expiry");
        assert_eq!(send(&held(west, "long"), east).err(), Some(Refusal::Exists));
        assert!(agreed_on_all(&sides, "never") && !agreed_on_all(&sides, "long"));
        sides.iter().for_each(|world| world.handles.clock.advance(Duration::from_secs(100)));
        for key in ["never", "long", "short"] {
            assert!(west.get(key).is_err(), "{key} has expired");
            // With the same expiry on both sides, they may have made the same tombstone.
            let sent = send(&held(west, key), east);
            assert!(sent.is_ok() || key != "long", "the deletion is a later change: {sent:?}");
            assert!(agreed_on_all(&sides, key) && held(east, key).meta().kind.is_deleted(), "{key}");
            assert_eq!(send(&held(east, key), west).err(), Some(Refusal::Exists), "{key}");
        }
        sides.into_iter().for_each(Watched::end);
    }
}

#[test]
fn a_version_that_is_forced_gets_the_longest_life_again() {
    let sides = [(); 2].map(|()| cluster(ConflictRule::RevisionWins, EvictionPolicy::ValueOnly));
    let [east, west] = &sides;
    west.bucket.set_param("max_ttl", "100").expect("a good value");
    east.set("k", "v");
    let version = held(east, "k");
    send(&version, west).expect("it is new there");
    west.handles.clock.advance(Duration::from_secs(10));
    let request = WithMetaRequest { force: true, ..with_meta_of(&version) };
    west.bucket.documents().apply_with_meta(VB, &request, west.bucket.now()).expect("forced");
    assert_eq!(held(west, "k").meta().expiry, west.bucket.now().unix_s() + 100);
}
