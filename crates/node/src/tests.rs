//! The command table, and whole conversations with a node in this process: no socket, no runtime, simulated clock.

use std::sync::Arc;
use std::task::{Context, Waker};

use base::env::Env;
use base::{Cas, VbId};
use engine::{Bucket, BucketConfig};
use proptest::prelude::*;
use protocol::extras::ConfigVersion;
use protocol::feature::{Feature, Features};
use protocol::response::ParsedResponse;
use protocol::{FrameInfos, HEADER_BYTES, RequestParts, Status, opcode, parse_response, write_request};

use crate::close_reason::CloseReason;
use crate::cluster_map::NodeAddress;
use crate::command::{ROWS, find};
use crate::command_rules::{Access, Extent, Silence};
use crate::command_table::RETIRED;
use crate::config::{BucketSpec, ConnectionLimits, Role, UserSpec};
use crate::connection::{Connection, Next};
use crate::counters::WorkerCounters;
use crate::fuzz::{feed, login};
use crate::kept_users::{KeptUsers, NewPassword, UserForm};
use crate::node::Node;
use crate::output::Output;
use crate::privilege::Privileges;
use crate::roles::{Grant, ROLES, Takes};
use crate::sasl::hash::Hashing;
use crate::served::Served;
use crate::user::Users;

mod as_a_node;
mod bucket_snapshots;
mod capabilities;
mod certificates;
mod closing;
mod conflicts;
mod counted;
mod dcp_answers;
mod drain;
mod durable_answers;
mod edges;
mod lost_rights;
mod manager_commands;
mod mutate_with_meta;
mod observe;
mod passwords;
#[cfg(debug_assertions)]
mod planted;
mod privilege_debug;
mod producer_answers;
mod range_scans;
mod roles;
mod slow;
mod stats_roles;
mod suspended;
mod together;
mod turns;
mod whole_documents;

pub(crate) fn user(name: &str, role: Role, buckets: Option<&str>) -> UserSpec {
    let buckets = buckets.map(|bucket| vec![bucket.to_owned()]);
    UserSpec { name: name.to_owned(), password: "password".to_owned(), role, buckets }
}

/// A user with roles and their places.
fn granted(name: &str, grants: &str) -> UserSpec {
    let role = Role::try_from(grants.to_owned()).expect("roles");
    UserSpec { name: name.to_owned(), password: "password".to_owned(), role, buckets: None }
}

fn node() -> Arc<Node> {
    node_of(false)
}

/// A node with threads for long work, or without.
fn node_of(has_long_work: bool) -> Arc<Node> {
    let (env, _) = Env::sim(7);
    let users = users(&env);
    node_in(env, users, has_long_work)
}

/// Users: the configured `admin`, and `ann`, whom the coordination store holds.
fn users_with_ann(env: &Env) -> Users {
    let configured = Users::new(&[user("admin", Role::Admin, None)], &*env.random);
    let admin = configured.get(b"admin").expect("there");
    let mut kept = KeptUsers::default();
    let form = UserForm {
        password: Some(NewPassword::new("secret-1".to_owned(), Hashing::CHEAP)),
        roles: Grant::parse_list("data_reader[*]").expect("a role"),
        ..UserForm::default()
    };
    kept.put_user(admin, "ann", &form, env).expect("a new user");
    configured.with_kept(&kept)
}

pub(crate) fn node_in(env: Env, users: Users, has_long_work: bool) -> Arc<Node> {
    let served = ["default", "other"].map(|name| {
        let spec = BucketSpec::parse(name).expect("a valid name");
        let config = BucketConfig { vbuckets: 4, ..BucketConfig::new(name, format!("/data/{name}").into()) };
        let store = Arc::new(kvstore::Memory::default());
        // As in a real node each bucket has its own heap, and what is in it is charged to it alone.
        let heap = base::Heap::new(base::Account::new());
        let bucket = Bucket::open(config, Env { heap, ..env.clone() }, store).expect("an empty bucket opens");
        Served { spec, bucket: Arc::new(bucket) }
    });
    let address = NodeAddress { host: None, kv_port: 11210, http_port: 8091, tls: None };
    let version = ConfigVersion { epoch: 1, revision: 3 };
    let limits = ConnectionLimits::default();
    let workers = vec![Arc::new(WorkerCounters::default())];
    let node = Node::new(env, users, served.into(), address, version, limits, workers);
    Arc::new(if has_long_work { crate::node::with_long_work(node, 1) } else { node })
}

fn users(env: &Env) -> Users {
    let users = [
        user("admin", Role::Admin, None),
        user("reader", Role::ReadOnly, None),
        user("guest", Role::ReadWrite, Some("other")),
        user("bucket-admin", Role::Admin, Some("default")),
        user("writer", Role::ReadWrite, None),
    ];
    let of_roles = ROLES.iter().map(|row| {
        let place = if row.takes == Takes::Nothing { "" } else { "[default]" };
        granted(row.name, &format!("{}{place}", row.name))
    });
    // The administrator has the name of its role.
    let of_roles = of_roles.filter(|user| user.name != "admin");
    let narrow = granted("narrow", "data_reader[default:s:c],data_writer[default:s]");
    let streams = granted("streams", "data_dcp_reader[default:s:c]");
    let default_streams = granted("default-streams", "data_dcp_reader[default:_default:_default]");
    let counts = granted("counts", "data_monitoring[default:s:c]");
    let narrow = [narrow, streams, default_streams, counts];
    let users: Vec<UserSpec> = users.into_iter().chain(of_roles).chain(narrow).collect();
    Users::new(&users, &*env.random)
}

fn connect(node: &Arc<Node>) -> Connection {
    Connection::new(Arc::clone(node), Arc::clone(&node.workers().all()[0]))
}

const FULL: &[Feature] = &[
    Feature::Xerror,
    Feature::Json,
    Feature::Snappy,
    Feature::Xattr,
    Feature::MutationSeqno,
    Feature::AltRequestSupport,
];

const FULL_WITHOUT_SNAPPY: &[Feature] = &[Feature::Xerror, Feature::Json, Feature::Xattr];

fn connect_as(node: &Arc<Node>, name: &str, features: &[Feature]) -> Connection {
    let mut connection = connect(node);
    let bucket = if name == "guest" { "other" } else { "default" };
    let bytes = login(name, "password", bucket, &Features::of(features).encode());
    let (answers, _) = feed(&mut connection, &bytes);
    assert_eq!(statuses(&answers), [(0, Status::Success); 3], "a login");
    connection
}

fn request(parts: &RequestParts<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    assert!(write_request(&mut out, parts));
    out
}

fn get(key: &[u8], opaque: u32) -> Vec<u8> {
    request(&RequestParts { opcode: opcode::GET, key, opaque, vbucket: vb(key), ..RequestParts::default() })
}

fn set(key: &[u8], value: &[u8], opaque: u32) -> Vec<u8> {
    let parts =
        RequestParts { opcode: opcode::SET, key, value, opaque, extras: &[0; 8], ..RequestParts::default() };
    request(&RequestParts { vbucket: vb(key), ..parts })
}

fn vb(key: &[u8]) -> VbId {
    base::vbucket_map::vbucket_of(key, 4)
}

fn simple(opcode: u8, opaque: u32) -> Vec<u8> {
    request(&RequestParts { opcode, opaque, ..RequestParts::default() })
}

/// Opaque and status of each answer.
fn statuses(answers: &[u8]) -> Vec<(u32, Status)> {
    each(answers, |answer| (answer.opaque, answer.status().expect("a known status")))
}

fn each<T>(mut answers: &[u8], mut look: impl FnMut(protocol::ResponseView<'_>) -> T) -> Vec<T> {
    let mut seen = Vec::new();
    while let ParsedResponse::Response { response, total_len } = parse_response(answers, 64 << 20) {
        seen.push(look(response));
        answers = &answers[total_len..];
    }
    assert!(answers.is_empty(), "half an answer");
    seen
}

#[test]
fn the_table_is_complete() {
    for code in 0..=255u8 {
        let is_retired = RETIRED.contains(&code);
        // Snapshots in the order of keys are never agreed on.
        let is_named = protocol::opcode::name(code).is_some() && code != protocol::opcode::DCP_OSO_SNAPSHOT;
        assert_eq!(find(code).is_some() || is_retired, is_named || is_retired, "0x{code:02x}");
    }
    for row in ROWS {
        assert!(!row.doc.is_empty() && !row.doc.ends_with('.'), "{}", row.name);
        assert!(
            row.access != Access::Anybody || row.privileges == Privileges::NONE,
            "{}: nobody has rights yet",
            row.name
        );
        assert_ne!(row.extent, Extent::Node, "{}: that is for groups of stats", row.name);
        assert!(row.silence == Silence::None || row.name.contains('Q'), "{} is quiet", row.name);
    }
}

#[test]
fn strangers_may_log_in_and_nothing_else() {
    let node = node();
    for row in ROWS.iter().filter(|row| row.access != Access::Anybody) {
        let (answers, next) = feed(&mut connect(&node), &simple(row.opcode, 1));
        assert_eq!(statuses(&answers), [(1, Status::Eaccess)], "{}", row.name);
        assert_eq!(next, Next::Bytes(HEADER_BYTES));
    }
    let large = [&[0x80, opcode::HELLO, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0][..], &[0; 12]].concat();
    let (_, next) = feed(&mut connect(&node), &large);
    assert!(matches!(next, Next::Close(CloseReason::Frame(_))));
}

/// What a client that has not logged in asks for again and again is answered as far as it takes the answers.
#[test]
fn strangers_are_answered_a_little_at_a_time() {
    let node = node();
    let map = RequestParts { opcode: opcode::GET_ERROR_MAP, value: &[0, 2], ..RequestParts::default() };
    let all = request(&map).repeat(400);
    let mut stranger = connect(&node);
    let (mut at, mut answered) = (0, 0);
    while at < all.len() {
        let mut out = Output::default();
        let received = stranger.receive(&all[at..], &mut out);
        let answers = out.to_vec();
        assert!(
            answers.len() <= 12 << 10,
            "{} bytes wait for a client that has not logged in",
            answers.len()
        );
        assert!(received.consumed > 0, "a turn does something");
        at += received.consumed;
        answered += statuses(&answers).len();
    }
    assert_eq!(answered, 400, "none is left out");
}

#[test]
fn users_do_what_they_may() {
    let node = node();
    let mut reader = connect_as(&node, "reader", FULL);
    let (answers, _) = feed(&mut reader, &[set(b"k", b"v", 1), get(b"k", 2)].concat());
    assert_eq!(statuses(&answers), [(1, Status::Eaccess), (2, Status::KeyEnoent)]);
    let mut guest = connect_as(&node, "guest", FULL);
    let select = RequestParts { opcode: opcode::SELECT_BUCKET, key: b"default", ..RequestParts::default() };
    let list = simple(opcode::LIST_BUCKETS, 2);
    let (answers, _) = feed(&mut guest, &[request(&select), list].concat());
    assert_eq!(statuses(&answers), [(0, Status::Eaccess), (2, Status::Success)]);
    assert!(answers.ends_with(b"other"));
}

#[test]
fn an_administrator_can_act_for_somebody() {
    let node = node();
    let mut admin = connect_as(&node, "admin", FULL);
    let mut as_user = |name: &'static [u8]| {
        let mut frame_infos = Vec::new();
        FrameInfos { impersonate: Some(name), ..FrameInfos::default() }.encode(&mut frame_infos);
        let set = RequestParts {
            opcode: opcode::SET,
            key: b"k",
            extras: &[0; 8],
            vbucket: vb(b"k"),
            ..RequestParts::default()
        };
        let (answers, _) = feed(&mut admin, &request(&RequestParts { frame_infos: &frame_infos, ..set }));
        statuses(&answers)[0].1
    };
    assert_eq!(as_user(b"reader"), Status::Eaccess);
    assert_eq!(as_user(b"guest"), Status::Eaccess);
    assert_eq!(as_user(b"nobody"), Status::Eaccess);
    assert_eq!(as_user(b"^nobody"), Status::NotSupported);
    assert_eq!(as_user(b"admin"), Status::Success);
}

#[test]
fn a_failed_login_ends_the_session_before_it() {
    let node = node();
    let mut connection = connect_as(&node, "admin", FULL);
    let bad = RequestParts {
        opcode: opcode::SASL_AUTH,
        key: b"PLAIN",
        value: b"\0admin\0x",
        ..RequestParts::default()
    };
    let (answers, _) = feed(&mut connection, &[request(&bad), simple(opcode::NOOP, 1)].concat());
    assert_eq!(statuses(&answers), [(0, Status::AuthError), (1, Status::Eaccess)]);
}

#[test]
fn the_map_comes_once_to_those_who_remember_it() {
    let node = node();
    let features = [FULL, &[Feature::DedupeNotMyVbucketClustermap]].concat();
    let mut connection = connect_as(&node, "admin", &features);
    let beyond = RequestParts { opcode: opcode::GET, key: b"k", vbucket: VbId(4), ..RequestParts::default() };
    let twice = [request(&beyond), request(&beyond)].concat();
    let (answers, _) = feed(&mut connection, &twice);
    let sizes = each(&answers, |answer| (answer.status(), answer.value.is_empty()));
    assert_eq!(sizes, [(Some(Status::NotMyVbucket), false), (Some(Status::NotMyVbucket), true)]);
    let known = ConfigVersion { epoch: 1, revision: 3 }.encode();
    let ask = RequestParts { opcode: opcode::GET_CLUSTER_CONFIG, extras: &known, ..RequestParts::default() };
    let (answers, _) = feed(&mut connection, &request(&ask));
    assert_eq!(each(&answers, |answer| (answer.status(), answer.value.len())), [(Some(Status::Success), 0)]);
    let ask = RequestParts { extras: &[0; 16], ..ask };
    let (answers, _) = feed(&mut connection, &request(&ask));
    assert_eq!(each(&answers, |answer| answer.value.is_empty()), [false]);
}

#[test]
fn the_map_is_compressed_for_those_who_take_any_answer_compressed() {
    let node = node();
    let mut connection = connect_as(&node, "admin", &[FULL, &[Feature::SnappyEverywhere]].concat());
    let (answers, _) = feed(&mut connection, &simple(opcode::GET_CLUSTER_CONFIG, 0));
    let map = each(&answers, |answer| {
        assert_eq!(answer.datatype, 3);
        snap::raw::Decoder::new().decompress_vec(answer.value).expect("a Snappy block")
    });
    assert!(map[0].starts_with(b"{"));
}

/// A write that waits for the disk, which is for ever, since no flusher runs.
fn durable_set(key: &[u8], opaque: u32) -> Vec<u8> {
    let infos = [0x11, 3];
    let parts = RequestParts { opcode: opcode::SET, key, opaque, extras: &[0; 8], ..RequestParts::default() };
    request(&RequestParts { frame_infos: &infos, vbucket: vb(key), ..parts })
}

#[test]
fn answers_keep_their_order_unless_agreed_otherwise() {
    let node = node();
    let bytes = [durable_set(b"a", 1), get(b"b", 2), simple(opcode::NOOP, 3)].concat();
    let mut ordered = connect_as(&node, "admin", FULL);
    let (answers, next) = feed(&mut ordered, &bytes);
    assert_eq!((statuses(&answers), next), (vec![], Next::Later));
    let mut unordered = connect_as(&node, "admin", &[FULL, &[Feature::UnorderedExecution]].concat());
    let bytes = [durable_set(b"c", 1), get(b"b", 2), simple(opcode::NOOP, 3)].concat();
    let (answers, next) = feed(&mut unordered, &bytes);
    // The read overtakes; the no-op is not a document command and waits.
    assert_eq!((statuses(&answers), next), (vec![(2, Status::KeyEnoent)], Next::Later));
    let bucket = node.bucket("default").expect("it is served");
    assert!(bucket.flushing().flush_all());
    let mut out = Output::default();
    assert!(unordered.poll_later(&mut Context::from_waker(Waker::noop()), &mut out));
    assert_eq!(statuses(&out.to_vec()), [(1, Status::Success)]);
}

/// The list of the original's UnorderedExecution.md, with the commands that later versions have added.
#[test]
fn only_some_commands_overtake() {
    use opcode::*;
    let wanted = [
        GET,
        GETK,
        SET,
        ADD,
        REPLACE,
        DELETE,
        INCREMENT,
        DECREMENT,
        APPEND,
        PREPEND,
        GAT,
        TOUCH,
        EVICT_KEY,
        GET_LOCKED,
        UNLOCK_KEY,
        GET_REPLICA,
        GET_EX,
        GET_EX_REPLICA,
        MUTATE_WITH_META,
        SUBDOC_GET,
        SUBDOC_EXISTS,
        SUBDOC_GET_COUNT,
        SUBDOC_DICT_ADD,
        SUBDOC_DICT_UPSERT,
        SUBDOC_DELETE,
        SUBDOC_REPLACE,
        SUBDOC_ARRAY_PUSH_LAST,
        SUBDOC_ARRAY_PUSH_FIRST,
        SUBDOC_ARRAY_INSERT,
        SUBDOC_ARRAY_ADD_UNIQUE,
        SUBDOC_COUNTER,
        SUBDOC_REPLACE_BODY_WITH_XATTR,
        SUBDOC_MULTI_LOOKUP,
        SUBDOC_MULTI_MUTATION,
    ];
    for row in ROWS {
        assert_eq!(row.reorder, wanted.contains(&row.opcode), "{}", row.name);
    }
    let node = node();
    let mut connection = connect_as(&node, "admin", &[FULL, &[Feature::UnorderedExecution]].concat());
    let parts = RequestParts { opcode: GET_META, key: b"b", vbucket: vb(b"b"), ..RequestParts::default() };
    let (answers, next) = feed(&mut connection, &[durable_set(b"a", 1), request(&parts)].concat());
    assert_eq!((statuses(&answers), next), (vec![], Next::Later));
}

#[test]
fn a_barrier_waits_and_is_waited_for() {
    let node = node();
    let features = [FULL, &[Feature::UnorderedExecution]].concat();
    let with_barrier = |infos: &[u8], opcode, opaque| {
        let extras: &[u8] = if opcode == opcode::SET { &[0; 8] } else { &[] };
        let parts =
            RequestParts { opcode, key: b"b", opaque, extras, vbucket: vb(b"b"), ..RequestParts::default() };
        request(&RequestParts { frame_infos: infos, ..parts })
    };
    // It does not start before those before it are done.
    let mut connection = connect_as(&node, "admin", &features);
    let bytes = [durable_set(b"a", 1), with_barrier(&[0x00], opcode::GET, 2)].concat();
    let (answers, next) = feed(&mut connection, &bytes);
    assert_eq!((statuses(&answers), next), (vec![], Next::Later));
    // Those behind it do not start before it is done.
    let mut connection = connect_as(&node, "admin", &features);
    let bytes = [with_barrier(&[0x00, 0x11, 3], opcode::SET, 1), get(b"c", 2)].concat();
    let (answers, next) = feed(&mut connection, &bytes);
    assert_eq!((statuses(&answers), next), (vec![], Next::Later));
}

#[test]
fn not_more_than_some_requests_wait_at_once() {
    let node = node();
    let mut connection = connect_as(&node, "admin", &[FULL, &[Feature::UnorderedExecution]].concat());
    let keys: Vec<String> = (0..100).map(|n| format!("k{n}")).collect();
    let bytes: Vec<u8> = keys.iter().flat_map(|key| durable_set(key.as_bytes(), 1)).collect();
    let one = durable_set(b"k0", 1).len();
    let received = connection.receive(&bytes, &mut Output::default());
    assert_eq!(received.next, Next::Later);
    assert!(received.consumed <= 64 * (one + 1), "{received:?}");
}

#[test]
fn stats_of_the_node_are_told_without_a_bucket() {
    let node = node();
    let mut connection = connect(&node);
    let auth = |opaque| RequestParts {
        opcode: opcode::SASL_AUTH,
        key: b"plain",
        value: b"\0admin\0password",
        opaque,
        ..RequestParts::default()
    };
    let hello = Features::of(FULL).encode();
    let hello = RequestParts { opcode: opcode::HELLO, value: &hello, ..RequestParts::default() };
    let stat =
        |key, opaque| request(&RequestParts { opcode: opcode::STAT, key, opaque, ..RequestParts::default() });
    let bytes = [request(&hello), request(&auth(1)), stat(b"threads", 2), stat(b"uuid", 3), stat(b"none", 4)];
    let (answers, _) = feed(&mut connection, &bytes.concat());
    let told = statuses(&answers);
    let of = |opaque| told.iter().filter(move |(of, _)| *of == opaque).map(|(_, status)| *status);
    assert!(of(2).count() > 1 && of(2).all(|status| status == Status::Success), "{told:?}");
    assert_eq!(of(3).collect::<Vec<_>>(), [Status::NoBucket]);
    assert_eq!(of(4).collect::<Vec<_>>(), [Status::KeyEnoent]);
}

#[test]
fn quit_answers_and_closes() {
    let node = node();
    let mut connection = connect_as(&node, "admin", FULL);
    let (answers, next) = feed(&mut connection, &[simple(opcode::QUIT, 1), simple(opcode::NOOP, 2)].concat());
    assert_eq!((statuses(&answers), next), (vec![(1, Status::Success)], Next::Close(CloseReason::Quit)));
    let (answers, next) = feed(&mut connect_as(&node, "admin", FULL), &simple(opcode::QUITQ, 1));
    assert_eq!((answers.len(), next), (0, Next::Close(CloseReason::Quit)));
}

#[test]
fn what_old_clients_would_misread_closes_the_connection() {
    let node = node();
    let mut connection = connect(&node);
    let auth = RequestParts {
        opcode: opcode::SASL_AUTH,
        key: b"plain",
        value: b"\0admin\0password",
        ..RequestParts::default()
    };
    let (_, next) = feed(&mut connection, &[request(&auth), get(b"k", 1)].concat());
    assert_eq!(next, Next::Close(CloseReason::StatusNotUnderstood(Status::NoBucket)));
}

#[test]
fn large_values_are_sent_from_where_they_are() {
    let node = node();
    let mut connection = connect_as(&node, "admin", FULL);
    let value = vec![7; 1 << 20];
    feed(&mut connection, &set(b"k", &value, 1));
    let mut out = Output::default();
    connection.receive(&get(b"k", 2), &mut out);
    assert!(out.as_bytes().is_none(), "the value is shared, not copied");
    assert_eq!(each(&out.to_vec(), |answer| answer.value == value), [true]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn how_bytes_are_cut_does_not_matter(cuts in proptest::collection::vec(1usize..60, 1..20)) {
        let bytes = [
            set(b"a", b"1", 1), get(b"a", 2), simple(opcode::NOOP, 3), set(b"b", &[9; 300], 4), get(b"c", 5),
            simple(0x99, 6), get(b"b", 7),
        ].concat();
        let whole = statuses(&feed(&mut connect_as(&node(), "admin", FULL), &bytes).0);
        let mut connection = connect_as(&node(), "admin", FULL);
        let (mut buffer, mut answers, mut rest) = (Vec::new(), Vec::new(), &bytes[..]);
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (now, later) = rest.split_at((*cut).min(rest.len()));
            rest = later;
            buffer.extend_from_slice(now);
            let mut out = Output::default();
            let received = connection.receive(&buffer, &mut out);
            answers.extend(out.to_vec());
            buffer.drain(..received.consumed);
        }
        prop_assert_eq!(statuses(&answers), whole);
        prop_assert!(buffer.is_empty());
    }
}

#[test]
fn nothing_a_client_sends_makes_the_server_panic() {
    let node = node();
    let login = login("admin", "password", "default", &Features::of(FULL).encode());
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(2000));
    let parts = (
        prop_oneof![Just(0x80u8), Just(0x08)],
        any::<u8>(),
        any::<(u8, u16, u64)>(),
        proptest::collection::vec(any::<u8>(), 0..4),
        proptest::collection::vec(any::<u8>(), 0..33),
        proptest::collection::vec(any::<u8>(), 0..9),
        proptest::collection::vec(any::<u8>(), 0..60),
    );
    let requests = proptest::collection::vec(parts, 1..6);
    runner
        .run(&requests, |requests| {
            let mut bytes = Vec::new();
            for (magic, opcode, (datatype, vb, cas), frame_infos, extras, key, value) in &requests {
                let frame_infos = if *magic == 0x08 { &frame_infos[..] } else { &[] };
                let parts = RequestParts {
                    opcode: *opcode,
                    datatype: datatype & 7,
                    vbucket: VbId(vb % 6),
                    cas: Cas(cas % 2),
                    frame_infos,
                    extras,
                    key,
                    value,
                    ..RequestParts::default()
                };
                write_request(&mut bytes, &parts);
            }
            crate::fuzz::connection(&node, &login, &bytes);
            Ok(())
        })
        .expect("no input makes it fail");
}
