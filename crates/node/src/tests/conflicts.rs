//! Changes that bring their metadata, in buckets of both rules of conflict resolution.

use engine::settings::Key;
use protocol::extras::WithMetaExtras;

use super::*;

const ACCEPT: u32 = WithMetaExtras::FORCE_ACCEPT;
const FORCE: u32 = WithMetaExtras::SKIP_CONFLICT_RESOLUTION;
const NEW_CAS: u32 = WithMetaExtras::REGENERATE_CAS;

/// What a change brings: CAS, revision, expiry, flags.
type Brought = (u64, u64, u32, u32);

/// A client of a bucket of this rule, `seqno` or `lww`.
struct Bench {
    client: Connection,
}

impl Bench {
    fn new(rule: u64) -> Bench {
        let node = node();
        let bucket = node.bucket("default").expect("it is served");
        bucket.settings().put(Key::ConflictResolution, rule);
        Bench { client: connect_as(&node, "admin", FULL) }
    }

    fn send(&mut self, opcode: u8, key: &[u8], (cas, rev, expiry, flags): Brought, options: u32) -> Status {
        let mut extras = Vec::new();
        extras.extend_from_slice(&flags.to_be_bytes());
        extras.extend_from_slice(&expiry.to_be_bytes());
        extras.extend_from_slice(&rev.to_be_bytes());
        extras.extend_from_slice(&cas.to_be_bytes());
        extras.extend_from_slice(&options.to_be_bytes());
        let vbucket = vb(key);
        let parts = RequestParts { opcode, key, extras: &extras, vbucket, ..RequestParts::default() };
        let (answers, _) = feed(&mut self.client, &request(&parts));
        let mut status = None;
        each(&answers, |answer| status = Status::from_code(answer.status_code));
        status.expect("one answer")
    }
}

#[test]
fn the_rule_of_the_bucket_decides_which_version_stays() {
    const FAR: u32 = 4_000_000_000;
    let present: Brought = (5_000, 5, FAR, 5);
    // A change, and whether it wins by revision and by time.
    let changes: [(Brought, bool, bool); 9] = [
        ((4_000, 6, FAR, 5), true, false),
        ((6_000, 4, FAR, 5), false, true),
        ((6_000, 6, FAR, 5), true, true),
        ((4_000, 4, FAR, 5), false, false),
        ((5_000, 6, FAR, 5), true, true),
        ((6_000, 5, FAR, 5), true, true),
        ((5_000, 5, FAR + 1, 5), true, true),
        ((5_000, 5, FAR, 6), true, true),
        (present, false, false),
    ];
    for (rule, options) in [(0, 0), (1, ACCEPT)] {
        let mut bench = Bench::new(rule);
        for (n, (change, by_revision, by_time)) in changes.into_iter().enumerate() {
            let key = format!("k{n}");
            let mut send =
                |opcode, brought, more| bench.send(opcode, key.as_bytes(), brought, options | more);
            assert_eq!(send(opcode::SET_WITH_META, present, 0), Status::Success);
            let wins = if rule == 0 { by_revision } else { by_time };
            let expected = if wins { Status::Success } else { Status::KeyEexists };
            assert_eq!(send(opcode::SET_WITH_META, change, 0), expected, "rule {rule}: {change:?}");
            assert_eq!(send(opcode::SET_WITH_META, present, FORCE), Status::Success, "forced");
            let (cas, rev, ..) = change;
            let is_newer = (cas, rev) != (present.0, present.1) && wins;
            let expected = if is_newer { Status::Success } else { Status::KeyEexists };
            assert_eq!(
                send(opcode::DELETE_WITH_META, change, 0),
                expected,
                "rule {rule}: {change:?} deletes"
            );
        }
    }
}

#[test]
fn a_client_must_know_of_resolution_by_time() {
    let brought = (5_000, 5, 0, 0);
    let mut benches = [Bench::new(0), Bench::new(1)];
    for opcode in [opcode::SET_WITH_META, opcode::ADD_WITH_META, opcode::DELETE_WITH_META] {
        for (rule, options, is_taken) in [
            (0, 0, true),
            (0, ACCEPT, false),
            (0, ACCEPT | FORCE, false),
            (0, NEW_CAS, false),
            (1, 0, false),
            (1, FORCE, false),
            (1, ACCEPT, true),
            (1, ACCEPT | FORCE, true),
            (1, ACCEPT | NEW_CAS, false),
            (1, ACCEPT | FORCE | NEW_CAS, true),
        ] {
            let key = format!("k{opcode}:{options}");
            let status = benches[rule].send(opcode, key.as_bytes(), brought, options);
            let expected = if is_taken { Status::Success } else { Status::Einval };
            assert_eq!(status, expected, "opcode {opcode:#x}, rule {rule}, options {options:#x}");
        }
    }
}

#[test]
fn a_bucket_keeps_its_rule() {
    let node = node();
    let bucket = node.bucket("default").expect("it is served");
    assert!(bucket.set_param("conflict_resolution_type", "seqno").is_ok(), "it is that already");
    let refused = bucket.set_param("conflict_resolution_type", "lww").expect_err("it cannot be changed");
    assert!(refused.to_string().contains("make another bucket"), "{refused}");
    assert_eq!(bucket.settings().get(Key::ConflictResolution), 0);
}
