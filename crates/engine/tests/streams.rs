//! What streams ask of a bucket: where they may begin, memory, disk, and the switch between them.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::{Seqno, VbState, VbUuid};
use common::{VB, Watched, WholeLines, World, lines, stores};
use engine::{BackfillReading, Changes, Follower, Progress, StreamRefusal, StreamWanted};
use kvstore::Values;
use vbucket::{RangeLimit, ResumePoint};

const READING: BackfillReading = BackfillReading {
    values: Values::Read,
    by_key: None,
    is_urgent: false,
    with_prepares: false,
    with_past: false,
};

fn follower() -> (Arc<Follower>, Arc<AtomicUsize>) {
    let wakes = Arc::new(AtomicUsize::new(0));
    let counter = wakes.clone();
    let follower = Follower::new(8, move || {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    (follower, wakes)
}

fn keys(versions: &[base::Version]) -> Vec<String> {
    versions.iter().map(|v| String::from_utf8_lossy(v.key().key).into_owned()).collect()
}

#[test]
fn the_first_role_of_a_vbucket_begins_its_only_history() {
    let (env, handles) = base::env::Env::sim(41);
    let world = stores::open(env, handles, stores::files, |config| config.first_role = VbState::Dead);
    let seqnos = |world: &World| {
        let log = world.bucket.inspect(VB, |vb| vb.failover().to_entries()).expect("there is one");
        log.iter().map(|entry| entry.seqno.0).collect::<Vec<_>>()
    };
    let become_ =
        |world: &World, state| world.bucket.roles().set_vbucket_state(VB, state, None).expect("there is one");
    become_(&world, VbState::Dead);
    become_(&world, VbState::Active);
    assert_eq!(seqnos(&world), [0]);
    // It may have had changes elsewhere from now on.
    for state in [VbState::Replica, VbState::Dead, VbState::Active] {
        become_(&world, state);
    }
    assert_eq!(seqnos(&world), [0, 0]);
    world.set("k", "v").expect("stored");
    become_(&world, VbState::Dead);
    world.bucket.close().expect("closed");
    let world = world.restart();
    become_(&world, VbState::Active);
    assert_eq!(seqnos(&world), [1, 0, 0]);
}

#[test]
fn a_stream_reads_the_disk_then_memory_and_misses_nothing() {
    let world = Watched::new(1);
    let bucket = &world.bucket;
    for key in ["a", "b", "c"] {
        world.set(key, "1");
    }
    assert!(bucket.flushing().flush_all());
    let (follower, wakes) = follower();
    let start = bucket
        .streams()
        .begin_stream(VB, &follower, &ResumePoint::default(), StreamWanted::Everything, true)
        .expect("from the start");
    assert_eq!((start.high_seqno, start.state), (Seqno(3), VbState::Active));
    // What comes while it reads the disk is kept in memory for it.
    let cursor = bucket.streams().join_memory(start.place, &"s".into(), Seqno(0)).expect("a place in memory");
    world.set("d", "2");
    world.set("a", "2");
    assert!(bucket.flushing().flush_all());
    assert_eq!(wakes.load(Ordering::Relaxed), 1);
    let backfill = bucket.streams().backfills().begin(VB, Seqno(0), READING, Box::new(WholeLines), &follower);
    assert_eq!(bucket.streams().backfills().step(), Progress::Worked);
    let read = bucket.streams().backfills().take(&backfill, usize::MAX);
    let scope = read.scope.expect("it has begun");
    assert!(read.is_done && !read.has_failed);
    assert_eq!(
        (scope.high_seqno, lines(&read)),
        (Seqno(5), vec![(2, "b".into()), (3, "c".into()), (4, "d".into()), (5, "a".into())])
    );
    assert!(cursor.from <= scope.high_seqno, "there is no gap");
    let mut from_memory = Vec::new();
    world.set("e", "3");
    while let Changes::Range(range) =
        bucket.streams().take_changes(start.place, cursor.id, RangeLimit::items(1))
    {
        from_memory.extend(range.iter().filter(|v| v.meta().by_seqno > scope.high_seqno).cloned());
        bucket.streams().advance_stream(start.place, cursor.id, range.end());
    }
    assert_eq!(keys(&from_memory), ["e"]);
    bucket.streams().leave_memory(start.place, cursor.id);
    assert!(matches!(
        bucket.streams().take_changes(start.place, cursor.id, RangeLimit::items(1)),
        Changes::Dropped
    ));
    bucket.streams().unfollow(VB, &follower);
    follower.take(|_| {});
    world.set("f", "4");
    assert!(!follower.is_marked());
    drop((from_memory, read, backfill));
    world.check_account();
}

#[test]
fn a_stream_is_refused_where_histories_part() {
    let world = Watched::new(2);
    world.set("a", "1");
    let (follower, _) = follower();
    let begin = |at: &ResumePoint| {
        world.bucket.streams().begin_stream(VB, &follower, at, StreamWanted::Everything, true)
    };
    let unknown = ResumePoint { start: Seqno(1), uuid: VbUuid(1), ..ResumePoint::default() };
    assert_eq!(begin(&unknown).err(), Some(StreamRefusal::RollBack(Seqno(0))));
    world.bucket.roles().set_vbucket_state(VB, VbState::Replica, None).expect("there is one");
    assert_eq!(begin(&ResumePoint::default()).err(), Some(StreamRefusal::NotMyVbucket));
    assert!(!follower.is_marked(), "who was refused follows nothing");
}

#[test]
fn a_backfill_waits_for_its_reader_and_ends_when_told() {
    let world = Watched::new(3);
    let value = "v".repeat(10_000);
    for at in 0..600 {
        world.set(&format!("k{at}"), &value);
    }
    assert!(world.bucket.flushing().flush_all());
    let (follower, _) = follower();
    let backfill =
        world.bucket.streams().backfills().begin(VB, Seqno(0), READING, Box::new(WholeLines), &follower);
    let mut steps = 0;
    while world.bucket.streams().backfills().step() == Progress::Worked {
        steps += 1;
    }
    assert!(steps < 10, "it holds a bounded part of 6 MB ready: {steps} slices");
    let mut read = Vec::new();
    loop {
        let more = world.bucket.streams().backfills().take(&backfill, 100_000);
        read.extend(lines(&more));
        if more.is_done {
            break;
        }
        world.bucket.streams().backfills().step();
    }
    assert!(read.iter().zip(1..).all(|((seqno, _), expected)| *seqno == expected));
    assert_eq!(read.len(), 600);
    let cancelled =
        world.bucket.streams().backfills().begin(VB, Seqno(0), READING, Box::new(WholeLines), &follower);
    world.bucket.streams().backfills().step();
    world.bucket.streams().backfills().cancel(&cancelled);
    while world.bucket.streams().backfills().step() == Progress::Worked {}
    assert!(world.bucket.streams().backfills().take(&cancelled, usize::MAX).frames.is_empty());
    drop((backfill, cancelled));
    world.check_account();
}

#[test]
fn those_who_take_nothing_hold_up_nobody() {
    let world = Watched::open_with_quota(4, 32 << 20);
    let value = "v".repeat(10_000);
    for at in 0..100 {
        world.set(&format!("k{at}"), &value);
    }
    assert!(world.bucket.flushing().flush_all());
    let begin = |follower: &Arc<Follower>| {
        world.bucket.streams().backfills().begin(VB, Seqno(0), READING, Box::new(WholeLines), follower)
    };
    let (idle, _) = follower();
    let stalled: Vec<_> = (0..8).map(|_| begin(&idle)).collect();
    while world.bucket.streams().backfills().step() == Progress::Worked {}
    let held = world.bucket.streams().backfills().held_bytes();
    assert!((1..=1 << 20).contains(&held), "{held} bytes of a share of a MiB, of which one has a part");
    let (busy, _) = follower();
    let read = begin(&busy);
    let mut items = 0;
    loop {
        world.bucket.streams().backfills().step();
        let taken = world.bucket.streams().backfills().take(&read, usize::MAX);
        items += lines(&taken).len();
        if taken.is_done {
            break;
        }
    }
    assert_eq!(items, 100);
    // Once the first one is gone, the others go on.
    for backfill in &stalled {
        world.bucket.streams().backfills().cancel(backfill);
    }
    assert_eq!(world.bucket.streams().backfills().held_bytes(), 0);
    assert_eq!(world.bucket.memory().account().exact()[base::Part::Streams as usize], 0);
}

/// Bytes that streams are charged with.
fn charged(world: &Watched) -> usize {
    let parts = world.bucket.memory().account().exact();
    usize::try_from(parts[base::Part::Streams as usize]).expect("nothing is given back twice")
}

#[test]
fn what_a_stream_has_taken_counts_until_it_is_sent() {
    let world = Watched::open_with_quota(8, 32 << 20);
    let value = "v".repeat(10_000);
    for at in 0..100 {
        world.set(&format!("k{at}"), &value);
    }
    assert!(world.bucket.flushing().flush_all());
    let (follower, _) = follower();
    let begin =
        || world.bucket.streams().backfills().begin(VB, Seqno(0), READING, Box::new(WholeLines), &follower);
    let (first, second) = (begin(), begin());
    while world.bucket.streams().backfills().step() == Progress::Worked {}
    let held = world.bucket.streams().backfills().held_bytes();
    let unsent = world.bucket.streams().backfills().take(&first, usize::MAX);
    let second_unsent = world.bucket.streams().backfills().take(&second, usize::MAX);
    assert!(!unsent.frames.is_empty() && !unsent.is_done);
    assert!(world.bucket.streams().backfills().held_bytes() >= held, "it is not sent");
    assert_eq!(follower.waiting_bytes(), world.bucket.streams().backfills().held_bytes());
    while world.bucket.streams().backfills().step() == Progress::Worked {}
    let share = (32 << 20) / 32 / 4 + (76 << 10);
    assert!(follower.waiting_bytes() <= share, "nothing is read beyond the connection's share");
    // When it is sent the backfills go on by themselves.
    drop((unsent, second_unsent));
    assert_eq!(world.bucket.streams().backfills().step(), Progress::Worked);
    world.bucket.streams().backfills().cancel(&first);
    world.bucket.streams().backfills().cancel(&second);
    drop((first, second));
    assert_eq!((follower.waiting_bytes(), world.bucket.streams().backfills().held_bytes()), (0, 0));
}

#[test]
fn large_documents_that_are_not_taken_hold_up_no_small_ones() {
    const QUOTA: usize = 32 << 20;
    const DOCUMENT: usize = 1 << 20;
    let world = Watched::open_with_quota(7, QUOTA as u64);
    let value = "v".repeat(1000);
    for at in 0..200 {
        world.set(&format!("k{at}"), &value);
    }
    world.set("large", &"v".repeat(DOCUMENT));
    assert!(world.bucket.flushing().flush_all());
    let backfills = world.bucket.streams().backfills();
    let step_all = || while backfills.step() == Progress::Worked {};
    let begin = |after: u64, one: &Arc<Follower>| {
        backfills.begin(VB, Seqno(after), READING, Box::new(WholeLines), one)
    };
    // They begin with the large one.
    let idle: Vec<_> = (0..40).map(|_| follower().0).collect();
    let stalled: Vec<_> = idle.iter().map(|one| begin(200, one)).collect();
    step_all();
    let full = backfills.held_bytes();
    assert!(full >= QUOTA / 8, "{full}");
    let (busy, _) = follower();
    let read = begin(0, &busy);
    let mut items = 0;
    for _ in 0..20 {
        step_all();
        items += lines(&backfills.take(&read, usize::MAX)).len();
    }
    assert_eq!(items, 200, "all but the large one, for which there is no room");
    assert!(backfills.held_bytes() <= full);
    // However many do not take small ones, either, what is ready is bounded.
    let others: Vec<_> = (0..60).map(|_| follower().0).collect();
    let small: Vec<_> = others.iter().map(|one| begin(0, one)).collect();
    step_all();
    let most = QUOTA / 8 + DOCUMENT + QUOTA / 16 + (128 << 10);
    assert!(backfills.held_bytes() > full && backfills.held_bytes() <= most, "{}", backfills.held_bytes());
    // Of those that take nothing, the ones that hold most do so for seconds only.
    let given_up = |at: u64| {
        let now = std::time::Duration::from_secs(at);
        let stalled = stalled.iter().filter(|one| backfills.is_stalled(one, now)).count();
        (stalled, small.iter().filter(|one| backfills.is_stalled(one, now)).count())
    };
    assert_eq!((given_up(100), given_up(119)), ((0, 0), (0, 0)));
    assert_eq!(given_up(120), (full.div_ceil(DOCUMENT + (256 << 10)), 0));
    for backfill in stalled.iter().chain(&small) {
        backfills.cancel(backfill);
    }
    assert_eq!(given_up(900), (0, 0));
    step_all();
    let rest = backfills.take(&read, usize::MAX);
    assert_eq!((lines(&rest).len(), rest.is_done), (1, true));
    drop((rest, read));
    assert_eq!(backfills.held_bytes(), 0);
    world.check_account();
}

#[test]
fn many_connections_with_a_large_document_each_do_not_fill_the_memory() {
    const QUOTA: usize = 32 << 20;
    const DOCUMENT: usize = 1 << 20;
    let world = Watched::open_with_quota(6, QUOTA as u64);
    world.set("large", &"v".repeat(DOCUMENT));
    assert!(world.bucket.flushing().flush_all());
    let backfills = world.bucket.streams().backfills();
    let step_all = || while backfills.step() == Progress::Worked {};
    let followers: Vec<_> = (0..40).map(|_| follower().0).collect();
    let begin = |one: &Arc<Follower>| backfills.begin(VB, Seqno(0), READING, Box::new(WholeLines), one);
    let mut begun: Vec<_> = followers.iter().map(begin).collect();
    step_all();
    let most = QUOTA / 8 + DOCUMENT + (64 << 10);
    assert!(backfills.held_bytes() > 0 && backfills.held_bytes() <= most, "{}", backfills.held_bytes());
    // Those that are taken make room for the others, and one that is gone holds up nothing.
    backfills.cancel(&begun.remove(30));
    let mut has_read = 0;
    for _ in 0..100 {
        let taken: usize = begun.iter().map(|one| backfills.take(one, usize::MAX).frames.len()).sum();
        has_read += taken;
        step_all();
        assert!(backfills.held_bytes() <= most, "{}", backfills.held_bytes());
    }
    assert!(has_read >= 39, "{has_read} were read");
    assert_eq!(backfills.held_bytes(), 0);
}

#[test]
fn slow_consumers_hold_no_more_than_the_share_of_streams() {
    const QUOTA: usize = 32 << 20;
    const CONNECTIONS: usize = 12;
    let world = Watched::open_with_quota(6, QUOTA as u64);
    let value = "v".repeat(10_000);
    for at in 0..300 {
        world.set(&format!("k{at}"), &value);
    }
    assert!(world.bucket.flushing().flush_all());
    let followers: Vec<_> = (0..CONNECTIONS).map(|_| follower().0).collect();
    let begin = |follower: &Arc<Follower>| {
        world.bucket.streams().backfills().begin(VB, Seqno(0), READING, Box::new(WholeLines), follower)
    };
    // Each of many connections has several streams, and takes nothing; then now and then a little.
    let backfills: Vec<_> = followers.iter().flat_map(|one| [begin(one), begin(one), begin(one)]).collect();
    // On top of the share come a smallest slice a connection with the document that ends it, and half a buffer.
    let share = QUOTA / 32 + CONNECTIONS * (76 << 10) + (128 << 10);
    let mut most_kept = 0;
    for round in 0..50 {
        while world.bucket.streams().backfills().step() == Progress::Worked {
            let (held, kept) = (
                world.bucket.streams().backfills().held_bytes(),
                world.bucket.streams().backfills().buffer_bytes(),
            );
            assert_eq!(charged(&world), held + kept, "the account knows of everything");
            assert!(held <= share, "{held} bytes are held ready, of {share}");
            assert!(kept <= 4 << 20, "{kept} bytes are kept by one thread");
            most_kept = most_kept.max(kept);
        }
        world.bucket.streams().backfills().take(&backfills[round % backfills.len()], 20_000);
    }
    assert!(most_kept > 0, "whoever reads has buffers");
    for backfill in &backfills {
        world.bucket.streams().backfills().cancel(backfill);
    }
    assert_eq!(
        (charged(&world), world.bucket.streams().backfills().buffer_bytes()),
        (0, 0),
        "all is given back"
    );
}

#[test]
fn an_unusually_large_document_leaves_no_large_buffers_behind() {
    let world = Watched::open_with_quota(7, 256 << 20);
    world.set("large", &"v".repeat(15 << 20));
    for at in 0..30 {
        world.set(&format!("k{at}"), &"v".repeat(10_000));
    }
    assert!(world.bucket.flushing().flush_all());
    let (follower, _) = follower();
    let backfill =
        world.bucket.streams().backfills().begin(VB, Seqno(0), READING, Box::new(WholeLines), &follower);
    let mut items = 0;
    loop {
        world.bucket.streams().backfills().step();
        assert!(world.bucket.streams().backfills().buffer_bytes() <= 4 << 20);
        let taken = world.bucket.streams().backfills().take(&backfill, usize::MAX);
        items += lines(&taken).len();
        if taken.is_done {
            break;
        }
    }
    assert_eq!((items, charged(&world)), (31, 0));
}

#[test]
fn a_pending_vbucket_makes_clients_wait_until_it_is_another() {
    let world = Watched::new(5);
    world.bucket.roles().set_vbucket_state(VB, VbState::Pending, None).expect("there is one");
    assert_eq!(world.get("a"), Err(engine::Refusal::Pending));
    assert_eq!(world.set_in(VB, "a", "1").err(), Some(engine::Refusal::Pending));
    let change = world.bucket.roles().role_change(VB).expect("it is pending");
    assert_eq!(change.try_take(), None);
    world.bucket.roles().set_vbucket_state(VB, VbState::Active, None).expect("there is one");
    assert_eq!(change.try_take(), Some(()));
    assert!(world.bucket.roles().role_change(VB).is_none());
    world.set("a", "1");
}
