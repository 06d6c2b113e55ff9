//! The connections of an HTTP listener: how many there may be, which one gives way to another, how long each may take.
//!
//! A connection waits for a request, receives its head or its body, or is busy with the answer.
//! One that waits or receives a head asks for nothing that a user was admitted to: it gives way when all places are
//! taken, those of the address that has most connections first. So does one whose client has not logged in and is waited
//! for, be it for a body or to take an answer.
//! Each phase but *busy* has a deadline, and so has a client that does not take what is sent.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Waker};

use base::planted::{self, Bug};
use parking_lot::Mutex;

use crate::config::HttpLimits;
use crate::connection_memory::{Charge, ConnectionMemory, LARGE_BYTES};
use crate::counters::AcceptCounters;

/// Connections above the limit that gave way and have not ended. They take descriptors of the reserve.
const MOST_ABOVE: usize = 8;
/// A deadline that never comes.
pub const NEVER: u64 = u64::MAX;
/// A client that takes less than this a second of what is sent loses its patience, second by second.
const SLOWEST_READER_BYTES_PER_S: u64 = 4 << 10;
/// A body gets a second more for each of these bytes.
pub const SLOWEST_BODY_BYTES_PER_S: u64 = 64 << 10;

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Another client came, and this one had asked for nothing.
    CrowdedOut,
    /// It asked for nothing for too long, or the node stops.
    Idle,
    /// The head of its request did not end in time.
    SlowHead,
    /// The head of its request is too large.
    LargeHead,
    /// The body of its request did not end in time. The answer is still sent.
    SlowBody,
    /// It does not take what is sent.
    SlowReader,
    /// The memory for connections was short, and it held most of it.
    HeldMost,
}

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// A request.
    Waiting,
    /// The rest of the head.
    Head,
    /// The rest of the body.
    Body,
    /// Its answer.
    Busy,
}

struct State {
    phase: Phase,
    /// When the phase must have ended.
    deadline_s: u64,
    /// When the client must have taken what is sent.
    write_deadline_s: u64,
    /// Bytes taken that have not earned a second yet.
    taken_bytes: u64,
    /// Bytes of the present head.
    head_bytes: usize,
    cut: Option<Cut>,
    waker: Option<Waker>,
    /// What it holds: the body of its request, and what of the answer was not taken.
    charge: Charge,
    body_bytes: usize,
    /// Pieces of an answer that were not taken.
    answer_bytes: usize,
    /// An answer that was made as a whole: all of it is held until all was taken.
    whole_bytes: usize,
    /// No more of its answer is made until its client has taken what is on its way.
    is_paused: bool,
}

impl State {
    fn recharge(&mut self) {
        self.charge.set(self.body_bytes + self.answer_bytes + self.whole_bytes);
    }
}

/// One connection.
pub struct Connection {
    id: u64,
    /// Where its client is.
    pub peer: IpAddr,
    address: IpAddr,
    /// The client's end.
    pub remote: SocketAddr,
    /// The node's end.
    pub local: OnceLock<SocketAddr>,
    /// Set if it is encrypted.
    pub is_encrypted: OnceLock<()>,
    /// Set once a request of the client has logged in.
    pub is_let_in: OnceLock<()>,
    /// Set if the body of its first request was there before the request was looked at.
    pub is_first_whole: OnceLock<()>,
    /// The user that the client's certificate stands for.
    certified: OnceLock<String>,
    state: Mutex<State>,
}

impl Connection {
    /// The client has shown a certificate that stands for this user.
    pub fn certify(&self, user: String) {
        // A connection has one handshake.
        let _ = self.certified.set(user);
    }

    /// The user that the client's certificate stands for; nothing if it has shown none.
    pub fn certified(&self) -> Option<&str> {
        self.certified.get().map(String::as_str)
    }

    /// Has `cx` woken when the connection must be closed.
    pub fn register(&self, cx: &Context<'_>) {
        let mut state = self.state.lock();
        if state.charge.is_given_up(cx.waker()) {
            state.cut = state.cut.or(Some(Cut::HeldMost));
        }
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            state.waker = Some(cx.waker().clone());
        }
    }

    /// Why it must be closed; nothing if it need not.
    pub fn cut(&self) -> Option<Cut> {
        self.state.lock().cut
    }

    /// Has it closed; whether it was not yet to be.
    pub fn close(&self, cut: Cut) -> bool {
        let (is_first, waker) = {
            let mut state = self.state.lock();
            let is_first = state.cut.is_none();
            state.cut = state.cut.or(Some(cut));
            (is_first, state.waker.clone())
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        is_first
    }

    /// Whether it has asked for nothing yet, or its client, who has not logged in, is waited for.
    fn may_give_way(&self) -> bool {
        let state = self.state.lock();
        let is_stranger = self.is_let_in.get().is_none();
        let is_waited_for = state.phase == Phase::Body || state.write_deadline_s != NEVER;
        let has_asked = !matches!(state.phase, Phase::Waiting | Phase::Head);
        state.cut.is_none() && (!has_asked || is_stranger && is_waited_for)
    }

    /// From now on it waits for something else, until then.
    pub fn enter(&self, phase: Phase, deadline_s: u64) {
        let mut state = self.state.lock();
        (state.phase, state.deadline_s, state.head_bytes) = (phase, deadline_s, 0);
    }
}

#[derive(Default)]
struct Places {
    next_id: u64,
    taken: BTreeMap<u64, Arc<Connection>>,
    by_address: BTreeMap<IpAddr, usize>,
}

impl Places {
    fn of(&self, address: IpAddr) -> usize {
        self.by_address.get(&address).copied().unwrap_or(0)
    }

    fn leave(&mut self, id: u64) {
        let Some(connection) = self.taken.remove(&id) else { return };
        if let Some(count) = self.by_address.get_mut(&connection.address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&connection.address);
            }
        }
    }

    /// Who gives way: of the address with most connections the one that has been there longest; of one address if all
    /// its places are taken.
    fn who_gives_way(&self, of: Option<IpAddr>) -> Option<Arc<Connection>> {
        let candidates = self.taken.values().filter(|connection| {
            of.is_none_or(|address| address == connection.address) && connection.may_give_way()
        });
        let order =
            |connection: &&Arc<Connection>| (std::cmp::Reverse(self.of(connection.address)), connection.id);
        candidates.min_by_key(order).cloned()
    }
}

/// The connections of a listener. Its clock is looked at once before the first client comes.
pub struct Connections {
    /// The bounds.
    pub limits: HttpLimits,
    places: Mutex<Places>,
    /// Those that gave way and have not ended, too: each has a descriptor.
    open: AtomicUsize,
    now_s: AtomicU64,
    /// Counts what came of clients.
    pub counters: Arc<AcceptCounters>,
    /// What its connections hold is charged to this.
    pub memory: Arc<ConnectionMemory>,
}

/// What is said to a client that there is no place for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// All places are taken.
    Listener,
    /// All places of its address are taken.
    Address,
}

impl Connections {
    /// No connections yet.
    pub fn new(
        limits: HttpLimits,
        counters: Arc<AcceptCounters>,
        memory: Arc<ConnectionMemory>,
    ) -> Connections {
        let (places, open, now_s) = (Mutex::default(), AtomicUsize::new(0), AtomicU64::new(0));
        Connections { limits, places, open, now_s, counters, memory }
    }

    /// The time that was told last.
    pub fn now_s(&self) -> u64 {
        self.now_s.load(Ordering::Relaxed)
    }

    /// Moves the clock and cuts no connection: the process may have been suspended since the last tick, and a client that
    /// connects then is not late.
    pub fn look_at_clock(&self, now_s: u64) {
        self.now_s.fetch_max(now_s, Ordering::Relaxed);
    }

    /// Whether so many connections gave way and have not ended that the next client would take a descriptor that the
    /// disk needs.
    pub fn is_above(&self) -> bool {
        self.open.load(Ordering::Relaxed) >= self.limits.connections + MOST_ABOVE
    }

    /// A place for a client, if need be that of another one.
    pub fn admit(&self, peer: SocketAddr) -> Result<Arc<Connection>, Full> {
        let address = client_of(peer.ip());
        let mut places = self.places.lock();
        if places.of(address) >= self.limits.per_address {
            self.crowd_out(&mut places, Some(address)).ok_or(Full::Address)?;
        }
        if places.taken.len() >= self.limits.connections {
            self.crowd_out(&mut places, None).ok_or(Full::Listener)?;
        }
        let connection = Arc::new(Connection {
            id: places.next_id,
            peer: peer.ip().to_canonical(),
            remote: peer,
            local: OnceLock::new(),
            is_encrypted: OnceLock::new(),
            address,
            certified: OnceLock::new(),
            is_let_in: OnceLock::new(),
            is_first_whole: OnceLock::new(),
            state: Mutex::new(State {
                phase: Phase::Waiting,
                deadline_s: self.now_s() + self.limits.idle_timeout_s,
                write_deadline_s: NEVER,
                taken_bytes: 0,
                head_bytes: 0,
                cut: None,
                waker: None,
                charge: Charge::new(Arc::clone(&self.memory), peer),
                body_bytes: 0,
                answer_bytes: 0,
                whole_bytes: 0,
                is_paused: false,
            }),
        });
        places.next_id += 1;
        places.taken.insert(connection.id, Arc::clone(&connection));
        *places.by_address.entry(address).or_default() += 1;
        self.open.fetch_add(1, Ordering::Relaxed);
        self.counters.http_accepted.fetch_add(1, Ordering::Relaxed);
        self.counters.http_connections.store(places.taken.len(), Ordering::Relaxed);
        Ok(connection)
    }

    fn crowd_out(&self, places: &mut Places, of: Option<IpAddr>) -> Option<()> {
        let connection = places.who_gives_way(of)?;
        places.leave(connection.id);
        connection.close(Cut::CrowdedOut);
        self.counters.http_crowded_out.fetch_add(1, Ordering::Relaxed);
        Some(())
    }

    /// A connection that was admitted has ended; told once of each.
    pub fn leave(&self, connection: &Connection) {
        self.on_their_way(&mut connection.state.lock(), 0);
        self.open.fetch_sub(1, Ordering::Relaxed);
        let mut places = self.places.lock();
        places.leave(connection.id);
        self.counters.http_connections.store(places.taken.len(), Ordering::Relaxed);
    }

    /// Moves the clock, and closes clients that are late.
    pub fn tick(&self, now_s: u64) {
        self.now_s.store(now_s, Ordering::Relaxed);
        for connection in self.places.lock().taken.values() {
            let late = {
                let state = connection.state.lock();
                match state.phase {
                    _ if state.write_deadline_s <= now_s && !planted::is(Bug::StoppedReaderStays) => {
                        Some(Cut::SlowReader)
                    }
                    _ if state.deadline_s > now_s => None,
                    Phase::Waiting => Some(Cut::Idle),
                    Phase::Head => Some(Cut::SlowHead),
                    Phase::Body => Some(Cut::SlowBody),
                    Phase::Busy => None,
                }
            };
            if let Some(cut) = late {
                // One whose task has not come to it by the next tick is late once.
                if connection.close(cut) && cut != Cut::Idle {
                    self.counters.http_late.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Closes clients without a request: the node stops.
    pub fn stop(&self) {
        let places = self.places.lock();
        let waiting = places.taken.values().filter(|connection| connection.may_give_way());
        for connection in waiting {
            connection.close(Cut::Idle);
        }
    }

    /// Notes bytes from a client.
    pub fn received(&self, connection: &Connection, bytes: usize) {
        let mut state = connection.state.lock();
        let begins = state.phase == Phase::Waiting;
        if bytes > 0 && (begins || (state.phase == Phase::Head && planted::is(Bug::HeadHasNoDeadline))) {
            state.phase = Phase::Head;
            state.deadline_s = self.now_s() + self.limits.head_timeout_s;
        }
        state.head_bytes += bytes;
    }

    /// Whether more has come than a head may have, and it has not ended.
    pub fn is_head_too_large(&self, connection: &Connection) -> bool {
        let state = connection.state.lock();
        state.phase == Phase::Head && state.head_bytes >= self.limits.head_bytes
    }

    /// How much more of a head may come; `None` behind the end of the head.
    pub fn head_room(&self, connection: &Connection) -> Option<usize> {
        let state = connection.state.lock();
        let reads_head = matches!(state.phase, Phase::Waiting | Phase::Head);
        reads_head.then(|| self.limits.head_bytes.saturating_sub(state.head_bytes))
    }

    /// Notes that a client does not take what is sent.
    pub fn blocked(&self, connection: &Connection) {
        let mut state = connection.state.lock();
        if state.write_deadline_s == NEVER {
            state.write_deadline_s = self.now_s() + self.limits.write_timeout_s;
            state.taken_bytes = 0;
        }
    }

    /// Notes that a client has taken some of what is sent: so much longer may it take for the rest.
    pub fn taken(&self, connection: &Connection, bytes: usize) {
        let mut state = connection.state.lock();
        state.charge.moved(bytes);
        if state.answer_bytes > 0 {
            let left = state.answer_bytes.saturating_sub(bytes);
            self.on_their_way(&mut state, left);
            state.recharge();
        }
        if state.write_deadline_s != NEVER {
            state.taken_bytes += bytes as u64;
            let earned_s = state.taken_bytes / SLOWEST_READER_BYTES_PER_S;
            state.taken_bytes %= SLOWEST_READER_BYTES_PER_S;
            let longest_s = self.now_s() + self.limits.write_timeout_s;
            state.write_deadline_s = (state.write_deadline_s + earned_s).min(longest_s);
        }
    }

    /// Notes that a client has taken all that was sent.
    pub fn flushed(&self, connection: &Connection) {
        let mut state = connection.state.lock();
        state.write_deadline_s = NEVER;
        self.on_their_way(&mut state, 0);
        state.whole_bytes = 0;
        state.recharge();
        let waker = state.waker.clone().filter(|_| std::mem::take(&mut state.is_paused));
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether no more of an answer is to be made yet: memory is short, and the client has much to take itself. The
    /// connection's task is woken when it has.
    pub fn must_wait(&self, connection: &Connection) -> bool {
        let mut state = connection.state.lock();
        state.is_paused = state.answer_bytes >= LARGE_BYTES && self.memory.is_short();
        state.is_paused
    }

    /// Whether there is memory for a body; charged if so.
    pub fn reserve_body(&self, connection: &Connection, bytes: usize) -> bool {
        let mut state = connection.state.lock();
        let all = state.answer_bytes + state.whole_bytes + bytes;
        let has_room = state.charge.reserve(all);
        if has_room {
            state.body_bytes = bytes;
        }
        has_room
    }

    /// Whether there is memory for an answer that was made as a whole; charged until its client has taken it if so, counted
    /// if not.
    pub fn reserve_answer(&self, connection: &Connection, bytes: usize) -> bool {
        let mut state = connection.state.lock();
        let all = state.body_bytes + state.answer_bytes + state.whole_bytes + bytes;
        let has_room = self.memory.has_room(bytes) && state.charge.reserve(all);
        if has_room {
            state.whole_bytes += bytes;
        }
        has_room
    }

    /// So much of the pieces of its answers is on the way to a client.
    fn on_their_way(&self, state: &mut State, bytes: usize) {
        self.memory.pieces_become(state.answer_bytes, bytes);
        state.answer_bytes = bytes;
    }

    /// Notes a piece of an answer that is on its way.
    pub fn answered(&self, connection: &Connection, bytes: usize) {
        let mut state = connection.state.lock();
        let all = state.answer_bytes + bytes;
        self.on_their_way(&mut state, all);
        state.recharge();
    }

    /// Notes that a request is over, and its body is gone.
    pub fn done(&self, connection: &Connection) {
        let mut state = connection.state.lock();
        state.body_bytes = 0;
        state.recharge();
    }
}

/// What counts as one client: an address of IPv4, a network of 64 bits of IPv6.
fn client_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) & (u128::MAX << 64)).into()),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
pub(crate) mod tests;
