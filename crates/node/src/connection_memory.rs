//! Memory that clients make the node hold outside of the buckets' quotas: unfinished frames and bodies, answers that wait
//! until their clients read.
//!
//! # Invariants
//!
//! What is about to be received is reserved first and stays within the limit; a connection that finds no room is not read.
//! What was made already is charged even beyond the limit; while that is so nothing large is made: clients that ask for it
//! hear of a temporary failure.
//! If memory stays short, the connection that holds most of it and does not move is closed, one each second.
//!
//! Clients that have not logged in hold a share of it at most, together: beyond that the one of them that has held something
//! for the longest time is closed. They give way to users, too: where a user finds no room, as many of them are closed as it
//! takes. What is being closed counts as used until its connection has ended.

use std::cell::Cell;
use std::collections::BTreeMap;
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

/// The share of the limit that clients hold together which have not logged in: beside it, the largest frame of a user finds
/// room within the least limit.
const STRANGERS_SHARE: u64 = 4;

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

impl Holder {
    fn new(peer: SocketAddr, bytes: usize) -> Holder {
        Holder {
            peer,
            bytes: AtomicUsize::new(bytes),
            moved_bytes: AtomicU64::new(0),
            is_given_up: AtomicBool::new(false),
            waker: Mutex::new(None),
        }
    }

    /// Has its connection closed.
    fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Relaxed);
        let waker = self.waker.lock().clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether its connection must be closed. Until then `waker` is woken when it must.
    fn is_given_up(&self, waker: &Waker) -> bool {
        let mut known = self.waker.lock();
        if !known.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *known = Some(waker.clone());
        }
        self.is_given_up.load(Ordering::Relaxed)
    }
}

/// Clients that hold something and have not logged in, by number: the lowest one has held something for the longest time.
#[derive(Default)]
struct StrangersShare {
    holding: BTreeMap<u64, Arc<Holder>>,
    next: u64,
    /// What those hold.
    bytes: u64,
    /// What others hold that are being closed.
    leaving_bytes: u64,
}

impl StrangersShare {
    /// Takes out those that held something first, until `is_enough`, which is asked with what is held by the others and by
    /// those that are being closed.
    fn give_way(&mut self, is_enough: impl Fn(u64, u64) -> bool) -> Vec<Arc<Holder>> {
        let mut given_up = Vec::new();
        while !is_enough(self.bytes, self.leaving_bytes)
            && let Some((_, holder)) = self.holding.pop_first()
        {
            let bytes = holder.bytes.load(Ordering::Relaxed) as u64;
            self.bytes -= bytes;
            self.leaving_bytes += bytes;
            given_up.push(holder);
        }
        given_up
    }

    /// Notes that a client holds so much now. It stays where it is once it is being closed.
    fn note(&mut self, peer: SocketAddr, place: &mut Option<(u64, Arc<Holder>)>, bytes: usize) {
        match place {
            None => {
                let holder = Arc::new(Holder::new(peer, bytes));
                let number = self.next;
                self.next += 1;
                self.bytes += bytes as u64;
                self.holding.insert(number, Arc::clone(&holder));
                *place = Some((number, holder));
            }
            Some((number, holder)) if self.holding.contains_key(number) => {
                let before = holder.bytes.swap(bytes, Ordering::Relaxed);
                self.bytes = self.bytes - before as u64 + bytes as u64;
                if bytes == 0 {
                    self.holding.remove(number);
                    *place = None;
                }
            }
            Some((_, holder)) if bytes == 0 => {
                self.leaving_bytes -= holder.bytes.swap(0, Ordering::Relaxed) as u64;
            }
            Some(_) => {}
        }
    }
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
    strangers: Mutex<StrangersShare>,
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
            strangers: Mutex::default(),
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
        // What is less than one large answer makes no difference to users. Those have a second more, in case that was enough;
        // strangers who come again and again do not protect the largest holder.
        let gave_way = self.strangers_give_way(|bytes, _| bytes < LARGE_BYTES as u64);
        if gave_way && short_for_s == SHORT_FOR_S {
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
        holder.give_up();
    }

    /// The most that clients hold together which have not logged in.
    pub fn strangers_limit_bytes(&self) -> u64 {
        self.limit_bytes() / STRANGERS_SHARE
    }

    /// Closes clients that have not logged in, until `is_enough`. Whether there were any.
    fn strangers_give_way(&self, is_enough: impl Fn(u64, u64) -> bool) -> bool {
        let given_up = self.strangers.lock().give_way(is_enough);
        self.close_strangers(&given_up)
    }

    /// Closes as many as it takes for so much; none if all of them are not enough, as logins under way are among them.
    fn strangers_make_room(&self, missing: u64) {
        let mut strangers = self.strangers.lock();
        if strangers.bytes + strangers.leaving_bytes < missing {
            return;
        }
        let given_up = strangers.give_way(|_, leaving| leaving >= missing);
        drop(strangers);
        self.close_strangers(&given_up);
    }

    fn close_strangers(&self, given_up: &[Arc<Holder>]) -> bool {
        for holder in given_up {
            self.closed.fetch_add(1, Ordering::Relaxed);
            holder.give_up();
        }
        !given_up.is_empty()
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
    /// Its client has not logged in.
    is_stranger: bool,
    /// Where it is among those clients, if it holds something.
    place: Option<(u64, Arc<Holder>)>,
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
        Charge { memory, peer, bytes: 0, is_waiting: false, holder: None, is_stranger: false, place: None }
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
        let more = bytes.saturating_sub(self.bytes);
        let has_room = more == 0 || self.memory.try_add(more);
        if has_room && more > 0 {
            self.note(bytes);
        }
        if !has_room && !self.is_stranger {
            // Woken by what they give back, it finds room.
            let wanted = self.memory.used_bytes() + more as u64;
            self.memory.strangers_make_room(wanted.saturating_sub(self.memory.limit_bytes()));
        }
        has_room
    }

    /// Notes whether its client has not logged in, or not any more.
    pub fn set_stranger(&mut self, is_stranger: bool) {
        if is_stranger != std::mem::replace(&mut self.is_stranger, is_stranger) {
            self.note_stranger();
        }
    }

    fn note_stranger(&mut self) {
        let bytes = if self.is_stranger { self.bytes } else { 0 };
        if bytes == 0 && self.place.is_none() {
            return;
        }
        let most = self.memory.strangers_limit_bytes();
        let mut strangers = self.memory.strangers.lock();
        strangers.note(self.peer, &mut self.place, bytes);
        let given_up = strangers.give_way(|bytes, _| bytes <= most);
        drop(strangers);
        self.memory.close_strangers(&given_up);
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
        self.note_stranger();
        match &self.holder {
            Some(holder) if bytes >= LARGE_BYTES => holder.bytes.store(bytes, Ordering::Relaxed),
            Some(holder) => {
                self.memory.rule.lock().holders.retain(|seen| !Arc::ptr_eq(&seen.holder, holder));
                self.holder = None;
            }
            None if bytes >= LARGE_BYTES => {
                let holder = Arc::new(Holder::new(self.peer, bytes));
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
        let is_given_up = |holder: &Arc<Holder>| holder.is_given_up(waker);
        let stranger = self.place.as_ref().map(|(_, holder)| holder);
        stranger.is_some_and(is_given_up) || self.holder.as_ref().is_some_and(is_given_up)
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

    fn stranger(memory: &Arc<ConnectionMemory>, bytes: usize) -> Charge {
        let mut stranger = charge(memory);
        stranger.set_stranger(true);
        stranger.set(bytes);
        stranger
    }

    #[test]
    fn strangers_share_a_part_and_the_first_of_them_gives_way() {
        let memory = memory(8 * MIB);
        let mut strangers = Vec::new();
        for _ in 0..8 {
            strangers.push(stranger(&memory, MIB));
            let closed = strangers.iter().filter(|charge| is_closed(charge)).count();
            assert_eq!(closed, strangers.len().saturating_sub(2), "two of them fill the share");
        }
        assert!(strangers[..6].iter().all(is_closed), "the latest stay");
        strangers.retain(|charge| !is_closed(charge));
        assert_eq!((memory.used_bytes(), memory.closed()), (2 * MIB as u64, 6));

        // Who logs in is none of them any more, and makes room for others.
        let mut user = strangers.remove(0);
        user.set_stranger(false);
        strangers.push(stranger(&memory, MIB));
        assert!(!is_closed(&user) && !strangers.iter().any(is_closed));
        // One that gives its memory back is the latest when it holds some again.
        strangers[0].set(0);
        strangers[0].set(MIB);
        strangers.push(stranger(&memory, MIB));
        assert_eq!(strangers.iter().map(is_closed).collect::<Vec<_>>(), [false, true, false]);
    }

    #[test]
    fn strangers_give_way_to_users() {
        let memory = memory(8 * MIB);
        let mut strangers = vec![stranger(&memory, MIB), stranger(&memory, MIB)];
        let mut user = charge(&memory);
        assert!(user.reserve(6 * MIB) && !strangers.iter().any(is_closed));
        for _ in 0..2 {
            assert!(!user.reserve(7 * MIB));
            assert_eq!(strangers.iter().map(is_closed).collect::<Vec<_>>(), [true, false], "one is enough");
        }
        strangers.remove(0);
        assert!(user.reserve(7 * MIB));
        // Memory that stays short is taken from strangers first.
        for second in 101..=104 {
            memory.tick(second);
        }
        assert!(is_closed(&strangers[0]) && !is_closed(&user));
        strangers.clear();
        assert_eq!(memory.used_bytes(), 7 * MIB as u64);
        let rest = memory.strangers.lock();
        assert_eq!((rest.holding.len(), rest.bytes, rest.leaving_bytes), (0, 0, 0));
    }

    /// Logins under way are among them.
    #[test]
    fn strangers_who_could_not_make_the_room_are_not_closed() {
        let memory = memory(8 * MIB);
        let login = stranger(&memory, 4 << 10);
        let (mut stalled, mut user) = (charge(&memory), charge(&memory));
        assert!(stalled.reserve(7 * MIB) && !user.reserve(4 * MIB));
        assert!(!is_closed(&login));
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
