//! Histories that can have happened, and the same with one thing changed that cannot.

use super::check;
use crate::netfaults::history::{CAS_MISMATCH, Class, Event, Op};
use crate::netfaults::plant;

/// An operation on a key between two moments.
fn op(key: &str, op: Op, at: (u64, u64)) -> Event {
    Event {
        process: 1,
        key: key.to_owned(),
        op,
        value: 0,
        expected: 0,
        invoked: at.0,
        answered: at.1,
        class: Class::Ok,
        error: String::new(),
        cas: 0,
        read: Vec::new(),
    }
}

const REGISTER: &str = "register-1";

fn write(value: u64, cas: u64, at: (u64, u64)) -> Event {
    Event { value, cas, ..op(REGISTER, Op::Write, at) }
}

fn replace(value: u64, expected: u64, cas: u64, at: (u64, u64)) -> Event {
    Event { value, expected, cas, ..op(REGISTER, Op::Replace, at) }
}

fn mismatch(expected: u64, at: (u64, u64)) -> Event {
    let error = CAS_MISMATCH.to_owned();
    Event { class: Class::No, error, value: 1_000 + at.0, ..replace(0, expected, 0, at) }
}

/// Reads a register in version `cas`; 0 if it was not there.
fn read(value: u64, cas: u64, at: (u64, u64)) -> Event {
    let read = if cas == 0 { Vec::new() } else { vec![value] };
    Event { cas, read, ..op(REGISTER, Op::Read, at) }
}

fn end(mut read: Event) -> Event {
    read.op = Op::Final;
    read
}

fn maybe(event: Event) -> Event {
    Event { class: Class::Maybe, cas: 0, ..event }
}

fn refused(event: Event) -> Event {
    Event { class: Class::No, cas: 0, ..event }
}

#[track_caller]
fn good(events: &[Event]) {
    let verdicts = check(events);
    assert!(verdicts.bad.is_empty(), "{:?}", verdicts.bad);
}

/// Something is wrong, and says so in these words; gives how much is lost.
#[track_caller]
fn bad(events: &[Event], says: &str) -> u64 {
    let verdicts = check(events);
    let violations: Vec<&String> = verdicts.bad.values().flat_map(|verdict| &verdict.violations).collect();
    assert!(violations.iter().any(|violation| violation.contains(says)), "{violations:?}");
    verdicts.lost()
}

#[test]
fn registers_go_from_version_to_version() {
    good(&[
        read(0, 0, (0, 1)),
        write(1, 10, (2, 5)),
        // At the same time as the write: before it, and after it.
        read(0, 0, (3, 4)),
        read(1, 10, (3, 4)),
        replace(2, 10, 20, (6, 9)),
        mismatch(10, (7, 8)),
        end(read(2, 20, (20, 21))),
    ]);
}

#[test]
fn a_read_that_goes_back_is_found() {
    let mut history = vec![write(1, 10, (0, 1)), write(2, 20, (2, 3)), end(read(2, 20, (9, 10)))];
    good(&history);
    history.push(read(1, 10, (4, 5)));
    bad(&history, "was answered at 3 ns with version 14, but client 1 asked at 4 ns and saw version a");
    // Both reads overlap the second write, but not each other: the later one must not be older.
    let history = [
        write(1, 10, (0, 1)),
        write(2, 20, (2, 9)),
        read(2, 20, (3, 4)),
        read(1, 10, (5, 6)),
        end(read(2, 20, (20, 21))),
    ];
    bad(&history, "version a");
}

#[test]
fn a_value_is_not_read_before_it_is_written() {
    let history = [write(1, 10, (5, 6)), read(1, 10, (1, 2)), end(read(1, 10, (9, 10)))];
    bad(&history, "version a");
}

#[test]
fn writes_in_doubt_may_come_later_or_never() {
    let doubtful = maybe(write(2, 0, (2, 3)));
    let before = [write(1, 10, (0, 1)), doubtful.clone()];
    good(&[before.to_vec(), vec![end(read(1, 10, (9, 10)))]].concat());
    good(&[before.to_vec(), vec![read(1, 10, (5, 6)), end(read(2, 20, (9, 10)))]].concat());
    // What was seen once does not go away again.
    let gone = [before.to_vec(), vec![read(2, 20, (4, 5)), end(read(1, 10, (9, 10)))]].concat();
    bad(&gone, "version a");
}

#[test]
fn what_was_refused_is_never_read() {
    let history = [write(1, 10, (0, 1)), refused(write(2, 0, (2, 3))), end(read(2, 20, (9, 10)))];
    bad(&history, "whose write was refused");
    bad(&[write(1, 10, (0, 1)), end(read(7, 20, (9, 10)))], "nobody wrote");
}

#[test]
fn what_was_acknowledged_is_not_lost() {
    let lost = bad(&[write(1, 10, (0, 1)), write(2, 20, (2, 3)), end(read(1, 10, (9, 10)))], "version a");
    assert_eq!(lost, 1);
    assert_eq!(bad(&[write(1, 10, (0, 1)), end(read(0, 0, (9, 10)))], "version 0"), 1);
    bad(&[write(1, 10, (0, 1))], "not read in the end");
}

#[test]
fn a_replace_stands_behind_what_it_expected() {
    let history =
        [write(1, 10, (0, 1)), write(2, 20, (2, 3)), replace(3, 10, 30, (2, 5)), end(read(3, 30, (9, 10)))];
    bad(&history, "stands behind 14");
}

#[test]
fn a_mismatch_needs_another_write() {
    bad(&[write(1, 10, (0, 1)), mismatch(10, (2, 3)), end(read(1, 10, (9, 10)))], "nobody had written yet");
    // A write in doubt may be the reason.
    let doubtful = maybe(write(2, 0, (2, 3)));
    good(&[write(1, 10, (0, 1)), doubtful, mismatch(10, (4, 5)), end(read(2, 20, (9, 10)))]);
    // The expected version was there afterwards.
    let history = [
        write(1, 10, (0, 1)),
        mismatch(10, (2, 3)),
        read(1, 10, (4, 5)),
        write(2, 20, (0, 6)),
        end(read(2, 20, (9, 10))),
    ];
    bad(&history, "version a");
}

#[test]
fn one_value_has_one_version() {
    let history = [write(1, 10, (0, 1)), read(1, 20, (2, 3)), end(read(1, 20, (9, 10)))];
    bad(&history, "as version a and as 14");
    bad(&[write(1, 10, (0, 1)), write(2, 10, (2, 3)), end(read(2, 10, (9, 10)))], "version a is");
}

fn count(value: u64, cas: u64, at: (u64, u64)) -> Event {
    Event { cas, read: vec![value], ..op("counter-1", Op::Increment, at) }
}

fn counted(value: u64, cas: u64, at: (u64, u64)) -> Event {
    Event { cas, read: vec![value], ..op("counter-1", Op::Read, at) }
}

#[test]
fn counters_count_everything_once() {
    let doubtful = maybe(count(0, 0, (4, 5)));
    let history = [count(1, 10, (0, 1)), count(2, 20, (2, 3)), doubtful];
    good(&[history.to_vec(), vec![end(counted(2, 20, (9, 10)))]].concat());
    good(&[history.to_vec(), vec![counted(2, 20, (6, 7)), end(counted(3, 30, (9, 10)))]].concat());
    bad(&[history.to_vec(), vec![end(counted(4, 40, (9, 10)))]].concat(), "at most 3");
    let lost = bad(&[count(1, 10, (0, 1)), count(2, 20, (2, 3)), end(counted(1, 10, (9, 10)))], "version a");
    assert_eq!(lost, 1);
    bad(&[count(1, 10, (0, 1)), count(1, 20, (2, 3)), end(counted(1, 20, (9, 10)))], "not more than");
    // Not even an increment in doubt can be seen before it was asked for.
    let early = [
        count(1, 10, (0, 1)),
        counted(2, 20, (2, 3)),
        maybe(count(0, 0, (4, 5))),
        end(counted(2, 20, (9, 10))),
    ];
    bad(&early, "at most 1");
}

fn add(element: u64, cas: u64, at: (u64, u64)) -> Event {
    Event { value: element, cas, ..op("set-1-0", Op::Add, at) }
}

fn elements(read: &[u64], cas: u64, at: (u64, u64)) -> Event {
    Event { cas, read: read.to_vec(), ..op("set-1-0", Op::Read, at) }
}

#[test]
fn sets_keep_what_was_added() {
    let history =
        [add(1, 10, (0, 1)), add(2, 20, (2, 3)), maybe(add(3, 0, (4, 5))), refused(add(4, 0, (4, 5)))];
    let with = |more: Event| [history.to_vec(), vec![more]].concat();
    good(&with(end(elements(&[1, 2], 20, (9, 10)))));
    good(&with(end(elements(&[1, 2, 3], 30, (9, 10)))));
    assert_eq!(bad(&with(end(elements(&[1, 3], 30, (9, 10)))), "lacks 2"), 1);
    bad(&with(end(elements(&[1, 2, 4], 30, (9, 10)))), "has 4, which was refused");
    bad(&with(end(elements(&[1, 2, 9], 30, (9, 10)))), "has 9, which nobody added");
    bad(&with(end(elements(&[1, 2, 2], 20, (9, 10)))), "twice");
    let seen = with(elements(&[1, 2, 3], 30, (6, 7)));
    bad(&[seen, vec![end(elements(&[1, 2], 40, (9, 10)))]].concat(), "lacks 3");
    bad(&with(elements(&[1], 10, (4, 5))), "version a");
    bad(&with(elements(&[1, 2], 10, (1, 2))), "has 2, which was added later");
}

#[test]
fn every_planted_lie_is_found() {
    let document = "document-5";
    let history = [
        write(1, 10, (0, 1)),
        read(1, 10, (2, 3)),
        write(2, 20, (4, 5)),
        read(2, 20, (6, 7)),
        end(read(2, 20, (90, 91))),
        count(1, 10, (0, 1)),
        end(counted(1, 10, (90, 91))),
        add(1, 10, (0, 1)),
        end(elements(&[1], 10, (90, 91))),
        Event { value: 5, cas: 10, ..op(document, Op::Insert, (0, 1)) },
        Event { read: vec![5], cas: 10, ..op(document, Op::Final, (90, 91)) },
    ];
    good(&history);
    assert_eq!(plant::found(&history), (6, 6, Vec::new()));
    // What there is nothing of cannot be planted.
    assert_eq!(plant::found(&[]), (0, 0, Vec::new()));
}
