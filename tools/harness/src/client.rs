//! A small client of the key-value protocol: pipelined, blocking, no more than the tools here need.

use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base::{Cas, Seqno, VbId, VbState};
pub use client::kv::Answer;
use client::kv::Pipeline;
use protocol::extras::StoreExtras;
use protocol::feature::{Feature, Features};
use protocol::{RequestParts, Status, opcode};

use crate::stave::{BUCKET, PASSWORD, USER};

/// Larger than any answer.
const BODY_LIMIT_BYTES: usize = 64 << 20;
/// A server that is silent for so long is broken.
const SILENCE: Duration = Duration::from_secs(60);
/// What makes a change wait until it is on the disks of a majority.
const PERSIST_TO_MAJORITY: [u8; 2] = [0x11, 0x03];
/// Purge before this time, purge before this seqno, drop deletes, padding, file, padding: 8, 8, 1, 1, 2 and 4 bytes.
const COMPACT_EXTRAS_BYTES: usize = 24;

/// A connection, logged in.
pub struct Client {
    pipeline: Pipeline<TcpStream>,
}

impl Client {
    /// Connects, agrees on mutation tokens, logs in and selects the bucket.
    pub fn connect(address: &str) -> Result<Client> {
        let stream = TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE))?;
        let mut client = Client { pipeline: Pipeline::new(stream) };
        let features = Features::of(&[
            Feature::TcpNoDelay,
            Feature::MutationSeqno,
            Feature::Xerror,
            Feature::Json,
            Feature::SelectBucket,
            Feature::AltRequestSupport,
            Feature::SyncReplication,
            Feature::DedupeNotMyVbucketClustermap,
        ]);
        let login = format!("\0{USER}\0{PASSWORD}");
        client.push(&RequestParts {
            opcode: opcode::HELLO,
            key: b"xtask",
            value: &features.encode(),
            ..RequestParts::default()
        });
        client.push(&RequestParts {
            opcode: opcode::SASL_AUTH,
            key: b"PLAIN",
            value: login.as_bytes(),
            ..RequestParts::default()
        });
        client.push(&RequestParts {
            opcode: opcode::SELECT_BUCKET,
            key: BUCKET.as_bytes(),
            ..RequestParts::default()
        });
        client.flush()?;
        for what in ["hello", "log in", "select the bucket"] {
            let answer = client.answer()?;
            ensure!(answer.is_ok(), "cannot {what}: status 0x{:02x}", answer.status_code);
        }
        Ok(client)
    }

    /// Gives up the client for its connection, and what was received on it and not asked for.
    pub fn into_parts(self) -> (TcpStream, Vec<u8>) {
        self.pipeline.into_parts()
    }

    /// Queues any request.
    pub fn push(&mut self, parts: &RequestParts<'_>) {
        assert!(self.pipeline.queue(parts), "our own requests have short parts");
    }

    /// Queues a set; `durable` makes the server wait until it is on disk.
    pub fn push_set(&mut self, vbucket: VbId, key: &[u8], flags: u32, value: &[u8], durable: bool) {
        self.push(&RequestParts {
            opcode: opcode::SET,
            vbucket,
            key,
            value,
            extras: &StoreExtras { flags, expiry: 0 }.encode(),
            frame_infos: if durable { &PERSIST_TO_MAJORITY } else { &[] },
            ..RequestParts::default()
        });
    }

    /// Queues a delete.
    pub fn push_delete(&mut self, vbucket: VbId, key: &[u8], durable: bool) {
        self.push(&RequestParts {
            opcode: opcode::DELETE,
            vbucket,
            key,
            cas: Cas(0),
            frame_infos: if durable { &PERSIST_TO_MAJORITY } else { &[] },
            ..RequestParts::default()
        });
    }

    /// Queues a get from a replica.
    pub fn push_get_replica(&mut self, vbucket: VbId, key: &[u8]) {
        self.push(&RequestParts { opcode: opcode::GET_REPLICA, vbucket, key, ..RequestParts::default() });
    }

    /// Makes a vBucket have another role.
    pub fn set_vbucket_state(&mut self, vbucket: VbId, state: VbState) -> Result<()> {
        self.push(&RequestParts {
            opcode: opcode::SET_VBUCKET,
            vbucket,
            extras: &[state as u8],
            ..RequestParts::default()
        });
        self.flush()?;
        let answer = self.answer()?;
        ensure!(
            answer.is_ok(),
            "vBucket {} cannot be {}: 0x{:02x}",
            vbucket.0,
            state.name(),
            answer.status_code
        );
        Ok(())
    }

    /// Queues a get.
    pub fn push_get(&mut self, vbucket: VbId, key: &[u8]) {
        self.push(&RequestParts { opcode: opcode::GET, vbucket, key, ..RequestParts::default() });
    }

    /// Queues the wait until a vBucket's changes up to `seqno` are on disk.
    pub fn push_seqno_persistence(&mut self, vbucket: VbId, seqno: Seqno) {
        self.push(&RequestParts {
            opcode: opcode::SEQNO_PERSISTENCE,
            vbucket,
            extras: &seqno.0.to_be_bytes(),
            ..RequestParts::default()
        });
    }

    /// Queues the question how far a vBucket's history `uuid` is on disk.
    pub fn push_observe_seqno(&mut self, vbucket: VbId, uuid: u64) {
        self.push(&RequestParts {
            opcode: opcode::OBSERVE_SEQNO,
            vbucket,
            value: &uuid.to_be_bytes(),
            ..RequestParts::default()
        });
    }

    /// Queues the compaction of a vBucket's file; nothing is purged that would not be purged by itself.
    pub fn push_compact(&mut self, vbucket: VbId) {
        self.push(&RequestParts {
            opcode: opcode::COMPACT_DB,
            vbucket,
            extras: &[0; COMPACT_EXTRAS_BYTES],
            ..RequestParts::default()
        });
    }

    /// Sends what is queued.
    pub fn flush(&mut self) -> Result<()> {
        Ok(self.pipeline.flush()?)
    }

    /// The next answer.
    pub fn answer(&mut self) -> Result<Answer> {
        loop {
            match self.pipeline.next_answer(BODY_LIMIT_BYTES) {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => ensure!(self.pipeline.read_more()?, "the server closed the connection"),
                Err(fault) => bail!("the server sent nonsense: {fault}"),
            }
        }
    }

    /// The highest seqno of each vBucket.
    pub fn all_seqnos(&mut self) -> Result<Vec<(VbId, Seqno)>> {
        self.push(&RequestParts { opcode: opcode::GET_ALL_VB_SEQNOS, ..RequestParts::default() });
        self.flush()?;
        let answer = self.answer()?;
        ensure!(answer.is_ok(), "no seqnos of all vBuckets: status 0x{:02x}", answer.status_code);
        let (records, rest) = answer.value.as_chunks::<10>();
        ensure!(rest.is_empty(), "a list of seqnos has 10 bytes a vBucket");
        let decode = |r: &[u8; 10]| {
            let [a, b, seqno @ ..] = *r;
            (VbId(u16::from_be_bytes([a, b])), Seqno(u64::from_be_bytes(seqno)))
        };
        Ok(records.iter().map(decode).collect())
    }

    /// The figures of a group; nothing if the server does not know the group.
    pub fn stats(&mut self, group: &str) -> Result<Option<Vec<(String, String)>>> {
        self.push(&RequestParts { opcode: opcode::STAT, key: group.as_bytes(), ..RequestParts::default() });
        self.flush()?;
        let mut figures = Vec::new();
        loop {
            let answer = self.answer()?;
            if !answer.is_ok() {
                return Ok(None);
            }
            if answer.key.is_empty() {
                return Ok(Some(figures));
            }
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            figures.push((text(&answer.key), text(&answer.value)));
        }
    }

    /// Waits until everything is on disk.
    pub fn await_persisted(&mut self) -> Result<()> {
        for (vb, seqno) in self.all_seqnos()? {
            loop {
                self.push_seqno_persistence(vb, seqno);
                self.flush()?;
                let answer = self.answer()?;
                if answer.is_ok() {
                    break;
                }
                // Busy and temporary failure mean "ask again".
                let again = [Status::Ebusy.code(), Status::Etmpfail.code()].contains(&answer.status_code);
                ensure!(again, "vBucket {} is not persisted: status 0x{:02x}", vb.0, answer.status_code);
            }
        }
        Ok(())
    }
}

/// The persisted seqno in the answer to observe-seqno without failover: format byte 0, vBucket, uuid, persisted, current.
pub fn observed_persisted(value: &[u8]) -> Option<Seqno> {
    if value.first() != Some(&0) {
        return None;
    }
    Some(Seqno(u64::from_be_bytes(value.get(11..19)?.try_into().ok()?)))
}
