//! That the ledger sees each kind of broken promise, and none where there is none.

use super::*;

const VB: VbId = VbId(3);

fn entry(seqno: u64) -> Entry {
    Entry { seqno: Seqno(seqno), fingerprint: Fingerprint(seqno * 7), is_deleted: false }
}

/// a = 1, b = 2, a = 3, b deleted = 4, c = 5; 3 promised at 30.
fn ledger() -> Ledger {
    let mut ledger = Ledger::new();
    ledger.wrote(VB, b"a", entry(1), 10);
    ledger.wrote(VB, b"b", entry(2), 10);
    ledger.wrote(VB, b"a", entry(3), 20);
    ledger.promised(VB, Seqno(3), 30);
    ledger.wrote(VB, b"b", Entry { is_deleted: true, ..entry(4) }, 40);
    ledger.wrote(VB, b"c", entry(5), 50);
    ledger
}

fn restored(high_seqno: u64, docs: &[(&[u8], Entry)]) -> Restored {
    let mut restored = Restored::new(Seqno(high_seqno));
    docs.iter().for_each(|(key, entry)| restored.add(key, *entry));
    restored
}

fn key(key: &[u8]) -> Box<[u8]> {
    key.into()
}

#[test]
fn any_state_between_the_promise_and_the_last_write_is_fine() {
    let gone = Entry { is_deleted: true, ..entry(4) };
    let ledger = ledger();
    assert_eq!(ledger.check(VB, &restored(3, &[(b"a", entry(3)), (b"b", entry(2))]), 99), []);
    assert_eq!(ledger.check(VB, &restored(4, &[(b"a", entry(3)), (b"b", gone)]), 99), []);
    let mut purged = restored(5, &[(b"a", entry(3)), (b"c", entry(5))]);
    assert_eq!(ledger.check(VB, &purged, 99), [Violation::Lost { key: key(b"b"), seqno: Seqno(4) }]);
    purged.purge_seqno = Seqno(4);
    assert_eq!(ledger.check(VB, &purged, 99), []);
    assert_eq!(ledger.check(VB, &restored(0, &[]), 29), [], "nothing was promised yet");
}

#[test]
fn a_broken_promise_is_seen() {
    let violations = ledger().check(VB, &restored(2, &[(b"a", entry(1)), (b"b", entry(2))]), 30);
    let stale = Violation::Stale { key: key(b"a"), seqno: Seqno(3), found: Seqno(1) };
    assert_eq!(violations, [Violation::Forgotten { promised: Seqno(3), found: Seqno(2) }, stale]);
}

#[test]
fn a_hole_is_seen() {
    let violations = ledger().check(VB, &restored(3, &[(b"a", entry(3))]), 30);
    assert_eq!(violations, [Violation::Lost { key: key(b"b"), seqno: Seqno(2) }]);
}

#[test]
fn what_nobody_wrote_is_seen() {
    let ledger = ledger();
    let other = Entry { fingerprint: Fingerprint(0), ..entry(3) };
    let violations = ledger.check(VB, &restored(3, &[(b"a", other), (b"b", entry(2))]), 30);
    assert_eq!(violations, [Violation::Invented { key: key(b"a"), found: Seqno(3) }]);
    let docs: &[(&[u8], Entry)] = &[(b"a", entry(3)), (b"b", entry(2)), (b"x", entry(3))];
    let violations = ledger.check(VB, &restored(3, docs), 30);
    assert_eq!(violations, [Violation::Invented { key: key(b"x"), found: Seqno(3) }]);
}

#[test]
fn claims_are_compared_with_what_is_there() {
    let ledger = ledger();
    let docs: &[(&[u8], Entry)] = &[(b"a", entry(3)), (b"b", entry(2)), (b"c", entry(5))];
    let beyond = Violation::BeyondClaim { key: key(b"c"), found: Seqno(5), claimed: Seqno(3) };
    assert_eq!(ledger.check(VB, &restored(3, docs), 99), [beyond]);
    let violations = ledger.check(VB, &restored(4, &docs[..2]), 35);
    let over = Violation::OverClaimed { written: Seqno(3), found: Seqno(4) };
    assert!(violations.contains(&over), "4 was not written yet: {violations:?}");
}

#[test]
fn a_key_must_not_be_there_twice() {
    let docs: &[(&[u8], Entry)] = &[(b"a", entry(3)), (b"a", entry(3)), (b"b", entry(2))];
    assert_eq!(ledger().check(VB, &restored(3, docs), 99), [Violation::Twice { key: key(b"a") }]);
}

#[test]
fn history_goes_on_after_a_restart() {
    let mut ledger = ledger();
    ledger.restarted(VB, Seqno(3));
    assert_eq!(ledger.promised_at(VB, 0), Seqno(3));
    let again = Entry { fingerprint: Fingerprint(1), ..entry(4) };
    ledger.wrote(VB, b"c", again, 5);
    let docs: &[(&[u8], Entry)] = &[(b"a", entry(3)), (b"b", entry(2)), (b"c", again)];
    assert_eq!(ledger.check(VB, &restored(4, docs), 5), []);
    let docs: &[(&[u8], Entry)] = &[(b"a", entry(3)), (b"b", entry(2)), (b"c", entry(5))];
    assert!(
        ledger
            .check(VB, &restored(4, docs), 5)
            .contains(&Violation::Invented { key: key(b"c"), found: Seqno(5) })
    );
}
