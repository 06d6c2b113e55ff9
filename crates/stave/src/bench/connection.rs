//! One connection under load: which requests are outstanding, and bytes that came or went only in part.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use base::limits::MAX_FRAME_BODY_BYTES;
use protocol::{FrameError, ParsedResponse, magic, parse_response};

use super::resp;
use super::traffic::{Kind, Operation};
use super::wire::Protocol;
use crate::client::Channel;

/// Why a connection is of no more use.
#[derive(Debug)]
pub enum Loss {
    /// The server closed it.
    Closed,
    /// It broke.
    Io(io::Error),
    /// The server sent what is no answer.
    Frame(FrameError),
    /// The server, which should be Redis, sent what is no answer.
    NotResp,
    /// The server answered what was not asked.
    Opaque(u32),
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Loss::Closed => f.write_str("the server closed it"),
            Loss::Io(error) => write!(f, "{error}"),
            Loss::Frame(error) => write!(f, "the server's bytes are no answer: {error}"),
            Loss::NotResp => f.write_str("the server's bytes are no answer of Redis"),
            Loss::Opaque(opaque) => {
                write!(f, "the server answered request {opaque}, which is not outstanding")
            }
        }
    }
}

/// A request that waits for its answer, or did.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// What was asked.
    pub operation: Operation,
    /// When.
    pub sent_ns: u64,
    outstanding: bool,
}

const UNUSED: Slot =
    Slot { operation: Operation { kind: Kind::Get, key: 0 }, sent_ns: 0, outstanding: false };

/// How answers find their slot.
#[derive(Debug)]
enum Framing {
    /// By the opaque, which is the slot's number.
    Binary,
    /// They come in the order of the requests.
    Resp { asked: VecDeque<u32> },
}

/// What received bytes begin with.
enum Next {
    Answer { slot: Slot, status_code: u16, len: usize },
    NotForUs { len: usize },
    Incomplete { need: usize },
}

/// A non-blocking connection.
#[derive(Debug)]
pub struct Connection {
    stream: Channel,
    framing: Framing,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// The beginning of an answer whose end has not come yet.
    carry: Vec<u8>,
    /// How long that answer is, if it is known.
    need: usize,
    /// What the socket did not take yet.
    unsent: Vec<u8>,
    /// Whether epoll was asked to say when the socket takes more.
    pub watched_for_room: bool,
}

impl Connection {
    /// With up to `pipeline` requests outstanding.
    pub fn new(stream: Channel, protocol: Protocol, pipeline: u32) -> io::Result<Connection> {
        stream.socket().set_nonblocking(true)?;
        let framing = match protocol {
            Protocol::Couchbase | Protocol::Memcached => Framing::Binary,
            Protocol::Redis => Framing::Resp { asked: VecDeque::with_capacity(pipeline as usize) },
        };
        Ok(Connection {
            stream,
            framing,
            slots: vec![UNUSED; pipeline as usize],
            free: (0..pipeline).rev().collect(),
            carry: Vec::new(),
            need: 0,
            unsent: Vec::new(),
            watched_for_room: false,
        })
    }

    /// The socket.
    pub fn stream(&self) -> &TcpStream {
        self.stream.socket()
    }

    /// How many requests are outstanding.
    pub fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether it is time to send: a pipeline that is at least half empty is filled in one write, so that
    /// answers that trickle in do not lead to many small writes.
    #[inline]
    pub fn wants_requests(&self) -> bool {
        self.unsent.is_empty() && self.free.len() * 2 >= self.slots.len()
    }

    /// Whether it can send at all.
    #[inline]
    pub fn can_send(&self) -> bool {
        self.unsent.is_empty()
    }

    /// Takes a slot for `operation`, whose request is sent next; its number is the request's opaque.
    #[inline]
    pub fn take_slot(&mut self, operation: Operation, sent_ns: u64) -> Option<u32> {
        let number = self.free.pop()?;
        self.slots[number as usize] = Slot { operation, sent_ns, outstanding: true };
        if let Framing::Resp { asked } = &mut self.framing {
            asked.push_back(number);
        }
        Some(number)
    }

    /// Whether there is a free slot.
    #[inline]
    pub fn has_slot(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether the socket must be watched until it takes more.
    pub fn wants_to_write(&self) -> bool {
        !self.unsent.is_empty() || self.stream.wants_write()
    }

    /// Whether there is more to receive that the socket does not tell of.
    #[inline]
    pub fn has_more(&mut self) -> bool {
        self.stream.has_more()
    }

    /// Sends; what the socket does not take is kept.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), Loss> {
        debug_assert!(self.unsent.is_empty(), "requests are made only when everything is sent");
        let sent = write_some(&mut self.stream, bytes)?;
        self.unsent.extend_from_slice(&bytes[sent..]);
        Ok(())
    }

    /// Sends what was kept.
    pub fn send_rest(&mut self) -> Result<(), Loss> {
        match self.stream.flush() {
            Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return Err(Loss::Io(error));
            }
            _ => {}
        }
        if !self.unsent.is_empty() {
            let sent = write_some(&mut self.stream, &self.unsent)?;
            self.unsent.drain(..sent);
        }
        Ok(())
    }

    /// Reads once into `buffer`, which connections share so that it stays in the cache, and hands out the slot and the
    /// status of every whole answer. Returns the number of bytes read.
    #[inline]
    pub fn receive(
        &mut self,
        buffer: &mut Vec<u8>,
        mut on_answer: impl FnMut(Slot, u16),
    ) -> Result<usize, Loss> {
        let kept = self.carry.len();
        // An answer that is larger than the buffer makes it larger, for all connections.
        if buffer.len() < self.need.max(kept + 1) {
            buffer.resize(self.need.max(kept + 1), 0);
        }
        buffer[..kept].copy_from_slice(&self.carry);
        let count = match self.stream.read(&mut buffer[kept..]) {
            Ok(0) => return Err(Loss::Closed),
            Ok(count) => count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return Ok(0);
            }
            Err(error) => return Err(Loss::Io(error)),
        };
        let mut rest = &buffer[..kept + count];
        self.need = 0;
        while !rest.is_empty() {
            let taken = match self.next_answer(rest)? {
                Next::Incomplete { need } => {
                    self.need = need;
                    break;
                }
                Next::NotForUs { len } => len,
                Next::Answer { slot, status_code, len } => {
                    on_answer(slot, status_code);
                    len
                }
            };
            rest = &rest[taken..];
        }
        self.carry.clear();
        self.carry.extend_from_slice(rest);
        Ok(count)
    }

    #[inline]
    fn next_answer(&mut self, bytes: &[u8]) -> Result<Next, Loss> {
        if let Framing::Resp { asked } = &mut self.framing {
            return match resp::parse(bytes) {
                resp::Parsed::Bad => Err(Loss::NotResp),
                resp::Parsed::Incomplete { need } => Ok(Next::Incomplete { need }),
                resp::Parsed::Answer { status_code, len } => {
                    let number = asked.pop_front().ok_or(Loss::NotResp)?;
                    Ok(Next::Answer { slot: self.release(number)?, status_code, len })
                }
            };
        }
        match parse_response(bytes, MAX_FRAME_BODY_BYTES) {
            ParsedResponse::Bad(error) => Err(Loss::Frame(error)),
            ParsedResponse::Incomplete { need } => Ok(Next::Incomplete { need }),
            ParsedResponse::Response { response, total_len } if response.magic == magic::SERVER_REQUEST => {
                Ok(Next::NotForUs { len: total_len })
            }
            ParsedResponse::Response { response, total_len } => {
                let slot = self.release(response.opaque)?;
                Ok(Next::Answer { slot, status_code: response.status_code, len: total_len })
            }
        }
    }

    #[inline]
    fn release(&mut self, opaque: u32) -> Result<Slot, Loss> {
        let slot = self.slots.get_mut(opaque as usize).filter(|slot| slot.outstanding);
        let slot = slot.ok_or(Loss::Opaque(opaque))?;
        slot.outstanding = false;
        self.free.push(opaque);
        Ok(*slot)
    }
}

fn write_some(stream: &mut Channel, bytes: &[u8]) -> Result<usize, Loss> {
    match stream.write(bytes) {
        Ok(sent) => Ok(sent),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
        Err(error) => Err(Loss::Io(error)),
    }
}
