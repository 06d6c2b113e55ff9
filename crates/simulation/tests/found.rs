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
