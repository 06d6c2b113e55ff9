//! What any coordination store must do. Called by the tests of each store, here and above.

use std::time::Duration;

use super::{Snapshot, Store, Swap, Swapped, Version};

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

fn waiting(store: &dyn Store) {
    let before = store.read().expect("it answers").version;
    version(store.swap(put("state", "5", None)).expect("it answers"));
    // There is something after that version already: this must not wait.
    store.wait(before, Duration::from_secs(3600)).expect("it answers");
    let now = store.read().expect("it answers").version;
    store.wait(now, Duration::from_millis(1)).expect("the time ends");
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
    let lease = store.grant(TTL).expect("it answers");
    version(store.swap(Swap { lease: Some(lease), ..put("members/b", "1", None) }).expect("it answers"));
    for _ in 0..3 {
        pass(TTL / 2);
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
