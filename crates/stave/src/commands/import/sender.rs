//! Sends records as changes that bring their metadata, many at a time, and counts what becomes of them.

use std::collections::VecDeque;

use anyhow::Context;
use base::Cas;
use base::vbucket_map::vbucket_of;
use protocol::extras::WithMetaExtras;
use protocol::feature::Feature;
use protocol::{RequestParts, Status, opcode};

use super::record::{Record, Skipped};
use super::{Conflict, Summary};
use crate::client::Client;

const OPERATION: &str = "import";
/// So much waits for answers at the most.
const MOST_REQUESTS: usize = 256;
const MOST_BYTES: usize = 4 << 20;

/// A request that waits for its answer.
struct Waiting {
    opaque: u32,
    deleted: bool,
    bytes: usize,
    id: Box<[u8]>,
}

pub(super) struct Sender {
    client: Client,
    conflict: Conflict,
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    pub(super) summary: Summary,
}

impl Sender {
    pub(super) fn new(client: Client, conflict: Conflict) -> Sender {
        Sender { client, conflict, waiting: VecDeque::new(), waiting_bytes: 0, summary: Summary::default() }
    }

    /// Whether values may stay compressed.
    pub(super) fn takes_snappy(&self) -> bool {
        self.client.features().has(Feature::Snappy)
    }

    pub(super) fn skip(&mut self, why: Skipped) {
        *self.summary.skipped.entry(why).or_default() += 1;
    }

    pub(super) fn send(&mut self, record: &Record<'_>) -> anyhow::Result<()> {
        if record.deleted && self.conflict == Conflict::Skip {
            self.skip(Skipped::Tombstone);
            return Ok(());
        }
        let opcode = match (record.deleted, self.conflict) {
            (true, _) => opcode::DELETE_WITH_META,
            (false, Conflict::Skip) => opcode::ADD_WITH_META,
            (false, _) => opcode::SET_WITH_META,
        };
        let parts = RequestParts {
            opcode,
            datatype: record.datatype.0,
            vbucket: vbucket_of(record.key.key, self.client.vbuckets()),
            cas: Cas::ANY,
            extras: &self.extras(record),
            key: record.id,
            value: record.value,
            ..RequestParts::default()
        };
        let opaque = self.client.queue(OPERATION, parts)?;
        let bytes = record.id.len() + record.value.len();
        self.waiting_bytes += bytes;
        self.waiting.push_back(Waiting { opaque, deleted: record.deleted, bytes, id: record.id.into() });
        if self.waiting.len() >= MOST_REQUESTS || self.waiting_bytes >= MOST_BYTES {
            self.finish()?;
        }
        Ok(())
    }

    /// Flags, expiry, revision, CAS and, where there are any, options.
    fn extras(&self, record: &Record<'_>) -> Vec<u8> {
        let mut options = 0;
        if self.conflict == Conflict::Overwrite {
            options |= WithMetaExtras::SKIP_CONFLICT_RESOLUTION;
        }
        if record.deleted && record.expired {
            options |= WithMetaExtras::IS_EXPIRATION;
        }
        let mut extras = Vec::with_capacity(28);
        extras.extend_from_slice(&record.flags.to_be_bytes());
        extras.extend_from_slice(&record.expiry.to_be_bytes());
        extras.extend_from_slice(&record.rev_seqno.to_be_bytes());
        extras.extend_from_slice(&record.cas.to_be_bytes());
        if options != 0 {
            extras.extend_from_slice(&options.to_be_bytes());
        }
        extras
    }

    /// Waits for all answers.
    pub(super) fn finish(&mut self) -> anyhow::Result<()> {
        self.client.flush(OPERATION)?;
        self.waiting_bytes = 0;
        while let Some(waiting) = self.waiting.pop_front() {
            let answer = self.client.answer(OPERATION, waiting.opaque)?;
            match Status::from_code(answer.status_code) {
                Some(Status::Success) if waiting.deleted => self.summary.tombstones += 1,
                Some(Status::Success) => self.summary.documents += 1,
                Some(Status::KeyEexists) => self.summary.conflicts += 1,
                Some(Status::UnknownCollection) => self.skip(Skipped::UnknownCollection),
                _ => {
                    let id = waiting.id.escape_ascii();
                    return Err(answer.refused(OPERATION))
                        .with_context(|| format!("document {id} of {} bytes", waiting.bytes));
                }
            }
        }
        Ok(())
    }
}
