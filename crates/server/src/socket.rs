//! Carries bytes between a socket and a connection.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use ::node::audit::record::Ends;
use ::node::close_reason::CloseReason;
use ::node::connection::{Connection, Next, Received};
use ::node::connection_memory::Charge;
use ::node::dcp::STEP_BYTES;
use ::node::output::{Output, Pending};
use ::node::reaper::{Patience, Watch};
use tokio::io::{AsyncRead, ReadBuf};

use crate::tls::{HANDSHAKE_S, Transport};
use crate::worker::{SCRATCH_BYTES, WorkerState};

/// Slices handed to one system call.
const SLICES: usize = 16;
/// Reads of one connection before others have their turn.
const TURN_READS: usize = 4;
/// What a connection reads of a large frame before others have their turn.
const TURN_READ_BYTES: usize = 1 << 20;
/// While so much waits to be sent, no more changes are taken from the streams.
const STREAM_PENDING_BYTES: usize = 512 << 10;
/// A client that sends less than this a second of a large frame loses its patience, second by second,
const SLOWEST_BYTES_PER_S: usize = 64 << 10;
/// and so does one that takes less than this of what is sent.
const SLOWEST_READER_BYTES_PER_S: usize = 4 << 10;
/// Bytes that are read at once from a client that has not logged in, unless one frame of it has more: with the answers of a
/// turn they stay below 16 KiB.
const STRANGERS_READ_BYTES: usize = 4 << 10;
/// While memory for connections is short, nothing more is read from a client that has so much to read itself.
const SHORT_PENDING_BYTES: usize = 64 << 10;

/// A connection and its socket.
pub struct Socket {
    stream: Transport,
    connection: Connection,
    worker: Rc<WorkerState>,
    watch: Rc<Watch>,
    /// What was received and not handled yet: nothing, while the client sends whole frames.
    partial: Vec<u8>,
    pending: Pending,
    /// What of that is charged.
    charge: Charge,
    /// Bytes that the present frame was promised.
    reserved_bytes: usize,
    next: Next,
    /// The edition of the node's news that the connection has looked at.
    heard: u64,
    /// The node stops, and this connection is there for its last answers alone.
    is_last_answered: bool,
    /// It is not agreed on yet how bytes are encrypted.
    is_handshaking: bool,
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.worker.reaper.forget(&self.watch);
        if self.is_last_answered && !self.worker.node.workers().has_sync_writes() {
            // Those who stream have waited for that.
            self.worker.node.announcer().tell();
        }
    }
}

/// Serves a client until the connection ends; returns why it did.
pub(crate) async fn serve(stream: Transport, peer: SocketAddr, worker: Rc<WorkerState>) -> CloseReason {
    let limits = worker.node.limits();
    worker.reaper.look_at_clock(worker.node.env().clock.monotonic().as_secs());
    let watch = worker.reaper.watch();
    let is_handshaking = stream.is_handshaking();
    let login_s =
        if is_handshaking { limits.login_timeout_s.min(HANDSHAKE_S) } else { limits.login_timeout_s };
    watch.arm(Patience::Login, worker.reaper.now_s() + login_s);
    let mut connection = Connection::new(worker.node.clone(), worker.counters.clone());
    connection.set_ends(Ends { local: stream.local_addr(), remote: Some(peer) }, stream.is_encrypted());
    let next = Next::Bytes(protocol::HEADER_BYTES);
    let heard = worker.edition.get();
    let charge = Charge::new(Arc::clone(worker.node.connection_memory()), peer);
    let mut socket = Socket {
        stream,
        connection,
        worker,
        watch,
        partial: Vec::new(),
        pending: Pending::default(),
        charge,
        reserved_bytes: 0,
        next,
        heard,
        is_last_answered: false,
        is_handshaking,
    };
    let reason = std::future::poll_fn(|cx| socket.poll(cx)).await;
    if reason == CloseReason::Quit {
        // The client may still be sending; a plain close would then take back the answer.
        let _ = socket.stream.shutdown().await;
    }
    reason
}

impl Socket {
    /// Goes on as far as it can, and charges what is held then; ready when the connection has ended.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<CloseReason> {
        if let Some(reason) = self.given_up(cx) {
            return Poll::Ready(reason);
        }
        let worker = Rc::clone(&self.worker);
        let clock = &*worker.node.env().clock;
        let began = worker.turns.begin(clock);
        self.connection.turn_began = Some(began.moment);
        worker.counters.turn_begins();
        let ended = self.poll_turn(cx);
        self.look_at_handshake();
        let took_ns = worker.turns.end(clock, began);
        worker.counters.turn_took(took_ns);
        self.connection.turn_took(took_ns);
        let frame_bytes = self.reserved_bytes.max(self.partial.capacity());
        self.charge.set_stranger(self.is_stranger());
        self.charge.set(frame_bytes + self.held_bytes());
        // What it holds since this turn may be what it has to be closed for, now or when it is woken for that.
        match self.given_up(cx) {
            Some(reason) if ended.is_pending() => Poll::Ready(reason),
            _ => ended,
        }
    }

    /// Why it has to end for what it holds, if it has to.
    fn given_up(&self, cx: &Context<'_>) -> Option<CloseReason> {
        let reason = if self.is_stranger() { CloseReason::CrowdedOut } else { CloseReason::HeldMost };
        self.charge.is_given_up(cx.waker()).then_some(reason)
    }

    /// What follows from the end of the handshake: a client has time to log in, or has done so by its certificate.
    fn look_at_handshake(&mut self) {
        if !self.is_handshaking || self.stream.is_handshaking() {
            return;
        }
        self.is_handshaking = false;
        if let Some(name) = self.stream.certified() {
            self.connection.certified(&name);
        }
        if self.connection.session().is_authenticated() {
            self.watch.disarm(Patience::Login);
        } else {
            let login_s = self.worker.node.limits().login_timeout_s;
            self.watch.arm(Patience::Login, self.worker.reaper.now_s() + login_s);
        }
    }

    /// Bytes that are held beside the frame that comes.
    fn held_bytes(&self) -> usize {
        self.pending.own_bytes() + self.connection.held_bytes() + self.stream.held_bytes()
    }

    /// The connection is to end. Whether it ends now, and why: what was asked before the node began to stop is answered.
    #[cold]
    fn heed_cut(&mut self, reason: CloseReason) -> Option<CloseReason> {
        if reason != CloseReason::Shutdown {
            return Some(reason);
        }
        if self.connection.has_later() {
            self.is_last_answered = true;
            self.next = Next::Later;
        } else if !(self.connection.is_streaming() && self.worker.node.workers().has_sync_writes()) {
            self.next = Next::Close(CloseReason::Shutdown);
        }
        // What other clients wait for may need those to whom this one streams.
        None
    }

    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<CloseReason> {
        self.watch.register(cx);
        if self.worker.hearing.is_frozen() {
            if self.worker.hearing.is_killed() {
                return Poll::Ready(CloseReason::Shutdown);
            }
            if self.watch.cut().is_none() {
                return Poll::Pending;
            }
        }
        for _ in 0..TURN_READS {
            if let Some(reason) = self.watch.cut()
                && let Some(reason) = self.heed_cut(reason)
            {
                return Poll::Ready(reason);
            }
            if self.has_unsent()
                && let Poll::Ready(Err(error)) = self.poll_flush(cx)
            {
                return Poll::Ready(self.broken(&error));
            }
            if self.heard != self.worker.edition.get() {
                self.hear(self.worker.edition.get());
                if let Some(reason @ (CloseReason::BucketGone | CloseReason::UserChanged)) =
                    self.connection.closing()
                {
                    // Nothing may wait for a bucket that goes, nor for a user who may not see it any more.
                    return Poll::Ready(reason);
                }
            }
            if self.connection.has_later() && self.poll_later(cx) {
                continue;
            }
            if self.connection.is_streaming() && self.poll_streams(cx) {
                continue;
            }
            // News and changes may have left something that the socket did not take: whoever waits below is woken when
            // it takes more.
            if self.has_unsent() {
                match self.poll_flush(cx) {
                    Poll::Ready(Ok(())) => continue,
                    Poll::Ready(Err(error)) => return Poll::Ready(self.broken(&error)),
                    Poll::Pending => {}
                }
            }
            let next = self.next;
            match next {
                Next::Close(reason) if !self.has_unsent() => return Poll::Ready(reason),
                Next::Close(_) | Next::Later => return Poll::Pending,
                _ if self.must_take_first() || self.connection.waits_for_room() => return Poll::Pending,
                Next::Turn => self.handle_partial(),
                Next::Bytes(need) if need > SCRATCH_BYTES && !self.reserve(need) => return Poll::Pending,
                Next::Bytes(need) => {
                    let read =
                        if need > SCRATCH_BYTES { self.poll_large(cx, need) } else { self.poll_read(cx) };
                    match ready!(read) {
                        Ok(true) => {}
                        Ok(false) => self.next = Next::Close(CloseReason::ByClient),
                        Err(error) => return Poll::Ready(self.broken(&error)),
                    }
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Whether the client has not logged in.
    fn is_stranger(&self) -> bool {
        !self.connection.session().is_authenticated()
    }

    /// Whether anything waits for the socket.
    fn has_unsent(&self) -> bool {
        !self.pending.is_empty() || self.stream.has_unsent()
    }

    /// Why a connection ends that cannot be read from or written to.
    fn broken(&self, error: &io::Error) -> CloseReason {
        self.stream.fault().map_or(CloseReason::Network(error.kind()), CloseReason::Tls)
    }

    /// Whether the client has to take what waits for it before more is read. Of one that has not logged in that is also
    /// what was encrypted.
    fn must_take_first(&self) -> bool {
        let has_much = !self.pending.is_empty() && self.pending.len() > self.most_pending_bytes();
        has_much || (self.is_stranger() && !self.is_handshaking && self.has_unsent())
    }

    /// While more waits to be sent, nothing more is read.
    fn most_pending_bytes(&self) -> usize {
        if self.is_stranger() {
            return 0;
        }
        let most = self.worker.node.limits().pending_output_bytes;
        if self.charge.memory().is_short() { most.min(SHORT_PENDING_BYTES) } else { most }
    }

    /// Whether there is memory for a large frame. If not, it is not read, and its client is not late.
    fn reserve(&mut self, need: usize) -> bool {
        if self.reserved_bytes >= need {
            return true;
        }
        let has_room = self.charge.reserve(need + self.held_bytes());
        self.reserved_bytes = if has_room { need } else { 0 };
        self.charge.set_waiting(!has_room);
        self.watch.wait_for_memory(!has_room);
        if !has_room {
            self.watch.disarm(Patience::Frame);
        } else if !self.watch.is_armed(Patience::Frame) {
            let patience_s = self.worker.node.limits().frame_timeout_s;
            self.watch.arm(Patience::Frame, self.worker.reaper.now_s() + patience_s);
        }
        has_room
    }

    /// Lets the connection look at what the node has told. A client that does not read is told of a new map when it
    /// has read, and then of the newest.
    fn hear(&mut self, edition: u64) {
        let worker = Rc::clone(&self.worker);
        let mut output = worker.output.borrow_mut();
        let may_push = self.pending.is_empty();
        self.connection.hear(may_push, &mut output);
        self.send(&mut output);
        if may_push {
            self.heard = edition;
        }
    }

    /// Reads into the worker's scratch buffer and handles what is whole there. False at the end of the stream.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let worker = Rc::clone(&self.worker);
        let mut scratch = worker.scratch.borrow_mut();
        let kept = self.partial.len();
        scratch[..kept].copy_from_slice(&self.partial);
        let most = if self.is_stranger() {
            let frame = if let Next::Bytes(need) = self.next { need } else { 0 };
            STRANGERS_READ_BYTES.max(frame).max(kept + 1)
        } else {
            SCRATCH_BYTES
        };
        let mut buf = ReadBuf::new(&mut scratch[kept..most.min(SCRATCH_BYTES)]);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buf))?;
        let read = buf.filled().len();
        if read == 0 {
            return Poll::Ready(Ok(false));
        }
        // Before what came behind the handshake is handled.
        self.look_at_handshake();
        worker.counters.received(read);
        let bytes = &scratch[..kept + read];
        let received = self.handle(bytes);
        self.keep(&bytes[received.consumed..]);
        self.after(received);
        Poll::Ready(Ok(true))
    }

    /// Reads a frame that is larger than the scratch buffer into memory that grows with what arrives. Others have their
    /// turn in between.
    fn poll_large(&mut self, cx: &mut Context<'_>, need: usize) -> Poll<io::Result<bool>> {
        let began = self.partial.len();
        while self.partial.len() < need {
            if self.partial.len() - began >= TURN_READ_BYTES {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if self.partial.len() == self.partial.capacity() {
                // Who has sent a part is given the whole, which is charged already: to grow further would be to copy it.
                let missing = need - self.partial.len();
                let grow = self.partial.len().max(SCRATCH_BYTES);
                self.partial.reserve_exact(if grow < TURN_READ_BYTES { grow.min(missing) } else { missing });
            }
            let read = ready!(self.stream.poll_read_onto(cx, &mut self.partial))?;
            if read == 0 {
                return Poll::Ready(Ok(false));
            }
            self.worker.counters.received(read);
            self.charge.moved(read);
            let latest_s = self.worker.reaper.now_s() + self.worker.node.limits().frame_timeout_s;
            self.watch.earn(Patience::Frame, read, SLOWEST_BYTES_PER_S, latest_s);
        }
        self.handle_partial();
        Poll::Ready(Ok(true))
    }

    /// Handles what was received before.
    fn handle_partial(&mut self) {
        let bytes = Arc::new(std::mem::take(&mut self.partial));
        self.connection.lend(Some(&bytes));
        let received = self.handle(&bytes);
        self.connection.lend(None);
        if received.consumed < bytes.len() {
            let mut bytes = Arc::unwrap_or_clone(bytes);
            bytes.drain(..received.consumed);
            bytes.shrink_to(SCRATCH_BYTES);
            self.partial = bytes;
        }
        self.reserved_bytes = 0;
        self.after(received);
    }

    /// Lets the connection handle bytes, and sends what it answers. May wait for the disk, if nobody is held up by that
    /// who does not wait for it anyway.
    fn handle(&mut self, bytes: &[u8]) -> Received {
        let worker = Rc::clone(&self.worker);
        let bucket = self.connection.lone_writers_bucket().filter(|_| worker.counters.has_one_connection());
        let inline_flush = bucket.as_ref().and_then(|bucket| bucket.flushing().inline_flush());
        let mut output = worker.output.borrow_mut();
        let received = self.connection.receive(bytes, &mut output);
        self.send(&mut output);
        if let Some(inline_flush) = inline_flush {
            self.connection.finish(inline_flush);
        }
        received
    }

    /// Sends changes, if the connection streams them, unless the client has enough to read. Whether there is more.
    fn poll_streams(&mut self, cx: &Context<'_>) -> bool {
        if matches!(self.next, Next::Close(_)) {
            return false;
        }
        let is_short = !self.pending.is_empty() && self.charge.memory().is_short();
        let has_enough = is_short || self.pending.len() > STREAM_PENDING_BYTES;
        let worker = Rc::clone(&self.worker);
        let now = worker.node.env().clock.monotonic();
        let mut output = worker.output.borrow_mut();
        let next = self.connection.tick(now, &mut output);
        self.watch
            .set_alarm(next.map_or(u64::MAX, |next| next.as_secs() + u64::from(next.subsec_nanos() > 0)));
        // Also of a client that does not read it is known whether it lives, and its backfills are given up.
        let more = !has_enough && self.connection.stream(STEP_BYTES, cx, &mut output);
        self.send(&mut output);
        if let Some(reason) = self.connection.closing() {
            self.next = Next::Close(reason);
        }
        more
    }

    fn poll_later(&mut self, cx: &mut Context<'_>) -> bool {
        let worker = Rc::clone(&self.worker);
        let mut output = worker.output.borrow_mut();
        let any = self.connection.poll_later(cx, &mut output);
        if any {
            // A password may have been checked elsewhere.
            self.look_at_login();
            self.send(&mut output);
            self.next = self.connection.after_answers(self.next, !self.partial.is_empty());
        }
        any
    }

    /// Keeps what is not handled yet; keeps no memory if that is nothing.
    fn keep(&mut self, rest: &[u8]) {
        if rest.is_empty() {
            self.partial = Vec::new();
        } else {
            self.partial.clear();
            if self.is_stranger() {
                // Not a byte more than it has sent.
                self.partial.reserve_exact(rest.len());
            }
            self.partial.extend_from_slice(rest);
        }
    }

    /// Notes what comes next and how long it may take.
    fn after(&mut self, received: Received) {
        self.next = received.next;
        let limits = self.worker.node.limits();
        let now_s = self.worker.reaper.now_s();
        match received.next {
            Next::Bytes(_) if !self.partial.is_empty() => {
                // A frame has one deadline from its first byte on, however many pieces it comes in; what a large one
                // brings moves it.
                if received.consumed > 0 || !self.watch.is_armed(Patience::Frame) {
                    self.watch.arm(Patience::Frame, now_s + limits.frame_timeout_s);
                }
            }
            _ => self.watch.disarm(Patience::Frame),
        }
        self.look_at_login();
    }

    /// A client has time to log in, from now on if that has not begun.
    fn look_at_login(&mut self) {
        if self.connection.session().is_authenticated() {
            self.watch.disarm(Patience::Login);
        } else if !self.watch.is_armed(Patience::Login) {
            let login_s = self.worker.node.limits().login_timeout_s;
            self.watch.arm(Patience::Login, self.worker.reaper.now_s() + login_s);
        }
    }

    /// Sends as much of `output` as the socket takes at once; the rest waits.
    fn send(&mut self, output: &mut Output) {
        if output.is_empty() {
            return;
        }
        let mut sent = 0;
        if self.pending.is_empty() {
            let written = match output.as_bytes() {
                Some(bytes) => self.stream.try_write(bytes),
                None => {
                    let mut slices = [IoSlice::new(&[]); SLICES];
                    let count = output.slices(&mut slices);
                    self.stream.try_write_vectored(&slices[..count])
                }
            };
            // A broken connection shows when the rest is to be sent.
            sent = written.unwrap_or(0);
            self.worker.counters.sent(sent);
            self.charge.moved(sent);
        }
        if sent < output.len() {
            if self.pending.is_empty() {
                self.arm_write();
            }
            self.pending.take(output, sent);
        } else if self.stream.has_unsent() && !self.watch.is_armed(Patience::Write) {
            self.arm_write();
        }
        output.take_reserved().for_each(|held| self.charge.take_over(held));
        output.clear();
    }

    fn arm_write(&self) {
        let patience_s = self.worker.node.limits().write_timeout_s;
        self.watch.arm(Patience::Write, self.worker.reaper.now_s() + patience_s);
    }

    /// Sends what waits. Ready when all is sent.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.pending.is_empty() {
            ready!(self.stream.poll_write_ready(cx))?;
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = self.pending.slices(&mut slices);
            match self.stream.try_write_vectored(&slices[..count]) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(sent) => {
                    self.worker.counters.sent(sent);
                    self.pending.advance(sent);
                    self.charge.moved(sent);
                    let latest_s = self.worker.reaper.now_s() + self.worker.node.limits().write_timeout_s;
                    self.watch.earn(Patience::Write, sent, SLOWEST_READER_BYTES_PER_S, latest_s);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        ready!(self.stream.poll_sent(cx))?;
        self.watch.disarm(Patience::Write);
        Poll::Ready(Ok(()))
    }
}
