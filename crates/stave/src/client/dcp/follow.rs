//! The connections of a consumer: one after the other, until everything is read or nobody wants more.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the client's end is not part of a node"
)]

use std::io::{ErrorKind, Read, Write};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use base::env::Env;
use base::{Seqno, VbId, VbUuid};
use protocol::dcp::FailoverLog;
use protocol::reader::Reader;
use protocol::{RequestParts, Status, opcode};

use super::{Event, Session};
use crate::client::{Channel, Client, ClientError, Target};

/// How often whoever looks on is asked whether to go on, while nothing comes.
const LOOK: Duration = Duration::from_millis(200);
/// A server that is silent for so many of its own intervals is dead.
const SILENT_INTERVALS: u32 = 2;
/// Waits between attempts to connect: from the first, doubled up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(5);
/// Bytes read at once.
const READ_BYTES: usize = 1 << 20;
const OPERATION: &str = "stream";
/// Vbuckets in state "active" only.
const ACTIVE: u32 = 1;

/// Looks on while a bucket is followed.
pub trait Watch {
    /// Something happened.
    fn event(&mut self, event: Event<'_>) -> ControlFlow<()>;

    /// There is nothing more at the moment. Called again and again, several times a second.
    fn idle(&mut self) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// Streams that are to begin again behind an earlier seqno, which is asked after each piece of what came.
    fn rewinds(&mut self) -> Vec<(VbId, Seqno)> {
        Vec::new()
    }

    /// The connection is gone, or there is none yet; it is tried again unless this breaks, which ends with the error.
    fn disconnected(&mut self, error: &ClientError) -> ControlFlow<()> {
        let _ = error;
        ControlFlow::Break(())
    }
}

/// Follows until every stream has ended or `watch` breaks. The session can be followed again afterwards.
pub fn follow(
    env: &Env,
    target: &Target,
    session: &mut Session,
    watch: &mut dyn Watch,
) -> Result<(), ClientError> {
    let mut pause = FIRST_PAUSE;
    while !session.is_done() {
        let begun = Instant::now();
        match follow_once(env, target, session, watch) {
            Ok(()) => return Ok(()),
            Err(error) => {
                if !error.may_pass() || watch.disconnected(&error).is_break() {
                    return Err(error);
                }
            }
        }
        // Whoever was connected for a while begins again with the short wait.
        pause = if begun.elapsed() > LAST_PAUSE { FIRST_PAUSE } else { (pause * 2).min(LAST_PAUSE) };
        if wait(pause, watch).is_break() {
            return Ok(());
        }
    }
    Ok(())
}

/// Waits without keeping whoever looks on from stopping.
fn wait(pause: Duration, watch: &mut dyn Watch) -> ControlFlow<()> {
    let begun = Instant::now();
    while begun.elapsed() < pause {
        watch.idle()?;
        std::thread::sleep(LOOK.min(pause));
    }
    ControlFlow::Continue(())
}

fn follow_once(
    env: &Env,
    target: &Target,
    session: &mut Session,
    watch: &mut dyn Watch,
) -> Result<(), ClientError> {
    let failed = |source| ClientError::Io { operation: OPERATION, source };
    let mut stream = Client::open(env, target)?.into_stream();
    stream.set_read_timeout(Some(LOOK)).map_err(failed)?;
    session.connected();
    let silence = Duration::from_secs(session.wishes().noop_interval_s.into()) * SILENT_INTERVALS;
    let mut buffer = Buffer::default();
    let mut heard = Instant::now();
    loop {
        if !session.to_send().is_empty() {
            stream.write_all(session.to_send()).and_then(|()| stream.flush()).map_err(failed)?;
            session.to_send().clear();
        }
        if session.is_done() {
            return Ok(());
        }
        if buffer.fill(&mut stream).map_err(failed)? {
            heard = Instant::now();
        } else if heard.elapsed() > silence {
            return Err(failed(std::io::Error::new(ErrorKind::TimedOut, "the server is silent")));
        }
        let received = session.receive(buffer.bytes(), &mut |event| watch.event(event))?;
        buffer.consumed(received.consumed);
        for (vb, to) in watch.rewinds() {
            session.rewind(vb, to);
        }
        if received.is_enough || watch.idle().is_break() {
            return Ok(());
        }
    }
}

/// What was received and is not worked on yet.
#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
    from: usize,
    to: usize,
}

impl Buffer {
    fn bytes(&self) -> &[u8] {
        &self.bytes[self.from..self.to]
    }

    fn consumed(&mut self, count: usize) {
        self.from += count;
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
        }
    }

    /// Reads what there is; nothing came within the time that the socket waits if it answers no.
    fn fill(&mut self, stream: &mut Channel) -> std::io::Result<bool> {
        if self.from > 0 {
            self.bytes.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
        if self.bytes.len() < self.to + READ_BYTES {
            self.bytes.resize(self.to + READ_BYTES, 0);
        }
        match stream.read(&mut self.bytes[self.to..]) {
            Ok(0) => Err(std::io::Error::new(ErrorKind::UnexpectedEof, "the server closed the connection")),
            Ok(count) => {
                self.to += count;
                Ok(true)
            }
            Err(error) => match error.kind() {
                ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut => Ok(false),
                _ => Err(error),
            },
        }
    }
}

/// The last change of every active vBucket.
pub fn high_seqnos(client: &mut Client) -> Result<Vec<(VbId, Seqno)>, ClientError> {
    const OPERATION: &str = "all vBucket seqnos";
    let extras = ACTIVE.to_be_bytes();
    let parts =
        RequestParts { opcode: opcode::GET_ALL_VB_SEQNOS, extras: &extras, ..RequestParts::default() };
    let answer = client.request(OPERATION, parts)?;
    if !answer.is(Status::Success) {
        return Err(answer.refused(OPERATION));
    }
    let mut reader = Reader(&answer.value);
    let mut all = Vec::new();
    while !reader.is_empty() {
        let pair = reader.u16().zip(reader.u64());
        let (vb, seqno) = pair.ok_or(ClientError::Answer { operation: OPERATION, what: "its length" })?;
        all.push((VbId(vb), Seqno(seqno)));
    }
    Ok(all)
}

/// The history that each of these vBuckets is in now.
pub fn newest_histories(client: &mut Client, vbuckets: &[VbId]) -> Result<Vec<VbUuid>, ClientError> {
    let newest = |log: History| log.first().map_or(VbUuid(0), |(uuid, _)| *uuid);
    Ok(failover_logs(client, vbuckets)?.into_iter().map(newest).collect())
}

/// The UUIDs of a vBucket's histories, the newest first, each with the seqno at which it began.
pub type History = Vec<(VbUuid, Seqno)>;

/// The histories of each of these vBuckets; each has one at least.
pub fn failover_logs(client: &mut Client, vbuckets: &[VbId]) -> Result<Vec<History>, ClientError> {
    const OPERATION: &str = "failover log";
    let mut opaques = Vec::with_capacity(vbuckets.len());
    for vbucket in vbuckets {
        let parts =
            RequestParts { opcode: opcode::GET_FAILOVER_LOG, vbucket: *vbucket, ..RequestParts::default() };
        opaques.push(client.queue(OPERATION, parts)?);
    }
    client.flush(OPERATION)?;
    let mut logs = Vec::with_capacity(vbuckets.len());
    for opaque in opaques {
        let answer = client.answer(OPERATION, opaque)?;
        if !answer.is(Status::Success) {
            return Err(answer.refused(OPERATION));
        }
        let log = FailoverLog::decode(&answer.value).filter(|log| !log.is_empty());
        logs.push(log.ok_or(ClientError::Answer { operation: OPERATION, what: "the log" })?);
    }
    Ok(logs)
}
