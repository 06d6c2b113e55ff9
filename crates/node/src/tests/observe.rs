//! What observe says of vBuckets that are not active.

use base::VbState;

use super::*;

/// An observe request for one key, and the answer's status with the state it tells.
fn observed(connection: &mut Connection, key: &[u8]) -> (Status, Option<u8>) {
    let mut value = vb(key).0.to_be_bytes().to_vec();
    value.extend_from_slice(&(key.len() as u16).to_be_bytes());
    value.extend_from_slice(key);
    let parts = RequestParts { opcode: opcode::OBSERVE, value: &value, ..RequestParts::default() };
    let (answers, next) = feed(connection, &request(&parts));
    assert!(!answers.is_empty(), "{next:?}");
    each(&answers, |answer| {
        (answer.status().expect("a known status"), answer.value.get(4 + key.len()).copied())
    })[0]
}

/// Clients that wait for copies without durable writes ask the replicas.
#[test]
fn keys_are_observed_in_every_role() {
    let node = node();
    let mut admin = connect_as(&node, "admin", FULL);
    let (answers, _) = feed(&mut admin, &set(b"k", b"v", 1));
    assert_eq!(statuses(&answers), [(1, Status::Success)]);
    let bucket = node.bucket("default").expect("it is served");
    let become_state =
        |state| bucket.roles().set_vbucket_state(vb(b"k"), state, None).expect("any state may come");
    become_state(VbState::Replica);
    assert_eq!(observed(&mut admin, b"k").0, Status::Success);
    assert!(matches!(observed(&mut admin, b"k").1, Some(0 | 1)), "it is there, on disk or not");
    for state in [VbState::Pending, VbState::Dead] {
        become_state(state);
        assert_eq!(observed(&mut admin, b"k").0, Status::Success, "{state:?}");
    }
}
