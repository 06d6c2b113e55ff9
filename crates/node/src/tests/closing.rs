//! Connections that are closed because of what an answer that comes later would say.

use base::VbState;

use super::*;

/// Also with a client that agreed to another order of answers: its connection waits for bytes while it waits for answers.
#[test]
pub(super) fn a_client_that_would_misread_a_late_answer_is_not_waited_for() {
    for features in
        [&[Feature::AltRequestSupport][..], &[Feature::AltRequestSupport, Feature::UnorderedExecution]]
    {
        let node = node();
        let mut connection = connect_as(&node, "admin", features);
        let (answers, next) = feed(&mut connection, &durable_set(b"a", 1));
        assert_eq!(statuses(&answers), []);
        let bucket = node.bucket("default").expect("it is served");
        // Another node may commit it: what becomes of it is not known here.
        bucket.roles().set_vbucket_state(vb(b"a"), VbState::Replica, None).expect("there is one");
        let mut out = Output::default();
        assert!(connection.poll_later(&mut Context::from_waker(Waker::noop()), &mut out));
        assert_eq!(statuses(&out.to_vec()), []);
        let reason = CloseReason::StatusNotUnderstood(Status::SyncWriteAmbiguous);
        assert_eq!(connection.after_answers(next, false), Next::Close(reason));
    }
}
