//! Every command x every durability level x what the client is told: a success that a change is answered with leaves
//! only after the commit.

use base::DurabilityLevel;
use engine::topology_from_json;
use subdoc::request::path_flag;

use super::*;
use crate::command::Row;
use crate::command_rules::Durability;

/// How safe the change is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    No,
    ByFrame(DurabilityLevel),
    ByBucket(DurabilityLevel),
}

const ASKED: [Asked; 7] = [
    Asked::No,
    Asked::ByFrame(DurabilityLevel::Majority),
    Asked::ByFrame(DurabilityLevel::MajorityAndPersistOnActive),
    Asked::ByFrame(DurabilityLevel::PersistToMajority),
    Asked::ByBucket(DurabilityLevel::Majority),
    Asked::ByBucket(DurabilityLevel::MajorityAndPersistOnActive),
    Asked::ByBucket(DurabilityLevel::PersistToMajority),
];

/// What a command does to the document that stands in its way.
enum Effect {
    /// It changes it: extras, value, path flags included. The document is there before, or must not be.
    Changes { extras: Vec<u8>, value: Vec<u8>, exists: bool },
    /// It changes it, and is never a sync write, whatever the bucket asks for (as in the field).
    AtOnce,
    /// It changes nothing.
    Reads,
}

const NUMBER: &[u8] = b"7";
const OBJECT: &[u8] = br#"{"a":[1],"n":1}"#;

fn path(flags: u8, path: &str, value: &str) -> Effect {
    let extras = [&(path.len() as u16).to_be_bytes()[..], &[flags]].concat();
    let value = [path.as_bytes(), value.as_bytes()].concat();
    Effect::Changes { extras, value, exists: true }
}

fn changes(extras: &[u8], value: &[u8]) -> Effect {
    Effect::Changes { extras: extras.to_vec(), value: value.to_vec(), exists: true }
}

/// Fails for a command on documents that nobody has said anything about.
fn effect(row: &Row) -> Effect {
    let counter = [&1u64.to_be_bytes()[..], &[0; 8], &[0; 4]].concat();
    match row.opcode {
        opcode::SET | opcode::SETQ | opcode::REPLACE | opcode::REPLACEQ => changes(&[0; 8], b"new"),
        opcode::ADD | opcode::ADDQ => {
            Effect::Changes { extras: vec![0; 8], value: b"new".to_vec(), exists: false }
        }
        opcode::APPEND | opcode::APPENDQ | opcode::PREPEND | opcode::PREPENDQ => changes(&[], b"1"),
        opcode::INCREMENT | opcode::INCREMENTQ | opcode::DECREMENT | opcode::DECREMENTQ => {
            changes(&counter, b"")
        }
        opcode::DELETE | opcode::DELETEQ => changes(&[], b""),
        opcode::TOUCH | opcode::GAT | opcode::GATQ => changes(&1000u32.to_be_bytes(), b""),
        opcode::RETURN_META => changes(&[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0], b"new"),
        opcode::SUBDOC_DICT_ADD => path(0, "b", "1"),
        opcode::SUBDOC_DICT_UPSERT | opcode::SUBDOC_REPLACE => path(0, "n", "2"),
        opcode::SUBDOC_DELETE => path(0, "n", ""),
        opcode::SUBDOC_ARRAY_PUSH_LAST
        | opcode::SUBDOC_ARRAY_PUSH_FIRST
        | opcode::SUBDOC_ARRAY_ADD_UNIQUE => path(0, "a", "2"),
        opcode::SUBDOC_ARRAY_INSERT => path(0, "a[0]", "2"),
        opcode::SUBDOC_COUNTER => path(0, "n", "1"),
        opcode::SUBDOC_REPLACE_BODY_WITH_XATTR => path(path_flag::XATTR, "x", ""),
        opcode::SUBDOC_MULTI_MUTATION => {
            changes(&[], &[opcode::SUBDOC_DICT_UPSERT, 0, 0, 1, 0, 0, 0, 1, b'n', b'2'])
        }
        opcode::SET_WITH_META
        | opcode::SETQ_WITH_META
        | opcode::ADD_WITH_META
        | opcode::ADDQ_WITH_META
        | opcode::DELETE_WITH_META
        | opcode::DELETEQ_WITH_META
        | opcode::MUTATE_WITH_META => Effect::AtOnce,
        opcode::GET
        | opcode::GETQ
        | opcode::GETK
        | opcode::GETKQ
        | opcode::GET_REPLICA
        | opcode::GET_EX
        | opcode::GET_EX_REPLICA
        | opcode::GET_LOCKED
        | opcode::UNLOCK_KEY
        | opcode::GET_META
        | opcode::GETQ_META
        | opcode::EVICT_KEY
        | opcode::GET_KEYS
        | opcode::SUBDOC_GET
        | opcode::SUBDOC_EXISTS
        | opcode::SUBDOC_GET_COUNT
        | opcode::SUBDOC_MULTI_LOOKUP => Effect::Reads,
        _ => panic!("{}: does it change documents, and with what?", row.name),
    }
}

/// A client, one that looks on, and the bucket.
struct Scene {
    client: Connection,
    onlooker: Connection,
    bucket: Arc<Bucket>,
}

impl Scene {
    fn new() -> Scene {
        let node = node();
        let bucket = node.bucket("default").expect("it is served");
        let features: Vec<Feature> = FULL.iter().copied().filter(|f| *f != Feature::MutationSeqno).collect();
        let connect = || connect_as(&node, "admin", &features);
        Scene { client: connect(), onlooker: connect(), bucket }
    }

    /// Gives all vBuckets a chain: of this node alone, or with another that never acknowledges anything.
    fn lead(&self, with_another: bool) {
        let chain = if with_another { serde_json::json!([["a", "b"]]) } else { serde_json::json!([["a"]]) };
        let topology = topology_from_json(&chain).expect("a chain");
        for vb in 0..4 {
            self.bucket
                .roles()
                .set_vbucket_state(VbId(vb), base::VbState::Active, Some(topology.clone()))
                .expect("there is one");
        }
    }

    /// Everything is saved, and whoever waits for that is told.
    fn settle(&mut self) -> Vec<(u32, Status)> {
        assert!(self.bucket.flushing().flush_all());
        let mut out = Output::default();
        self.client.poll_later(&mut Context::from_waker(Waker::noop()), &mut out);
        statuses(&out.to_vec())
    }

    /// What the onlooker sees of the document: value, flags, expiry and all, as revision and CAS tell of them.
    fn seen(&mut self, key: &[u8]) -> Vec<(Option<Status>, u64)> {
        let parts =
            RequestParts { opcode: opcode::GET_META, key, vbucket: vb(key), ..RequestParts::default() };
        let (answers, _) = feed(&mut self.onlooker, &request(&parts));
        each(&answers, |answer| (answer.status(), answer.cas.0))
    }
}

fn frame(asked: Asked) -> Vec<u8> {
    match asked {
        Asked::ByFrame(level) => vec![0x11, level as u8],
        Asked::No | Asked::ByBucket(_) => Vec::new(),
    }
}

fn min_level(asked: Asked) -> &'static str {
    match asked {
        Asked::ByBucket(level) => crate::naming::durability(Some(level)),
        Asked::No | Asked::ByFrame(_) => "none",
    }
}

fn document_for(row: &Row) -> Vec<u8> {
    let is_subdoc = row.name.starts_with("Subdoc");
    if is_subdoc { OBJECT.to_vec() } else { NUMBER.to_vec() }
}

/// What the client is told of a change, before and after it is as safe as was asked for.
fn check(scene: &mut Scene, row: &Row, asked: Asked, extras: &[u8], value: &[u8], exists: bool) {
    let case = format!("{} asked {asked:?}", row.name);
    let key = format!("{}-{asked:?}", row.name).into_bytes();
    scene.bucket.set_params(&[("durability_min_level", "none")]).expect("a level");
    scene.lead(false);
    if exists {
        feed(&mut scene.onlooker, &set(&key, &document_for(row), 0));
        if row.opcode == opcode::SUBDOC_REPLACE_BODY_WITH_XATTR {
            let extras = [0, 1, path_flag::XATTR];
            let upsert =
                RequestParts { opcode: opcode::SUBDOC_DICT_UPSERT, key: &key, ..RequestParts::default() };
            let upsert = RequestParts { extras: &extras, value: b"x1", vbucket: vb(&key), ..upsert };
            let (answers, _) = feed(&mut scene.onlooker, &request(&upsert));
            assert_eq!(statuses(&answers), [(0, Status::Success)], "{case}");
        }
    }
    scene.settle();
    scene.bucket.set_params(&[("durability_min_level", min_level(asked))]).expect("a level");
    scene.lead(true);
    let before = scene.seen(&key);
    let infos = frame(asked);
    let parts = RequestParts { opcode: row.opcode, key: &key, opaque: 1, extras, ..RequestParts::default() };
    let parts = RequestParts { value, frame_infos: &infos, vbucket: vb(&key), ..parts };
    let (answers, next) = feed(&mut scene.client, &request(&parts));
    let told = statuses(&answers);
    if matches!(asked, Asked::ByFrame(_)) && row.durability != Durability::Carried {
        let refused = match row.durability {
            Durability::NotSupported => Status::NotSupported,
            _ => Status::Einval,
        };
        assert_eq!(told, [(1, refused)], "{case}");
        assert_eq!(scene.seen(&key), before, "{case}: a refused change changes nothing");
        return;
    }
    let silent = row.silence.hides(Status::Success, Features::default());
    let success = if silent { vec![] } else { vec![(1, Status::Success)] };
    if asked == Asked::No {
        assert_eq!((told, next), (success, Next::Bytes(HEADER_BYTES)), "{case}");
        assert_ne!(scene.seen(&key), before, "{case}");
        return;
    }
    assert_eq!((told, next), (vec![], Next::Later), "{case}: nothing is told of a prepare");
    assert_eq!(scene.seen(&key), before, "{case}: nobody sees a prepare");
    assert_eq!(scene.settle(), [], "{case}: the other node has nothing yet");
    scene.lead(false);
    assert_eq!(scene.settle(), success, "{case}");
    assert_ne!(scene.seen(&key), before, "{case}: what was told is seen");
}

#[test]
fn a_success_leaves_only_after_the_commit() {
    let mut scene = Scene::new();
    let documents = ROWS.iter().filter(|row| row.key == crate::command_rules::Key::Document);
    for row in documents {
        match effect(row) {
            Effect::Changes { extras, value, exists } => {
                for asked in ASKED {
                    check(&mut scene, row, asked, &extras, &value, exists);
                }
            }
            Effect::AtOnce | Effect::Reads => {
                assert_eq!(row.durability, Durability::Invalid, "{}", row.name);
            }
        }
    }
}

/// Two commands that carry no durability, and are sync writes where the bucket asks for that.
#[test]
pub(super) fn touch_and_return_meta_are_answered_behind_their_commit() {
    let mut scene = Scene::new();
    for row in ROWS.iter().filter(|row| matches!(row.opcode, opcode::TOUCH | opcode::RETURN_META)) {
        let Effect::Changes { extras, value, exists } = effect(row) else { panic!("{} changes", row.name) };
        check(&mut scene, row, Asked::ByBucket(DurabilityLevel::Majority), &extras, &value, exists);
    }
}

#[test]
fn what_carries_no_durability_refuses_it() {
    let mut scene = Scene::new();
    // A seqno that advances is a command on fed connections alone.
    let is_known = |row: &&Row| row.opcode != opcode::DCP_SEQNO_ADVANCED;
    for row in ROWS.iter().filter(|row| row.durability == Durability::Invalid).filter(is_known) {
        let parts = well_formed(row);
        let frame_infos: &[u8] = &[0x11, 1];
        let bytes = request(&RequestParts { frame_infos, ..parts });
        let (answers, _) = feed(&mut scene.client, &bytes);
        assert_eq!(statuses(&answers), [(0, Status::Einval)], "{}", row.name);
    }
}

/// A request that the row's layout lets pass.
fn well_formed(row: &Row) -> RequestParts<'static> {
    use crate::command_rules::{CasRule, Extras, Key, ValueRule};
    let zeros: &'static [u8] = &[0; 64];
    let len = match row.extras {
        Extras::None | Extras::Any => 0,
        Extras::Exactly(len) => len,
        Extras::OneOf(lens) => lens[0],
    };
    let value_len = match row.value {
        ValueRule::Forbidden | ValueRule::Optional | ValueRule::InsteadOfKey => 0,
        ValueRule::Required => 1,
        ValueRule::Exactly(len) => usize::from(len),
    };
    RequestParts {
        opcode: row.opcode,
        extras: &zeros[..usize::from(len)],
        key: if matches!(row.key, Key::Required | Key::Document) { b"k" } else { b"" },
        value: &zeros[..value_len],
        cas: Cas(u64::from(row.cas == CasRule::Required)),
        ..RequestParts::default()
    }
}
