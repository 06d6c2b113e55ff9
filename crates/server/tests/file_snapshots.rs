//! Snapshots by file over real sockets: a client copies the file of a vBucket while others write.
#![allow(clippy::disallowed_methods, reason = "this is a client, and looks at the disk beside the server")]

mod support;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{Datatype, VbId};
use protocol::{RequestParts, Status, opcode};
use serde_json::{Value, json};
use support::{Client, Frame, http, start, vb};

const VB0: VbId = VbId(0);

/// The keys of vBucket 0 among some.
fn keys() -> impl Iterator<Item = String> {
    (0..).map(|n| format!("k{n:05}")).filter(|key| vb(key.as_bytes()) == VB0)
}

/// Stores a document, and waits until it is on the disk.
fn store(client: &mut Client, key: &str, value: &[u8]) {
    let (key, persist_to_majority) = (key.as_bytes(), [0x11, 0x03]);
    let (extras, frame_infos, vbucket) = (&[0; 8], &persist_to_majority, vb(key));
    let parts = RequestParts { opcode: opcode::SET, key, value, extras, vbucket, ..RequestParts::default() };
    assert_eq!(client.request(&RequestParts { frame_infos, ..parts }).status, Status::Success);
}

fn connect(server: &impl support::Reach) -> Client {
    Client::connect(server, "default", &[])
}

fn prepare(client: &mut Client, value: &str) -> Frame {
    let (opcode, datatype) = (opcode::PREPARE_SNAPSHOT, Datatype::JSON.0);
    let value = value.as_bytes();
    client.request(&RequestParts { opcode, value, datatype, vbucket: VB0, ..RequestParts::default() })
}

fn release(client: &mut Client, uuid: &str) -> Status {
    let (opcode, key) = (opcode::RELEASE_SNAPSHOT, uuid.as_bytes());
    client.request(&RequestParts { opcode, key, vbucket: VB0, ..RequestParts::default() }).status
}

fn fragment(client: &mut Client, uuid: &str, value: &Value) -> Frame {
    let (opcode, key, value) = (opcode::GET_FILE_FRAGMENT, uuid.as_bytes(), value.to_string());
    let (value, datatype) = (value.as_bytes(), Datatype::JSON.0);
    client.request(&RequestParts { opcode, key, value, datatype, vbucket: VB0, ..RequestParts::default() })
}

/// Which snapshot, and how long its file is.
fn parts_of(manifest: &Value) -> (String, u64) {
    let size = manifest["files"][0]["size"].as_str().expect("text").parse().expect("a number");
    (manifest["uuid"].as_str().expect("text").to_owned(), size)
}

/// All of the file, in fragments of some bytes, with checksums.
fn download(client: &mut Client, manifest: &Value, length: u64) -> Vec<u8> {
    let (uuid, size) = parts_of(manifest);
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < size {
        let length = length.min(size - bytes.len() as u64);
        let wanted = json!({
            "id": 1, "offset": bytes.len().to_string(), "length": length.to_string(), "checksum_length": "1000",
        });
        let answer = fragment(client, &uuid, &wanted);
        assert_eq!(answer.status, Status::Success, "{wanted}");
        let before = bytes.len() as u64;
        for part in answer.value.chunks(1004) {
            let (part, checksum) = part.split_last_chunk::<4>().expect("a checksum");
            assert_eq!(u32::from_be_bytes(*checksum), crc32c(part));
            bytes.extend_from_slice(part);
        }
        assert_eq!(bytes.len() as u64 - before, length);
    }
    bytes
}

fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8)
            .fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & (0u32.wrapping_sub(crc & 1))))
    };
    !bytes.iter().fold(!0, step)
}

fn file_names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("it is there");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("read").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The folder that has the files of the bucket.
fn folder_of(folder: &Path, name: &str) -> std::path::PathBuf {
    let mut waiting = vec![folder.to_owned()];
    while let Some(next) = waiting.pop() {
        if next.join(name).exists() {
            return next;
        }
        let entries = std::fs::read_dir(&next).expect("it is there").map(|entry| entry.expect("read").path());
        waiting.extend(entries.filter(|path| path.is_dir()));
    }
    panic!("there is no file {name}");
}

#[test]
fn a_file_is_copied_while_others_write_and_compact() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "buckets = [\"default:256MiB\"]");
    let mut client = connect(&server);
    for key in keys().take(300) {
        store(&mut client, &key, key.repeat(20).as_bytes());
    }
    let answer = prepare(&mut client, r#"{"storage":{"backend":"couchstore","max_version":14}}"#);
    assert_eq!(answer.status, Status::Success, "{}", String::from_utf8_lossy(&answer.value));
    let manifest = answer.json();
    let name = manifest["files"][0]["path"].as_str().expect("text").to_owned();
    assert_eq!(
        (&manifest["vbid"], &manifest["deks"], &manifest["storage"]),
        (&json!(0), &json!([]), &json!({"backend": "couchstore", "version": 13}))
    );
    let (uuid, size) = parts_of(&manifest);
    assert!(uuid.len() == 36 && size > 30_000, "{manifest}");
    let dir = folder_of(folder.path(), &name);
    let on_disk = std::fs::read(dir.join(&name)).expect("it is there")[..size as usize].to_vec();
    let (is_over, addrs) = (AtomicBool::new(false), (server.kv_addr(), server.http_addr()));
    let copied = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut other = connect(&addrs);
            let mut keys = keys().cycle_over(40);
            while !is_over.load(Ordering::Relaxed) {
                store(&mut other, &keys.next().expect("endless"), b"written meanwhile");
            }
        });
        let copied = download(&mut client, &manifest, 7000);
        let compact =
            RequestParts { opcode: opcode::COMPACT_DB, extras: &[0; 24], vbucket: VB0, ..Default::default() };
        assert_eq!(client.request(&compact).status, Status::Success);
        let again = download(&mut client, &manifest, 1 << 20);
        is_over.store(true, Ordering::Relaxed);
        assert!(again == copied, "a compaction changes nothing");
        copied
    });
    assert!(copied == on_disk, "it is the file as it was");
    assert!(!dir.join(&name).exists(), "the compaction has replaced it");
    assert_eq!(client.stat("snapshot-details", "vb_0:uuid"), uuid);
    assert_eq!(client.stat("snapshot-details", "vb_0:read_bytes"), (2 * size).to_string());
    assert_eq!(prepare(&mut client, "{}").json(), manifest, "a vBucket has one snapshot");
    assert_eq!(release(&mut client, ""), Status::Success);
    assert_eq!(client.stat("snapshot-details", "vb_0:uuid"), "");
    assert_eq!(file_names(&dir).iter().filter(|name| name.starts_with("0.couch")).count(), 1);
}

/// Some keys again and again.
trait CycleOver: Iterator<Item = String> + Sized {
    fn cycle_over(self, count: usize) -> std::iter::Cycle<std::vec::IntoIter<String>> {
        self.take(count).collect::<Vec<_>>().into_iter().cycle()
    }
}

impl<I: Iterator<Item = String>> CycleOver for I {}

#[test]
fn what_is_wrong_is_refused_and_what_is_gone_is_not_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let more = "buckets = [\"default:256MiB\", \"log:256MiB:magma\", \"memory:256MiB:ephemeral\"]";
    let server = start(folder.path(), more);
    let mut client = connect(&server);
    store(&mut client, &keys().next().expect("one"), b"value");
    for (wanted, status) in [
        (r#"{"storage":{"backend":"magma"}}"#, Status::NotSupported),
        (r#"{"storage":{"backend":"couchstore","max_version":12}}"#, Status::NotSupported),
        (r#"{"storage":{"max_version":"x"}}"#, Status::Einval),
        ("[]", Status::Einval),
        ("", Status::Einval),
        (r#"{"storage":{"backend":"couchstore","max_version":0}}"#, Status::Success),
    ] {
        assert_eq!(prepare(&mut client, wanted).status, status, "{wanted}");
        // What is refused leaves nothing that is kept open.
        let kept = if status == Status::Success { Status::Success } else { Status::KeyEnoent };
        assert_eq!(release(&mut client, ""), kept, "{wanted}");
    }
    for bucket in ["log", "memory"] {
        let mut other = Client::connect(&server, bucket, &[]);
        assert_eq!(prepare(&mut other, "{}").status, Status::NotSupported, "{bucket}");
        let source = json!({
            "bucket": "default", "host": "127.0.0.1", "port": 1, "sasl": { "username": "u", "password": "p" },
        });
        let (source, opcode, datatype) = (source.to_string(), opcode::DOWNLOAD_SNAPSHOT, Datatype::JSON.0);
        let parts = RequestParts { opcode, value: source.as_bytes(), datatype, ..RequestParts::default() };
        assert_eq!(other.request(&parts).status, Status::NotSupported, "{bucket}");
    }
    let (uuid, size) = parts_of(&prepare(&mut client, "{}").json());
    let mut ask = |uuid: &str, id: u64, offset: u64, length: u64| {
        let wanted = json!({"id": id, "offset": offset.to_string(), "length": length.to_string()});
        let answer = fragment(&mut client, uuid, &wanted);
        (answer.status, answer.value.len() as u64)
    };
    assert_eq!(ask(&uuid, 1, size - 10, 10), (Status::Success, 10));
    assert_eq!(ask(&uuid, 1, 0, size), (Status::Success, size));
    for (offset, length) in [(size - 10, 11), (size, 1), (u64::MAX, 1), (0, 0)] {
        assert_eq!(ask(&uuid, 1, offset, length).0, Status::Einval, "{offset} {length}");
    }
    assert_eq!(ask(&uuid, 2, 0, 1).0, Status::KeyEnoent);
    assert_eq!(ask("f7970e20-ca1b-4059-8542-3196e93f6927", 1, 0, 1).0, Status::KeyEnoent);
    assert_eq!(ask("no uuid", 1, 0, 1).0, Status::KeyEnoent);
    let of_number = fragment(&mut client, &uuid, &json!({"id": 1, "offset": 0, "length": "1"}));
    assert_eq!(of_number.status, Status::Einval);
    assert_eq!(release(&mut client, "no uuid"), Status::KeyEnoent);
    assert_eq!(release(&mut client, &uuid), Status::Success);
    assert_eq!(release(&mut client, ""), Status::KeyEnoent);
    let (opcode, datatype) = (opcode::DOWNLOAD_SNAPSHOT, Datatype::JSON.0);
    let download = RequestParts { opcode, value: b"{}", datatype, vbucket: VB0, ..RequestParts::default() };
    assert_eq!(client.request(&download).status, Status::Einval, "it does not say from where");
}

#[test]
fn a_snapshot_ends_with_its_bucket_and_with_its_node() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = "buckets = [\"default:256MiB\", \"other:256MiB\"]";
    let server = start(folder.path(), config);
    let mut client = connect(&server);
    store(&mut client, &keys().next().expect("one"), b"value");
    let manifest = prepare(&mut client, "{}").json();
    let name = manifest["files"][0]["path"].as_str().expect("text");
    let dir = folder_of(folder.path(), name);
    let before = file_names(&dir);
    // Nothing that a crash could leave behind is in the folder.
    assert_eq!(before.iter().filter(|name| name.contains("0.couch")).collect::<Vec<_>>(), [name]);
    drop(client);
    server.stop().expect("it stops");
    let server = start(folder.path(), config);
    let mut client = connect(&server);
    let (uuid, _) = parts_of(&manifest);
    let wanted = json!({"id": 1, "offset": "0", "length": "1"});
    assert_eq!(fragment(&mut client, &uuid, &wanted).status, Status::KeyEnoent, "it was of the node before");
    let (uuid, _) = parts_of(&prepare(&mut client, "{}").json());
    let (status, said) = http(&server, "DELETE", "/pools/default/buckets/default", "");
    assert_eq!(status, 200, "{said}");
    // The connection ends with its bucket; another bucket knows nothing of the snapshot.
    let mut other = Client::connect(&server, "other", &[]);
    assert_eq!(fragment(&mut other, &uuid, &wanted).status, Status::KeyEnoent);
    server.stop().expect("it stops");
    assert!(!dir.exists(), "nothing is left of the bucket");
}
