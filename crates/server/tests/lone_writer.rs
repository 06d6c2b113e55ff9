//! A client that waits for one sync write at a time, alone on its worker, has the worker write it; nobody else does.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

mod support;

use protocol::feature::Feature;
use protocol::{RequestParts, Status, opcode, write_request};
use server::Server;
use support::{Client, start, vb};
use tempfile::TempDir;

/// Number and length of the frame info, and the level: on the disks of a majority.
const PERSIST: [u8; 2] = [0x11, 0x03];
/// The same in the memory of a majority.
const MAJORITY: [u8; 2] = [0x11, 0x01];
/// More than it takes until somebody is expected to go on writing alone.
const MANY: usize = 50;

fn durable_set<'a>(key: &'a [u8], value: &'a [u8], level: &'a [u8]) -> RequestParts<'a> {
    let vbucket = vb(key);
    RequestParts {
        opcode: opcode::SET,
        frame_infos: level,
        extras: &[0; 8],
        key,
        value,
        vbucket,
        ..RequestParts::default()
    }
}

fn set_frame(number: usize, level: &[u8]) -> Vec<u8> {
    let (key, value) = (format!("k{}", number % 7), number.to_string());
    let mut bytes = Vec::new();
    assert!(write_request(&mut bytes, &durable_set(key.as_bytes(), value.as_bytes(), level)));
    bytes
}

/// One after the other, each when the one before it was answered.
fn write(client: &mut Client, level: &[u8]) {
    for number in 0..MANY {
        client.send(&set_frame(number, level));
        assert_eq!(client.receive().status, Status::Success);
    }
}

fn stood_in(server: &Server) -> u64 {
    server.node().bucket("default").expect("it is served").flushing().save_stats().stood_in
}

fn on_one_worker(folder: &TempDir, test: impl FnOnce(&Server, Client)) {
    let server = start(folder.path(), "threads = 1\n");
    // Without that feature nothing is done while a write waits, whatever is asked for.
    let client = Client::connect(&server, "default", &[Feature::UnorderedExecution]);
    test(&server, client);
    server.stop().expect("a clean stop");
}

#[test]
fn who_is_alone_and_waits_for_one_sync_write_at_a_time_has_it_written_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    on_one_worker(&folder, |server, mut client| {
        // The flusher may have written first each time where the worker's thread seldom runs.
        let writes = (0..1_000).find(|_| {
            write(&mut client, &PERSIST);
            stood_in(server) > 0
        });
        assert!(writes.is_some(), "the worker writes none of {} itself", 1_000 * MANY);
    });
    on_one_worker(&folder, |_, mut client| {
        for number in MANY - 7..MANY {
            let found = client.get(format!("k{}", number % 7).as_bytes()).expect("an answer");
            assert_eq!(found.value, number.to_string().as_bytes());
        }
    });
}

#[test]
fn who_shares_the_worker_with_others_holds_nobody_up() {
    let folder = tempfile::tempdir().expect("a folder");
    on_one_worker(&folder, |server, mut client| {
        let mut other = Client::connect(server, "default", &[]);
        write(&mut client, &PERSIST);
        assert_eq!(stood_in(server), 0);
        assert_eq!(other.get(b"k0").expect("an answer").status, Status::Success);
    });
}

#[test]
fn who_does_something_else_as_well_holds_up_nothing_of_that() {
    let folder = tempfile::tempdir().expect("a folder");
    on_one_worker(&folder, |server, mut client| {
        write(&mut client, &MAJORITY);
        assert_eq!(stood_in(server), 0, "nobody waits for the disk");
        for number in 0..MANY {
            client.send(&set_frame(number, &PERSIST));
            assert_eq!(client.receive().status, Status::Success);
            assert_eq!(client.get(b"k0").expect("an answer").status, Status::Success);
        }
        assert_eq!(stood_in(server), 0, "reads and writes by turns");
        for number in 0..MANY {
            let two = [set_frame(2 * number, &PERSIST), set_frame(2 * number + 1, &PERSIST)].concat();
            client.send(&two);
            assert_eq!(client.receive().status, Status::Success);
            assert_eq!(client.receive().status, Status::Success);
        }
        assert_eq!(stood_in(server), 0, "two at once");
    });
}
