//! Seeds that found something, by what they found.

use simulation::run;

fn is_right(seed: u64) {
    assert_eq!(run(seed).violation, None, "seed {seed}");
}

/// Replicas refused the events of collections, and were never again what the active node was.
#[test]
fn replicas_take_events_of_collections() {
    is_right(15);
}

/// A new active node let clients read a document whose prepare it had inherited, as it was before: the old active node
/// had committed the prepare, and told so.
#[test]
fn what_was_inherited_is_not_read_before_it_is_decided() {
    is_right(78);
}

/// The same, with an append, and nobody who could decide until the end.
#[test]
fn what_cannot_be_decided_is_not_read() {
    is_right(70);
}

/// What had to settle after a graceful failover waited for a revision of the document that never came.
#[test]
fn chains_settle_after_a_graceful_failover() {
    is_right(77);
}

/// A node had lost all that it had in memory, and said so; another one had only lost its lease, and was not believed as
/// long as the first one had said nothing more.
#[test]
fn whoever_has_no_copy_is_not_waited_for() {
    is_right(162);
}

/// Who became active with a prepare of a document that was on disk alone counted that document twice.
#[test]
fn what_a_commit_takes_the_place_of_is_counted_once() {
    is_right(282);
}

/// A graceful failover took the last copy out of a chain whose active node was down.
#[test]
fn a_graceful_failover_leaves_nobody_alone_who_is_down() {
    is_right(796);
}

/// A replica had been told that nothing had changed up to a seqno, in a history that was not to be; it went back, stood
/// there again, and was sent back again and again.
#[test]
fn whoever_was_told_of_nothing_goes_back_before_it() {
    is_right(771);
}

/// The simulator let nodes forget that were alone with something: nothing can be expected then.
#[test]
fn nobody_loses_what_nobody_else_has() {
    [182, 360, 444].into_iter().for_each(is_right);
}

/// A prepare was lost with a failover, and its CAS was given again by a node whose clock was behind: nobody had been told.
#[test]
fn what_nobody_was_told_of_leaves_its_cas() {
    is_right(1379);
}
