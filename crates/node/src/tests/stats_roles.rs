//! Every group of stats with every role, compared with the written table `stats_roles.txt`; and that a user who may look
//! at one bucket is told nothing of another one.

use std::collections::BTreeMap;

use super::roles::{COLLECTIONS, COLUMNS, heading, node_with_collections};
use super::*;
use crate::stats::GROUPS;

/// Behind the columns of the table of commands, a user with `data_monitoring[default:s:c]`.
const NARROW: [(char, &str); 1] = [('2', "counts")];
const TABLE: &str = include_str!("stats_roles.txt");

/// The key of a request for a group, with what it needs behind its name.
fn key_of(group: &str) -> String {
    let args = match group {
        "key" | "vkey" => " k 0 s.c",
        "key-byid" | "vkey-byid" => " k 0 0x8",
        "collections-byid" | "scopes-byid" => " 0x8",
        "durability-monitor" | "dcp-vbtakeover" | "disk-slowness" => " 0",
        "dcpagg" => " :",
        _ => "",
    };
    format!("{group}{args}")
}

fn ask(connection: &mut Connection, group: &str) -> Vec<u8> {
    let key = key_of(group);
    let parts = RequestParts { opcode: opcode::STAT, key: key.as_bytes(), ..RequestParts::default() };
    feed(connection, &request(&parts)).0
}

/// The letters of the roles that are not refused, as in the table of commands.
fn allowed(node: &Arc<Node>, group: &str) -> String {
    let told = |(letter, name): &(char, &str)| {
        let mut connection = connect(node);
        feed(&mut connection, &login(name, "password", "default", &Features::of(COLLECTIONS).encode()));
        let answers = ask(&mut connection, group);
        let is = |wanted| statuses(&answers).iter().any(|(_, status)| *status == wanted);
        match () {
            () if is(Status::Eaccess) => '-',
            () if is(Status::UnknownCollection) || is(Status::UnknownScope) => '?',
            () if is(Status::NoBucket) => '.',
            () => *letter,
        }
    };
    COLUMNS.iter().chain(&NARROW).map(told).collect()
}

#[test]
fn each_group_of_stats_is_for_the_roles_of_the_table() {
    let node = node_with_collections();
    let found: Vec<String> = GROUPS
        .iter()
        .map(|group| format!("{} {}", allowed(&node, group.name), key_of(group.name)).trim_end().to_owned())
        .collect();
    let written: Vec<&str> =
        TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    println!("{}\n{}", heading("groups of stats", &[&COLUMNS[..], &NARROW].concat()), found.join("\n"));
    assert_eq!(written, found, "what is right? the table now says:\n{}", found.join("\n"));
}

/// What each group tells a user, each stat as a line.
fn told(connection: &mut Connection) -> BTreeMap<&'static str, Vec<String>> {
    let line = |answer: protocol::ResponseView<'_>| {
        format!("{}={}", String::from_utf8_lossy(answer.key), String::from_utf8_lossy(answer.value))
    };
    let lines = |group: &'static str| {
        let mut lines = each(&ask(connection, group), line);
        // The asking itself locks vBuckets, and one turn in so many of it is measured.
        lines.retain(|line| !line.starts_with("stats:count=") && !line.starts_with("Stat_"));
        (group, lines)
    };
    // How long the asking itself took is no news of another bucket.
    GROUPS.iter().map(|group| group.name).filter(|name| *name != "stat-timings").map(lines).collect()
}

/// The groups that tell something else after clients have worked in another bucket.
fn changed_by_another_bucket(user: &str) -> Vec<&'static str> {
    let node = node_with_collections();
    let mut looking = connect_as(&node, user, COLLECTIONS);
    let before = told(&mut looking);
    let other = node.bucket("other").expect("there is one");
    let json =
        br#"{"uid":"1","scopes":[{"name":"_default","uid":"0","collections":[{"name":"_default","uid":"0"}]},
        {"name":"hidden","uid":"8","collections":[]}]}"#;
    other
        .collections()
        .set_manifest(vbucket::Manifest::parse(json).expect("a manifest"))
        .expect("a successor");
    let mut guest = connect_as(&node, "guest", FULL);
    for key in 0..100_u8 {
        feed(&mut guest, &[set(&[b'k', key], &[b'v'; 1000], 1), get(&[b'k', key], 2)].concat());
    }
    let after = told(&mut looking);
    let changed = before.into_iter().filter(|(group, told)| after[group] != *told);
    let name = |(group, told): (&'static str, Vec<String>)| {
        let other: Vec<_> = after[group].iter().filter(|line| !told.contains(line)).collect();
        println!("{user}: {group:?} now tells {other:?}");
        group
    };
    changed.map(name).collect()
}

#[test]
fn what_is_done_in_another_bucket_is_told_to_those_who_may_look_there() {
    for user in ["bucket-admin", "bucket_admin", "data_monitoring", "bucket_full_access", "narrow", "counts"]
    {
        assert_eq!(changed_by_another_bucket(user), [""; 0], "{user}");
    }
    // That the comparison can fail: users of all buckets are told.
    let seen = changed_by_another_bucket("admin");
    for group in ["aggregate", "responses"] {
        assert!(seen.contains(&group), "{group:?} is not among {seen:?}");
    }
}

/// What clients of all buckets sent is not in the main group of those who may look at one.
#[test]
fn the_main_group_tells_of_the_node_to_those_who_may_look_at_it() {
    let node = node();
    let has = |user, name: &str| {
        let lines = told(&mut connect_as(&node, user, FULL)).remove("").expect("the group");
        lines.iter().any(|line| line.split_once('=').is_some_and(|(stat, _)| stat == name))
    };
    for name in ["curr_connections", "total_connections", "bytes_read", "bytes_written"] {
        assert!(has("reader", name) && !has("bucket-admin", name), "{name}");
    }
    assert!(has("bucket-admin", "uptime") && has("bucket-admin", "curr_items"));
}

/// Times of commands are told of buckets whose counters the user may see.
#[test]
fn times_of_commands_are_told_by_bucket() {
    let node = node();
    let mut guest = connect_as(&node, "guest", FULL);
    // One turn in so many is measured.
    (0..crate::stats::timings::SAMPLED_TURNS).for_each(|_| drop(feed(&mut guest, &get(b"k", 0))));
    let ask = |user, key| {
        let extras = &[opcode::GET];
        let parts = RequestParts { opcode: opcode::GET_CMD_TIMER, extras, key, ..RequestParts::default() };
        let (answers, _) = feed(&mut connect_as(&node, user, FULL), &request(&parts));
        let told = |answer: protocol::ResponseView<'_>| {
            let times: serde_json::Value = serde_json::from_slice(answer.value).unwrap_or_default();
            (answer.status().expect("a status"), times["total"].as_u64())
        };
        each(&answers, told).remove(0)
    };
    let (allowed, denied) = (|total| (Status::Success, Some(total)), (Status::Eaccess, None));
    let all = allowed(crate::stats::timings::SAMPLED_TURNS);
    assert_eq!(ask("reader", b"other"), all, "it may count in all buckets");
    assert_eq!(ask("reader", b"/all/"), all);
    for user in ["bucket-admin", "data_monitoring", "bucket_full_access"] {
        assert_eq!(ask(user, b""), allowed(0), "{user}");
        assert_eq!(ask(user, b"default"), allowed(0), "{user}");
        assert_eq!(ask(user, b"/all/"), allowed(0), "{user}");
        assert_eq!(ask(user, b"other"), denied, "{user}");
        assert_eq!(ask(user, b"@no bucket@"), denied, "{user}");
    }
    // Some right in the bucket is not enough.
    assert_eq!(ask("data_reader", b"default"), denied);
    assert_eq!(ask("ro_admin", b"@no bucket@"), allowed(0));
}
