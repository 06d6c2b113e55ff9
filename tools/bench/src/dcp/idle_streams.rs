//! Consumers of a few lines: some that only wait, and one that reads everything and counts.

use std::io::Read;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use base::{Seqno, VbId};
use harness::client::Client;
use protocol::dcp::{Message, OpenFlags, StreamFlags, StreamRequest, What};
use protocol::{Limits, Parsed, RequestParts, magic, opcode, parse, parse_response};

const READ_BYTES: usize = 1 << 20;
/// How long a follower may take until it has what was there before.
const CAUGHT_UP_WITHIN: Duration = Duration::from_secs(60);

/// Opens a connection for changes, and asks for streams of its first vBuckets.
fn consumer(address: &str, name: &str, streams: u32, flags: u32) -> Result<Client> {
    let mut client = Client::connect(address)?;
    let open = OpenFlags(OpenFlags::PRODUCER).encode();
    client.push(&RequestParts {
        opcode: opcode::DCP_OPEN,
        key: name.as_bytes(),
        extras: &open,
        ..RequestParts::default()
    });
    client.flush()?;
    let answer = client.answer()?;
    ensure!(answer.is_ok(), "cannot open {name}: status 0x{:02x}", answer.status_code);
    let request =
        StreamRequest { flags: StreamFlags(flags), end: Seqno(u64::MAX), ..StreamRequest::default() };
    for vb in 0..streams {
        client.push(&RequestParts {
            opcode: opcode::DCP_STREAM_REQ,
            vbucket: VbId(vb as u16),
            opaque: vb,
            extras: &request.encode(),
            ..RequestParts::default()
        });
    }
    client.flush()?;
    Ok(client)
}

/// Connections with so many streams each, which begin at what comes from now on.
pub(super) fn open(address: &str, connections: u32, streams: u32) -> Result<Vec<Client>> {
    let mut all = Vec::new();
    for number in 0..connections {
        let name = format!("idle-{streams}-{number}");
        let mut client = consumer(address, &name, streams, StreamFlags::FROM_LATEST)?;
        for _ in 0..streams {
            let answer = client.answer()?;
            ensure!(answer.is_ok(), "a stream was refused: status 0x{:02x}", answer.status_code);
        }
        all.push(client);
    }
    Ok(all)
}

/// The last change of each vBucket.
pub(super) fn high_seqnos(address: &str) -> Result<Vec<(VbId, Seqno)>> {
    Client::connect(address)?.all_seqnos()
}

/// Reads all vBuckets in a thread of its own.
pub(super) struct Follower {
    stream: TcpStream,
    seen: Arc<Vec<AtomicU64>>,
    received: Arc<AtomicU64>,
    reading: JoinHandle<Result<()>>,
}

impl Follower {
    /// Begins, and waits until it has what is there.
    pub(super) fn start(address: &str) -> Result<Follower> {
        let goal = high_seqnos(address)?;
        let client = consumer(address, "follower", goal.len() as u32, 0)?;
        let (mut stream, mut bytes) = client.into_parts();
        let seen: Arc<Vec<AtomicU64>> = Arc::new(goal.iter().map(|_| AtomicU64::new(0)).collect());
        let received = Arc::new(AtomicU64::new(0));
        let (counted, at, other) = (received.clone(), seen.clone(), stream.try_clone()?);
        let reading = thread::spawn(move || {
            let mut chunk = vec![0; READ_BYTES];
            loop {
                let consumed = take(&bytes, &at, &counted)?;
                bytes.drain(..consumed);
                let count = stream.read(&mut chunk)?;
                if count == 0 {
                    return Ok(());
                }
                bytes.extend_from_slice(&chunk[..count]);
            }
        });
        let follower = Follower { stream: other, seen, received, reading };
        let begun = Instant::now();
        while !follower.has(&goal)? {
            ensure!(begun.elapsed() < CAUGHT_UP_WITHIN, "the follower does not catch up");
            thread::sleep(Duration::from_millis(1));
        }
        Ok(follower)
    }

    /// Changes received so far.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Whether everything up to there was received.
    pub(super) fn has(&self, goal: &[(VbId, Seqno)]) -> Result<bool> {
        ensure!(!self.reading.is_finished(), "the follower has ended");
        let has = |(vb, seqno): &(VbId, Seqno)| -> Result<bool> {
            let seen = self.seen.get(usize::from(vb.0)).context("a vBucket that was not there")?;
            Ok(seen.load(Ordering::Relaxed) >= seqno.0)
        };
        goal.iter().try_fold(true, |all, one| Ok(all && has(one)?))
    }

    /// Ends it.
    pub(super) fn stop(self) -> Result<()> {
        self.stream.shutdown(Shutdown::Both)?;
        self.reading.join().map_err(|_| anyhow!("the follower panicked"))?
    }
}

/// Works on whole messages; bytes that are done with.
fn take(bytes: &[u8], seen: &[AtomicU64], received: &AtomicU64) -> Result<usize> {
    let mut consumed = 0;
    while let Some(&first) = bytes.get(consumed) {
        let rest = &bytes[consumed..];
        if !matches!(first, magic::REQUEST | magic::ALT_REQUEST) {
            let protocol::ParsedResponse::Response { response, total_len } = parse_response(rest, 1 << 20)
            else {
                break;
            };
            ensure!(response.status_code == 0, "a stream was refused: 0x{:02x}", response.status_code);
            consumed += total_len;
            continue;
        }
        let Parsed::Request { request, total_len } = parse(rest, Limits::AUTHENTICATED) else { break };
        let message = Message::read(&request).context("the server sent nonsense")?;
        let seqno = match message.what {
            What::Mutation(mutation) => mutation.by_seqno,
            What::Deletion(deletion) | What::Expiration(deletion) => deletion.by_seqno,
            _ => Seqno(0),
        };
        if seqno > Seqno(0) {
            received.fetch_add(1, Ordering::Relaxed);
            let vb = seen.get(usize::from(message.vb.0)).context("a vBucket that was not there")?;
            vb.store(seqno.0, Ordering::Relaxed);
        }
        consumed += total_len;
    }
    Ok(consumed)
}
