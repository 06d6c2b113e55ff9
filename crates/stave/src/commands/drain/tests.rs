//! The command against a node in the same process.

use base::env::Env;
use expect_test::expect;

use super::*;
use crate::test_server::{BUCKET, NOT_INTERRUPTED, TestServer};

fn flags(server: &TestServer) -> DrainFlags {
    DrainFlags {
        bucket: BUCKET.to_owned(),
        connections: 1,
        keys_only: false,
        quiet: true,
        json: false,
        node: server.flags(),
    }
}

#[test]
fn reads_everything_once_over_any_number_of_connections() {
    let mut server = TestServer::start();
    let env = Env::real();
    let nothing = drain(&env, &flags(&server), &NOT_INTERRUPTED).expect("an empty bucket");
    assert_eq!((nothing.mutations, nothing.vbuckets, nothing.bytes), (0, 0, 0));
    let mut client = server.client();
    for at in 0..300 {
        client.set(format!("k{at}").as_bytes(), &[b'x'; 1000], 0).expect("stored");
    }
    client.delete(b"k7").expect("there");
    // From memory, and after the restart from disk.
    for _ in 0..2 {
        for connections in [1, 3, 8] {
            let all =
                drain(&env, &DrainFlags { connections, ..flags(&server) }, &NOT_INTERRUPTED).expect("read");
            assert_eq!((all.mutations, all.deletions, all.vbuckets), (299, 1, 4));
            assert!(all.bytes > 299_000 && all.rollbacks == 0 && all.reconnects == 0, "{all:?}");
        }
        let keys =
            drain(&env, &DrainFlags { keys_only: true, ..flags(&server) }, &NOT_INTERRUPTED).expect("read");
        assert!(keys.mutations == 299 && keys.bytes < 50_000, "{keys:?}");
        server.restart();
    }
    server.stop();
}

#[test]
fn what_was_read_is_printed() {
    let summary = Summary {
        vbuckets: 4,
        mutations: 3_000_000,
        deletions: 5,
        others: 8,
        bytes: 2_000_000_000,
        connections: 2,
        seconds: 4.0,
        ..Summary::default()
    };
    expect![[r#"
        mutations             3,000,000
        deletions                     5
        other messages                8
        vBuckets                      4
        connections/node              2
        rollbacks                     0
        reconnects                    0
        bytes                  1.86 GiB
        seconds                    4.00
        items/s                 750,001
        MB/s                      500.0
    "#]]
    .assert_eq(&summary.table());
    let json: serde_json::Value = serde_json::from_str(&summary.json()).expect("JSON");
    assert_eq!((&json["mutations"], &json["mb_per_second"]), (&3_000_000.into(), &500.0.into()));
}
