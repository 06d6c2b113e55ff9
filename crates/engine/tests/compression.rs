//! Compression: the form in which values arrive, are held, leave memory and come back.

mod common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use base::{Cas, Datatype, ItemKind, Moment, RevSeqno, Version, VersionMeta};
use common::{VB, Watched, doc, pack};
use engine::{CompressionStats, CounterRequest, End, Mutated, Refusal, WithMetaRequest, value};
use subdoc::request::{self, Features};

const JSON_SNAPPY: Datatype = Datatype(3);

fn long_json() -> String {
    format!("{{\"text\":\"{}\",\"n\":1}}", "tomatoes ".repeat(60))
}

/// Bytes that nobody can compress.
fn noise(len: usize) -> String {
    let mut state = 1u32;
    let next = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(b' ' + (state >> 24) as u8 % 95)
    });
    next.take(len).collect()
}

fn store_packed(world: &Watched, key: &str, plain: &str) -> Mutated {
    world.try_store_as(key, &pack(plain.as_bytes()), Datatype::SNAPPY).expect("stored")
}

fn with_meta(world: &Watched, key: &str, value: &[u8], datatype: Datatype) -> Result<Mutated, Refusal> {
    let meta = VersionMeta { cas: Cas(7), rev_seqno: RevSeqno(50), ..VersionMeta::default() };
    let request = WithMetaRequest {
        key: doc(key),
        value,
        datatype,
        meta,
        add: false,
        expected: Cas::ANY,
        force: false,
        regenerate_cas: false,
        late: None,
    };
    world.bucket.documents().apply_with_meta(VB, &request, world.bucket.now())
}

/// What is in memory.
fn held(world: &Watched, key: &str) -> Version {
    let hash = world.bucket.hash(doc(key));
    let find = |vb: &vbucket::VBucket| vb.find(hash, doc(key)).ok().flatten().map(|found| found.clone());
    world.bucket.with_vbucket(VB, find).expect("served").expect("there")
}

fn is_packed(world: &Watched, key: &str) -> bool {
    held(world, key).meta().datatype.is_snappy()
}

/// The plain value, fetched if need be.
fn read(world: &Watched, key: &str) -> String {
    let found =
        world.settle(key, || world.bucket.documents().get(VB, doc(key), world.bucket.now())).expect("found");
    String::from_utf8(value::plain(&found.version).expect("readable").into_owned()).expect("text")
}

fn set_mode(world: &Watched, mode: &str) {
    world.bucket.set_param("compression_mode", mode).expect("a good value");
    while world.bucket.maintenance().keep_step() {}
}

fn wait(world: &Watched, seconds: u64) {
    world.handles.clock.advance(Duration::from_secs(seconds));
    while world.bucket.maintenance().keep_step() {}
}

fn stats(world: &Watched) -> CompressionStats {
    world.bucket.compression().compression_stats()
}

fn check_account(world: &Watched) {
    world.check_account();
}

#[test]
fn the_mode_decides_in_which_form_values_are_held() {
    let world = Watched::new(1);
    let (json, packed) = (long_json(), pack(long_json().as_bytes()));
    for (mode, datatype) in [("passive", JSON_SNAPPY), ("off", Datatype::JSON), ("active", JSON_SNAPPY)] {
        set_mode(&world, mode);
        store_packed(&world, "set", &json);
        assert_eq!(held(&world, "set").meta().datatype, datatype, "{mode}");
        let key = format!("foreign {mode}");
        with_meta(&world, &key, &packed, JSON_SNAPPY).expect("applied");
        assert_eq!(held(&world, &key).meta().datatype, datatype, "{mode}");
        assert_eq!((read(&world, "set"), read(&world, &key)), (json.clone(), json.clone()));
        world.try_store_as("plain", json.as_bytes(), Datatype::RAW).expect("stored");
        assert_eq!(held(&world, "plain").meta().datatype, Datatype::JSON, "plain stays plain for now");
        // What would not become smaller is never held compressed.
        world.try_store_as("noise", &pack(noise(100).as_bytes()), Datatype::SNAPPY).expect("stored");
        assert_eq!(held(&world, "noise").meta().datatype, Datatype::RAW);
    }
}

#[test]
fn what_is_compressed_stays_so_when_compression_is_switched_off() {
    let world = Watched::new(2);
    store_packed(&world, "k", &long_json());
    set_mode(&world, "off");
    assert!(!world.bucket.keeps_compressed());
    assert!(is_packed(&world, "k"));
    assert_eq!(read(&world, "k"), long_json());
}

#[test]
fn cold_values_are_compressed_and_nothing_else_about_them_changes() {
    let world = Watched::new(3);
    set_mode(&world, "active");
    let json = long_json();
    world.set("cold", &json);
    world.set("hot", &json);
    world.set("short", "{\"a\":1}");
    world.set("noise", &noise(500));
    assert!(world.bucket.flushing().flush_all());
    held(&world, "hot").frequency().store(17, Ordering::Relaxed);
    held(&world, "cold").frequency().store(16, Ordering::Relaxed);
    let before = held(&world, "cold");
    let seqno = world.bucket.vbucket_stats(VB).expect("there").high_seqno;
    wait(&world, 5);
    assert_eq!(stats(&world).compressed, 0, "it may have changed just now");
    wait(&world, 5);
    let CompressionStats { compressed, gained_little, visited, before_bytes, .. } = stats(&world);
    assert_eq!((compressed, gained_little, visited), (1, 1, 4));
    let after = held(&world, "cold");
    assert_eq!(after.meta(), VersionMeta { datatype: JSON_SNAPPY, ..before.meta() });
    assert_eq!(after.frequency().load(Ordering::Relaxed), 16);
    assert_eq!(before.value(), json.as_bytes(), "whoever had it still has it");
    assert_eq!((read(&world, "cold"), read(&world, "noise")), (json, noise(500)));
    assert!(!is_packed(&world, "hot") && !is_packed(&world, "short") && !is_packed(&world, "noise"));
    assert_eq!(before_bytes, before.allocated_bytes() as u64);
    assert_eq!(stats(&world).saved_bytes(), (before.allocated_bytes() - after.allocated_bytes()) as u64);
    drop(before);
    check_account(&world);
    let now = world.bucket.vbucket_stats(VB).expect("there");
    assert_eq!((now.high_seqno, now.flush_queued), (seqno, false), "nobody has to write anything");
    // What was tried in vain is not tried at every round, but now and then.
    wait(&world, 5);
    wait(&world, 5);
    assert_eq!((stats(&world).gained_little, stats(&world).visited), (1, 4));
    held(&world, "hot").frequency().store(0, Ordering::Relaxed);
    wait(&world, 600);
    assert_eq!((stats(&world).gained_little, stats(&world).compressed), (2, 2));
    assert!(is_packed(&world, "hot"));
}

#[test]
fn what_changes_or_is_still_to_be_written_is_left_alone() {
    let world = Watched::new(4);
    set_mode(&world, "active");
    world.set("k", &long_json());
    for _ in 0..3 {
        wait(&world, 5);
    }
    assert_eq!(stats(&world).compressed, 0, "it is not on disk yet");
    for _ in 0..3 {
        world.set("k", &long_json());
        assert!(world.bucket.flushing().flush_all());
        wait(&world, 5);
    }
    assert_eq!(stats(&world).compressed, 0, "it changes all the time");
    world.bucket.documents().get_and_lock(VB, doc("k"), 30, world.bucket.now()).expect("locked");
    wait(&world, 5);
    wait(&world, 5);
    assert_eq!(stats(&world).compressed, 0, "it is locked");
    wait(&world, 600);
    assert_eq!(stats(&world).compressed, 1);
}

#[test]
fn the_ratio_decides_and_another_one_is_tried_on_everything() {
    let world = Watched::new(5);
    world.bucket.set_param("min_compression_ratio", "50").expect("a good value");
    set_mode(&world, "active");
    world.set("k", &long_json());
    assert!(world.bucket.flushing().flush_all());
    wait(&world, 5);
    wait(&world, 5);
    assert_eq!((stats(&world).compressed, stats(&world).gained_little), (0, 1));
    world.bucket.set_param("min_compression_ratio", "1.2").expect("a good value");
    wait(&world, 5);
    assert_eq!(stats(&world).compressed, 1);
    // Neither of the other modes compresses anything.
    for mode in ["passive", "off"] {
        set_mode(&world, mode);
        world.set(mode, &long_json());
        assert!(world.bucket.flushing().flush_all());
        wait(&world, 700);
        wait(&world, 700);
        assert_eq!(stats(&world).compressed, 1, "{mode}");
    }
}

#[test]
fn replicas_are_compressed_too() {
    let world = Watched::new(6);
    world.set("k", &long_json());
    assert!(world.bucket.flushing().flush_all());
    world.bucket.roles().set_vbucket_state(VB, base::VbState::Replica, None).expect("set");
    set_mode(&world, "active");
    wait(&world, 5);
    assert_eq!(stats(&world).compressed, 1);
}

/// A document whose value was compressed in memory, while the disk has it plain.
fn recoded(seed: u64) -> Watched {
    let world = Watched::new(seed);
    world.set("k", &long_json());
    assert!(world.bucket.flushing().flush_all());
    assert_eq!(world.bucket.compression().compress_value(VB, doc("k")), Ok(true));
    assert!(is_packed(&world, "k"));
    world
}

#[test]
fn a_compressed_value_leaves_memory_and_comes_back_as_the_disk_has_it() {
    let world = recoded(7);
    let meta = held(&world, "k").meta();
    assert_eq!(world.bucket.eviction().evict_value(VB, doc("k")), Ok(true));
    check_account(&world);
    assert_eq!(read(&world, "k"), long_json());
    assert_eq!(held(&world, "k").meta(), VersionMeta { datatype: Datatype::JSON, ..meta });
    assert_eq!(world.bucket.fetching().fetch_stats().failed, 0);
    check_account(&world);
    assert_eq!(world.bucket.compression().compress_value(VB, doc("k")), Ok(true), "and again");
    let world = world.restart(256 << 20);
    assert_eq!(read(&world, "k"), long_json());
    assert_eq!(held(&world, "k").meta(), VersionMeta { datatype: Datatype::JSON, ..meta });
}

#[test]
fn a_compressed_value_that_is_locked_meanwhile_comes_back_under_the_locks_cas() {
    let world = recoded(8);
    let locked = world.bucket.documents().get_and_lock(VB, doc("k"), 1, world.bucket.now()).expect("locked");
    drop(locked.version);
    wait(&world, 2);
    assert_eq!(world.bucket.eviction().evict_value(VB, doc("k")), Ok(true));
    check_account(&world);
    assert_eq!(read(&world, "k"), long_json());
    let meta = held(&world, "k").meta();
    assert_eq!((meta.cas, meta.datatype), (locked.cas, Datatype::JSON), "the form is that of what was read");
    assert_eq!(world.bucket.fetching().fetch_stats().failed, 0);
    check_account(&world);
}

#[test]
fn a_value_that_arrived_compressed_is_on_disk_as_it_arrived() {
    let world = Watched::new(9);
    store_packed(&world, "k", &long_json());
    assert!(world.bucket.flushing().flush_all());
    assert_eq!(world.bucket.compression().compress_value(VB, doc("k")), Ok(false), "it is already");
    assert_eq!(world.bucket.eviction().evict_value(VB, doc("k")), Ok(true));
    assert_eq!(read(&world, "k"), long_json());
    assert!(is_packed(&world, "k"));
}

#[test]
fn changes_build_on_compressed_values() {
    let world = recoded(10);
    let (bucket, json) = (&world.bucket, long_json());
    let recode = || {
        assert!(bucket.flushing().flush_all());
        assert_eq!(bucket.compression().compress_value(VB, doc("k")), Ok(true));
    };
    let now = bucket.now();
    bucket.documents().join(VB, doc("k"), b" ", Datatype::RAW, End::Back, Cas::ANY, now).expect("joined");
    bucket
        .documents()
        .join(VB, doc("k"), &pack(b"  "), Datatype::SNAPPY, End::Front, Cas::ANY, now)
        .expect("joined");
    assert_eq!(
        (read(&world, "k"), held(&world, "k").meta().datatype),
        (format!("  {json} "), Datatype::JSON)
    );
    recode();
    let (touched, old) = bucket.documents().touch(VB, doc("k"), 500, now).expect("touched");
    assert!(touched.is_some() && *value::plain(&old).expect("readable") == *format!("  {json} ").as_bytes());
    assert_eq!((read(&world, "k"), is_packed(&world, "k")), (format!("  {json} "), true));
    subdoc_set(&world, "_sys.x", true);
    recode();
    subdoc_set(&world, "n", false);
    assert_eq!(held(&world, "k").meta().datatype, Datatype(5));
    recode();
    assert_eq!(held(&world, "k").meta().datatype, Datatype(7));
    // A whole new body keeps the xattrs of the compressed one.
    store_packed(&world, "k", &json);
    let version = world.bucket.documents().get(VB, doc("k"), now).expect("found").version;
    let plain = value::plain(&version).expect("readable");
    let (xattrs, body) = value::split(&plain, version.meta().datatype).expect("readable");
    assert_eq!((xattrs.get(b"_sys"), body), (Some(&b"{\"x\":42}"[..]), json.as_bytes()));
    recode();
    bucket.documents().delete(VB, doc("k"), Cas::ANY, now).expect("deleted");
    let tombstone = held(&world, "k");
    assert_eq!((tombstone.meta().kind, tombstone.meta().datatype), (ItemKind::Deletion, Datatype::XATTR));
    let (xattrs, _) = value::split(tombstone.value(), tombstone.meta().datatype).expect("readable");
    assert_eq!(xattrs.get(b"_sys"), Some(&b"{\"x\":42}"[..]));
    // Numbers too, although nobody would compress them.
    let number = CounterRequest {
        key: doc("n"),
        increment: true,
        delta: 1,
        initial: None,
        expiry: 0,
        preserve_expiry: false,
    };
    store_packed(&world, "n", &format!("7{}", " ".repeat(200)));
    assert!(is_packed(&world, "n"));
    assert_eq!(bucket.documents().count(VB, &number, now).expect("counted").1, 8);
}

fn subdoc_set(world: &Watched, path: &str, xattr: bool) {
    let extras = [0, path.len() as u8, if xattr { 5 } else { 1 }];
    let value = [path.as_bytes(), b"42"].concat();
    let features = Features { xattr: true, multiple_xattr_keys: false };
    let request = request::parse_single_mutation(0xc8, &extras, &value, &features);
    let request = request.unwrap_or_else(|refusal| panic!("{}", refusal.context));
    let changed = world.bucket.documents().subdoc_mutate(VB, doc("k"), &request, true, world.bucket.now());
    assert!(changed.is_ok_and(|(mutated, _)| mutated.is_some()), "{path}");
}

#[test]
fn a_document_with_compressed_xattrs_expires_with_its_system_xattrs() {
    let world = recoded(11);
    subdoc_set(&world, "_sys.x", true);
    world.bucket.documents().touch(VB, doc("k"), 10, world.bucket.now()).expect("touched");
    assert!(world.bucket.flushing().flush_all());
    assert_eq!(world.bucket.compression().compress_value(VB, doc("k")), Ok(true));
    world.handles.clock.advance(Duration::from_secs(11));
    assert_eq!(world.get("k"), Err(Refusal::NotFound));
    let tombstone = held(&world, "k");
    assert_eq!(tombstone.meta().kind, ItemKind::Expiration);
    let (xattrs, _) = value::split(tombstone.value(), tombstone.meta().datatype).expect("readable");
    assert_eq!(xattrs.get(b"_sys"), Some(&b"{\"x\":42}"[..]));
}

/// Blocks that nobody honest sends: each must be refused, and by what it claims alone where it claims too much.
fn hostile() -> Vec<(&'static str, Vec<u8>)> {
    let varint = |mut number: u64| {
        let mut bytes = Vec::new();
        while number >= 0x80 {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
        bytes
    };
    let claims = |bytes: u64, rest: &[u8]| [&varint(bytes)[..], rest].concat();
    let honest = pack(&[b'x'; 1000]);
    let bomb = {
        let copies = [0xfe, 1, 0].repeat(400_000);
        claims(64 * 400_000 + 1, &[&[0, b'x'][..], &copies].concat())
    };
    vec![
        ("nothing at all", vec![]),
        ("a length that does not end", vec![0xff; 4]),
        ("a length of more than 32 bits", vec![0xff; 12]),
        ("4 GiB", claims(u64::from(u32::MAX), &[0, b'x'])),
        ("2 GiB in a long block", claims(1 << 31, &vec![0; 1 << 20])),
        ("just over what so few bytes can hold", claims(22 * 20, &[0xfe; 17])),
        ("an honest 25 MB", bomb),
        ("less than it holds", claims(3, &honest[2..])),
        ("more than it holds", claims(1001, &honest[2..])),
        ("half a block", honest[..honest.len() / 2].to_vec()),
        ("a copy from before the beginning", claims(64, &[0xfe, 9, 0])),
        ("a copy from nowhere", claims(64, &[0, b'x', 0xfe, 0, 0])),
        ("a literal that is not there", claims(60, &[0xec, b'x'])),
    ]
}

#[test]
fn hostile_blocks_are_refused_wherever_they_come() {
    let world = Watched::new(12);
    world.set("k", "{\"n\": 1}");
    subdoc_set(&world, "_sys.x", true);
    let before = held(&world, "k");
    let now: Moment = world.bucket.now();
    for mode in ["passive", "off", "active"] {
        set_mode(&world, mode);
        for (what, block) in hostile() {
            for (key, way) in [("new", "set"), ("k", "set over xattrs")] {
                let refused = world.try_store_as(key, &block, Datatype::SNAPPY).err();
                assert!(matches!(refused, Some(Refusal::BadSnappy | Refusal::TooBig)), "{way}: {what}");
            }
            for end in [End::Front, End::Back] {
                let refused = world
                    .bucket
                    .documents()
                    .join(VB, doc("k"), &block, Datatype::SNAPPY, end, Cas::ANY, now)
                    .err();
                assert!(matches!(refused, Some(Refusal::BadSnappy | Refusal::TooBig)), "{end:?}: {what}");
            }
            // With metadata nothing at all is no block, but a value without bytes (record 0141).
            let datatypes = [Datatype::SNAPPY, JSON_SNAPPY, Datatype(6), Datatype(7)];
            for datatype in datatypes.into_iter().filter(|_| !block.is_empty()) {
                let refused = with_meta(&world, "k", &block, datatype).err();
                assert!(
                    matches!(refused, Some(Refusal::BadSnappy | Refusal::TooBig)),
                    "{datatype:?}: {what}"
                );
            }
        }
    }
    assert_eq!(held(&world, "k").meta(), before.meta());
    assert_eq!(world.bucket.vbucket_stats(VB).expect("there").documents, 1);
    // One that is stored nevertheless, by the program that wrote the file, is refused, and not served as an empty value.
    for (what, block) in hostile() {
        let meta = VersionMeta { datatype: JSON_SNAPPY, ..VersionMeta::default() };
        let stored = base::NewVersion::new(base::Heap::shared(), meta, doc("k"), &[&block]).publish();
        let whole = engine::Whole::of(stored).expect("it is in memory");
        assert_eq!(value::plain(&whole), Err(Refusal::Unreadable), "{what}");
    }
    assert_eq!(value::inflate(&[0], 10), Ok(vec![]), "an empty block is a block");
    assert_eq!(value::inflate(&pack(&[7; 11]), 10), Err(Refusal::TooBig));
}
