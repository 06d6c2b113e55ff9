//! Groups against the recorded names, values against what was done, metrics against their format.

mod asked;
mod clocks;
mod latency;
mod scrapes;
mod streams;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::env::{Env, SimHandles};
use base::{Cas, Datatype, DocKey, VbId, VbState};
use engine::{Bucket, BucketConfig, StoreMode, StoreRequest};
use protocol::Status;
use protocol::extras::ConfigVersion;
use serde_json::Value;

use super::inquiry::Refused;
use super::{GROUPS, Group, Producer, Question, Sheet, metrics, produce};
use crate::cluster_map::NodeAddress;
use crate::config::{BucketSpec, ConnectionLimits};
use crate::counters::WorkerCounters;
use crate::node::Node;
use crate::privilege::{Privilege, Privileges};
use crate::roles::Rights;
use crate::served::Served;
use crate::user::Users;

const RECORDED: &str = include_str!("../../../../tests/recordings/kv/stat.jsonl");

/// Recorded scenarios that are answered differently, and why. Each must really differ.
const DIFFERENT: &[(&str, &str)] = &[
    ("aggregate", "names of counters that nobody counts here, and of jemalloc"),
    ("checkpoint", "names of the index and allocators inside a checkpoint, which are not there"),
    ("checkpoint_0", "names of the index and allocators inside a checkpoint, which are not there"),
    ("collections_inventory_airline", "not yet: collections"),
    ("dcp", "not yet: streams"),
    ("durability-monitor_0", "not yet: replication chains of durable writes"),
    ("memory", "names of jemalloc's arenas"),
    ("scopes", "not yet: collections"),
    ("scopes_inventory", "not yet: collections"),
    ("tracing", "names of a tracing library that is not used here"),
    ("unknown_group", "names of settings of other backends and of features that are not there"),
    ("workload", "names of the queues of a task scheduler that is not there"),
];

struct World {
    node: Node,
    bucket: Arc<Bucket>,
    handles: SimHandles,
}

fn request(key: &str) -> StoreRequest<'_> {
    StoreRequest {
        key: DocKey::new(key.as_bytes()),
        body: b"v",
        datatype: Datatype::RAW,
        flags: 5,
        expiry: 0,
        mode: StoreMode::Set,
        cas: Cas::ANY,
        preserve_expiry: false,
    }
}

impl World {
    fn new() -> World {
        let (env, handles) = Env::sim(7);
        let mut config = BucketConfig::new("travel", "/data/travel".into());
        config.vbuckets = 8;
        let store = Arc::new(kvstore::Memory::default());
        let bucket = Arc::new(Bucket::open(config, env.clone(), store).expect("the simulated disk works"));
        let spec = BucketSpec::parse("travel").expect("valid");
        let address = NodeAddress { host: None, kv_port: 1, http_port: 2, tls: None };
        let node = Node::new(
            env.clone(),
            Users::new(&[], &*env.random),
            vec![Served { spec, bucket: Arc::clone(&bucket) }],
            address,
            ConfigVersion { epoch: 1, revision: 1 },
            ConnectionLimits::default(),
            vec![Arc::new(WorkerCounters::default()), Arc::new(WorkerCounters::default())],
        );
        World { node, bucket, handles }
    }

    fn set(&self, key: &str, vb: u16) {
        self.bucket.documents().store(VbId(vb), &request(key), self.bucket.now()).expect("there is room");
    }

    fn ask_as(&self, privileges: Privileges, key: &str) -> Result<Sheet, Refused> {
        self.ask_with(Rights { whole: privileges, node: privileges, narrow: None }, key)
    }

    fn ask_with(&self, rights: Rights, key: &str) -> Result<Sheet, Refused> {
        let now = self.bucket.now();
        produce(Question { node: &self.node, bucket: Some(&self.bucket), rights, now }, key.as_bytes())
    }

    fn ask(&self, key: &str) -> Result<Sheet, Refused> {
        self.ask_as(Privileges::all(), key)
    }

    fn stats(&self, key: &str) -> BTreeMap<String, String> {
        let sheet = self.ask(key).unwrap_or_else(|refused| panic!("{key:?}: {refused:?}"));
        sheet.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    fn refusal(&self, key: &str) -> Option<Status> {
        self.ask(key).err().map(Refused::status)
    }
}

/// A name without what depends on the moment, as the recordings have it: numbers of vBuckets and checkpoints, bins.
fn masked(name: &str) -> String {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let name = match name.strip_prefix("vb_").map(|rest| (rest, digits(rest))) {
        Some((rest, len)) if len > 0 => {
            let rest = &rest[len..];
            let entry = rest.strip_prefix(':').map_or(0, digits);
            let is_entry = entry > 0 && rest[1 + entry..].starts_with(':');
            format!("vb_N{}", if is_entry { &rest[1 + entry..] } else { rest })
        }
        _ => name.to_owned(),
    };
    match name.split_once(":id_") {
        Some((front, back)) if digits(back) > 0 => format!("{front}:id_N{}", &back[digits(back)..]),
        _ => name,
    }
}

/// What of a recorded step is answered differently.
fn difference(world: &World, step: &Value) -> Option<String> {
    let key = step["req"]["key"]["t"].as_str().unwrap_or_default();
    let expected = step["resp"]["status"].as_str()?;
    let sheet = match world.ask(key) {
        Ok(sheet) => sheet,
        Err(refused) => {
            let status = format!("0x{:02x}", refused.status() as u16);
            return (status != expected).then(|| format!("{key:?}: {status} for {expected}"));
        }
    };
    if expected != "0x00" {
        return Some(format!("{key:?}: success for {expected}"));
    }
    let names: BTreeSet<String> = sheet.iter().map(|(name, _)| masked(name)).collect();
    let recorded = step["resp"]["names"].as_array()?.iter().filter_map(Value::as_str);
    let missing: Vec<&str> = recorded.filter(|name| !names.contains(*name)).collect();
    (!missing.is_empty()).then(|| format!("{key:?} lacks {}", missing.join(" ")))
}

#[test]
fn answers_as_recorded_or_is_listed_as_different() {
    let world = World::new();
    world.set("stat.key_stat.@RUN@@.k", 0);
    let mut different: BTreeMap<String, String> = BTreeMap::new();
    let mut scenarios = 0;
    for line in RECORDED.lines() {
        let step: Value = serde_json::from_str(line).expect("a recording is JSON");
        if step["req"]["op"] == "0x10" {
            scenarios += 1;
            let scenario =
                step["scenario"].as_str().unwrap_or_default().trim_start_matches("stat/").to_owned();
            if let Some(difference) = difference(&world, &step) {
                different.entry(scenario).or_insert(difference);
            }
        }
    }
    assert!(scenarios > 30, "the recordings are there");
    let listed: BTreeSet<&str> = DIFFERENT.iter().map(|(scenario, _)| *scenario).collect();
    let found: BTreeSet<&str> = different.keys().map(String::as_str).collect();
    assert_eq!(found, listed, "{different:#?}");
}

#[test]
fn names_are_masked_as_in_the_recordings() {
    assert_eq!(masked("vb_12:3:id"), "vb_N:id");
    assert_eq!(masked("vb_12:num_entries"), "vb_N:num_entries");
    assert_eq!(masked("vb_1:id_33:state"), "vb_N:id_N:state");
    assert_eq!(masked("vb_active_num"), "vb_active_num");
}

#[test]
fn the_table_is_sorted_and_documented() {
    assert!(GROUPS.is_sorted_by_key(|group| group.name), "groups are sorted by name");
    for group in GROUPS {
        assert!(!group.doc.is_empty() && !group.name.contains(' '), "{:?}", group.name);
        assert!(group.args.least <= group.args.most);
        assert_eq!(group.args.usage.is_empty(), group.args.most == 0, "{:?}", group.name);
    }
}

#[test]
fn bad_requests_get_their_status() {
    let world = World::new();
    for (key, status) in [
        ("nosuchgroup", Status::KeyEnoent),
        ("VBUCKET", Status::KeyEnoent),
        ("uuid x", Status::KeyEnoent),
        ("config x", Status::KeyEnoent),
        ("timings x", Status::KeyEnoent),
        ("vbucket 0 1", Status::KeyEnoent),
        ("disk-slowness", Status::Einval),
        ("disk-slowness x", Status::Einval),
        ("disk-slowness 1 2", Status::Einval),
        ("scheduler x", Status::Einval),
        ("threads x y", Status::Einval),
        ("key", Status::KeyEnoent),
        ("vkey-byid", Status::KeyEnoent),
        ("dcpagg", Status::KeyEnoent),
        ("dcp-vbtakeover", Status::KeyEnoent),
        ("collections-byid", Status::Einval),
        ("bucket_details nosuch", Status::KeyEnoent),
        ("vbucket-details x", Status::Einval),
        ("vbucket-details +1", Status::Einval),
        ("vbucket-details 1 2", Status::Einval),
        ("vbucket-details 99999", Status::Einval),
        ("vbucket-details 8", Status::NotMyVbucket),
        ("vbucket-seqno 99999", Status::NotMyVbucket),
        ("durability-monitor", Status::NotSupported),
        ("collections a", Status::Einval),
        ("collections a.b", Status::UnknownScope),
        ("collections _default.b", Status::UnknownCollection),
        ("scopes a", Status::UnknownScope),
        ("hash x", Status::Einval),
        ("key a", Status::Einval),
        ("key a x", Status::Einval),
        ("key a 0", Status::KeyEnoent),
        ("key a 9", Status::NotMyVbucket),
        ("key a 0 0x8", Status::UnknownCollection),
        ("key a 0 0xx", Status::Einval),
    ] {
        assert_eq!(world.refusal(key), Some(status), "{key:?}");
    }
}

#[test]
fn a_group_needs_its_privilege() {
    let world = World::new();
    let simple = Privileges::of(&[Privilege::SimpleStats]);
    assert!(world.ask_as(simple, "").is_ok());
    assert_eq!(world.ask_as(simple, "threads").err(), Some(Refused::Denied(Privilege::Stats)));
    assert_eq!(
        world.ask_as(simple, "bucket_details").err(),
        Some(Refused::Denied(Privilege::NodeSupervisor))
    );
    assert_eq!(world.ask_as(simple, "key a 0").err(), Some(Refused::Denied(Privilege::MetaRead)));
}

#[test]
fn values_follow_what_is_done() {
    let world = World::new();
    world.set("a", 1);
    world.set("b", 1);
    world.set("a", 1);
    let now = world.bucket.now();
    assert!(world.bucket.documents().get(VbId(1), DocKey::new(b"a"), now).is_ok());
    assert!(world.bucket.documents().get(VbId(2), DocKey::new(b"a"), now).is_err());
    world.bucket.documents().delete(VbId(1), DocKey::new(b"b"), Cas::ANY, now).expect("it is there");
    let dirty = world.stats("");
    let expected = [
        ("curr_items", "1"),
        ("curr_items_tot", "1"),
        ("ep_tombstones", "1"),
        ("get_hits", "1"),
        ("get_misses", "1"),
        ("cmd_set", "3"),
        ("delete_hits", "1"),
        ("ep_queue_size", "2"),
        ("ep_persistence_seqno_lag", "4"),
        ("ep_total_persisted", "0"),
        ("vb_active_num", "8"),
        ("vb_dead_num", "0"),
        ("threads", "2"),
        ("ep_couch_bucket", "travel"),
        ("ep_max_size", "268435456"),
    ];
    for (name, value) in expected {
        assert_eq!(dirty.get(name).map(String::as_str), Some(value), "{name}");
    }
    let memory = world.stats("memory");
    let parts = base::Part::ALL.map(|part| memory[&format!("mem_used_{}", part.name())].parse::<u64>());
    let used: u64 = parts.into_iter().map(|part| part.expect("a number")).sum();
    assert!(used > 0);
    assert_eq!((&dirty["mem_used"], &memory["mem_used"]), (&used.to_string(), &used.to_string()));
    assert_eq!(world.stats("key a 1")["key_is_dirty"], "true");
    assert!(world.bucket.flushing().flush_all());
    let clean = world.stats("");
    assert_eq!((&*clean["ep_queue_size"], &*clean["ep_total_persisted"]), ("0", "2"));
    assert_eq!(world.stats("key a 1 _default._default")["key_is_dirty"], "false");
    assert_eq!(world.stats("vbucket-seqno 1")["vb_1:last_persisted_seqno"], "4");
    assert_eq!(world.stats("vbucket-details 1")["vb_1:num_items"], "1");
}

/// Each figure of the disk queue after each step that moves it.
#[test]
fn the_disk_queue_is_counted() {
    let world = World::new();
    let names = [
        "ep_diskqueue_items",
        "ep_diskqueue_fill",
        "ep_diskqueue_drain",
        "ep_total_enqueued",
        "ep_total_deduplicated",
        "vb_active_queue_fill",
        "vb_active_queue_drain",
        "vb_replica_queue_fill",
    ];
    let figures = || {
        let stats = world.stats("");
        names.map(|name| stats[name].parse::<u64>().expect("a number"))
    };
    assert_eq!(figures(), [0; 8]);
    world.bucket.flushing().hold_flusher(true);
    assert_eq!(world.stats("")["ep_flusher_state"], "paused");
    world.bucket.flushing().hold_flusher(false);
    assert_eq!(world.stats("")["ep_flusher_state"], "running");
    world.set("a", 1);
    world.set("b", 1);
    world.set("c", 2);
    assert_eq!(figures(), [3, 3, 0, 3, 0, 3, 0, 0]);
    world.set("a", 1);
    assert_eq!(figures(), [3, 3, 0, 3, 1, 3, 0, 0], "it replaced another one in the queue");
    assert!(world.bucket.flushing().flush_all());
    assert_eq!(figures(), [0, 3, 3, 3, 1, 3, 3, 0]);
    world.set("a", 1);
    assert_eq!(figures()[..4], [1, 4, 3, 4]);
    // In another role they are that role's, in place of another vBucket they are still counted.
    world.bucket.roles().set_vbucket_state(VbId(1), VbState::Replica, None).expect("it is there");
    assert_eq!(figures()[5..], [1, 1, 3]);
    assert_eq!(world.stats("")["ep_rollback_count"], "0");
    let gone =
        world.bucket.roles().rollback(VbId(1), base::Seqno(3)).expect("a replica").expect("the disk works");
    assert_eq!(gone, base::Seqno(3));
    let stats = world.stats("");
    for (name, value) in [
        ("ep_rollback_count", "1"),
        ("vb_replica_rollback_item_count", "1"),
        ("vb_active_rollback_item_count", "0"),
        ("ep_diskqueue_drain", "3"),
        ("ep_total_deduplicated", "1"),
    ] {
        assert_eq!(stats[name], value, "{name}");
    }
}

#[test]
fn changes_refused_for_memory_are_counted() {
    let world = World::new();
    (0..2000).for_each(|n| world.set(&format!("k{n}"), 1));
    let refusals = |world: &World| {
        let stats = world.stats("");
        ["ep_tmp_oom_errors", "ep_oom_errors"].map(|name| stats[name].parse::<u64>().expect("a number"))
    };
    let store = |world: &World| {
        world.bucket.documents().store(VbId(2), &request("one more"), world.bucket.now()).is_ok()
    };
    assert_eq!((store(&world), refusals(&world)), (true, [0, 0]));
    let used = world.bucket.memory().held_bytes();
    world.bucket.settings().put(engine::settings::Key::MaxSize, used * 100 / 99);
    assert_eq!((store(&world), refusals(&world)), (false, [1, 0]));
    world.bucket.settings().put(engine::settings::Key::MaxSize, used / 2);
    assert_eq!((store(&world), refusals(&world)), (false, [1, 1]));
}

#[test]
fn failed_operations_of_the_store_are_told() {
    let world = World::new();
    let names = ["rw_0:failure_set", "rw_0:failure_get", "rw_0:failure_compaction", "rw_0:failures"];
    let slow = world.stats("disk-slowness 1");
    for name in ["read_num", "read_slow_num", "write_num", "write_slow_num"] {
        assert_eq!(slow[&*format!("pending_disk_{name}")], "0", "nothing is under way");
    }
    let failures = world.stats("disk-failures");
    assert_eq!(names.map(|name| &*failures[name]), ["0"; 4]);
    assert_eq!(world.stats("dcpagg :")[":total:count"], "0");
}

#[test]
fn sync_writes_are_counted_by_role() {
    let world = World::new();
    let counts = || {
        let stats = world.stats("");
        ["accepted", "committed", "aborted"].map(|what| {
            stats[&format!("vb_active_sync_write_{what}_count")].parse::<u64>().expect("a number")
        })
    };
    let store = |level| {
        let durable = engine::Durable { level, timeout: std::time::Duration::from_secs(1) };
        let writer = world.bucket.documents().durably(Some(durable));
        writer.store(VbId(1), &request("a"), world.bucket.now()).expect("there is room").pending
    };
    assert!(store(base::DurabilityLevel::Majority).is_none());
    assert_eq!(counts(), [1, 1, 0]);
    let waits = store(base::DurabilityLevel::PersistToMajority).expect("it is not on disk");
    let state = world.stats("vbucket-durability-state 1");
    let names = ["vb_1", "vb_1:high_completed_seqno", "vb_1:num_tracked"];
    assert_eq!(names.map(|name| &*state[name]), ["active", "1", "1"]);
    assert_eq!(counts(), [2, 1, 0]);
    assert!(world.bucket.flushing().flush_all());
    assert_eq!((waits.try_take(), counts()), (Some(engine::SyncOutcome::Committed), [2, 2, 0]));
}

/// Times that clients waited for a fetcher, in microseconds.
#[test]
fn waiting_for_the_disk_is_timed() {
    let world = World::new();
    world.set("a", 1);
    assert!(world.bucket.flushing().flush_all());
    assert_eq!(world.bucket.eviction().evict_value(VbId(1), DocKey::new(b"a")), Ok(true));
    let waiting = world.bucket.fetching().fetch(VbId(1), DocKey::new(b"a")).expect("there is room");
    world.handles.clock.advance(std::time::Duration::from_micros(300));
    assert_eq!(world.bucket.fetching().fetch_step(), engine::Progress::Worked);
    assert!(waiting.try_take().is_some());
    let stats = world.stats("");
    for (name, value) in [
        ("ep_bg_fetched", "1"),
        ("ep_bg_num_samples", "1"),
        ("ep_bg_wait", "300"),
        ("ep_bg_wait_avg", "300"),
        ("ep_bg_min_wait", "288"),
        ("ep_bg_max_wait", "300"),
        ("ep_bg_load", "0"),
    ] {
        assert_eq!(stats[name], value, "{name}");
    }
    let timings = world.stats("timings");
    assert_eq!((&*timings["bg_wait_288,320"], &*timings["bg_wait_mean"]), ("1", "300.000"));
}

#[test]
fn no_name_comes_twice() {
    let world = World::new();
    world.set("a", 1);
    for group in GROUPS {
        let args = match group.args.least {
            0 => "",
            _ if ["dcp-vbtakeover", "disk-slowness"].contains(&group.name) => " 1",
            _ if group.name == "dcpagg" => " :",
            _ if group.name.ends_with("key-byid") => " a 1 0x0",
            _ if group.name.ends_with("byid") => " 0x0",
            _ => " a 1",
        };
        let key = if group.name == "durability-monitor" {
            "durability-monitor 1".to_owned()
        } else {
            format!("{}{args}", group.name)
        };
        let sheet = world.ask(&key).unwrap_or_else(|refused| panic!("{key}: {refused:?}"));
        let names: BTreeSet<&str> = sheet.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), sheet.iter().count(), "{key}");
    }
}

#[test]
fn settings_are_told_as_they_are() {
    let world = World::new();
    let config = world.stats("config");
    assert_eq!(config.len(), engine::settings::SETTINGS.len());
    assert_eq!(
        (&*config["ep_mem_high_wat_percent"], &*config["ep_item_eviction_policy"]),
        ("85", "value_only")
    );
    world.bucket.set_param("max_size", "100MiB").expect("it fits");
    world.bucket.set_param("mem_high_wat_percent", "90").expect("it fits");
    world.bucket.set_param("checkpoint_memory_ratio", "0.1").expect("it fits");
    let all = world.stats("");
    for (name, value) in [
        ("ep_max_size", 100 << 20),
        ("ep_mem_high_wat_percent", 90),
        ("ep_mem_high_wat", (100 << 20) / 100 * 90),
        ("ep_checkpoint_memory_quota", (100 << 20) / 10),
    ] {
        assert_eq!(all[name], value.to_string(), "{name}");
    }
    assert_eq!(world.stats("checkpoint")["ep_checkpoint_memory_quota"], all["ep_checkpoint_memory_quota"]);
    assert!(!world.stats("checkpoint 1").contains_key("ep_checkpoint_memory_quota"));
}

#[test]
fn what_is_evicted_and_fetched_is_told() {
    let world = World::new();
    world.set("a", 1);
    world.set("b", 2);
    assert!(world.bucket.flushing().flush_all());
    assert_eq!(world.bucket.eviction().evict_value(VbId(1), DocKey::new(b"a")), Ok(true));
    let eviction = world.stats("eviction-details");
    let expected = [
        ("ep_num_non_resident", "1"),
        ("perc_mem_resident", "50"),
        ("vb_active_perc_mem_resident", "50"),
        ("ep_bg_fetched", "0"),
    ];
    for (name, value) in expected {
        assert_eq!(eviction[name], value, "{name}");
    }
    assert_eq!(world.stats("")["ep_num_non_resident"], "1");
}

#[test]
fn what_the_pager_and_the_filter_know_is_told() {
    let world = World::new();
    world.bucket.set_param("item_eviction_policy", "full_eviction").expect("it has a disk");
    for n in 0..100 {
        world.set(&format!("k{n}"), 1);
    }
    assert!(world.bucket.flushing().flush_all());
    for n in 0..40 {
        assert_eq!(
            world.bucket.eviction().evict_whole(VbId(1), DocKey::new(format!("k{n}").as_bytes())),
            Ok(true)
        );
    }
    let eviction = world.stats("eviction-details");
    for (name, value) in [
        ("ep_num_evicted_documents", "40"),
        ("ep_num_evicted_tombstones", "0"),
        ("perc_mem_resident", "60"),
        ("get_not_resident", "0"),
        ("pager_passes", "0"),
        ("frequency_sampled", "60"),
    ] {
        assert_eq!(eviction[name], value, "{name}");
    }
    // Where documents begin.
    let name = "ep_active_or_pending_eviction_values_snapshot";
    let expected = [(format!("{name}_4,8"), "60".to_owned()), (format!("{name}_mean"), "4.000".to_owned())];
    assert_eq!(world.stats("eviction"), BTreeMap::from(expected));
    assert_ne!(eviction["ep_bloom_filter_memory"], "0");
    let details = world.stats("vbucket-details 1");
    for (name, value) in [
        ("num_items", "100"),
        ("ht_num_items", "60"),
        ("evicted_items", "40"),
        ("ht_num_in_memory_items", "60"),
        ("ht_num_in_memory_non_resident_items", "0"),
    ] {
        assert_eq!(details[&format!("vb_1:{name}")], value, "{name}");
    }
    assert_eq!(world.stats("hash")["total_counts"], "60");
}

#[test]
fn frequencies_are_a_sample_of_bounded_size() {
    let world = World::new();
    (0..8).for_each(|vb| (0..600).for_each(|n| world.set(&format!("k{n}"), vb)));
    let sampled: u64 = world.stats("eviction-details")["frequency_sampled"].parse().expect("a number");
    assert!((8 * 256..8 * 300).contains(&sampled), "{sampled}");
}

#[test]
fn locks_are_told_by_holder() {
    let world = World::new();
    let before = world.stats("locks");
    assert_eq!((&*before["front_end:count"], &*before["front_end_sample"]), ("0", "64"));
    assert_eq!(before["pager:count"], "0");
    (0..64).for_each(|n| world.set(&format!("k{n}"), 1));
    assert!(world.bucket.flushing().flush_all());
    assert!(world.bucket.maintenance().keep_step());
    assert_eq!(world.stats("")["curr_items"], "64");
    let locks = world.stats("locks");
    let number = |name: &str| locks[name].parse::<u64>().expect("a number");
    assert_eq!(number("front_end:count"), 1, "one of 64 is timed");
    assert!(number("flusher:count") > 0 && number("stats:count") >= 8);
    for holder in engine::HOLDERS {
        let of = |what: &str| number(&format!("{}:{what}", holder.name()));
        let steps = ["p50_ns", "p99_ns", "p99.9_ns", "max_ns"].map(of);
        assert!(steps.is_sorted(), "{}: {steps:?}", holder.name());
        assert!(of("mean_ns") <= of("max_ns"));
    }
    let histogram = world.stats("locks histogram");
    let counted = |holder: &str| {
        let of = histogram.iter().filter(|(name, _)| name.starts_with(&format!("{holder}_ns_")));
        of.map(|(_, count)| count.parse::<u64>().expect("a number")).sum::<u64>()
    };
    assert_eq!(counted("flusher"), number("flusher:count"));
    assert_eq!(world.refusal("locks x"), Some(Status::Einval));
}

#[test]
fn the_heap_is_told_by_size() {
    let world = World::new();
    (0..1000).for_each(|n| world.set(&format!("k{n:04}"), 1));
    let heap = world.stats("heap");
    let number = |name: &str| heap[name].parse::<u64>().expect("a number");
    assert_eq!(number("heap_held") - number("heap_used"), number("heap_slack"));
    assert_eq!(number("heap_account_difference_bytes"), 0);
    let used = heap.iter().filter(|(name, _)| name.starts_with("slot_") && name.ends_with(":used"));
    let slots: u64 = used.clone().map(|(_, count)| count.parse::<u64>().expect("a number")).sum();
    assert_eq!(slots, 1000);
    let bytes = used.map(|(name, count)| {
        let size = name.trim_start_matches("slot_").trim_end_matches(":used");
        size.parse::<u64>().expect("a size") * count.parse::<u64>().expect("a number")
    });
    assert_eq!(bytes.sum::<u64>(), number("heap_used"));
    assert_eq!(world.stats("memory")["heap_used"], heap["heap_used"]);
}

#[test]
fn checkpoints_are_told_with_their_share() {
    let world = World::new();
    (0..100).for_each(|n| world.set(&format!("k{n}"), 1));
    let checkpoint = world.stats("checkpoint");
    assert_eq!(checkpoint["ep_checkpoint_memory_pressure"], "calm");
    assert_eq!(checkpoint["ep_items_rm_from_checkpoints"], "0");
    assert!(world.bucket.flushing().flush_all());
    world.bucket.set_param("max_size", "8MiB").expect("it fits");
    world.bucket.set_param("checkpoint_memory_ratio", "0.01").expect("it fits");
    // The chore that recovers memory brings the limits up to date.
    assert!(world.bucket.maintenance().keep_step());
    (0..2000).for_each(|n| world.set(&format!("k{n}"), 1));
    let checkpoint = world.stats("checkpoint");
    assert_ne!(checkpoint["ep_checkpoint_memory_pressure"], "calm");
    assert_eq!(checkpoint["ep_checkpoint_memory_quota"], ((8 << 20) / 100).to_string());
}

#[test]
fn hash_tables_are_measured() {
    let world = World::new();
    assert!(!world.stats("hash").contains_key("avg_depth"), "there are no buckets to look at");
    (0..3000).for_each(|n| world.set(&format!("k{n}"), 1));
    world.set("a", 2);
    let hash = world.stats("hash");
    let number = |name: &str| hash[name].parse::<f64>().expect("a number");
    assert_eq!((number("total_counts"), number("max_count"), number("min_count")), (3001.0, 3000.0, 0.0));
    assert!(number("max_buckets") >= 3000.0 / 8.0 && number("min_buckets") == 0.0);
    let mean = 3000.0 / number("max_buckets");
    assert!((number("avg_depth") - mean).abs() < mean / 100.0, "{} for {mean}", number("avg_depth"));
    assert!(number("largest_max") > mean);
    for (name, value) in [
        ("vb_2:max_depth", "1"),
        ("vb_1:reported", "3000"),
        ("vb_1:counted", "3000"),
        ("vb_1:mem_size_counted", &*hash["vb_1:mem_size"]),
        ("vb_3:size", "0"),
        ("vb_3:counted", "0"),
    ] {
        assert_eq!(hash[name], value, "{name}");
    }
    assert_eq!(world.stats("hash detail"), hash);
}

#[test]
fn chores_are_counted() {
    let world = World::new();
    assert_eq!(world.stats("chores")["pager:steps"], "0");
    assert!(world.bucket.maintenance().keep_step());
    let chores = world.stats("chores");
    for chore in world.bucket.maintenance().chore_stats() {
        assert_eq!(chores[&format!("{}:steps", chore.name)], "1");
    }
    assert_eq!(world.stats("eviction-details")["pager:steps"], "1");
}

/// What the field's `cbstats tasks` reads of each task, and what `scheduler` and `runtimes` say of them.
#[test]
fn tasks_are_told_as_the_field_reads_them() {
    let world = World::new();
    world.set("a", 1);
    assert!(world.bucket.maintenance().keep_step() && world.bucket.flushing().flush_all());
    let stats = world.stats("tasks");
    let tasks: Vec<Value> = serde_json::from_str(&stats["ep_tasks:tasks"]).expect("JSON");
    assert_eq!(tasks.len(), engine::task_stats(&world.bucket).len());
    for task in &tasks {
        for name in ["tid", "priority", "waketime_ns", "total_runtime_ns", "last_starttime_ns"] {
            assert!(task[name].is_u64(), "{name} of {task}");
        }
        assert!(task["previous_runtime_ns"].is_u64() && task["state"] == "SNOOZED", "{task}");
        let kind = task["type"].as_str().expect("a text");
        assert!(["Reader", "Writer", "AuxIO", "NonIO"].contains(&kind), "{task}");
        assert!(["name", "bucket", "this", "description"].iter().all(|name| task[name].is_string()));
    }
    let runs = |name| tasks.iter().find(|task| task["name"] == name).map(|task| task["num_runs"].as_u64());
    assert_eq!(
        [runs("pager"), runs("flusher"), runs("fetcher")],
        [Some(Some(1)), Some(Some(1)), Some(Some(0))]
    );
    let runtimes = world.stats("runtimes");
    // The simulated clock stands still.
    assert_eq!((&*runtimes["pager_0,1"], &*runtimes["flusher_mean"]), ("1", "0.000"));
    assert!(!runtimes.contains_key("fetcher_mean"));
    assert_eq!(world.stats("kvtimings")["rw_0:commit_0,1"], "1");
    assert_eq!(world.stats("timings")["disk_commit_0,1"], "1");
    assert_eq!(world.stats("scheduler"), BTreeMap::new(), "nothing was due at a time of its own");
    let threads = ["backfiller", "chores", "compactor", "fetcher", "filer", "flusher", "loader"];
    let asleep = threads.map(|thread| (format!("{thread}:state"), "sleeping".to_owned()));
    assert_eq!(world.stats("dispatcher"), BTreeMap::from(asleep));
}

/// Names that the field's tools take apart: all have a range of whole numbers or are a mean.
#[test]
fn groups_of_histograms_have_nothing_else() {
    let world = World::new();
    (0..100).for_each(|n| world.set(&format!("k{n}"), 1));
    assert!(world.bucket.flushing().flush_all() && world.bucket.maintenance().keep_step());
    world.node.times.of(&world.bucket).of_worker(0).record(0, 9000);
    for group in
        ["timings", "eviction", "scheduler", "runtimes", "kvtimings", "stat-timings", "frequency-counters"]
    {
        for name in world.stats(group).keys() {
            let (_, last) = name.rsplit_once('_').expect("a range");
            let range = last.split_once(',').map(|(from, to)| (from.parse::<u64>(), to.parse::<u64>()));
            let is_range = matches!(range, Some((Ok(from), Ok(to))) if from < to);
            assert!(is_range || last == "mean", "{group}: {name}");
        }
    }
}

#[test]
fn a_deleted_vbucket_is_not_listed() {
    let world = World::new();
    world.bucket.roles().set_vbucket_state(VbId(3), VbState::Replica, None).expect("it is there");
    world.bucket.roles().set_vbucket_state(VbId(4), VbState::Dead, None).expect("it is there");
    assert!(matches!(world.bucket.roles().delete_vbucket(VbId(4)), Ok(Ok(()))));
    let states = world.stats("vbucket");
    assert_eq!((states.len(), &*states["vb_3"]), (7, "replica"));
    let before = world.stats("prev-vbucket");
    assert_eq!((before.len(), &*before["vb_3"]), (7, "active"), "as it was made");
    assert_eq!(world.refusal("vbucket 4"), Some(Status::NotMyVbucket));
}

/// A sample's name with labels, and its value.
fn parse_metrics(text: &str) -> BTreeMap<String, f64> {
    let mut samples = BTreeMap::new();
    let (mut helped, mut typed, mut is_histogram) = (None, None, false);
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a help text follows the name");
            assert!(help.ends_with('.'), "{name}");
            helped = Some(name.to_owned());
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type follows the name");
            assert_eq!(helped.as_deref(), Some(name));
            let is_field_s_own = name.starts_with("kv_") && kind == "untyped";
            assert!(is_field_s_own || ["gauge", "counter", "histogram"].contains(&kind), "{name}");
            assert!(is_field_s_own || (kind == "counter") == name.ends_with("_total"), "{name}");
            is_histogram = kind == "histogram";
            typed = Some(name.to_owned());
        } else {
            let (series, value) = line.rsplit_once(' ').expect("a value follows the series");
            let name = series.split('{').next();
            let parts = ["_bucket", "_sum", "_count"];
            let of = name.map(|name| parts.iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name));
            let name = if is_histogram { of } else { name };
            assert_eq!(typed.as_deref(), name, "each sample stands under its type");
            let value = value.parse().expect("a number");
            assert!(samples.insert(series.to_owned(), value).is_none(), "{series} twice");
        }
    }
    samples
}

#[test]
fn metrics_are_well_formed_and_true() {
    let world = World::new();
    world.set("a", 1);
    world.set("b", 2);
    let mut text = String::new();
    metrics::render(&world.node, &mut text);
    let samples = parse_metrics(&text);
    let documents = world.bucket.memory().account().exact()[base::Part::Documents as usize];
    for (series, value) in [
        ("stave_worker_threads", 2.0),
        ("stave_items{bucket=\"travel\",state=\"active\"}", 2.0),
        ("stave_vbuckets{bucket=\"travel\",state=\"active\"}", 8.0),
        ("stave_ops_total{bucket=\"travel\",op=\"store\"}", 2.0),
        ("stave_flush_queue_vbuckets{bucket=\"travel\"}", 2.0),
        ("stave_dirty_items{bucket=\"travel\"}", 2.0),
        ("stave_memory_quota_bytes{bucket=\"travel\"}", 268_435_456.0),
        ("stave_memory_high_watermark_bytes{bucket=\"travel\"}", (268_435_456 / 100 * 85) as f64),
        ("stave_chore_steps_total{bucket=\"travel\",chore=\"pager\"}", 0.0),
        ("stave_memory_part_bytes{bucket=\"travel\",part=\"documents\"}", documents as f64),
    ] {
        assert_eq!(samples.get(series), Some(&value), "{series}");
    }
}

/// Each histogram is cumulative, ends with all that there is, and says its sum.
#[test]
fn histograms_are_told_to_prometheus() {
    let world = World::new();
    let times = world.node.times.of(&world.bucket);
    for ns in [900, 3_000, 5_000, 100_000_000_000] {
        times.of_worker(0).record(0, ns);
    }
    // Those that were measured stand for all.
    (0..8).for_each(|_| times.of_worker(0).count(0));
    times.of_worker(1).sync_writes.count(
        base::DurabilityLevel::PersistToMajority,
        engine::SyncOutcome::Committed,
        2_000_000,
    );
    let mut text = String::new();
    metrics::render(&world.node, &mut text);
    let samples = parse_metrics(&text);
    let of = |name: &str, labels: &str| samples[&format!("{name}{{bucket=\"travel\",{labels}}}")];
    let get = |end: &str| of("kv_cmd_duration_seconds_bucket", &format!("opcode=\"GET\",le=\"{end}\""));
    assert_eq!(["0.000001", "0.000004", "0.000016", "67.108864", "+Inf"].map(get), [2.0, 4.0, 6.0, 6.0, 8.0]);
    assert_eq!(of("kv_cmd_duration_seconds_count", "opcode=\"GET\""), 8.0);
    assert_eq!(of("kv_cmd_duration_seconds_sum", "opcode=\"GET\""), 200.000_017_8);
    let labels = "level=\"persist_to_majority\"";
    assert_eq!(of("kv_sync_write_commit_duration_seconds_sum", labels), 0.002);
    assert!(!text.contains("opcode=\"SET\""), "nothing was recorded");
}

/// Figures under the field's names move with what they count.
#[test]
fn the_fields_metrics_follow_what_is_done() {
    let world = World::new();
    world.set("a", 1);
    world.set("a", 1);
    world.set("b", 2);
    assert!(world.bucket.documents().get(VbId(1), DocKey::new(b"a"), world.bucket.now()).is_ok());
    assert!(world.bucket.flushing().flush_all());
    world.set("c", 2);
    let mut text = String::new();
    metrics::render(&world.node, &mut text);
    let samples = parse_metrics(&text);
    let stats = world.stats("");
    for (series, value) in [
        ("kv_ops{bucket=\"travel\",op=\"get\",result=\"hit\"}", 1.0),
        ("kv_ops{bucket=\"travel\",op=\"set\"}", 4.0),
        ("kv_curr_items{bucket=\"travel\"}", 3.0),
        ("kv_ep_max_size{bucket=\"travel\"}", 268_435_456.0),
        ("kv_mem_used_bytes{bucket=\"travel\"}", stats["mem_used"].parse().expect("a number")),
        ("kv_ep_diskqueue_items{bucket=\"travel\"}", 1.0),
        ("kv_ep_diskqueue_fill{bucket=\"travel\"}", 3.0),
        ("kv_ep_diskqueue_drain{bucket=\"travel\"}", 2.0),
        ("kv_ep_total_deduplicated{bucket=\"travel\"}", 1.0),
        ("kv_num_vbuckets{bucket=\"travel\",state=\"active\"}", 8.0),
        ("kv_vb_queue_size{bucket=\"travel\",state=\"active\"}", 1.0),
        ("kv_vb_perc_mem_resident_ratio{bucket=\"travel\",state=\"active\"}", 1.0),
        ("kv_vb_curr_items{bucket=\"travel\",state=\"replica\"}", 0.0),
    ] {
        assert_eq!(samples.get(series), Some(&value), "{series}");
    }
}

#[test]
fn every_status_has_its_own_counter() {
    assert!(Status::ALL.iter().all(|status| status.code() < 256));
}

#[test]
fn what_workers_measure_and_send_is_told() {
    let world = World::new();
    let [one, other] = world.node.workers().all() else { panic!("there are two") };
    let times = world.node.times.of(&world.bucket);
    times.of_worker(one.number()).record(0, 9_000);
    times.of_worker(other.number()).record(0, 9_500);
    world.node.times.none().of_worker(0).record(0, 1_000);
    one.count_answer(Status::Success);
    other.count_answer(Status::KeyEnoent);
    let timings = [("Get_9,10", "2"), ("Get_mean", "9.250")];
    assert_eq!(
        world.stats("timings"),
        timings.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    );
    let responses: Value = serde_json::from_str(&world.stats("responses")["responses"]).expect("JSON");
    assert_eq!(["0", "1"].map(|code| responses[code].as_u64()), [Some(1), Some(1)]);
    assert_eq!(world.stats("worker_thread_info").len(), 2);
    for (worker, ms) in [(one, 3), (other, 5)] {
        worker.turn_begins();
        worker.count(0);
        worker.turn_took(ms * 1_000_000);
    }
    assert_eq!(world.stats("connections")["longest_turn_us_Get"], "5000");
}
