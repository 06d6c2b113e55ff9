//! What is read of a vBucket, and when it is complete.

use std::path::Path;

use base::{Cas, RevSeqno};
use protocol::dcp::{Deletion, EndReason, Marker, Mutation};

use super::*;

const VB: VbId = VbId(1);

fn now(high: u64, log: &[(u64, u64)]) -> Now {
    let log = log.iter().map(|(uuid, seqno)| (VbUuid(*uuid), Seqno(*seqno))).collect();
    Now { high: Seqno(high), log }
}

fn line(uuid: u64, to: u64) -> VbucketLine {
    VbucketLine { vb: 1, uuid, from: 0, to, blocks: Vec::new(), counts: BTreeMap::new() }
}

/// The history that the stream names, the one that is recorded, and where it begins; or where an unchanged one ends.
fn planned(now: &Now, base: Option<&VbucketLine>) -> Result<(u64, u64, u64), (u64, u64, u64)> {
    plan(VB, now, base)
        .map(|plan| (plan.known.0, plan.uuid.0, plan.from.0))
        .map_err(|line| (line.uuid, line.from, line.to))
}

#[test]
fn a_vbucket_goes_on_where_its_history_still_is() {
    let one = [(7, 0)];
    assert_eq!(planned(&now(9, &one), None), Ok((7, 7, 0)));
    assert_eq!(planned(&now(9, &one), Some(&line(7, 5))), Ok((7, 7, 5)));
    assert_eq!(planned(&now(5, &one), Some(&line(7, 5))), Err((7, 5, 5)));
    assert_eq!(planned(&now(0, &one), None), Err((7, 0, 0)));
    // Emptied: nothing of earlier backups belongs to it.
    assert_eq!(planned(&now(0, &[(8, 0)]), Some(&line(7, 5))), Err((8, 0, 0)));
    // Another bucket, and one that has lost changes.
    assert_eq!(planned(&now(9, &[(8, 0)]), Some(&line(7, 5))), Ok((8, 8, 0)));
    assert_eq!(planned(&now(4, &one), Some(&line(7, 5))), Ok((7, 7, 0)));
    // A new history that began behind the place, at it, and before it.
    assert_eq!(planned(&now(9, &[(8, 6), (7, 0)]), Some(&line(7, 5))), Ok((7, 8, 5)));
    assert_eq!(planned(&now(5, &[(8, 5), (7, 0)]), Some(&line(7, 5))), Err((8, 5, 5)));
    assert_eq!(planned(&now(9, &[(8, 4), (7, 0)]), Some(&line(7, 5))), Ok((8, 8, 0)));
    // The backup behind that one goes on in the new history.
    assert_eq!(planned(&now(12, &[(8, 6), (7, 0)]), Some(&line(8, 9))), Ok((8, 8, 9)));
}

struct Messages<'a, 'e>(Taking<'e, 'a>);

impl Messages<'_, '_> {
    fn send(&mut self, seqno: u64, what: What) -> (ControlFlow<()>, FollowState) {
        let key = format!("\0k{seqno}");
        let message = Message {
            vb: VB,
            opaque: 1,
            stream_id: None,
            cas: Cas(seqno),
            datatype: 0,
            key: key.as_bytes(),
            value: b"v",
            what,
        };
        let flow = self.0.event(Event::Message(&message));
        (flow, self.0.tracks[&VB].state)
    }

    fn mutation(&mut self, seqno: u64) -> (ControlFlow<()>, FollowState) {
        let (by_seqno, rev_seqno) = (Seqno(seqno), RevSeqno(1));
        self.send(seqno, What::Mutation(Mutation { by_seqno, rev_seqno, ..Mutation::default() }))
    }

    fn marker(&mut self, start: u64, end: u64) -> (ControlFlow<()>, FollowState) {
        let marker = Marker { start: Seqno(start), end: Seqno(end), ..Marker::default() };
        self.send(0, What::Marker(marker))
    }
}

/// Follows one vBucket to a goal.
fn follow(goal: u64, test: impl FnOnce(&mut Messages<'_, '_>)) {
    let (env, _) = Env::sim(1);
    let head = BackupHead {
        id: "20261127T000000Z".to_owned(),
        number: 1,
        base: None,
        begun_s: 0,
        vbuckets: 2,
        snapshot: None,
        is_given: false,
    };
    let writer =
        BackupWriter::begin(&*env.disk, Path::new("/b/20261127T000000Z"), head, None).expect("begun");
    let plan = ReadPlan { vb: VB, known: VbUuid(7), uuid: VbUuid(7), from: Seqno(0), goal: Seqno(goal) };
    let (interrupted, mut show) = (AtomicBool::new(false), |_: &HowFar| {});
    let taking = Taking {
        env: &env,
        patience: Duration::from_secs(1),
        writer,
        tracks: [(VB, Followed::new(plan))].into(),
        left: 1,
        interrupted: &interrupted,
        show: &mut show,
        vbuckets: 2,
        versions: 0,
        bytes: 0,
        begun: Duration::ZERO,
        heard: Duration::ZERO,
        cut: &Cut::default(),
        max_rate: None,
        paused: Duration::ZERO,
        failed: None,
    };
    test(&mut Messages(taking));
}

const STREAMING: (ControlFlow<()>, FollowState) = (ControlFlow::Continue(()), FollowState::Streaming);
const COMPLETE: (ControlFlow<()>, FollowState) = (ControlFlow::Break(()), FollowState::Complete);

#[test]
fn a_vbucket_is_complete_at_the_end_of_a_snapshot_behind_its_goal() {
    follow(3, |stream| {
        assert_eq!(stream.marker(1, 2), STREAMING);
        assert_eq!(stream.mutation(2), STREAMING, "a snapshot ends before the goal");
        assert_eq!(stream.marker(3, 6), STREAMING);
        assert_eq!(stream.mutation(4), STREAMING, "the goal is in the middle of a snapshot");
        let deletion = Deletion { by_seqno: Seqno(5), rev_seqno: RevSeqno(2), delete_time: Some(9) };
        assert_eq!(stream.send(5, What::Deletion(deletion)), STREAMING);
        assert_eq!(stream.send(6, What::SeqnoAdvanced(Seqno(6))), COMPLETE);
        // What comes behind is of a later moment.
        assert_eq!(stream.mutation(7), COMPLETE);
        let line = &stream.0.tracks[&VB].line;
        assert_eq!((line.uuid, line.from, line.to), (7, 0, 6));
        assert_eq!((line.counts[&0].documents, line.counts[&0].tombstones), (2, 1));
    });
}

#[test]
fn a_vbucket_that_is_rolled_back_is_not_complete() {
    follow(3, |stream| {
        assert_eq!(stream.marker(1, 9), STREAMING);
        assert_eq!(stream.mutation(2), STREAMING);
        assert!(stream.0.event(Event::RolledBack(VB, Seqno(1))).is_break());
        assert_eq!(stream.mutation(9).1, FollowState::RolledBack, "what comes behind is left out");
        assert!(stream.0.failed.is_none());
    });
}

#[test]
fn a_stream_that_ends_early_is_a_failure() {
    follow(3, |stream| {
        assert_eq!(stream.marker(1, 9), STREAMING);
        assert!(stream.0.event(Event::Ended(VB, EndReason::Closed)).is_break());
        let said = stream.0.failed.take().expect("a failure").to_string();
        assert!(said.contains("vBucket 1"), "{said}");
    });
}
