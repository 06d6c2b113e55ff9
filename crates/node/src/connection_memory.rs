//! Memory that clients make the node hold outside of the buckets' quotas: unfinished frames and bodies, answers that wait
//! until their clients read.
//!
//! # Invariants
//!
//! What is about to be received is reserved first and stays within the limit; a connection that finds no room is not read.
//! What was made already is charged even beyond the limit; while that is so nothing large is made: clients that ask for it
//! hear of a temporary failure.
//! If memory stays short, the connection that holds most of it and does not move is closed, one each second.

use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use base::RateLimit;
use base::planted::{self, Bug};
use parking_lot::Mutex;

use crate::notify::Edition;
use crate::user_data::UserData;

/// Answers and charges from this size on are looked at one by one.
pub const LARGE_BYTES: usize = 64 << 10;
/// The limit if the configuration does not say: a quarter of the buckets' quotas, within these bounds.
const DEFAULT_LIMIT: std::ops::RangeInclusive<u64> = 64 << 20..=1 << 30;
const QUOTA_SHARE: u64 = 4;
/// The least that may be configured: one frame must find room.
pub const LEAST_LIMIT_BYTES: u64 = 40 << 20;

/// Memory must be short for this long before a connection is closed for it,
const SHORT_FOR_S: u64 = 2;
/// who has moved less than so much
const MOVES_BYTES: u64 = 256 << 10;
/// within this time; if all move, it takes longer.
const STALLED_FOR_S: u64 = 5;
const ALL_MOVE_FOR_S: u64 = 15;

const NEVER: u64 = u64::MAX;

/// A connection that holds much.
struct Holder {
    peer: SocketAddr,
    bytes: AtomicUsize,
    moved_bytes: AtomicU64,
    is_given_up: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

/// A holder as it was when it moved last.
struct Seen {
    holder: Arc<Holder>,
    moved_bytes: u64,
    at_s: u64,
}

struct Rule {
    short_since_s: u64,
    looked_at_s: u64,
    refused: u64,
    holders: Vec<Seen>,
}

/// The memory of a node's connections.
pub struct ConnectionMemory {
    configured_bytes: Option<u64>,
    limit_bytes: AtomicU64,
    used_bytes: AtomicU64,
    highest_bytes: AtomicU64,
    waiting: AtomicUsize,
    /// Pieces of answers over HTTP that are on their way or being made: a part of what is used.
    pieces_bytes: AtomicUsize,
    freed: Edition,
    rule: Mutex<Rule>,
    refused: AtomicU64,
    paused: AtomicU64,
    closed: AtomicU64,
    told_closed: RateLimit,
}

impl ConnectionMemory {
    /// With this limit, or one that follows the buckets' quotas.
    pub fn new(configured_bytes: Option<u64>) -> ConnectionMemory {
        ConnectionMemory {
            configured_bytes,
            limit_bytes: AtomicU64::new(configured_bytes.unwrap_or(*DEFAULT_LIMIT.start())),
            used_bytes: AtomicU64::new(0),
            highest_bytes: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            pieces_bytes: AtomicUsize::new(0),
            freed: Edition::default(),
            rule: Mutex::new(Rule { short_since_s: NEVER, looked_at_s: 0, refused: 0, holders: Vec::new() }),
            refused: AtomicU64::new(0),
            paused: AtomicU64::new(0),
            closed: AtomicU64::new(0),
            told_closed: RateLimit::new(),
        }
    }

    /// Lets the limit follow the buckets' quotas, unless it was configured.
    pub fn follow_quotas(&self, quotas_bytes: u64) {
        let limit = (quotas_bytes / QUOTA_SHARE).clamp(*DEFAULT_LIMIT.start(), *DEFAULT_LIMIT.end());
        self.limit_bytes.store(self.configured_bytes.unwrap_or(limit), Ordering::Relaxed);
    }

    /// The most that may be held.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes.load(Ordering::Relaxed)
    }

    /// What is held.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// The most that was ever held.
    pub fn highest_bytes(&self) -> u64 {
        self.highest_bytes.load(Ordering::Relaxed)
    }

    /// Answers that were not made because there was no room.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Times that a connection was not read because there was no room.
    pub fn paused(&self) -> u64 {
        self.paused.load(Ordering::Relaxed)
    }

    /// Connections that were closed because they held most.
    pub fn closed(&self) -> u64 {
        self.closed.load(Ordering::Relaxed)
    }

    /// Whether as much as possible is held.
    pub fn is_short(&self) -> bool {
        self.used_bytes() >= self.limit_bytes()
    }

    /// Notes that one connection has another number of bytes of pieces, on their way or being made.
    pub fn pieces_become(&self, before: usize, after: usize) {
        if after >= before {
            self.pieces_bytes.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.pieces_bytes.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    /// Whether no piece of an answer is to be made yet: memory is short, and pieces have a part in that, which clients take,
    /// or for which their connections are closed. Without any the next one may be made, so that there is always one.
    pub fn must_pieces_wait(&self) -> bool {
        self.is_short() && self.pieces_bytes.load(Ordering::Relaxed) >= LARGE_BYTES
    }

    /// Whether something of this size may be made; counted if not.
    pub fn has_room(&self, bytes: usize) -> bool {
        let has_room =
            bytes < LARGE_BYTES || self.used_bytes().saturating_add(bytes as u64) <= self.limit_bytes();
        if !has_room {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        has_room
    }

    /// Ready when memory was given back while a connection waited.
    pub async fn freed(&self) {
        self.freed.after(self.freed.now()).await;
    }

    fn try_add(&self, bytes: usize) -> bool {
        let limit = if planted::is(Bug::ConnectionMemoryHasNoLimit) { u64::MAX } else { self.limit_bytes() };
        let add = |used: u64| used.checked_add(bytes as u64).filter(|sum| *sum <= limit);
        match self.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            Ok(before) => {
                self.highest_bytes.fetch_max(before + bytes as u64, Ordering::Relaxed);
                true
            }
            Err(_) => false,
        }
    }

    pub(crate) fn add(&self, bytes: usize) {
        let before = self.used_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.highest_bytes.fetch_max(before + bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        self.used_bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.freed.advance();
        }
    }

    /// Once a second, at the first call: closes the largest holder if memory has been short for long.
    pub fn tick(&self, now_s: u64) {
        let mut rule = self.rule.lock();
        if rule.looked_at_s >= now_s {
            return;
        }
        rule.looked_at_s = now_s;
        for seen in &mut rule.holders {
            let moved_bytes = seen.holder.moved_bytes.load(Ordering::Relaxed);
            if moved_bytes - seen.moved_bytes >= MOVES_BYTES {
                (seen.moved_bytes, seen.at_s) = (moved_bytes, now_s);
            }
        }
        let refused = self.refused();
        let was_refused = std::mem::replace(&mut rule.refused, refused) != refused;
        if self.waiting.load(Ordering::Relaxed) == 0 && !was_refused && !self.is_short() {
            rule.short_since_s = NEVER;
            return;
        }
        rule.short_since_s = rule.short_since_s.min(now_s);
        let short_for_s = now_s - rule.short_since_s;
        if short_for_s < SHORT_FOR_S {
            return;
        }
        let bytes = |seen: &&Seen| seen.holder.bytes.load(Ordering::Relaxed);
        let may_go = |seen: &&Seen| {
            let is_stalled = seen.at_s + STALLED_FOR_S <= now_s || short_for_s >= ALL_MOVE_FOR_S;
            is_stalled && !seen.holder.is_given_up.load(Ordering::Relaxed)
        };
        let largest = rule.holders.iter().filter(may_go).max_by_key(bytes);
        let Some(holder) = largest.map(|seen| Arc::clone(&seen.holder)) else { return };
        drop(rule);
        self.give_up(&holder, Duration::from_secs(now_s));
    }

    fn give_up(&self, holder: &Holder, now: Duration) {
        holder.is_given_up.store(true, Ordering::Relaxed);
        self.closed.fetch_add(1, Ordering::Relaxed);
        if let Some(left_out) = self.told_closed.admit(now) {
            tracing::warn!(
                event = "connection_memory_short",
                peer = %UserData(holder.peer),
                held_bytes = holder.bytes.load(Ordering::Relaxed),
                used_bytes = self.used_bytes(),
                limit_bytes = self.limit_bytes(),
                left_out,
                "memory for connections is short: the one that holds most is closed; raise connection-memory if that \
                 is ordinary"
            );
        }
        let waker = holder.waker.lock().clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// What is made for a connection on another thread, until the connection has it; or what a connection holds that is never
/// closed for it.
pub struct Held {
    memory: Arc<ConnectionMemory>,
    bytes: Cell<usize>,
}

impl Held {
    /// Nothing yet.
    pub fn new(memory: Arc<ConnectionMemory>) -> Held {
        Held { memory, bytes: Cell::new(0) }
    }

    /// Reserves this number of bytes in all, if there is room; counted if not.
    pub fn reserve(&self, bytes: usize) -> bool {
        let has_room = bytes <= self.bytes.get() || self.memory.try_add(bytes - self.bytes.get());
        if has_room {
            self.bytes.set(bytes.max(self.bytes.get()));
        } else {
            self.memory.refused.fetch_add(1, Ordering::Relaxed);
        }
        has_room
    }

    /// Charges this number of bytes in all, whether or not there is room.
    pub fn set(&self, bytes: usize) {
        let before = self.bytes.replace(bytes);
        match bytes.checked_sub(before) {
            Some(more) => self.memory.add(more),
            None => self.memory.give_back(before - bytes),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.memory.give_back(self.bytes.get());
    }
}

/// What one connection holds.
pub struct Charge {
    memory: Arc<ConnectionMemory>,
    peer: SocketAddr,
    bytes: usize,
    is_waiting: bool,
    holder: Option<Arc<Holder>>,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set(0);
        self.set_waiting(false);
    }
}

impl Charge {
    /// Nothing yet, for the connection of `peer`.
    pub fn new(memory: Arc<ConnectionMemory>, peer: SocketAddr) -> Charge {
        Charge { memory, peer, bytes: 0, is_waiting: false, holder: None }
    }

    /// What it is charged to.
    pub fn memory(&self) -> &Arc<ConnectionMemory> {
        &self.memory
    }

    /// Charges so much in all, whether or not there is room.
    pub fn set(&mut self, bytes: usize) {
        match bytes.cmp(&self.bytes) {
            std::cmp::Ordering::Equal => return,
            std::cmp::Ordering::Greater => self.memory.add(bytes - self.bytes),
            std::cmp::Ordering::Less => self.memory.give_back(self.bytes - bytes),
        }
        self.note(bytes);
    }

    /// Charges what was reserved elsewhere to this connection from now on: no other finds room for it in between.
    pub fn take_over(&mut self, held: Held) {
        let bytes = held.bytes.take();
        if bytes > 0 {
            self.note(self.bytes + bytes);
        }
    }

    /// Charges so much in all if there is room.
    pub fn reserve(&mut self, bytes: usize) -> bool {
        let has_room = bytes <= self.bytes || self.memory.try_add(bytes - self.bytes);
        if has_room && bytes > self.bytes {
            self.note(bytes);
        }
        has_room
    }

    /// Whether the connection waits for room: it is woken when there is some.
    pub fn set_waiting(&mut self, is_waiting: bool) {
        if is_waiting != std::mem::replace(&mut self.is_waiting, is_waiting) {
            if is_waiting {
                self.memory.waiting.fetch_add(1, Ordering::Relaxed);
                self.memory.paused.fetch_add(1, Ordering::Relaxed);
            } else {
                self.memory.waiting.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    fn note(&mut self, bytes: usize) {
        self.bytes = bytes;
        match &self.holder {
            Some(holder) if bytes >= LARGE_BYTES => holder.bytes.store(bytes, Ordering::Relaxed),
            Some(holder) => {
                self.memory.rule.lock().holders.retain(|seen| !Arc::ptr_eq(&seen.holder, holder));
                self.holder = None;
            }
            None if bytes >= LARGE_BYTES => {
                let holder = Arc::new(Holder {
                    peer: self.peer,
                    bytes: AtomicUsize::new(bytes),
                    moved_bytes: AtomicU64::new(0),
                    is_given_up: AtomicBool::new(false),
                    waker: Mutex::new(None),
                });
                let mut rule = self.memory.rule.lock();
                let at_s = rule.looked_at_s;
                rule.holders.push(Seen { holder: Arc::clone(&holder), moved_bytes: 0, at_s });
                drop(rule);
                self.holder = Some(holder);
            }
            None => {}
        }
    }

    /// Notes that this number of bytes came or went.
    pub fn moved(&self, bytes: usize) {
        if let Some(holder) = &self.holder {
            holder.moved_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Whether the connection must be closed. Until then `waker` is woken when it must.
    pub fn is_given_up(&self, waker: &Waker) -> bool {
        let Some(holder) = &self.holder else { return false };
        let mut known = holder.waker.lock();
        if !known.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *known = Some(waker.clone());
        }
        holder.is_given_up.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn memory(limit: usize) -> Arc<ConnectionMemory> {
        let memory = Arc::new(ConnectionMemory::new(Some(limit as u64)));
        memory.tick(100);
        memory
    }

    fn charge(memory: &Arc<ConnectionMemory>) -> Charge {
        Charge::new(Arc::clone(memory), ([127, 0, 0, 1], 1).into())
    }

    fn is_closed(charge: &Charge) -> bool {
        charge.is_given_up(Waker::noop())
    }

    #[test]
    pub(crate) fn what_is_reserved_stays_within_the_limit() {
        let memory = memory(10 * MIB);
        let [mut a, mut b] = [charge(&memory), charge(&memory)];
        assert!(a.reserve(6 * MIB) && !b.reserve(5 * MIB) && b.reserve(4 * MIB));
        assert!(memory.is_short() && !memory.has_room(LARGE_BYTES) && memory.has_room(LARGE_BYTES - 1));
        b.set(9 * MIB);
        assert_eq!(memory.used_bytes(), 15 * MIB as u64, "what was made is charged");
        a.set(0);
        drop(b);
        assert_eq!((memory.used_bytes(), memory.highest_bytes()), (0, 15 * MIB as u64));
        assert!(memory.rule.lock().holders.is_empty());
    }

    #[test]
    fn what_is_made_elsewhere_is_reserved_until_it_is_taken() {
        let memory = memory(10 * MIB);
        let held = Held::new(Arc::clone(&memory));
        assert!(held.reserve(6 * MIB) && held.reserve(5 * MIB) && !held.reserve(11 * MIB));
        assert_eq!((memory.used_bytes(), memory.refused()), (6 * MIB as u64, 1));
        let mut taker = charge(&memory);
        taker.set(MIB);
        taker.take_over(held);
        assert_eq!((memory.used_bytes(), memory.highest_bytes()), (7 * MIB as u64, 7 * MIB as u64));
        taker.set(5 * MIB);
        assert_eq!(memory.used_bytes(), 5 * MIB as u64, "the answer alone");
        drop(taker);
        let held = Held::new(Arc::clone(&memory));
        assert!(held.reserve(6 * MIB));
        drop(held);
        assert_eq!(memory.used_bytes(), 0, "its client had gone");
    }

    #[test]
    fn the_largest_that_does_not_move_is_closed() {
        let memory = memory(10 * MIB);
        let [mut large, mut moves, mut small] = [charge(&memory), charge(&memory), charge(&memory)];
        assert!(large.reserve(4 * MIB) && moves.reserve(5 * MIB) && small.reserve(MIB));
        for second in 101..=108 {
            moves.moved(MIB);
            memory.tick(second);
            assert_eq!(is_closed(&large), second >= 105, "{second}");
            if is_closed(&large) {
                break;
            }
        }
        assert!(!is_closed(&moves) && !is_closed(&small));
        large.set(0);
        for second in 106..=130 {
            memory.tick(second);
        }
        assert!(!is_closed(&small), "memory is not short any more");
        small.set_waiting(true);
        for second in 131..=132 {
            memory.tick(second);
        }
        assert!(!is_closed(&moves));
        memory.tick(133);
        assert!(is_closed(&moves), "the caller waits");
        assert_eq!((memory.closed(), memory.paused()), (2, 1));
    }

    #[test]
    fn the_limit_follows_the_quotas_unless_it_was_said() {
        let memory = ConnectionMemory::new(None);
        for (quotas, limit) in [(0, 64), (256, 64), (512, 128), (100_000, 1024)] {
            memory.follow_quotas(quotas << 20);
            assert_eq!(memory.limit_bytes(), limit << 20);
        }
        let memory = ConnectionMemory::new(Some(LEAST_LIMIT_BYTES));
        memory.follow_quotas(1 << 40);
        assert_eq!(memory.limit_bytes(), LEAST_LIMIT_BYTES);
    }
}
