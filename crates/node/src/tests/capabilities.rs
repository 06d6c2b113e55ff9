//! Each capability that a bucket's map tells is used here, and each that the original knows and this map does not tell
//! has its reason.

use base::VbState;
use engine::BucketKind;
use kvstore::StorageBackend;
use serde_json::{Value, json};
use subdoc::request::{doc_flag, path_flag};

use super::*;
use crate::cluster_map::capabilities::capabilities;

const KEY: &[u8] = b"k";

/// A capability that is told, and what a client that relies on it does.
type Use = (&'static str, fn(&mut World));

const TOLD: &[Use] = &[
    ("cbhello", agrees_on_features),
    ("cccp", reads_the_map_over_kv),
    ("collections", uses_a_collection),
    ("dcp", streams),
    ("dcp.IgnorePurgedTombstones", ignores_purged_tombstones),
    ("durableWrite", writes_durably),
    ("nodesExt", finds_ports),
    ("preserveExpiry", keeps_the_expiry_time),
    ("rangeScan", scans),
    ("snappy", sends_snappy),
    ("subdoc.AccessDeleted", reads_a_tombstones_attribute),
    ("subdoc.BinaryXattr", stores_bytes_as_an_attribute),
    ("subdoc.DocumentMacroSupport", expands_a_macro),
    ("subdoc.ReplaceBodyWithXattr", makes_an_attribute_the_body),
    ("subdoc.ReplicaRead", reads_parts_of_a_replica),
    ("subdoc.ReviveDocument", revives_a_tombstone),
    ("tombstonedUserXAttrs", makes_a_tombstone_with_an_attribute),
    ("touch", touches),
    ("xattr", stores_an_attribute),
];

/// Those that the original's buckets may have (7.6, and 8.0 where it says so), and why this map does not tell them.
const NOT_TOLD: &[(&str, &str)] = &[
    ("couchapi", "there are no views"),
    ("xdcrCheckpointing", "the requests _pre_replicate and _commit_for_checkpoint over HTTP are not there"),
    ("querySystemCollection", "there is no scope _system: nothing here needs its collection _query"),
    ("mobileSystemCollection", "there is no scope _system: nothing here needs its collection _mobile"),
    (
        "nonDedupedHistory",
        "only log-structured buckets keep a history of changes (crates/server/tests/change_streams.rs)",
    ),
    ("fusion", "files are on the node's own disk alone (8.0)"),
];

struct World {
    node: Arc<Node>,
    client: Connection,
}

impl World {
    fn new() -> World {
        let node = node();
        let client = connect_as(&node, "admin", &[FULL, &[Feature::Collections]].concat());
        World { node, client }
    }

    fn bucket(&self) -> Arc<Bucket> {
        self.node.bucket("default").expect("it is served")
    }

    /// A request for the document in the default collection: its answers' statuses, extras and values.
    fn ask(&mut self, opcode: u8, extras: &[u8], value: &[u8]) -> (Status, Vec<u8>) {
        self.ask_with(opcode, extras, value, 0, &[])
    }

    fn ask_with(
        &mut self,
        opcode: u8,
        extras: &[u8],
        value: &[u8],
        datatype: u8,
        frame_infos: &[u8],
    ) -> (Status, Vec<u8>) {
        let key = [&[0][..], KEY].concat();
        let parts = RequestParts { opcode, key: &key, extras, value, datatype, ..RequestParts::default() };
        self.send(&RequestParts { vbucket: vb(KEY), frame_infos, ..parts })
    }

    /// Any request; the last answer.
    fn send(&mut self, parts: &RequestParts<'_>) -> (Status, Vec<u8>) {
        let (answers, next) = feed(&mut self.client, &request(parts));
        let told = each(&answers, |answer| (answer.status(), answer.value.to_vec()));
        let (status, value) = told.into_iter().next_back().unwrap_or_else(|| panic!("no answer: {next:?}"));
        (status.expect("a known status"), value)
    }

    fn is_done(&mut self, opcode: u8, extras: &[u8], value: &[u8]) {
        assert_eq!(self.ask(opcode, extras, value).0, Status::Success, "0x{opcode:02x}");
    }

    fn set(&mut self, value: &[u8]) {
        self.is_done(opcode::SET, &[0; 8], value);
    }

    /// Changes a path with these flags.
    fn upsert(&mut self, path: &str, value: &[u8], flags: u8) {
        let extras = [&(path.len() as u16).to_be_bytes()[..], &[flags]].concat();
        self.is_done(opcode::SUBDOC_DICT_UPSERT, &extras, &[path.as_bytes(), value].concat());
    }

    /// The value at a path.
    fn look(&mut self, path: &str, flags: u8) -> (Status, Vec<u8>) {
        let extras = [&(path.len() as u16).to_be_bytes()[..], &[flags]].concat();
        self.ask(opcode::SUBDOC_GET, &extras, path.as_bytes())
    }

    /// Looks up one path with flags of the document; the status as a whole, that of the path, and the value.
    fn look_in(&mut self, path: &str, flags: u8, of_document: u8) -> (Status, u16, Vec<u8>) {
        let spec = [&[opcode::SUBDOC_GET, flags][..], &(path.len() as u16).to_be_bytes()].concat();
        let spec = [&spec[..], path.as_bytes()].concat();
        let (status, value) = self.ask(opcode::SUBDOC_MULTI_LOOKUP, &[of_document], &spec);
        if value.len() < 6 {
            return (status, u16::MAX, value);
        }
        (status, u16::from_be_bytes([value[0], value[1]]), value[6..].to_vec())
    }

    /// Changes one path with flags of the document.
    fn change_in(&mut self, change: u8, path: &str, value: &[u8], flags: u8, of_document: u8) -> Status {
        let spec =
            [&[change, flags][..], &(path.len() as u16).to_be_bytes(), &(value.len() as u32).to_be_bytes()];
        let spec = [&spec.concat()[..], path.as_bytes(), value].concat();
        self.ask(opcode::SUBDOC_MULTI_MUTATION, &[of_document], &spec).0
    }

    fn expiry(&mut self) -> Value {
        let (status, value) = self.look("$document.exptime", path_flag::XATTR);
        assert_eq!(status, Status::Success);
        serde_json::from_slice(&value).expect("a number")
    }
}

fn agrees_on_features(world: &mut World) {
    let value = Features::of(FULL).encode();
    let hello = RequestParts { opcode: opcode::HELLO, value: &value, ..RequestParts::default() };
    assert_eq!(world.send(&hello), (Status::Success, value.clone()));
}

fn map_of(world: &mut World) -> Value {
    let ask = RequestParts { opcode: opcode::GET_CLUSTER_CONFIG, ..RequestParts::default() };
    let (status, value) = world.send(&ask);
    assert_eq!(status, Status::Success);
    serde_json::from_slice(&value).expect("JSON")
}

fn reads_the_map_over_kv(world: &mut World) {
    let map = map_of(world);
    assert_eq!(map["vBucketServerMap"]["vBucketMap"], json!([[0], [0], [0], [0]]));
}

fn finds_ports(world: &mut World) {
    assert_eq!(map_of(world)["nodesExt"][0]["services"], json!({ "kv": 11210, "mgmt": 8091 }));
}

fn uses_a_collection(world: &mut World) {
    let json =
        br#"{"uid":"1","scopes":[{"name":"_default","uid":"0","collections":[{"name":"_default","uid":"0"}]},
        {"name":"s","uid":"8","collections":[{"name":"c","uid":"8"}]}]}"#;
    world
        .bucket()
        .collections()
        .set_manifest(vbucket::Manifest::parse(json).expect("a manifest"))
        .expect("a successor");
    let key = [&[8][..], KEY].concat();
    let parts = RequestParts { key: &key, vbucket: vb(KEY), ..RequestParts::default() };
    let set = RequestParts { opcode: opcode::SET, extras: &[0; 8], value: b"in c", ..parts };
    assert_eq!(world.send(&set).0, Status::Success);
    let get = RequestParts { opcode: opcode::GET, ..parts };
    assert_eq!(world.send(&get), (Status::Success, b"in c".to_vec()));
    assert_eq!(world.ask(opcode::GET, &[], &[]).0, Status::KeyEnoent, "the default one has none");
}

fn opens_a_stream(world: &mut World, flags: u32) {
    world.set(b"v");
    let open = RequestParts {
        opcode: opcode::DCP_OPEN,
        extras: &[0, 0, 0, 0, 0, 0, 0, 1],
        key: b"reader",
        ..RequestParts::default()
    };
    assert_eq!(world.send(&open).0, Status::Success);
    let noop = RequestParts { opcode: opcode::DCP_CONTROL, key: b"enable_noop", ..RequestParts::default() };
    assert_eq!(world.send(&RequestParts { value: b"true", ..noop }).0, Status::Success);
    let extras = [&flags.to_be_bytes()[..], &[0; 12], &[0xff; 8], &[0; 24]].concat();
    let ask = RequestParts { opcode: opcode::DCP_STREAM_REQ, extras: &extras, ..RequestParts::default() };
    assert_eq!(world.send(&RequestParts { vbucket: vb(KEY), ..ask }).0, Status::Success);
    let (cx, mut out) = (Context::from_waker(Waker::noop()), Output::default());
    while world.client.stream(crate::dcp::STEP_BYTES, &cx, &mut out) {}
    let bytes = out.to_vec();
    let mut rest = &bytes[..];
    let mut documents = 0;
    while let protocol::Parsed::Request { request, total_len } =
        protocol::parse(rest, protocol::Limits::AUTHENTICATED)
    {
        documents += usize::from(request.opcode == opcode::DCP_MUTATION);
        rest = &rest[total_len..];
    }
    assert_eq!((documents, rest.len()), (1, 0));
}

fn streams(world: &mut World) {
    opens_a_stream(world, 0);
}

fn ignores_purged_tombstones(world: &mut World) {
    opens_a_stream(world, 0x80);
}

fn writes_durably(world: &mut World) {
    let key = [&[0][..], KEY].concat();
    for level in 1..=3 {
        let infos = [0x11, level];
        let set = RequestParts { opcode: opcode::SET, key: &key, extras: &[0; 8], ..RequestParts::default() };
        let bytes = request(&RequestParts { frame_infos: &infos, vbucket: vb(KEY), ..set });
        let topology = engine::topology_from_json(&json!([["n_0"]])).expect("a chain");
        world
            .bucket()
            .roles()
            .set_vbucket_state(vb(KEY), VbState::Active, Some(topology))
            .expect("it is there");
        let (answers, _) = feed(&mut world.client, &bytes);
        let mut told = statuses(&answers);
        if told.is_empty() {
            assert!(world.bucket().flushing().flush_all());
            let mut out = Output::default();
            world.client.poll_later(&mut Context::from_waker(Waker::noop()), &mut out);
            told = statuses(&out.to_vec());
        }
        assert_eq!(told, [(0, Status::Success)], "level {level}");
    }
}

fn keeps_the_expiry_time(world: &mut World) {
    world.is_done(opcode::SET, &[0, 0, 0, 0, 0, 0, 0x10, 0], b"1");
    let before = world.expiry();
    assert_ne!(before, json!(0));
    let mut infos = Vec::new();
    FrameInfos { preserve_ttl: true, ..FrameInfos::default() }.encode(&mut infos);
    assert_eq!(world.ask_with(opcode::SET, &[0; 8], b"2", 0, &infos).0, Status::Success);
    assert_eq!(world.expiry(), before);
    world.set(b"3");
    assert_eq!(world.expiry(), json!(0), "it is kept for who asks for that");
}

fn scans(world: &mut World) {
    world.set(b"v");
    assert!(world.bucket().flushing().flush_all());
    let value = json!({ "range": { "start": "aw==", "end": "a/8=" }, "key_only": true }).to_string();
    let create = RequestParts {
        opcode: opcode::RANGE_SCAN_CREATE,
        value: value.as_bytes(),
        ..RequestParts::default()
    };
    let datatype = base::Datatype::JSON.0;
    let (status, id) = world.send(&RequestParts { datatype, vbucket: vb(KEY), ..create });
    assert_eq!(status, Status::Success);
    let extras = [&id[..], &[0; 12]].concat();
    let go_on = RequestParts { opcode: opcode::RANGE_SCAN_CONTINUE, ..RequestParts::default() };
    let (status, keys) = world.send(&RequestParts { extras: &extras, vbucket: vb(KEY), ..go_on });
    assert_eq!((status, keys), (Status::RangeScanComplete, b"\x01k".to_vec()));
}

fn sends_snappy(world: &mut World) {
    let plain = b"compress me, compress me, compress me".to_vec();
    let block = snap::raw::Encoder::new().compress_vec(&plain).expect("it fits");
    let snappy = base::Datatype::SNAPPY.0;
    assert_eq!(world.ask_with(opcode::SET, &[0; 8], &block, snappy, &[]).0, Status::Success);
    assert_eq!(world.ask(opcode::GET, &[], &[]), (Status::Success, block));
    let mut plain_client = connect_as(&world.node, "admin", FULL_WITHOUT_SNAPPY);
    let (answers, _) = feed(&mut plain_client, &get(KEY, 1));
    assert_eq!(each(&answers, |answer| answer.value.to_vec()), [plain]);
}

fn stores_an_attribute(world: &mut World) {
    world.set(b"{}");
    world.upsert("a", b"1", path_flag::XATTR);
    assert_eq!(world.look("a", path_flag::XATTR), (Status::Success, b"1".to_vec()));
    assert_eq!(world.ask(opcode::GET, &[], &[]), (Status::Success, b"{}".to_vec()), "the body is as it was");
}

fn stores_bytes_as_an_attribute(world: &mut World) {
    let flags = path_flag::XATTR | path_flag::BINARY_VALUE;
    world.set(b"{}");
    world.upsert("a.b", b"\xff\0\x01", flags | path_flag::MKDIR_P);
    assert_eq!(world.look("a.b", flags), (Status::Success, b"\xff\0\x01".to_vec()));
}

fn expands_a_macro(world: &mut World) {
    world.is_done(opcode::SET, &[0, 0, 0, 0, 0, 0, 0x10, 0], b"{}");
    let expiry = world.expiry();
    let flags = path_flag::XATTR | path_flag::EXPAND_MACROS;
    let key = [&[0][..], KEY].concat();
    let mut infos = Vec::new();
    FrameInfos { preserve_ttl: true, ..FrameInfos::default() }.encode(&mut infos);
    let parts = RequestParts { opcode: opcode::SUBDOC_DICT_UPSERT, key: &key, ..RequestParts::default() };
    let value = b"a\"${$document.exptime}\"";
    let parts = RequestParts { extras: &[0, 1, flags], value, frame_infos: &infos, ..parts };
    assert_eq!(world.send(&RequestParts { vbucket: vb(KEY), ..parts }).0, Status::Success);
    let (status, value) = world.look("a", path_flag::XATTR);
    assert_eq!((status, serde_json::from_slice::<Value>(&value).ok()), (Status::Success, Some(expiry)));
}

fn makes_an_attribute_the_body(world: &mut World) {
    world.set(b"{}");
    world.upsert("a", br#"{"new":1}"#, path_flag::XATTR);
    world.is_done(opcode::SUBDOC_REPLACE_BODY_WITH_XATTR, &[0, 1, path_flag::XATTR], b"a");
    assert_eq!(world.ask(opcode::GET, &[], &[]), (Status::Success, br#"{"new":1}"#.to_vec()));
}

/// A tombstone that keeps an attribute of the system.
fn tombstone(world: &mut World) {
    world.set(b"{}");
    world.upsert("_s", b"1", path_flag::XATTR);
    world.is_done(opcode::DELETE, &[], &[]);
}

fn reads_a_tombstones_attribute(world: &mut World) {
    tombstone(world);
    assert_eq!(world.look_in("_s", path_flag::XATTR, 0).0, Status::KeyEnoent);
    let found = world.look_in("_s", path_flag::XATTR, doc_flag::ACCESS_DELETED);
    assert_eq!(found, (Status::SubdocSuccessDeleted, 0, b"1".to_vec()));
}

fn revives_a_tombstone(world: &mut World) {
    tombstone(world);
    let flags = doc_flag::ACCESS_DELETED | doc_flag::REVIVE;
    let upsert = opcode::SUBDOC_DICT_UPSERT;
    assert_eq!(world.change_in(upsert, "_s", b"2", path_flag::XATTR, flags), Status::Success);
    assert_eq!(world.look_in("_s", path_flag::XATTR, 0), (Status::Success, 0, b"2".to_vec()));
    assert_eq!(
        world.change_in(upsert, "_s", b"3", path_flag::XATTR, flags),
        Status::SubdocCanOnlyReviveDeletedDocuments
    );
}

fn makes_a_tombstone_with_an_attribute(world: &mut World) {
    let flags = doc_flag::MKDOC | doc_flag::CREATE_AS_DELETED | doc_flag::ACCESS_DELETED;
    let of_user = path_flag::XATTR;
    let made = world.change_in(opcode::SUBDOC_DICT_UPSERT, "user", b"1", of_user, flags);
    assert_eq!(made, Status::SubdocSuccessDeleted);
    assert_eq!(world.ask(opcode::GET, &[], &[]).0, Status::KeyEnoent);
    let found = world.look_in("user", of_user, doc_flag::ACCESS_DELETED);
    assert_eq!(found, (Status::SubdocSuccessDeleted, 0, b"1".to_vec()));
}

fn reads_parts_of_a_replica(world: &mut World) {
    world.set(br#"{"a":1}"#);
    assert_eq!(world.look_in("a", 0, doc_flag::REPLICA_READ).0, Status::NotMyVbucket, "it is active");
    world.bucket().roles().set_vbucket_state(vb(KEY), VbState::Replica, None).expect("it is there");
    assert_eq!(world.look_in("a", 0, 0).0, Status::NotMyVbucket);
    assert_eq!(world.look_in("a", 0, doc_flag::REPLICA_READ), (Status::Success, 0, b"1".to_vec()));
}

fn touches(world: &mut World) {
    world.set(b"v");
    world.is_done(opcode::TOUCH, &[0, 0, 0x10, 0], &[]);
    let first = world.expiry();
    assert_ne!(first, json!(0));
    assert_eq!(world.ask(opcode::GAT, &[0, 0, 0x20, 0], &[]), (Status::Success, b"v".to_vec()));
    assert_ne!(world.expiry(), first);
}

/// What a bucket of a kind tells that is not log-structured.
fn of(kind: BucketKind) -> Vec<&'static str> {
    capabilities(kind, StorageBackend::Couchstore)
}

#[test]
fn a_log_structured_bucket_tells_of_its_history() {
    let mut told = capabilities(BucketKind::Persistent, StorageBackend::LogStructured);
    assert!(told.is_sorted());
    told.retain(|name| *name != "nonDedupedHistory");
    assert_eq!(told, of(BucketKind::Persistent));
}

#[test]
fn each_capability_that_is_told_works() {
    let told: Vec<&str> = TOLD.iter().map(|(name, _)| *name).collect();
    assert_eq!(told, of(BucketKind::Persistent), "each is used here, in this order");
    for (name, uses) in TOLD {
        println!("{name}");
        uses(&mut World::new());
    }
}

#[test]
fn what_an_ephemeral_bucket_lacks_is_not_told() {
    let told = of(BucketKind::Ephemeral);
    let lacks: Vec<&str> = TOLD.iter().map(|(name, _)| *name).filter(|name| !told.contains(name)).collect();
    assert_eq!(lacks, ["rangeScan"], "only what is on disk is scanned (record 103)");
    assert!(told.iter().all(|name| TOLD.iter().any(|(used, _)| used == name)));
}

#[test]
fn what_is_not_told_has_a_reason() {
    for kind in [BucketKind::Persistent, BucketKind::Ephemeral] {
        let told = of(kind);
        for (name, reason) in NOT_TOLD {
            assert!(!told.contains(name), "{name} is told, and {reason}");
        }
    }
}
