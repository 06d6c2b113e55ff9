//! The commands against two nodes in the same process.

use base::env::Env;

use super::*;
use crate::client::ClientError;
use crate::test_server::{BUCKET, NOT_INTERRUPTED, TestServer};

fn flags(from: &TestServer, to: &TestServer) -> Flags {
    let at = from.flags();
    Flags {
        from: at.addr,
        to: to.http_addr(),
        bucket: BUCKET.to_owned(),
        vbuckets: Some("0-3".to_owned()),
        username: at.username,
        password: at.password,
        from_password: None,
        from_password_file: None,
        timeout: Some(Duration::from_secs(60)),
        tls: Default::default(),
        quiet: true,
        json: false,
    }
}

#[test]
fn a_node_follows_until_it_has_caught_up_and_takes_over_then() {
    let (mut from, mut to) = (TestServer::start(), TestServer::start());
    let mut client = from.client();
    for at in 0..300 {
        client.set(format!("k{at}").as_bytes(), b"value", 0).expect("stored");
    }
    let (env, flags) = (Env::real(), flags(&from, &to));
    let done = replicate_until_caught_up(&env, &flags, &NOT_INTERRUPTED).expect("it follows");
    assert!(done.text(&flags).starts_with("4 vBuckets of default follow "), "{}", done.text(&flags));
    let json: Value = serde_json::from_str(&done.json(&flags)).expect("JSON");
    assert_eq!((&json["changes"], &json["vbuckets"]), (&300.into(), &4.into()));
    client.set(b"k0", b"later", 0).expect("stored");
    let done = move_over(&env, &flags, &NOT_INTERRUPTED).expect("they move");
    let json: Value = serde_json::from_str(&done.json(&flags)).expect("JSON");
    assert_eq!(json["vbuckets"], 4);
    assert!(json["blocked_total_us"].as_u64() > Some(0), "{json}");
    assert!(done.text(&flags).contains("writes to a vBucket were blocked for at most "));
    // The old node serves them no more, the new one does.
    assert!(matches!(client.set(b"k0", b"x", 0), Err(ClientError::Refused { status_code: 7, .. })));
    let mut moved = to.client();
    assert_eq!(moved.get(b"k0").expect("served").map(|found| found.value), Some(b"later".to_vec()));
    assert!((1..300).all(|at| moved.get(format!("k{at}").as_bytes()).expect("served").is_some()));
    to.stop();
    from.stop();
}

#[test]
fn what_cannot_be_is_said() {
    let (from, to) = (TestServer::start(), TestServer::start());
    to.client().set(b"mine", b"value", 0).expect("stored");
    let env = Env::real();
    let refused = |flags: &Flags| {
        replicate_until_caught_up(&env, flags, &NOT_INTERRUPTED).expect_err("refused").to_string()
    };
    let flags = flags(&from, &to);
    assert!(refused(&flags).contains("are active here and hold documents"), "{}", refused(&flags));
    assert!(refused(&Flags { vbuckets: Some("9".to_owned()), ..flags.clone() }).contains("the bucket has 4"));
    assert!(
        refused(&Flags { password: PasswordFlags::default(), ..flags.clone() })
            .contains("a password is needed")
    );
    assert!(refused(&Flags { bucket: "a/b".to_owned(), ..flags.clone() }).contains("no name of a bucket"));
    let wrong = Flags { password: PasswordFlags::of("wrong"), ..flags.clone() };
    assert!(refused(&wrong).contains("the password is another one"));
    // A source that lets nobody in: the command says so when it gives up.
    let other =
        Flags { from_password: Some("wrong".to_owned().into()), timeout: Some(Duration::ZERO), ..flags };
    let other = Flags { vbuckets: Some(vacant(&to)), ..other };
    assert!(refused(&other).starts_with("not done in time"), "{}", refused(&other));
}

/// A vBucket without the document that is there.
fn vacant(server: &TestServer) -> String {
    let used = base::vbucket_map::vbucket_of(b"mine", server.client().vbuckets());
    ((used.0 + 1) % 4).to_string()
}
