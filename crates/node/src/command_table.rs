//! THE table: one row per command.
//!
//! Validation, privilege check, dispatch and the command reference come from here. A number without a row is an
//! unknown command, one in [`RETIRED`] a command that servers once had.

use base::Datatype;
use protocol::Status;
use protocol::opcode::*;

use crate::command::{Handler, Row};
use crate::command_rules::CasRule::{Forbidden as NoCas, Optional as AnyCas, Required as NeedsCas};
use crate::command_rules::{Key, Leaves, Silence, ValueRule};
use crate::commands::{
    admin, auth, bucket_snapshot, collections, command_timer, counter, dcp as streams,
    dcp_consumer as consumer, delete, file_snapshot, get, lock, meta, mutate_with_meta, observe, range_scan,
    session, stats, store, subdoc, touch, vbucket,
};
use crate::privilege::Privilege::*;

const XATTR: u8 = Datatype::XATTR.0;
const JSON: u8 = Datatype::JSON.0;
const SNAPPY: u8 = Datatype::SNAPPY.0;
/// Flags, expiry, rev seqno, CAS; then options, the length of extended metadata, or both.
const WITH_META: &[u8] = &[24, 26, 28, 30];
/// Path length and flags; then document flags, expiry, or both.
const ONE_PATH: &[u8] = &[3, 4, 7, 8];
/// The same for a mutation, which may have the flags of the document behind the expiry.
const ONE_PATH_CHANGE: &[u8] = &[3, 4, 7, 8, 11, 12];

const CLUSTER_PLACES: &str = "the state of the cluster says what each vBucket is: use stave cluster";
const CLUSTER_MANIFEST: &str =
    "all nodes have the manifest of the cluster: change scopes and collections over HTTP";
const FLUSH_ELSEWHERE: &str = "empty a bucket over HTTP (doFlush)";

const fn with_meta(opcode: u8, handler: Handler, doc: &'static str) -> Row {
    Row::document(opcode, handler, MetaWrite, doc)
        .extras_of(WITH_META)
        .value(ValueRule::Optional)
        .datatype(JSON | SNAPPY | XATTR)
        .cas(AnyCas)
        .in_turn()
}

const fn path_read(opcode: u8, doc: &'static str) -> Row {
    Row::document(opcode, subdoc::lookup, Read, doc)
        .extras_of(ONE_PATH)
        .value(ValueRule::Optional)
        .cas(AnyCas)
}

const fn path_change(opcode: u8, doc: &'static str) -> Row {
    Row::document(opcode, subdoc::mutate, Upsert, doc)
        .extras_of(ONE_PATH_CHANGE)
        .value(ValueRule::Optional)
        .cas(AnyCas)
        .durable()
        .keeps_ttl()
}

const fn dcp(opcode: u8, handler: Handler, doc: &'static str) -> Row {
    // Who has no bucket has no connection for streams either, and is told that.
    Row::new(opcode, handler, doc).without_bucket(Status::Einval).needs(DcpProducer).cas(AnyCas).in_order()
}

/// What a consumer is told.
const fn to_consumer(opcode: u8, handler: Handler, doc: &'static str) -> Row {
    Row::new(opcode, handler, doc).without_bucket(Status::Einval).needs(DcpConsumer).cas(AnyCas).in_order()
}

/// A message of a stream, which brings changes into the bucket.
const fn dcp_in(opcode: u8, handler: Handler, doc: &'static str) -> Row {
    to_consumer(opcode, handler, doc).brings_changes()
}

/// Every command.
pub static ROWS: &[Row] = &[
    // Session
    Row::new(HELLO, session::hello, "Agree on features")
        .for_anybody()
        .key(Key::Optional)
        .value(ValueRule::Optional),
    Row::new(SASL_LIST_MECHS, auth::list_mechanisms, "List the ways to log in").for_anybody(),
    Row::new(SASL_AUTH, auth::auth, "Log in, or begin to")
        .for_anybody()
        .key(Key::Required)
        .value(ValueRule::Optional),
    Row::new(SASL_STEP, auth::step, "Go on with logging in")
        .for_anybody()
        .key(Key::Required)
        .value(ValueRule::Optional),
    Row::new(GET_ERROR_MAP, session::error_map, "What to do about each error")
        .for_anybody()
        .value(ValueRule::Exactly(2))
        .vbucket_zero(),
    Row::new(SELECT_BUCKET, session::select_bucket, "Choose the bucket for what follows, or none")
        .key(Key::Optional),
    Row::new(LIST_BUCKETS, session::list_buckets, "Names of the buckets that the user may select"),
    Row::new(GET_CLUSTER_CONFIG, session::cluster_config, "Which node serves which vBucket")
        .extras_of(&[0, 16]),
    Row::new(NOOP, session::noop, "Nothing"),
    Row::new(VERSION, session::version, "The server's version"),
    Row::new(VERBOSITY, session::verbosity, "How much is logged: 0 as the configuration says, 1 debug, 2 trace")
        .needs(NodeSupervisor)
        .extras(4),
    Row::new(QUIT, session::quit, "Answer and close the connection").for_anybody(),
    Row::new(QUITQ, session::quit_quietly, "Close the connection").for_anybody().quiet(Silence::Success),
    Row::new(DROP_PRIVILEGE, admin::drop_privilege, "Give up a privilege for this session")
        .key(Key::Required),
    // Documents
    Row::document(GET, get::get, Read, "Read a document"),
    Row::document(GETQ, get::get, Read, "Read a document, silent if there is none").quiet(Silence::Misses),
    Row::document(GETK, get::get, Read, "Read a document with its key"),
    Row::document(GETKQ, get::get, Read, "Read a document with its key, silent if there is none")
        .quiet(Silence::Misses),
    Row::document(GET_REPLICA, get::get_replica, Read, "Read a document of a replica vBucket"),
    Row::document(GET_EX, get::get_ex, Read, "Read a document with its xattrs"),
    Row::document(
        GET_EX_REPLICA,
        get::get_ex_replica,
        Read,
        "Read a document of a replica vBucket with its xattrs",
    ),
    Row::document(SET, store::set, Upsert, "Store a document")
        .extras(8)
        .document_value()
        .cas(AnyCas)
        .durable()
        .keeps_ttl(),
    Row::document(SETQ, store::set, Upsert, "Store a document, silent on success")
        .extras(8)
        .document_value()
        .cas(AnyCas)
        .keeps_ttl()
        .quiet(Silence::Success),
    Row::document(ADD, store::add, Insert, "Store a document that does not exist")
        .extras(8)
        .document_value()
        .durable(),
    Row::document(ADDQ, store::add, Insert, "Store a document that does not exist, silent on success")
        .extras(8)
        .document_value()
        .quiet(Silence::Success),
    Row::document(REPLACE, store::replace, Upsert, "Store a document that exists")
        .extras(8)
        .document_value()
        .cas(AnyCas)
        .durable()
        .keeps_ttl(),
    Row::document(REPLACEQ, store::replace, Upsert, "Store a document that exists, silent on success")
        .extras(8)
        .document_value()
        .cas(AnyCas)
        .keeps_ttl()
        .quiet(Silence::Success),
    Row::document(APPEND, store::append, Upsert, "Add bytes behind a document")
        .leaves(Leaves::LargeDocument)
        .document_value()
        .cas(AnyCas)
        .durable()
        .keeps_ttl(),
    Row::document(
        APPENDQ,
        store::append,
        Upsert,
        "Add bytes behind a document, silent on success unless a token goes with it",
    )
    .leaves(Leaves::LargeDocument)
    .document_value()
    .cas(AnyCas)
    .keeps_ttl()
    .quiet(Silence::SuccessWithoutToken),
    Row::document(PREPEND, store::prepend, Upsert, "Add bytes before a document")
        .leaves(Leaves::LargeDocument)
        .document_value()
        .cas(AnyCas)
        .durable()
        .keeps_ttl(),
    Row::document(
        PREPENDQ,
        store::prepend,
        Upsert,
        "Add bytes before a document, silent on success unless a token goes with it",
    )
    .leaves(Leaves::LargeDocument)
    .document_value()
    .cas(AnyCas)
    .keeps_ttl()
    .quiet(Silence::SuccessWithoutToken),
    Row::document(INCREMENT, counter::increment, Upsert, "Add to a counter")
        .leaves(Leaves::LargeDocument)
        .needs(Read)
        .extras(20)
        .durable()
        .keeps_ttl(),
    Row::document(INCREMENTQ, counter::increment, Upsert, "Add to a counter, silent on success")
        .leaves(Leaves::LargeDocument)
        .needs(Read)
        .extras(20)
        .keeps_ttl()
        .quiet(Silence::Success),
    Row::document(DECREMENT, counter::decrement, Upsert, "Take away from a counter")
        .leaves(Leaves::LargeDocument)
        .needs(Read)
        .extras(20)
        .durable()
        .keeps_ttl(),
    Row::document(DECREMENTQ, counter::decrement, Upsert, "Take away from a counter, silent on success")
        .leaves(Leaves::LargeDocument)
        .needs(Read)
        .extras(20)
        .keeps_ttl()
        .quiet(Silence::Success),
    Row::document(DELETE, delete::delete, Delete, "Delete a document").cas(AnyCas).durable(),
    Row::document(DELETEQ, delete::delete, Delete, "Delete a document, silent on success")
        .cas(AnyCas)
        .quiet(Silence::Success),
    Row::document(TOUCH, touch::touch, Upsert, "Set the expiry time of a document")
        .leaves(Leaves::LargeDocument)
        .extras(4)
        .refuses_durability(),
    Row::document(GAT, touch::get_and_touch, Read, "Read a document and set its expiry time")
        .leaves(Leaves::LargeDocument)
        .needs(Upsert)
        .extras(4)
        .refuses_durability(),
    Row::document(
        GATQ,
        touch::get_and_touch,
        Read,
        "Read a document and set its expiry time, silent if there is none",
    )
    .leaves(Leaves::LargeDocument)
    .needs(Upsert)
    .extras(4)
    .quiet(Silence::Misses),
    Row::document(GET_LOCKED, lock::get_and_lock, Read, "Read a document and lock it")
        .leaves(Leaves::LargeDocument)
        .needs(Upsert)
        .extras_of(&[0, 4]),
    Row::document(UNLOCK_KEY, lock::unlock, Upsert, "Unlock a document").cas(NeedsCas),
    Row::new(GET_RANDOM_KEY, get::get_random_key, "Read a document chosen by chance")
        .leaves(Leaves::Overview)
        .in_bucket()
        .needs(Read)
        .somewhere()
        .fenced()
        .any_extras(),
    Row::new(RANGE_SCAN_CREATE, range_scan::create, "Begin a scan of a range of keys of a vBucket")
        .leaves(Leaves::LargeValue)
        .in_bucket()
        .needs(RangeScan)
        .somewhere()
        .fenced()
        .value(ValueRule::Required)
        .datatype(JSON),
    Row::new(RANGE_SCAN_CONTINUE, range_scan::go_on, "The next keys or documents of a scan")
        .in_bucket()
        .needs(RangeScan)
        .somewhere()
        .fenced()
        .extras(28),
    Row::new(RANGE_SCAN_CANCEL, range_scan::cancel, "End a scan")
        .in_bucket()
        .needs(RangeScan)
        .somewhere()
        .extras(16),
    // Files of vBuckets. Nodes read them of each other when a replica is filled (record 208).
    Row::new(PREPARE_SNAPSHOT, file_snapshot::prepare, "Keep the file of a vBucket as it is, to be read in fragments")
        .leaves(Leaves::Always)
        .in_bucket()
        .needs(NodeSupervisor)
        .fenced()
        .value(ValueRule::Required)
        .datatype(JSON),
    Row::new(RELEASE_SNAPSHOT, file_snapshot::release, "End a snapshot by file: that of the vBucket, or the one named")
        .leaves(Leaves::Always)
        .in_bucket()
        .needs(NodeSupervisor)
        .key(Key::Optional),
    Row::new(DOWNLOAD_SNAPSHOT, file_snapshot::download, "Copy the file of a vBucket from another node")
        .in_bucket()
        .needs(Administrator)
        .value(ValueRule::Required)
        .datatype(JSON),
    Row::new(GET_FILE_FRAGMENT, file_snapshot::fragment, "Bytes of a file of a snapshot")
        .leaves(Leaves::Always)
        .in_bucket()
        .needs(NodeSupervisor)
        .fenced()
        .key(Key::Required)
        .value(ValueRule::Required)
        .datatype(JSON),
    Row::new(BUCKET_SNAPSHOT, bucket_snapshot::bucket_snapshot, "Hold changes, and keep all active vBuckets as of one moment")
        .leaves(Leaves::Overview)
        .in_bucket()
        .needs(DcpProducer)
        .fenced()
        .value(ValueRule::Required)
        .datatype(JSON),
    // Documents with their metadata
    Row::document(GET_META, meta::get_meta, MetaRead, "Read the metadata of a document or tombstone")
        .extras_of(&[0, 1])
        .in_turn(),
    Row::document(GETQ_META, meta::get_meta, MetaRead, "Read metadata, silent if there are none")
        .extras_of(&[0, 1])
        .quiet(Silence::Misses),
    with_meta(SET_WITH_META, meta::set_with_meta, "Store a document with its metadata"),
    with_meta(SETQ_WITH_META, meta::set_with_meta, "Store a document with its metadata, silent on success")
        .quiet(Silence::Success),
    with_meta(ADD_WITH_META, meta::add_with_meta, "Store a document that does not exist with its metadata"),
    with_meta(
        ADDQ_WITH_META,
        meta::add_with_meta,
        "Store a document that does not exist with its metadata, silent on success",
    )
    .quiet(Silence::Success),
    with_meta(
        DELETE_WITH_META,
        meta::delete_with_meta,
        "Delete a document with the metadata of its tombstone",
    ),
    with_meta(
        DELETEQ_WITH_META,
        meta::delete_with_meta,
        "Delete a document with the metadata of its tombstone, silent on success",
    )
    .quiet(Silence::Success),
    Row::document(
        MUTATE_WITH_META,
        mutate_with_meta::mutate_with_meta,
        MetaWrite,
        "Store or delete a document with its metadata, which are JSON behind its value, and write its CAS and seqno into \
         its attributes",
    )
    .extras(4)
    .value(ValueRule::Required)
    .datatype(JSON | SNAPPY | XATTR)
    .cas(AnyCas),
    Row::document(RETURN_META, meta::return_meta, MetaRead, "Change a document and return its metadata")
        .extras(12)
        .document_value()
        .cas(AnyCas)
        .in_turn(),
    // Parts of documents
    path_read(SUBDOC_GET, "Read the value at a path"),
    path_read(SUBDOC_EXISTS, "Look whether a path exists"),
    path_read(SUBDOC_GET_COUNT, "Count the elements at a path"),
    path_change(SUBDOC_DICT_ADD, "Add a field to an object"),
    path_change(SUBDOC_DICT_UPSERT, "Set a field of an object"),
    path_change(SUBDOC_DELETE, "Delete the value at a path"),
    path_change(SUBDOC_REPLACE, "Replace the value at a path"),
    path_change(SUBDOC_ARRAY_PUSH_LAST, "Add to the end of an array"),
    path_change(SUBDOC_ARRAY_PUSH_FIRST, "Add to the beginning of an array"),
    path_change(SUBDOC_ARRAY_INSERT, "Insert into an array"),
    path_change(SUBDOC_ARRAY_ADD_UNIQUE, "Add to an array unless it is in it"),
    path_change(SUBDOC_COUNTER, "Add to the number at a path").needs(Read),
    path_change(SUBDOC_REPLACE_BODY_WITH_XATTR, "Make an attribute the body"),
    Row::document(SUBDOC_MULTI_LOOKUP, subdoc::lookup, Read, "Read several paths")
        .extras_of(&[0, 1])
        .value(ValueRule::Optional)
        .cas(AnyCas),
    Row::document(SUBDOC_MULTI_MUTATION, subdoc::mutate, Upsert, "Change several paths")
        .extras_of(&[0, 1, 4, 5, 8, 9])
        .value(ValueRule::Optional)
        .cas(AnyCas)
        .durable()
        .keeps_ttl(),
    // Where the changes are
    Row::new(OBSERVE_SEQNO, observe::observe_seqno, "How far a vBucket has come, in memory and on disk")
        .in_bucket()
        .needs(MetaRead)
        .somewhere()
        .value(ValueRule::Exactly(8)),
    Row::new(OBSERVE, observe::observe, "Whether documents are on disk")
        .leaves(Leaves::LargeValue)
        .in_bucket()
        .needs(MetaRead)
        .somewhere()
        .value(ValueRule::Required),
    Row::new(GET_ALL_VB_SEQNOS, observe::get_all_vb_seqnos, "How far all vBuckets have come")
        .in_bucket()
        .needs(MetaRead)
        .somewhere()
        .extras_of(&[0, 4, 8]),
    Row::new(SEQNO_PERSISTENCE, observe::seqno_persistence, "Wait until a seqno is on disk")
        .in_bucket()
        .needs(MetaRead)
        .somewhere()
        .extras(8),
    Row::new(GET_FAILOVER_LOG, observe::get_failover_log, "The histories of a vBucket")
        .in_bucket()
        .needs(MetaRead)
        .somewhere()
        .cas(AnyCas)
        .in_order(),
    Row::new(LAST_CLOSED_CHECKPOINT, vbucket::last_closed_checkpoint, "Number of the last closed checkpoint")
        .in_bucket()
        .needs(MetaRead)
        .somewhere(),
    Row::new(CREATE_CHECKPOINT, vbucket::create_checkpoint, "Close the open checkpoint of a vBucket")
        .in_bucket()
        .needs(Settings),
    Row::new(STOP_PERSISTENCE, admin::stop_persistence, "Let the flusher rest; for tests of clients")
        .in_bucket()
        .needs(Settings),
    Row::new(START_PERSISTENCE, admin::start_persistence, "Let the flusher work again")
        .in_bucket()
        .needs(Settings),
    Row::document(EVICT_KEY, get::evict_key, Settings, "Take a value out of memory"),
    Row::document(GET_KEYS, range_scan::get_keys, Read, "Stored keys of a vBucket from one on, in order")
        .leaves(Leaves::Never)
        .extras_of(&[0, 4])
        .in_turn(),
    Row::new(STAT, stats::stat, "Counters and figures, by group")
        .leaves(Leaves::Overview)
        .needs(SimpleStats)
        .somewhere()
        .key(Key::Optional)
        .value(ValueRule::Optional)
        .datatype(JSON),
    // vBuckets
    Row::new(SET_VBUCKET, vbucket::set_vbucket, "Set the state of a vBucket")
        .leaves(Leaves::Always)
        .without_bucket(Status::NotSupported)
        .needs(NodeSupervisor)
        .not_in_cluster(CLUSTER_PLACES)
        .any_extras()
        .value(ValueRule::Optional)
        .at_most(64 << 10)
        .datatype(JSON)
        .cas(AnyCas),
    Row::new(GET_VBUCKET, vbucket::get_vbucket, "The state of a vBucket")
        .without_bucket(Status::NotSupported)
        .needs(MetaRead)
        .somewhere()
        .key(Key::Optional),
    Row::new(DELETE_VBUCKET, vbucket::delete_vbucket, "Delete a vBucket")
        .leaves(Leaves::Always)
        .without_bucket(Status::NotSupported)
        .needs(NodeSupervisor)
        .not_in_cluster(CLUSTER_PLACES)
        .value(ValueRule::Optional)
        .cas(AnyCas),
    Row::new(COMPACT_DB, vbucket::compact, "Rewrite the file of a vBucket without what is not in use")
        .in_bucket()
        .needs(Settings)
        .extras(24),
    Row::new(SET_PARAM, admin::set_param, "Change a setting of the bucket until the node stops")
        .in_bucket()
        .needs(Settings)
        .extras(4)
        .key(Key::Required)
        .value(ValueRule::Required),
    // Collections
    Row::new(GET_COLLECTIONS_MANIFEST, collections::manifest, "The scopes and collections of the bucket")
        .leaves(Leaves::Overview)
        .in_bucket()
        .vbucket_zero(),
    Row::new(SET_COLLECTIONS_MANIFEST, collections::set_manifest, "Change scopes and collections")
        .leaves(Leaves::Always)
        .in_bucket()
        .needs(Settings)
        .not_in_cluster(CLUSTER_MANIFEST)
        .value(ValueRule::Required)
        .at_most(1 << 20)
        .datatype(JSON)
        .vbucket_zero(),
    Row::new(GET_COLLECTION_ID, collections::collection_id, "The number of a collection")
        .in_bucket()
        .key(Key::Optional)
        .value(ValueRule::InsteadOfKey)
        .vbucket_zero(),
    Row::new(GET_SCOPE_ID, collections::scope_id, "The number of a scope")
        .in_bucket()
        .key(Key::Optional)
        .value(ValueRule::InsteadOfKey)
        .vbucket_zero(),
    // Node and cluster
    Row::new(GET_CTRL_TOKEN, admin::control_token, "The token that guards changes by the cluster")
        .needs(NodeSupervisor),
    Row::new(SET_CTRL_TOKEN, admin::set_control_token, "Change the token that guards changes by the cluster")
        .needs(NodeSupervisor)
        .extras(8)
        .cas(AnyCas),
    Row::refused(
        SET_CLUSTER_CONFIG,
        "Change which node serves which vBucket",
        "a node makes its cluster map itself, in a cluster from the state that all nodes follow",
    )
    .needs(NodeSupervisor)
    .extras(16)
    .key(Key::Optional)
    .value(ValueRule::Required)
    .datatype(JSON)
    .cas(AnyCas),
    Row::new(GET_CMD_TIMER, command_timer::get_command_timer, "How long requests of a command took")
        .needs(SimpleStats)
        .extras(1)
        .key(Key::Optional),
    Row::refused(
        UPDATE_EXTERNAL_USER_PERMISSIONS,
        "Change rights of users of an outside service",
        "no outside service can register to log users in: make users and groups over HTTP or with stave user",
    )
    .needs(NodeSupervisor)
    .value(ValueRule::Required)
    .datatype(JSON),
    Row::refused(ADJUST_TIMEOFDAY, "Move the clock", "it is for tests of the original")
        .needs(NodeSupervisor)
        .extras(9),
    Row::refused(EWOULDBLOCK_CTL, "Make calls fail", "it is for tests of the original")
        .needs(NodeSupervisor)
        .extras(12)
        .key(Key::Optional)
        .value(ValueRule::Optional),
    Row::new(
        DISABLE_TRAFFIC,
        admin::disable_traffic,
        "Answer requests for documents with a temporary failure",
    )
    .in_bucket()
    .needs(NodeSupervisor),
    Row::new(ENABLE_TRAFFIC, admin::enable_traffic, "Let clients use documents again")
        .in_bucket()
        .needs(NodeSupervisor),
    Row::refused(FLUSH, "Delete all documents", FLUSH_ELSEWHERE).in_bucket().extras_of(&[0, 4]),
    Row::refused(FLUSHQ, "Delete all documents", FLUSH_ELSEWHERE).in_bucket().extras_of(&[0, 4]),
    // Streams
    // Which privilege it needs depends on its direction: the handler asks.
    Row::new(DCP_OPEN, streams::open, "Make this a connection for streams")
        .in_bucket()
        .extras(8)
        .key(Key::Required)
        .value(ValueRule::Optional)
        .datatype(JSON)
        .cas(AnyCas)
        .in_order(),
    to_consumer(DCP_ADD_STREAM, consumer::add_stream, "Ask the consumer for a stream").extras(4),
    dcp(DCP_CLOSE_STREAM, streams::close_stream, "End a stream"),
    dcp(DCP_STREAM_REQ, streams::stream_request, "Begin a stream").extras(48).value(ValueRule::Optional),
    dcp(DCP_GET_FAILOVER_LOG, streams::get_failover_log, "The histories of a vBucket"),
    dcp_in(DCP_STREAM_END, consumer::of_stream, "A stream has ended").extras(4),
    dcp_in(DCP_SNAPSHOT_MARKER, consumer::snapshot_marker, "A snapshot begins")
        .any_extras()
        .value(ValueRule::Optional),
    dcp_in(DCP_MUTATION, consumer::of_stream, "A document was stored")
        .extras(31)
        .key(Key::Required)
        .value(ValueRule::Optional)
        .datatype(JSON | SNAPPY | XATTR),
    dcp_in(DCP_DELETION, consumer::of_stream, "A document was deleted")
        .extras_of(&[18, 21])
        .key(Key::Required)
        .value(ValueRule::Optional)
        .datatype(JSON | SNAPPY | XATTR),
    dcp_in(DCP_EXPIRATION, consumer::of_stream, "A document expired")
        .extras(20)
        .key(Key::Required)
        .value(ValueRule::Optional)
        .datatype(JSON | SNAPPY | XATTR),
    dcp_in(DCP_SET_VBUCKET_STATE, consumer::of_stream, "Take over a vBucket").extras(1),
    dcp(DCP_NOOP, consumer::noop, "Show that the connection lives"),
    dcp(DCP_BUFFER_ACK, streams::buffer_acknowledgement, "More may be sent").extras(4),
    dcp(DCP_CONTROL, streams::control, "Agree on properties of a stream")
        .key(Key::Required)
        .value(ValueRule::Required),
    dcp_in(DCP_SYSTEM_EVENT, consumer::of_stream, "A collection came or went")
        .extras(13)
        .key(Key::Optional)
        .value(ValueRule::Optional)
        .datatype(JSON | SNAPPY | XATTR),
    dcp_in(DCP_PREPARE, consumer::of_stream, "A durable write is prepared")
        .extras(31)
        .key(Key::Required)
        .value(ValueRule::Optional)
        .datatype(JSON | SNAPPY | XATTR)
        .cas(NeedsCas),
    dcp(DCP_SEQNO_ACKNOWLEDGED, streams::seqno_acknowledged, "Prepares are safe here").extras(8).cas(NoCas),
    dcp_in(DCP_COMMIT, consumer::of_stream, "A durable write is committed")
        .extras(16)
        .key(Key::Required)
        .cas(NoCas),
    dcp_in(DCP_ABORT, consumer::of_stream, "A durable write is aborted")
        .extras(16)
        .key(Key::Required)
        .cas(NoCas),
    dcp_in(DCP_SEQNO_ADVANCED, consumer::of_stream, "Up to here a stream has no more changes").extras(8),
];

/// Commands that servers once had: answered as "not supported", not as "unknown".
pub const RETIRED: &[u8] = &[
    0x30, 0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38, 0x39, 0x3a, 0x3b, 0x3c, 0x40, 0x41, 0x42, 0x43,
    0x44, 0x45, 0x46, 0x47, 0x5a, 0x9e, 0x9f, 0xa6, 0xa7, 0xac, 0xb0, 0xb1, 0xc1, 0xc2,
];

const NO_ROW: u8 = u8::MAX;
const _: () = assert!(ROWS_LEN < NO_ROW as usize);
const ROWS_LEN: usize = ROWS.len();

static BY_OPCODE: [u8; 256] = {
    let mut index = [NO_ROW; 256];
    let mut at = 0;
    while at < ROWS.len() {
        let opcode = ROWS[at].opcode as usize;
        assert!(index[opcode] == NO_ROW, "two rows for one opcode");
        index[opcode] = at as u8;
        at += 1;
    }
    index
};

/// The row of a command, if it is known.
pub fn find(opcode: u8) -> Option<&'static Row> {
    ROWS.get(usize::from(BY_OPCODE[usize::from(opcode)]))
}
