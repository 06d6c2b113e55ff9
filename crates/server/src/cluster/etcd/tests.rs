//! The store against a real etcd.

#[path = "../../../tests/support/etcd.rs"]
mod support;

use support::{Etcd, free_addr};

use super::*;

#[test]
fn does_what_a_store_must() {
    let etcd = Etcd::start();
    let address = EtcdAddress::parse(&format!("etcd://127.0.0.1:1,{}/test", etcd.addr)).expect("an address");
    let store = EtcdStore::new(Env::real(), &address);
    let env = Env::real();
    let pass = |by: Duration| {
        // Its leases go by real time: this waits for a change that nobody makes.
        let end = env.clock.monotonic() + by;
        while env.clock.monotonic() < end {
            let left = end.saturating_sub(env.clock.monotonic());
            store.wait(Version(u64::from(u32::MAX)), left).expect("it answers");
        }
    };
    ::cluster::store::suite::run(&store, &pass);
    store.wait(Version(u64::from(u32::MAX)), Duration::ZERO).expect("who waits for no time is not kept");
}

#[test]
fn nobody_there_is_a_failure() {
    let address = EtcdAddress::parse(&format!("etcd://{}/test", free_addr())).expect("an address");
    let store = EtcdStore::new(Env::real(), &address);
    assert!(store.read().is_err() && store.grant(Duration::from_secs(1)).is_err());
}

#[test]
fn addresses() {
    let address = EtcdAddress::parse("etcd://a:1,b:2/prod").expect("valid");
    assert_eq!((address.endpoints.len(), address.cluster.as_str()), (2, "prod"));
    for wrong in ["a:1/prod", "etcd://a/prod", "etcd://a:1", "etcd://a:1/", "etcd://:1/x", "etcd://a:1/x/y"] {
        assert!(EtcdAddress::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn etcd_may_come_and_go() {
    let mut etcd = Etcd::start();
    let address = EtcdAddress::parse(&format!("etcd://{}/test", etcd.addr)).expect("an address");
    let store = EtcdStore::new(Env::real(), &address);
    let swap = Swap { key: "a", expected: Some(Version::ABSENT), value: Some(b"1"), lease: None };
    let swapped = store.swap(swap).expect("it answers");
    etcd.kill();
    assert!(store.read().is_err());
    etcd.start_again();
    let snapshot = store.read().expect("it answers again");
    assert_eq!(Swapped::Done(snapshot.version_of("a")), swapped);
    assert_eq!(store.swap(swap).expect("it answers"), Swapped::Conflict);
}
