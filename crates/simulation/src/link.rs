//! A connection between two nodes: two pipes of bytes, and at the node that is followed a connection as a client's is.
//! The other end is a link of `node::replication`, which sees [`SimWire`].

use std::cell::RefCell;
use std::io;
use std::mem::take;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ::node::close_reason::CloseReason;
use ::node::connection::Connection;
use ::node::doors::Timer;
use ::node::output::Output;
use ::node::replication::{Dial, Link, LinkError, Pace, Wire};
use base::env::Clock;

use crate::connections::ByClock;
use crate::tap::{AskedStream, Tap};

/// Bytes that a pipe holds.
const PIPE_BYTES: usize = 60_000;
/// So long it is tried to connect.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);

/// What the two ends of a link have between them.
#[derive(Default)]
pub struct Line {
    /// Whether the link asks for a connection.
    pub is_asked: bool,
    /// While there is a connection.
    pub pipe: Option<Pipe>,
    /// Nobody listened when it was asked for.
    is_refused: bool,
}

impl Line {
    /// There is a connection now.
    pub fn open(&mut self, pipe: Pipe) {
        self.is_asked = false;
        self.pipe = Some(pipe);
    }

    /// Nobody listens there.
    pub fn refuse(&mut self) {
        self.is_asked = false;
        self.is_refused = true;
    }
}

/// A connection: what is on its way, what has arrived, and the end of the node that is followed.
pub struct Pipe {
    /// Which start of the node that is followed answers.
    pub boot: u64,
    to_source: Vec<u8>,
    at_source: Vec<u8>,
    to_target: Vec<u8>,
    at_target: Vec<u8>,
    source: Connection,
    is_closed: bool,
    tap: Option<Tap>,
}

/// Takes so many bytes from the front.
fn flow(from: &mut Vec<u8>, to: &mut Vec<u8>, most: usize) {
    let bytes = most.min(from.len());
    to.extend(from.drain(..bytes));
}

impl Pipe {
    /// To a node that has started so often.
    pub fn new(node: &Arc<::node::Node>, boot: u64) -> Pipe {
        Pipe {
            boot,
            to_source: Vec::new(),
            at_source: Vec::new(),
            to_target: Vec::new(),
            at_target: Vec::new(),
            source: Connection::new(Arc::clone(node), Arc::clone(&node.workers().all()[0])),
            is_closed: false,
            tap: None,
        }
    }

    /// The same with a look at what passes.
    pub fn tapped(self, tap: Option<Tap>) -> Pipe {
        Pipe { tap, ..self }
    }

    /// Takes what was asked for and answered since this was called last, if there is a look at it.
    pub fn take_asked(&mut self) -> Vec<AskedStream> {
        self.tap.as_mut().map(Tap::take_asked).unwrap_or_default()
    }

    /// Bytes arrive at the node that is followed.
    pub fn carry_to_source(&mut self, most: usize) {
        flow(&mut self.to_source, &mut self.at_source, most);
    }

    /// Bytes arrive at the node that follows.
    pub fn carry_to_target(&mut self, most: usize) {
        flow(&mut self.to_target, &mut self.at_target, most);
    }

    /// The node that is followed works on what arrived, and sends changes of about so many bytes; an error is a breach of
    /// the protocol.
    pub fn serve(&mut self, most: usize) -> Result<(), String> {
        let mut out = Output::default();
        let mut cx = Context::from_waker(Waker::noop());
        self.source.hear(false, &mut out);
        if self.source.has_later() {
            self.source.poll_later(&mut cx, &mut out);
        }
        if !self.at_source.is_empty() {
            if let Some(tap) = &mut self.tap {
                tap.arrived(&mut self.at_source);
            }
            let received = self.source.receive(&self.at_source, &mut out);
            self.at_source.drain(..received.consumed);
        }
        let now = self.source.node().env().clock.monotonic();
        self.source.tick(now, &mut out);
        if self.to_target.len() < PIPE_BYTES {
            self.source.stream(most, &cx, &mut out);
        }
        let sent = out.to_vec();
        self.to_target.extend(self.tap.as_mut().map_or_else(|| sent.clone(), |tap| tap.sent(&sent)));
        self.is_closed |= self.source.closing().is_some();
        match self.source.closing() {
            Some(CloseReason::Frame(error)) => {
                Err(format!("the node that is followed cannot read it: {error}"))
            }
            _ => Ok(()),
        }
    }

    /// Whether nothing comes any more.
    fn is_over(&self) -> bool {
        self.is_closed && self.to_target.is_empty() && self.at_target.is_empty()
    }
}

/// A link's end of its line. The connection ends with it.
pub struct SimWire {
    line: Rc<RefCell<Line>>,
    room: Vec<u8>,
    out: Vec<u8>,
}

impl Drop for SimWire {
    fn drop(&mut self) {
        self.line.borrow_mut().pipe = None;
    }
}

impl Wire for SimWire {
    fn parts(&mut self) -> (&[u8], &mut Vec<u8>) {
        (&self.room, &mut self.out)
    }

    fn consume(&mut self, bytes: usize) {
        self.room.drain(..bytes);
    }

    fn send(&mut self) -> Result<(), LinkError> {
        let mut line = self.line.borrow_mut();
        let pipe = line.pipe.as_mut().ok_or(LinkError::Closed)?;
        let most = PIPE_BYTES.saturating_sub(pipe.to_source.len());
        flow(&mut self.out, &mut pipe.to_source, most);
        Ok(())
    }

    fn unsent_bytes(&self) -> usize {
        self.out.len()
    }

    fn held_bytes(&self) -> usize {
        self.room.len() + self.out.len()
    }

    fn poll_turn(&mut self, reads: bool, _: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        let unsent = self.unsent_bytes();
        self.send()?;
        let mut has_turned = self.unsent_bytes() < unsent;
        let mut line = self.line.borrow_mut();
        let pipe = line.pipe.as_mut().ok_or(LinkError::Closed)?;
        if reads && pipe.is_over() {
            return Poll::Ready(Err(LinkError::Closed));
        }
        if reads && !pipe.at_target.is_empty() {
            self.room.extend(take(&mut pipe.at_target));
            has_turned = true;
        }
        if has_turned { Poll::Ready(Ok(())) } else { Poll::Pending }
    }
}

/// Connects a link by its line, as soon as the world lets it.
pub struct SimDial {
    line: Rc<RefCell<Line>>,
    pace: SimPace,
}

/// The time of a node: what else it does has its turns between two of a link.
pub struct SimPace(ByClock);

impl Pace for SimPace {
    fn timer(&self) -> &dyn Timer {
        &self.0
    }

    async fn give_turns(&self) {
        let mut has_given = false;
        std::future::poll_fn(|_| {
            if std::mem::replace(&mut has_given, true) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

impl SimDial {
    /// By this line, and the clock of the node that follows.
    pub fn new(line: &Rc<RefCell<Line>>, clock: Arc<dyn Clock>) -> SimDial {
        SimDial { line: Rc::clone(line), pace: SimPace(ByClock(clock)) }
    }
}

impl Dial for SimDial {
    type Wire = SimWire;
    type Pace = SimPace;

    async fn connect(&self, _: &Link) -> Result<SimWire, LinkError> {
        *self.line.borrow_mut() = Line { is_asked: true, ..Line::default() };
        let mut too_late = self.pace.timer().after(CONNECT_WITHIN);
        std::future::poll_fn(|cx| {
            let line = self.line.borrow();
            if line.pipe.is_some() {
                let line = Rc::clone(&self.line);
                return Poll::Ready(Ok(SimWire { line, room: Vec::new(), out: Vec::new() }));
            }
            let kind = match (line.is_refused, too_late.as_mut().poll(cx)) {
                (true, _) => io::ErrorKind::ConnectionRefused,
                (false, Poll::Ready(())) => io::ErrorKind::TimedOut,
                (false, Poll::Pending) => return Poll::Pending,
            };
            Poll::Ready(Err(LinkError::Connect(kind.into())))
        })
        .await
    }

    fn pace(&self) -> &SimPace {
        &self.pace
    }
}
