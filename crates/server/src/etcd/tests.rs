//! The store against a real etcd.

#[path = "../../tests/support/etcd.rs"]
mod support;

use support::{Certificates, Etcd, free_addr};

use super::*;

/// etcd hashes a password, or syncs a large change, within this on any machine.
const PATIENT: Duration = Duration::from_secs(60);

/// With more time for each answer than a node has.
fn patient(address: &EtcdAddress, access: EtcdAccess) -> EtcdStore {
    EtcdStore { timeout: PATIENT, ..EtcdStore::new(Env::real(), address, access) }
}

#[test]
fn does_what_a_store_must() {
    let etcd = Etcd::start();
    let address = EtcdAddress::parse(&format!("etcd://127.0.0.1:1,{}/test", etcd.addr)).expect("an address");
    let store = patient(&address, EtcdAccess::default());
    passes(&store);
    store.wait(Version(u64::from(u32::MAX)), Duration::ZERO).expect("who waits for no time is not kept");
}

#[test]
fn nobody_there_is_a_failure() {
    let address = EtcdAddress::parse(&format!("etcd://{}/test", free_addr())).expect("an address");
    let store = patient(&address, EtcdAccess::default());
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
    let store = patient(&address, EtcdAccess::default());
    let swap = Swap { key: "a", expected: Some(Version::ABSENT), value: Some(b"1"), lease: None };
    let swapped = store.swap(swap).expect("it answers");
    etcd.kill();
    assert!(store.read().is_err());
    etcd.start_again();
    let snapshot = store.read().expect("it answers again");
    assert_eq!(Swapped::Done(snapshot.version_of("a")), swapped);
    assert_eq!(store.swap(swap).expect("it answers"), Swapped::Conflict);
}

fn tls(of: &Certificates) -> EtcdTls {
    let (certificate, key) = (of.read("client.pem"), of.read("client-key.pem"));
    EtcdTls::new(&of.read("ca.pem"), Some((&certificate, &key))).expect("certificates")
}

fn user(name: &str, password: &str) -> Option<EtcdUser> {
    Some(EtcdUser { name: name.to_owned(), password: password.to_owned() })
}

fn store_at(etcd: &Etcd, access: EtcdAccess) -> EtcdStore {
    let address = EtcdAddress::parse(&format!("etcd://{}/test", etcd.addr)).expect("an address");
    patient(&address, access)
}

/// As an administrator would do it with `etcdctl`: a user who may use this cluster's keys and no others, and everybody
/// has to log in.
fn switch_login_on(etcd: &Etcd, tls: Option<EtcdTls>) {
    let admin = store_at(etcd, EtcdAccess { user: None, tls });
    let permission = json!({
        "permType": "READWRITE", "key": admin.key(""), "range_end": admin.range_end(),
    });
    for (path, body) in [
        ("user/add", json!({ "name": "root", "password": "secret0" })),
        ("role/add", json!({ "name": "root" })),
        ("user/grant", json!({ "user": "root", "role": "root" })),
        ("user/add", json!({ "name": "stave", "password": "secret1" })),
        ("role/add", json!({ "name": "stave" })),
        ("role/grant", json!({ "name": "stave", "perm": permission })),
        ("user/grant", json!({ "user": "stave", "role": "stave" })),
        ("enable", json!({})),
    ] {
        admin.ask("set up", &format!("/v3/auth/{path}"), &body).expect(path);
    }
}

fn passes(store: &EtcdStore) {
    let env = Env::real();
    let pass = |by: Duration| {
        // Its leases go by real time: this waits for a change that nobody makes.
        let end = env.clock.monotonic() + by;
        while env.clock.monotonic() < end {
            let left = end.saturating_sub(env.clock.monotonic());
            store.wait(Version(u64::from(u32::MAX)), left).expect("it answers");
        }
    };
    ::cluster::store::suite::run(store, &pass);
}

#[test]
fn whoever_logs_in_is_let_in() {
    let mut etcd = Etcd::start();
    switch_login_on(&etcd, None);
    let store = store_at(&etcd, EtcdAccess { user: user("stave", "secret1"), tls: None });
    passes(&store);
    // Tokens are forgotten with the process that gave them.
    etcd.kill();
    etcd.start_again();
    assert!(store.read().is_ok());
    let why =
        |user| store_at(&etcd, EtcdAccess { user, tls: None }).read().map(drop).expect_err("refused").reason;
    let nobody = why(None);
    assert!(nobody.contains("user name is empty") && nobody.contains("--etcd-user"), "{nobody}");
    let wrong = why(user("stave", "secret2"));
    assert!(wrong.contains("user \"stave\" cannot log in") && !wrong.contains("secret2"), "{wrong}");
}

#[test]
fn a_grant_that_is_missing_is_named() {
    let etcd = Etcd::start();
    switch_login_on(&etcd, None);
    let store = store_at(&etcd, EtcdAccess { user: user("stave", "secret1"), tls: None });
    let users = store.sibling("users").expect("it answers").expect("there is one");
    let grant = "etcdctl role grant-permission ROLE readwrite --prefix /stave/test:users/";
    let why = users.read().map(drop).expect_err("refused").reason;
    assert!(why.contains("permission denied") && why.contains("user stave") && why.contains(grant), "{why}");
    let swap = Swap { key: "a", expected: None, value: Some(b"1"), lease: None };
    let why = users.swap(swap).expect_err("refused").reason;
    assert!(why.contains(grant), "{why}");
    assert!(store.read().is_ok(), "the cluster's own entries are not touched by that");
}

#[test]
fn where_nobody_has_to_log_in_a_user_is_no_hindrance() {
    let etcd = Etcd::start();
    assert!(store_at(&etcd, EtcdAccess { user: user("stave", "secret1"), tls: None }).read().is_ok());
}

#[test]
fn speaks_tls_with_whoever_has_the_right_certificate() {
    let etcd = Etcd::start_with_tls();
    let tls = tls(etcd.certificates());
    switch_login_on(&etcd, Some(tls.clone()));
    passes(&store_at(&etcd, EtcdAccess { user: user("stave", "secret1"), tls: Some(tls.clone()) }));
    a_silent_end_does_not_keep_a_watch(&etcd, EtcdAccess { user: user("stave", "secret1"), tls: Some(tls) });

    let why =
        |tls| store_at(&etcd, EtcdAccess { user: None, tls }).read().map(drop).expect_err("refused").reason;
    let plain = why(None);
    assert!(plain.contains("--etcd-ca"), "{plain}");
    // Another CA: this is not the etcd that it should be.
    let stranger = why(Some(self::tls(&Certificates::make())));
    assert!(stranger.contains("UnknownIssuer") || stranger.contains("BadSignature"), "{stranger}");
    // Nobody who shows no certificate is answered.
    why(Some(EtcdTls::new(&etcd.certificates().read("ca.pem"), None).expect("certificates")));
}

/// One that takes connections and says no word is given up for the next one, long before the watch is to end.
fn a_silent_end_does_not_keep_a_watch(etcd: &Etcd, access: EtcdAccess) {
    let silent = Env::real().network.listen(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
    let addr = silent.local_addr().expect("it has one");
    let known = store_at(etcd, access.clone());
    let now = known.read().expect("it answers").version;

    let address = EtcdAddress::parse(&format!("etcd://{addr},{}/test", etcd.addr)).expect("an address");
    let timeout = Duration::from_secs(5);
    let store = EtcdStore { timeout, ..EtcdStore::new(Env::real(), &address, access) };
    // Who has a token asks for nothing else first.
    store.way.keep_token(&store.way.access(), known.way.token().as_deref());
    store.wait(Version(now.0 - 1), Duration::from_secs(3600)).expect("the other one answers");
    assert_eq!(store.current.load(Ordering::Relaxed), 1, "the one that answers is asked first from now on");
}

/// etcd has a certificate of another CA by now: the store goes on once it has been given that.
#[test]
fn another_ca_counts_without_another_start() {
    let etcd = Etcd::start_with_tls();
    let right = tls(etcd.certificates());
    let wrong = self::tls(&Certificates::make());
    let store = store_at(&etcd, EtcdAccess { user: None, tls: Some(wrong) });
    let users = store.sibling("users").expect("it answers").expect("there is one");
    assert!(store.read().is_err() && users.read().is_err());
    assert_eq!(store.fault(), Some(super::access::NOT_TRUSTED));
    store.change_access(EtcdAccess { user: None, tls: Some(right) });
    assert!(store.read().is_ok() && users.read().is_ok(), "those beside it, too");
    assert_eq!((store.fault(), users.fault()), (None, None));
}

#[test]
fn another_password_counts_without_another_start() {
    let etcd = Etcd::start();
    switch_login_on(&etcd, None);
    let store = store_at(&etcd, EtcdAccess { user: user("stave", "secret2"), tls: None });
    assert!(store.read().is_err());
    assert_eq!(store.fault(), Some(super::access::LOGIN_REFUSED));
    store.change_access(EtcdAccess { user: user("stave", "secret1"), tls: None });
    assert!(store.read().is_ok());
    assert_eq!(store.fault(), None);
}
