//! What any coordination store must do. Called by the tests of each store, here and above.

use std::time::Duration;

use super::{Commit, Put, Snapshot, Store, Swap, Swapped, Version};

/// A lease of the suite: the shortest that etcd grants is about two seconds.
const TTL: Duration = Duration::from_secs(3);

fn put<'a>(key: &'a str, value: &'a str, expected: Option<Version>) -> Swap<'a> {
    Swap { key, expected, value: Some(value.as_bytes()), lease: None }
}

fn version(swapped: Swapped) -> Version {
    match swapped {
        Swapped::Done(version) => version,
        other => panic!("{other:?} instead of a change"),
    }
}

fn value<'a>(snapshot: &'a Snapshot, key: &str) -> Option<&'a str> {
    snapshot.entries.get(key).map(|entry| std::str::from_utf8(&entry.value).expect("text"))
}

/// Runs all of it on an empty store. `pass` lets the time of leases pass.
///
/// # Panics
///
/// If the store does something else.
pub fn run(store: &dyn Store, pass: &dyn Fn(Duration)) {
    compare_and_swap(store);
    commits(store);
    following(store);
    waiting(store);
    leases(store, pass);
    renewed_lease(store, pass);
    revoked_lease(store);
}

fn compare_and_swap(store: &dyn Store) {
    let empty = store.read().expect("it answers");
    assert!(empty.entries.is_empty());
    let first = store.swap(put("state", "1", Some(Version::ABSENT))).expect("it answers");
    let first = version(first);
    assert!(first > empty.version, "versions rise");
    let again = store.swap(put("state", "2", Some(Version::ABSENT))).expect("it answers");
    assert_eq!(again, Swapped::Conflict, "it is there");
    let second = version(store.swap(put("state", "2", Some(first))).expect("it answers"));
    assert_eq!(store.swap(put("state", "3", Some(first))).expect("it answers"), Swapped::Conflict);
    let snapshot = store.read().expect("it answers");
    assert_eq!((value(&snapshot, "state"), snapshot.version_of("state")), (Some("2"), second));
    assert!(snapshot.version >= second && second > first);
    let removed = store.swap(Swap { value: None, ..put("state", "", Some(second)) }).expect("it answers");
    assert!(matches!(removed, Swapped::Done(_)));
    assert_eq!(store.read().expect("it answers").version_of("state"), Version::ABSENT);
    assert_eq!(store.swap(put("state", "4", Some(second))).expect("it answers"), Swapped::Conflict);
    version(store.swap(put("state", "\u{e9}\n\"", None)).expect("it answers"));
    assert_eq!(value(&store.read().expect("it answers"), "state"), Some("\u{e9}\n\""));
}

fn of(key: &str, value: Option<&str>) -> Put {
    Put { key: key.to_owned(), value: value.map(|value| value.as_bytes().to_vec()) }
}

fn commits(store: &dyn Store) {
    version(store.swap(put("state", "root", None)).expect("it answers"));
    let guard = |version| Some(("state", version));
    let before = store.version_of("state").expect("it answers");
    assert_eq!(before, store.read().expect("it answers").version_of("state"));
    assert_eq!(store.version_of("none").expect("it answers"), Version::ABSENT);
    let puts = [of("state", Some("next")), of("buckets/a", Some("1")), of("buckets/b", Some("2"))];
    let commit = |guard, puts| store.commit(Commit { guard, puts, lease: None }).expect("it answers");
    let done = version(commit(guard(before), &puts));
    let snapshot = store.read().expect("it answers");
    for (key, text) in [("state", "next"), ("buckets/a", "1"), ("buckets/b", "2")] {
        assert_eq!((value(&snapshot, key), snapshot.version_of(key)), (Some(text), done));
    }
    let others = [of("state", Some("late")), of("buckets/a", None)];
    assert_eq!(commit(guard(before), &others), Swapped::Conflict);
    assert_eq!(value(&store.read().expect("it answers"), "buckets/a"), Some("1"), "nothing of it was done");
    let last = [of("state", Some("last")), of("buckets/a", None)];
    version(commit(guard(done), &last));
    let snapshot = store.read().expect("it answers");
    assert_eq!((value(&snapshot, "state"), value(&snapshot, "buckets/a")), (Some("last"), None));
    // As many as there may be, and as large.
    let large = "x".repeat(crate::state::MAX_COMMIT_BYTES / crate::store::MAX_PUTS - 100);
    let names: Vec<String> = (0..crate::store::MAX_PUTS).map(|at| format!("many/{at}")).collect();
    let puts: Vec<Put> = names.iter().map(|name| of(name, Some(&large))).collect();
    version(commit(None, &puts));
    let there = store.read().expect("it answers");
    assert!(names.iter().all(|name| value(&there, name) == Some(large.as_str())));
    let gone: Vec<Put> = names.iter().map(|name| of(name, None)).collect();
    version(commit(None, &gone));
}

fn following(store: &dyn Store) {
    let mut known = store.read().expect("it answers");
    let mut version_of = known.version;
    let changes =
        [of("state", Some("followed")), of("buckets/b", None), of("other", Some("o")), of("other", None)];
    for change in changes {
        let commit = Commit { guard: None, puts: std::slice::from_ref(&change), lease: None };
        version_of = version(store.commit(commit).expect("it answers")).max(version_of);
        while known.version < version_of {
            known = store.follow(known, Duration::from_secs(3600)).expect("it answers");
        }
        assert_eq!(known.entries.get(&change.key).map(|entry| entry.value.clone()), change.value);
    }
    // What is there already is told, however short the time is: a node that looks often must not miss it each time.
    for text in ["1", "2", "3", "4", "5"] {
        let commit = Commit { guard: None, puts: &[of("often", Some(text))], lease: None };
        let written = version(store.commit(commit).expect("it answers"));
        // A machine that stands still may miss it now and then.
        for _ in 0..50 {
            if known.version < written {
                known = store.follow(known, Duration::from_millis(20)).expect("it answers");
            }
        }
        assert_eq!((known.version, value(&known, "often")), (written, Some(text)));
    }
    let read = store.read().expect("it answers");
    assert_eq!(known.entries, read.entries);
    let known = store.follow(read, Duration::from_millis(1)).expect("the time ends");
    // One that is of a later time than the store knows, as after a restore, is not waited for.
    let later = Snapshot { version: Version(known.version.0 + 1_000), ..Snapshot::default() };
    let found = store.follow(later, Duration::from_millis(200)).expect("it answers");
    assert_eq!(found.entries, known.entries);
}

fn waiting(store: &dyn Store) {
    let before = store.read().expect("it answers").version;
    version(store.swap(put("state", "5", None)).expect("it answers"));
    // There is something after that version already: this must not wait.
    store.wait(before, Duration::from_secs(3600)).expect("it answers");
    let now = store.read().expect("it answers").version;
    // However short the time is: that it ends is no failure of the store.
    store.wait(now, Duration::from_nanos(1)).expect("the time ends");
}

fn leases(store: &dyn Store, pass: &dyn Fn(Duration)) {
    let lease = store.grant(TTL).expect("it answers");
    let bound = Swap { lease: Some(lease), ..put("members/a", "here", None) };
    version(store.swap(bound).expect("it answers"));
    assert_eq!(value(&store.read().expect("it answers"), "members/a"), Some("here"));
    let before = store.read().expect("it answers").version;
    pass(TTL * 3);
    let after = store.read().expect("it answers");
    assert_eq!(value(&after, "members/a"), None, "it went with its lease");
    assert!(value(&after, "state").is_some(), "what is not under a lease stays");
    assert!(after.version > before, "that is a change");
    assert!(!store.keep_alive(lease).expect("it answers"));
    assert_eq!(store.swap(bound).expect("it answers"), Swapped::NoLease);
}

fn renewed_lease(store: &dyn Store, pass: &dyn Fn(Duration)) {
    let ttl = TTL * 2;
    let lease = store.grant(ttl).expect("it answers");
    version(store.swap(Swap { lease: Some(lease), ..put("members/b", "1", None) }).expect("it answers"));
    // Soon enough for a machine that stands still for some seconds.
    for _ in 0..4 {
        pass(ttl / 3);
        assert!(store.keep_alive(lease).expect("it answers"));
    }
    assert_eq!(value(&store.read().expect("it answers"), "members/b"), Some("1"));
    // An entry that is bound anew does not go with its old lease.
    let other = store.grant(TTL * 100).expect("it answers");
    version(store.swap(Swap { lease: Some(other), ..put("members/b", "2", None) }).expect("it answers"));
    store.revoke(lease).expect("it answers");
    assert_eq!(value(&store.read().expect("it answers"), "members/b"), Some("2"));
    store.revoke(other).expect("it answers");
}

fn revoked_lease(store: &dyn Store) {
    let lease = store.grant(TTL).expect("it answers");
    version(store.swap(Swap { lease: Some(lease), ..put("members/c", "1", None) }).expect("it answers"));
    store.revoke(lease).expect("it answers");
    assert_eq!(value(&store.read().expect("it answers"), "members/c"), None);
    store.revoke(lease).expect("it has run out, which is fine");
    assert!(!store.keep_alive(lease).expect("it answers"));
}
