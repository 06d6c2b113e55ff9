//! Which connection gives way, and which one is late.

use super::*;
use crate::connection_memory::Held;

const A: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)), 1);
const B: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)), 1);
const START_S: u64 = 1_000;

fn connections(most: usize, per_address: usize) -> Connections {
    let limits = HttpLimits { connections: most, per_address, ..HttpLimits::default() };
    let connections = Connections::new(limits, Arc::default(), Arc::new(ConnectionMemory::new(None)));
    connections.tick(START_S);
    connections
}

fn admit(connections: &Connections, address: SocketAddr) -> Arc<Connection> {
    connections.admit(address).unwrap_or_else(|full| panic!("{address}: {full:?}"))
}

#[test]
fn the_oldest_of_the_address_with_most_gives_way() {
    let connections = connections(3, 10);
    let [b, a1, a2] = [B, A, A].map(|address| admit(&connections, address));
    connections.received(&a1, 10);
    let other = admit(&connections, B);
    assert_eq!([&b, &a1, &a2, &other].map(|of| of.cut()), [None, Some(Cut::CrowdedOut), None, None]);
    // What was closed has left its place, and its end changes nothing.
    connections.leave(&a1);
    assert_eq!(connections.counters.http_connections.load(Ordering::Relaxed), 3);
    assert_eq!(connections.counters.http_crowded_out.load(Ordering::Relaxed), 1);
}

#[test]
fn an_address_has_no_more_than_its_places() {
    let connections = connections(10, 2);
    let [a1, a2, b] = [A, A, B].map(|address| admit(&connections, address));
    a1.enter(Phase::Busy, NEVER);
    let a3 = admit(&connections, A);
    assert_eq!([&a1, &a2, &b].map(|of| of.cut()), [None, Some(Cut::CrowdedOut), None]);
    a3.is_let_in.set(()).expect("once");
    a3.enter(Phase::Body, NEVER);
    assert_eq!(connections.admit(A).err(), Some(Full::Address));
    connections.leave(&a3);
    admit(&connections, A);
    let network = |last| IpAddr::V6(std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, last));
    assert_eq!(client_of(network(1)), client_of(network(2)));
    assert_eq!(client_of("::ffff:10.0.0.1".parse().expect("an address")), A.ip());
}

#[test]
fn whoever_is_busy_stays() {
    let connections = connections(2, 2);
    for address in [A, B] {
        admit(&connections, address).enter(Phase::Busy, NEVER);
    }
    assert_eq!(connections.admit(B).err(), Some(Full::Listener));
    connections.tick(START_S + 100_000);
    assert_eq!(connections.counters.http_late.load(Ordering::Relaxed), 0);
}

#[test]
fn a_late_client_is_counted_once_however_long_its_end_takes() {
    let connections = connections(2, 2);
    let late = admit(&connections, A);
    connections.received(&late, 10);
    for second in 0..3 {
        connections.tick(START_S + 10_000 + second);
    }
    assert_eq!(late.cut(), Some(Cut::SlowHead));
    assert_eq!(connections.counters.http_late.load(Ordering::Relaxed), 1);
}

#[test]
fn a_client_without_a_login_that_is_waited_for_gives_way() {
    let connections = connections(2, 2);
    let [body, answer] = [A, B].map(|address| admit(&connections, address));
    body.enter(Phase::Body, START_S + 30);
    answer.enter(Phase::Busy, NEVER);
    connections.blocked(&answer);
    let [other, last] = [A, B].map(|address| admit(&connections, address));
    assert_eq!([&body, &answer].map(|of| of.cut()), [Some(Cut::CrowdedOut); 2]);
    for client in [&other, &last] {
        client.is_let_in.set(()).expect("once");
        client.enter(Phase::Body, START_S + 30);
    }
    assert_eq!(connections.admit(B).err(), Some(Full::Listener), "a user's body is waited for");
}

#[test]
fn whoever_comes_before_the_tick_of_a_process_that_stood_still_is_not_late() {
    let connections = connections(9, 9);
    let before = admit(&connections, A);
    let woken_s = START_S + 100_000;
    connections.look_at_clock(woken_s);
    let new = admit(&connections, A);
    assert_eq!((before.cut(), new.cut()), (None, None));
    connections.tick(woken_s);
    assert_eq!((before.cut(), new.cut()), (Some(Cut::Idle), None));
    // The clock never goes back.
    connections.look_at_clock(START_S);
    assert_eq!(connections.now_s(), woken_s);
}

#[test]
pub(crate) fn a_head_has_one_deadline_however_it_trickles() {
    let connections = connections(9, 9);
    let (slow, idle) = (admit(&connections, A), admit(&connections, A));
    let limits = connections.limits;
    idle.enter(Phase::Waiting, START_S + limits.idle_timeout_s);
    for second in 0..limits.head_timeout_s {
        connections.tick(START_S + second);
        connections.received(&slow, 1);
        assert_eq!(slow.cut(), None);
    }
    connections.tick(START_S + limits.head_timeout_s);
    assert_eq!((slow.cut(), idle.cut()), (Some(Cut::SlowHead), None));
    connections.tick(START_S + limits.idle_timeout_s);
    assert_eq!(idle.cut(), Some(Cut::Idle));
}

#[test]
fn a_head_may_not_grow_without_end() {
    let connections = connections(9, 9);
    let large = admit(&connections, A);
    connections.received(&large, connections.limits.head_bytes - 1);
    assert!(!connections.is_head_too_large(&large));
    connections.received(&large, 1);
    assert!(connections.is_head_too_large(&large));
    large.enter(Phase::Busy, NEVER);
    assert!(!connections.is_head_too_large(&large), "the rest is a body");
}

#[test]
pub(crate) fn a_reader_that_takes_almost_nothing_is_given_up() {
    let connections = connections(9, 9);
    let [stopped, trickles, reads] = [A, A, A].map(|address| admit(&connections, address));
    for connection in [&stopped, &trickles, &reads] {
        connection.enter(Phase::Busy, NEVER);
        connections.blocked(connection);
    }
    let write_timeout_s = connections.limits.write_timeout_s;
    for second in 1..=2 * write_timeout_s {
        connections.tick(START_S + second);
        connections.taken(&trickles, SLOWEST_READER_BYTES_PER_S as usize / 2);
        connections.taken(&reads, SLOWEST_READER_BYTES_PER_S as usize);
        if second < write_timeout_s {
            assert_eq!(stopped.cut(), None);
        }
    }
    let cuts = [&stopped, &trickles, &reads].map(|of| of.cut());
    assert_eq!(cuts, [Some(Cut::SlowReader), Some(Cut::SlowReader), None]);
    connections.flushed(&reads);
    connections.tick(START_S + 100_000);
    assert_eq!(reads.cut(), None);
}

#[test]
fn connections_that_gave_way_count_until_they_have_ended() {
    let connections = connections(2, 9);
    let all: Vec<_> = (0..2 + MOST_ABOVE).map(|_| admit(&connections, A)).collect();
    assert_eq!((all[0].cut(), connections.is_above()), (Some(Cut::CrowdedOut), true));
    connections.leave(&all[0]);
    assert!(!connections.is_above());
}

#[test]
fn answers_that_are_made_as_a_whole_find_room_or_are_not_sent() {
    const LARGE: usize = 24 << 20;
    let memory = Arc::new(ConnectionMemory::new(Some(40 << 20)));
    let connections = Connections::new(HttpLimits::default(), Arc::default(), Arc::clone(&memory));
    connections.tick(START_S);
    let [a, b] = [A, B].map(|address| admit(&connections, address));
    assert!(connections.reserve_answer(&a, LARGE) && !connections.reserve_answer(&b, LARGE));
    assert_eq!((memory.used_bytes(), memory.refused()), (LARGE as u64, 1));
    // The request is over long before its client has taken the answer, which is held until all of it was taken.
    connections.done(&a);
    connections.taken(&a, LARGE / 2);
    assert_eq!(memory.used_bytes(), LARGE as u64);
    connections.flushed(&a);
    assert!(connections.reserve_answer(&b, LARGE));
    connections.leave(&b);
    drop(b);
    assert_eq!(memory.used_bytes(), 0);
}

#[test]
fn pieces_that_were_taken_are_not_charged_any_more() {
    const PIECE: usize = 32 << 10;
    let connections = connections(9, 9);
    let reads = admit(&connections, A);
    for _ in 0..100 {
        connections.answered(&reads, PIECE);
        connections.answered(&reads, PIECE);
        assert!(connections.memory.used_bytes() <= 4 * PIECE as u64);
        connections.taken(&reads, 2 * PIECE);
    }
    assert_eq!(connections.memory.used_bytes(), 0);
}

/// What is held otherwise never ends by waiting for it.
#[test]
fn pieces_wait_for_each_other_while_memory_is_short() {
    const LARGE: usize = 24 << 20;
    let memory = Arc::new(ConnectionMemory::new(Some(40 << 20)));
    let connections = Connections::new(HttpLimits::default(), Arc::default(), Arc::clone(&memory));
    connections.tick(START_S);
    let [a, b] = [A, B].map(|address| admit(&connections, address));
    connections.answered(&a, LARGE);
    assert!(!memory.must_pieces_wait(), "there is room");
    connections.answered(&b, LARGE);
    assert!(memory.must_pieces_wait());
    connections.taken(&a, LARGE);
    assert!(!memory.must_pieces_wait(), "there is room again");
    connections.answered(&a, LARGE);
    connections.flushed(&a);
    connections.leave(&b);
    drop(b);
    let held = Held::new(Arc::clone(&memory));
    held.set(50 << 20);
    assert!(memory.is_short() && !memory.must_pieces_wait(), "no piece has a part in that");
    connections.answered(&a, LARGE);
    assert!(memory.must_pieces_wait());
    connections.leave(&a);
    drop(a);
    assert!(!memory.must_pieces_wait());
}
