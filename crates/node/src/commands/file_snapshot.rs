//! Snapshots by file: a client copies the file of a vBucket in fragments while the node goes on (docs/adr/0167), or has the
//! node copy one from another node (docs/adr/0181).

use std::sync::{Arc, Weak};

use engine::{Bucket, FileSnapshotFigures, FileSnapshotRefusal, completion};
use protocol::{Request, Status, uuid};
use serde_json::{Value, json};

use crate::context::{Context, LaterReply, LaterValue, Outcome};
use crate::node::Node;
use crate::replication::Password;
use crate::replication::download::{Download, DownloadBucket, DownloadCharge};
use crate::reply::Answer;

/// A fragment has no more bytes than this, and its checksums.
const MOST_BYTES: u64 = 20 << 20;
/// And no more parts with checksums.
const MOST_PARTS: u64 = 1 << 16;
/// The largest description of a request.
const MOST_JSON_BYTES: usize = 64 << 10;
/// A snapshot has one file.
const FILE_ID: u64 = 1;
/// Bytes of a checksum.
const CHECKSUM_BYTES: usize = 4;
/// What the field calls the store that a file is of.
const BACKEND: &str = "couchstore";

/// Prepare snapshot: answers with what the snapshot has. That of the vBucket, if there is one.
pub fn prepare(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    if request.datatype != base::Datatype::JSON.0 {
        return cx.invalid("Datatype must be JSON");
    }
    let Some(wanted) = object_of(request.value) else {
        return cx.invalid("The value must be a JSON object");
    };
    let storage = wanted.get("storage").cloned().unwrap_or_default();
    let most_version = match &storage["max_version"] {
        Value::Null => None,
        version => match version.as_u64() {
            Some(0) => None,
            Some(version) => Some(version),
            None => return cx.invalid("max_version must be a number"),
        },
    };
    if storage.get("backend").is_some_and(|backend| backend != BACKEND) {
        return cx.error(Status::NotSupported, "the files of a snapshot are couchstore files");
    }
    let bucket = cx.bucket();
    let snapshot = match bucket.file_snapshots().prepare(cx.vbucket, most_version, &cx.session.reader) {
        Ok(snapshot) => snapshot,
        Err(refusal) => return refuse(cx, refusal),
    };
    cx.reply.json(Status::Success, manifest(&snapshot).to_string().as_bytes());
    Outcome::Done
}

/// Release snapshot: that of the vBucket, or the one whose UUID is the key. It ends unless another client that asked for it
/// is connected still.
pub fn release(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let bucket = cx.bucket();
    let snapshots = bucket.file_snapshots();
    let released = match (request.key.is_empty(), id_of(request.key)) {
        (true, _) => snapshots.release(cx.vbucket, &cx.session.reader),
        (false, Some(id)) => snapshots.release_by_id(id, &cx.session.reader),
        (false, None) => Err(FileSnapshotRefusal::Unknown),
    };
    match released {
        Ok(()) => cx.status(Status::Success),
        Err(refusal) => refuse(cx, refusal),
    }
}

/// Get file fragment: answers with bytes of a file, with a CRC-32C behind each part of them if that is wanted.
pub fn fragment(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let wanted = match Fragment::parse(request.value) {
        Ok(wanted) => wanted,
        Err(what) => return cx.invalid(what),
    };
    let Some(id) = id_of(request.key).filter(|_| wanted.file == FILE_ID) else {
        return cx.status(Status::KeyEnoent);
    };
    let bucket = cx.bucket();
    let snapshots = bucket.file_snapshots();
    let len = match snapshots.len(id) {
        Ok(len) => len,
        Err(refusal) => return refuse(cx, refusal),
    };
    if wanted.offset.checked_add(wanted.length).is_none_or(|end| end > len) {
        return refuse(cx, FileSnapshotRefusal::OutOfRange);
    }
    if !cx.reply.has_room(wanted.answer_bytes()) {
        return cx.status(Status::Etmpfail);
    }
    let mut bytes = vec![0; wanted.answer_bytes()];
    let mut offset = wanted.offset;
    // The bytes of a part, and its checksum.
    for part in bytes.chunks_mut(wanted.part_bytes + wanted.checksum_bytes()) {
        let (part, checksum) = part.split_at_mut(part.len() - wanted.checksum_bytes());
        if let Err(refusal) = snapshots.read(id, part, offset) {
            return refuse(cx, refusal);
        }
        if !checksum.is_empty() {
            checksum.copy_from_slice(&crc32c::crc32c(part).to_be_bytes());
        }
        offset += part.len() as u64;
    }
    cx.reply.send_made(&Answer::default(), bytes, 0);
    Outcome::Done
}

/// Bytes that a download asks for and writes at once, and after which it makes them durable, if the client does not say.
const WRITE_BYTES: u64 = 1 << 20;
const FSYNC_BYTES: u64 = 50 << 20;

/// Download snapshot: copies the file of a vBucket from another node; answers when it is here, or why it is not.
pub fn download(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let wanted = match WantedDownload::parse(request.value) {
        Ok(wanted) => wanted,
        Err(what) => return cx.invalid(what),
    };
    let links = &cx.node.doors().links;
    if wanted.has_tls && !links.is_encrypted() {
        return cx.error(Status::NotSupported, "This node has no tls-ca for connections to other nodes");
    }
    let bucket = cx.bucket();
    let into = match bucket.file_snapshots().incoming(cx.vbucket) {
        Ok(into) => into,
        Err(refusal) => return refuse(cx, refusal),
    };
    let Some(place) = cx.node.replication().downloads().take() else {
        return cx.error(Status::Etmpfail, "As many files come from other nodes as may at the same time");
    };
    let memory = bucket.memory();
    let charge = DownloadCharge::of(memory.account(), wanted.write_bytes);
    if !memory.admits(memory.held_bytes()) {
        return cx
            .error(Status::Etmpfail, "There is no room in memory for a fragment: give a smaller write_size");
    }
    let target = Target { node: Arc::downgrade(cx.node), bucket: Arc::downgrade(&bucket) };
    let (done, outcome) = completion();
    let download = Download {
        target: Box::new(target),
        charge,
        place,
        env: bucket.env().clone(),
        node: wanted.node,
        bucket: wanted.bucket,
        username: wanted.username,
        password: wanted.password,
        vb: cx.vbucket,
        vbuckets: bucket.vbuckets(),
        into,
        write_bytes: wanted.write_bytes,
        fsync_bytes: wanted.fsync_bytes,
        most_bytes_per_s: 0,
        received: Arc::default(),
        fails_fast: wanted.fails_fast,
        done,
    };
    if let Err(error) = links.download(bucket.env(), download) {
        return cx.error(Status::Etmpfail, &error.to_string());
    }
    Outcome::Later(Box::pin(async move {
        match outcome.await {
            Some(Ok(_)) => LaterReply::status(Status::Success),
            Some(Err(failure)) => {
                let json = json!({ "error": { "context": failure.to_string() } }).to_string();
                let value = LaterValue::Json(json.into_bytes());
                LaterReply { value, ..LaterReply::status(failure.status()) }
            }
            None => LaterReply::status(Status::Etmpfail),
        }
    }))
}

/// The bucket for which a file is copied. It is held for moments: who deletes it waits for those who do.
struct Target {
    node: Weak<Node>,
    bucket: Weak<Bucket>,
}

impl Target {
    fn is_of(&self, node: &Node) -> bool {
        let is_served = self.bucket.upgrade().is_some_and(|bucket| node.served().serves(&bucket));
        is_served && !node.lanes().is_stopping()
    }
}

impl DownloadBucket for Target {
    fn is_there(&self) -> bool {
        self.node.upgrade().is_some_and(|node| self.is_of(&node))
    }

    fn hold(&self, act: &mut dyn FnMut()) {
        let Some(node) = self.node.upgrade() else { return };
        let Ok(_changing) = node.changing.begin() else { return };
        if self.is_of(&node) {
            act();
        }
    }
}

/// What a client wants to have downloaded.
struct WantedDownload {
    node: String,
    bucket: String,
    username: String,
    password: Password,
    has_tls: bool,
    write_bytes: u64,
    fsync_bytes: u64,
    fails_fast: bool,
}

impl WantedDownload {
    fn parse(value: &[u8]) -> Result<WantedDownload, &'static str> {
        let json = object_of(value).ok_or("The value must be a JSON object")?;
        let text = |name: &str| json.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let bucket = text("bucket").ok_or("bucket must be the name of a bucket")?.to_owned();
        let host = text("host").ok_or("host must be the name or address of a node")?;
        let port = json.get("port").and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok());
        let port = port.filter(|port| *port > 0).ok_or("port must be a number of 1 to 65535")?;
        let sasl = json.get("sasl").and_then(Value::as_object).ok_or("sasl must be an object")?;
        if sasl.get("mechanism").is_some_and(|mechanism| mechanism != "PLAIN") {
            return Err("the mechanism must be PLAIN");
        }
        let login = |name: &str| sasl.get(name).and_then(Value::as_str).map(str::to_owned);
        let username = login("username").ok_or("sasl must have a username")?;
        let password = Password::from(login("password").ok_or("sasl must have a password")?);
        let number = |name: &str, default: u64| match json.get(name) {
            None => Some(default),
            Some(number) => number.as_u64(),
        };
        let write_bytes = number("write_size", WRITE_BYTES).filter(|bytes| *bytes > 0);
        let fails_fast = json.get("allow_fail_fast").map_or(Some(true), Value::as_bool);
        Ok(WantedDownload {
            node: if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") },
            bucket,
            username,
            password,
            has_tls: json.get("tls").is_some_and(|tls| !tls.is_null()),
            write_bytes: write_bytes.ok_or("write_size must be a number above 0")?,
            fsync_bytes: number("fsync_interval", FSYNC_BYTES).ok_or("fsync_interval must be a number")?,
            fails_fast: fails_fast.ok_or("allow_fail_fast must be true or false")?,
        })
    }
}

/// Which bytes a client wants.
struct Fragment {
    file: u64,
    offset: u64,
    /// What is answered may have less than what was asked for, in whole parts.
    length: u64,
    /// A part of them has a checksum.
    part_bytes: usize,
    has_checksums: bool,
}

impl Fragment {
    fn parse(value: &[u8]) -> Result<Fragment, &'static str> {
        let json = object_of(value).ok_or("The value must be a JSON object")?;
        let number = |name: &str| json.get(name)?.as_str()?.parse::<u64>().ok();
        let file = json.get("id").and_then(Value::as_u64).ok_or("id must be a number")?;
        let offset = number("offset").ok_or("offset must be a string with a number")?;
        let length = number("length").filter(|length| *length > 0);
        let length = length.ok_or("length must be a string with a number above 0")?;
        let checksum_length = match json.get("checksum_length") {
            None => 0,
            Some(_) => number("checksum_length").ok_or("checksum_length must be a string with a number")?,
        };
        if checksum_length > MOST_BYTES {
            return Err("checksum_length is more than a fragment has");
        }
        let has_checksums = checksum_length > 0;
        let part_bytes = if has_checksums { checksum_length } else { MOST_BYTES };
        // Whole parts, so that what comes next begins with one.
        let most = (MOST_BYTES / part_bytes).min(MOST_PARTS) * part_bytes;
        let (length, part_bytes) = (length.min(most), part_bytes as usize);
        Ok(Fragment { file, offset, length, part_bytes, has_checksums })
    }

    fn checksum_bytes(&self) -> usize {
        if self.has_checksums { CHECKSUM_BYTES } else { 0 }
    }

    fn answer_bytes(&self) -> usize {
        let length = self.length as usize;
        length + length.div_ceil(self.part_bytes) * self.checksum_bytes()
    }
}

pub(super) fn object_of(value: &[u8]) -> Option<serde_json::Map<String, Value>> {
    if value.len() > MOST_JSON_BYTES {
        return None;
    }
    serde_json::from_slice(value).ok()
}

/// What a snapshot has, as clients of the field read it.
fn manifest(snapshot: &FileSnapshotFigures) -> Value {
    json!({
        "uuid": uuid::text(snapshot.id),
        "vbid": snapshot.vb.0,
        "storage": { "backend": BACKEND, "version": snapshot.version },
        "deks": [],
        "files": [{ "id": FILE_ID, "path": snapshot.name, "size": snapshot.len.to_string() }],
    })
}

fn id_of(key: &[u8]) -> Option<u128> {
    uuid::parse(str::from_utf8(key).ok()?)
}

fn refuse(cx: &mut Context<'_>, refusal: FileSnapshotRefusal) -> Outcome {
    let status = match refusal {
        FileSnapshotRefusal::Refused(refusal) => return cx.refuse(refusal),
        FileSnapshotRefusal::NoFiles => {
            return cx.error(Status::NotSupported, "the vBuckets of this bucket share files");
        }
        FileSnapshotRefusal::OutOfRange => return cx.invalid("the range is not within the file"),
        FileSnapshotRefusal::Version(version) => {
            return cx.error(Status::NotSupported, &format!("the file has version {version} of its format"));
        }
        FileSnapshotRefusal::NotPersisted | FileSnapshotRefusal::Busy => Status::Etmpfail,
        FileSnapshotRefusal::TooMany => Status::Ebusy,
        FileSnapshotRefusal::Unknown => Status::KeyEnoent,
        FileSnapshotRefusal::Failed => Status::Einternal,
    };
    cx.status(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_download_is_said() {
        let good = json!({
            "bucket": "b", "host": "::1", "port": 11210, "sasl": { "username": "u", "password": "p" },
        });
        let parse = |json: &Value| WantedDownload::parse(json.to_string().as_bytes());
        let wanted = parse(&good).expect("it is well formed");
        assert_eq!((&*wanted.node, wanted.write_bytes, wanted.fails_fast), ("[::1]:11210", 1 << 20, true));
        for (name, wrong) in [
            ("bucket", json!("")),
            ("host", json!(1)),
            ("port", json!(0)),
            ("port", json!(70_000)),
            ("sasl", json!({ "username": "u" })),
            ("sasl", json!({ "username": "u", "password": "p", "mechanism": "SCRAM-SHA1" })),
            ("write_size", json!(0)),
            ("fsync_interval", json!("1")),
            ("allow_fail_fast", json!(1)),
        ] {
            let mut json = good.clone();
            json[name] = wrong;
            assert!(parse(&json).is_err(), "{json}");
        }
    }

    #[test]
    fn a_fragment_is_bounded_in_whole_parts() {
        let parse = |text: &str| Fragment::parse(text.as_bytes());
        let of = |text: &str| parse(text).map(|it| (it.length, it.answer_bytes())).expect("well formed");
        assert_eq!(of(r#"{"id":1,"offset":"0","length":"1024"}"#), (1024, 1024));
        assert_eq!(of(r#"{"id":1,"offset":"0","length":"99999999999"}"#), (20 << 20, 20 << 20));
        let with = |length: &str, part: &str| {
            of(&format!(r#"{{"id":1,"offset":"5","length":"{length}","checksum_length":"{part}"}}"#))
        };
        assert_eq!(with("10", "4"), (10, 10 + 3 * 4));
        assert_eq!(with("8", "4"), (8, 8 + 2 * 4));
        assert_eq!(with("10", "100"), (10, 14));
        assert_eq!(with("99999999999", "1"), (1 << 16, 5 << 16));
        assert_eq!(with("99999999999", "20971520"), (20 << 20, (20 << 20) + 4));
        let third = 7 << 20;
        assert_eq!(with("99999999999", "7340032"), (2 * third, 2 * third as usize + 8));
        for wrong in [
            "[]",
            "{}",
            r#"{"id":"1","offset":"0","length":"1"}"#,
            r#"{"id":1,"offset":0,"length":"1"}"#,
            r#"{"id":1,"offset":"-1","length":"1"}"#,
            r#"{"id":1,"offset":"0","length":"0"}"#,
            r#"{"id":1,"offset":"0","length":"1","checksum_length":4}"#,
            r#"{"id":1,"offset":"0","length":"1","checksum_length":"20971521"}"#,
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
