//! Groups that look at one document, one vBucket, or what was measured since a reset.

use std::time::Duration;

use super::*;

fn overwritten(flags: u32, body: &[u8]) -> StoreRequest<'_> {
    StoreRequest { flags, body, ..request("a") }
}

/// Each verdict about what memory and disk have of a document.
#[test]
fn a_document_is_compared_with_the_disk() {
    let world = World::new();
    world.set("a", 1);
    assert_eq!(world.stats("vkey a 1")["key_valid"], "dirty");
    assert!(world.bucket.flushing().flush_all());
    let told = world.stats("vkey a 1");
    assert_eq!((&*told["key_valid"], &*told["key_flags"], &*told["key_is_dirty"]), ("valid", "5", "false"));
    assert_eq!(told.len(), world.stats("key a 1").len() + 1);
    assert_eq!(world.stats("vkey-byid a 1 0x0"), told);
    assert_eq!(world.bucket.eviction().evict_value(VbId(1), DocKey::new(b"a")), Ok(true));
    assert_eq!(world.stats("vkey a 1")["key_valid"], "valid", "the disk has what memory has not");
    assert_eq!(world.refusal("vkey b 1"), Some(Status::KeyEnoent));
    assert_eq!(world.refusal("vkey a"), Some(Status::Einval));
}

/// What should never be: the disk has something else than what was saved there.
#[test]
fn a_disk_that_has_something_else_is_told() {
    for (flags, body, verdict) in
        [(5, b"v", "valid"), (6, b"v", "flags_mismatch"), (5, b"w", "data_mismatch")]
    {
        let (mine, other) = (World::new(), World::new());
        mine.set("a", 1);
        other
            .bucket
            .documents()
            .store(VbId(1), &overwritten(flags, body), other.bucket.now())
            .expect("there is room");
        let [mine, other] = [mine, other]
            .map(|world| world.bucket.documents().peek(VbId(1), DocKey::new(b"a"), world.bucket.now()));
        let [mine, other] =
            [mine, other].map(|found| found.expect("it serves").expect("it is there").version);
        assert_eq!(super::super::key::verdict(&mine, Some(&other)), verdict);
        assert_eq!(super::super::key::verdict(&mine, None), "ram_but_not_disk");
    }
}

#[test]
fn frequencies_are_counted_by_state() {
    let world = World::new();
    (0..40).for_each(|n| world.set(&format!("k{n}"), n % 4));
    assert_eq!(world.stats("frequency-counters"), BTreeMap::new(), "what is not saved cannot be evicted");
    assert!(world.bucket.flushing().flush_all());
    world.set("k0", 0);
    world.bucket.roles().set_vbucket_state(VbId(3), VbState::Replica, None).expect("the disk works");
    let told = world.stats("frequency-counters");
    let sum = |prefix: &str| -> u64 {
        let bins = told.iter().filter(|(name, _)| name.starts_with(prefix) && !name.ends_with("_mean"));
        bins.map(|(_, count)| count.parse::<u64>().expect("a number")).sum()
    };
    assert_eq!((sum("vb_active_evictable_mfu_"), sum("vb_replica_evictable_mfu_")), (29, 10));
    assert_eq!(&*told["vb_replica_evictable_mfu_mean"], "4.000", "where documents begin");
}

#[test]
fn scopes_of_each_vbucket_are_told() {
    let world = World::new();
    world.set("a", 1);
    let told = world.stats("scopes-details 1");
    let expected =
        [("vb_1:0x0", "0"), ("vb_1:0x0:0x0:items", "1"), ("vb_1:manifest_uid", "0"), ("vb_1:scopes", "1")];
    assert_eq!(told, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    assert_eq!(world.stats("scopes-details").len(), 8 * 4);
    assert_eq!(world.refusal("scopes-details 8"), Some(Status::NotMyVbucket));
}

#[test]
fn what_is_left_to_send_is_told() {
    let world = World::new();
    ["a", "b"].into_iter().for_each(|key| world.set(key, 1));
    let told = world.stats("dcp-vbtakeover 1 replication:x");
    for (name, value) in [
        ("status", "connection_does_not_exist"),
        ("vb_items", "2"),
        ("on_disk_deletes", "0"),
        ("estimate", "2"),
    ] {
        assert_eq!(told[name], value, "{name}");
    }
    assert_eq!(world.refusal("dcp-vbtakeover 8"), Some(Status::NotMyVbucket));
}

#[test]
fn the_main_group_tells_of_background_work() {
    let world = World::new();
    let told = world.stats("");
    for (name, value) in [
        ("ep_backend", "couchstore"),
        ("ep_warmup", "enabled"),
        ("ep_defragmenter_num_moved", "0"),
        ("ep_item_compressor_num_visited", "0"),
        ("ep_item_commit_failed", "0"),
        ("ep_data_read_failed", "0"),
        ("ep_data_write_failed", "0"),
        ("ep_db_file_size", "0"),
    ] {
        assert_eq!(told[name], value, "{name}");
    }
    let warmup = world.stats("warmup");
    assert_eq!(
        (&told["ep_warmup_thread"], &told["ep_warmup_time"]),
        (&warmup["ep_warmup_thread"], &warmup["ep_warmup_time"])
    );
}

#[test]
fn the_store_is_told() {
    let world = World::new();
    ["a", "b"].into_iter().for_each(|key| world.set(key, 1));
    assert!(world.bucket.flushing().flush_all());
    let told = world.stats("kvstore");
    assert_eq!(world.stats("kvstore rw"), told, "there is one store");
    assert_eq!((&*told["rw_0:io_num_write"], &*told["rw_0:failure_set"]), ("2", "0"));
    assert_eq!(world.bucket.eviction().evict_value(VbId(1), DocKey::new(b"a")), Ok(true));
    let waiting = world.bucket.fetching().fetch(VbId(1), DocKey::new(b"a"));
    assert_eq!(world.bucket.fetching().fetch_step(), engine::Progress::Worked);
    assert!(waiting.is_ok());
    assert_eq!(world.stats("kvstore")["rw_0:io_bg_fetch_docs_read"], "1");
}

/// As `mctimings` and `mcstat` read them.
#[test]
fn looks_into_values_are_timed() {
    let world = World::new();
    let told = |group: &str| -> Value { serde_json::from_str(&world.stats(group)[group]).expect("JSON") };
    for group in ["json_validate", "snappy_decompress"] {
        assert_eq!(told(group)["total"], 0, "{group}");
        assert_eq!(world.refusal(&format!("{group} x")), Some(Status::Einval));
    }
    (0..128).for_each(|n| world.set(&format!("k{n}"), 1));
    assert_eq!(told("json_validate")["total"], 2);
    let inflated = vec![b'x'; 200];
    let body = snap::raw::Encoder::new().compress_vec(&inflated).expect("it is short");
    for _ in 0..64 {
        let request = StoreRequest { body: &body, datatype: Datatype::SNAPPY, ..request("a") };
        world.bucket.documents().store(VbId(1), &request, world.bucket.now()).expect("there is room");
    }
    let snappy = told("snappy_decompress");
    assert_eq!(snappy["total"], 1);
    assert!(snappy["data"].is_array() && snappy["bucketsLow"].is_u64(), "{snappy}");
}

#[test]
fn groups_of_stats_are_timed() {
    let world = World::new();
    world.stats("uuid");
    world.stats("");
    world.stats("uuid");
    let told = world.stats("stat-timings");
    assert_eq!((&*told["uuid_0,1"], &*told["all_0,1"]), ("2", "1"), "the simulated clock stands still");
    assert!(!told.contains_key("hash_mean"));
}

/// A reset takes from stats what was measured before it; metrics go on.
#[test]
fn a_reset_has_stats_begin_again() {
    let world = World::new();
    let times = world.node.times.of(&world.bucket);
    let fetch = |us| {
        assert!(world.bucket.flushing().flush_all());
        assert_eq!(world.bucket.eviction().evict_value(VbId(1), DocKey::new(b"a")), Ok(true));
        let waiting = world.bucket.fetching().fetch(VbId(1), DocKey::new(b"a"));
        world.handles.clock.advance(Duration::from_micros(us));
        assert_eq!(world.bucket.fetching().fetch_step(), engine::Progress::Worked);
        drop(waiting);
    };
    world.set("a", 1);
    fetch(5000);
    times.of_worker(0).record(0, 9_000);
    assert_eq!(world.stats("")["ep_bg_max_wait"], "5000");
    assert_eq!(world.stats("reset timings"), BTreeMap::new());
    assert!(!world.stats("timings").contains_key("Get_9,10"));
    assert_eq!(world.stats("")["ep_bg_num_samples"], "1", "commands alone begin again");
    world.stats("reset");
    assert_eq!(world.stats("")["ep_bg_num_samples"], "0");
    assert_eq!(world.stats("")["ep_bg_max_wait"], "0");
    world.set("a", 1);
    fetch(300);
    times.of_worker(0).record(0, 20_500);
    let stats = world.stats("");
    for (name, value) in [
        ("ep_bg_num_samples", "1"),
        ("ep_bg_wait", "300"),
        ("ep_bg_min_wait", "288"),
        ("ep_bg_max_wait", "319"),
    ] {
        assert_eq!(stats[name], value, "{name}");
    }
    let timings = world.stats("timings");
    assert_eq!(timings["Get_mean"], "20.500");
    let mut text = String::new();
    metrics::render(&world.node, &mut text);
    assert!(text.contains("kv_cmd_duration_seconds_count{bucket=\"travel\",opcode=\"GET\"} 2"), "{text}");
    assert_eq!(world.refusal("reset everything"), Some(Status::Einval));
    let refused = world.ask_as(Privileges::of(&[Privilege::SimpleStats]), "reset").map(drop);
    assert_eq!(refused, Err(Refused::Denied(Privilege::Stats)));
}

/// Figures of the node need no bucket; others say that one is missing.
#[test]
fn groups_about_the_node_need_no_bucket() {
    let world = World::new();
    let all = Rights { whole: Privileges::all(), node: Privileges::all(), narrow: None };
    let ask = |group: &Group, rights: &Rights| {
        let (rights, now) = (rights.clone(), world.bucket.now());
        produce(Question { node: &world.node, bucket: None, rights, now }, group.name.as_bytes())
    };
    for group in GROUPS.iter().filter(|group| group.args.least == 0) {
        let told = ask(group, &all);
        match group.produce {
            Producer::Node(_) => assert!(told.is_ok(), "{}: {:?}", group.name, told.err()),
            Producer::Bucket(_) => {
                assert_eq!(told.err(), Some(Refused::Status(Status::NoBucket)), "{}", group.name)
            }
        }
        let told = ask(group, &Rights::default());
        assert!(matches!(told.err(), Some(Refused::Denied(_))), "{}", group.name);
    }
}
