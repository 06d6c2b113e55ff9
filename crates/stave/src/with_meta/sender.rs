//! Sends records as changes that bring their metadata, many at a time, and counts what becomes of them.

use anyhow::Context;
use base::env::Env;
use base::vbucket_map::vbucket_of;
use base::{Datatype, DocKey};
use protocol::extras::{TIE_LOST, WithMetaExtras};
use protocol::feature::Feature;
use protocol::{Status, opcode};

use super::conflicts::Rank;
use super::{Collections, Conflict, ConflictLog, Record, SentCounts, Skipped, SourceCollection, Unknown};
use crate::client::{Answer, Cluster, DocRequest, Target};

/// So much is sent before answers are waited for, at the most.
const MOST_REQUESTS: usize = 256;
const MOST_BYTES: usize = 4 << 20;
/// A section of attributes without any: its length alone.
const NO_ATTRIBUTES: [u8; 4] = [0; 4];

/// Sends records to a cluster.
pub(crate) struct Sender<'e> {
    /// The command that sends, for its errors.
    operation: &'static str,
    cluster: Cluster<'e>,
    collections: Collections,
    conflict: Conflict,
    /// Whether conflicts are resolved by time there: who writes with metadata must say that it knows.
    by_time: bool,
    waiting: Vec<DocRequest>,
    waiting_bytes: usize,
    /// Where it is written which documents were left as they were.
    log: Option<ConflictLog>,
    pub(crate) counts: SentCounts,
}

impl<'e> Sender<'e> {
    /// A sender for a command. `by_time`: whether the last write wins in the bucket, which its owner knows.
    pub(crate) fn new(
        operation: &'static str,
        mut cluster: Cluster<'e>,
        collections: Collections,
        conflict: Conflict,
        by_time: bool,
    ) -> Sender<'e> {
        cluster.collections_are_known();
        let (waiting, waiting_bytes, counts) = (Vec::new(), 0, SentCounts::default());
        Sender {
            operation,
            cluster,
            collections,
            conflict,
            by_time,
            waiting,
            waiting_bytes,
            log: None,
            counts,
        }
    }

    /// From now on it is written there which documents were left as they were. Each of them is asked for, so that what
    /// the bucket had already is told from what is another version.
    pub(crate) fn log_conflicts(&mut self, log: ConflictLog) {
        self.log = Some(log);
    }

    /// Whether values may stay compressed.
    pub(crate) fn takes_snappy(&self) -> bool {
        self.cluster.features().has(Feature::Snappy)
    }

    /// Counts a record that is left out.
    pub(crate) fn skip(&mut self, why: Skipped) {
        *self.counts.skipped.entry(why).or_default() += 1;
    }

    /// A collection of the source that was not known when the sender was made.
    pub(crate) fn learn(
        &mut self,
        env: &Env,
        number: u32,
        source: SourceCollection,
        target: &Target,
        unknown: Unknown,
    ) -> anyhow::Result<()> {
        self.collections.learn(env, number, source, target, unknown)
    }

    /// Sends a record, or lets it wait for more of them; whether everything is answered.
    pub(crate) fn send(&mut self, record: &Record<'_>) -> anyhow::Result<bool> {
        if record.deleted && self.conflict == Conflict::Skip {
            self.skip(Skipped::Tombstone);
            return Ok(self.waiting.is_empty());
        }
        let Some(collection) = self.collections.target(record.key.collection) else {
            self.skip(Skipped::UnknownCollection);
            let name = self.collections.name(record.key.collection);
            *self.counts.unknown.entry(name).or_default() += 1;
            return Ok(self.waiting.is_empty());
        };
        let opcode = match (record.deleted, self.conflict) {
            (true, _) => opcode::DELETE_WITH_META,
            (false, Conflict::Skip) => opcode::ADD_WITH_META,
            (false, _) => opcode::SET_WITH_META,
        };
        let (prefix, len) = DocKey { collection, key: record.key.key }.prefix();
        let (value, datatype) = self.value_of(record);
        let request = DocRequest {
            opcode,
            datatype: datatype.0,
            vbucket: vbucket_of(record.key.key, self.cluster.vbuckets()),
            extras: self.extras(record),
            key: [&prefix[..len], record.key.key].concat(),
            value: value.to_vec(),
            // It brings its CAS: what is there already is left alone, or replaced by itself.
            is_repeatable: true,
        };
        self.waiting_bytes += request.key.len() + request.value.len();
        self.waiting.push(request);
        if self.waiting.len() >= MOST_REQUESTS || self.waiting_bytes >= MOST_BYTES {
            self.finish()?;
        }
        Ok(self.waiting.is_empty())
    }

    /// What is sent as the value. A tombstone without attributes says so: without a value it would keep the system
    /// attributes of what it replaces, and the buckets would never be the same.
    fn value_of<'r>(&self, record: &Record<'r>) -> (&'r [u8], Datatype) {
        let is_bare = record.deleted && record.value.is_empty();
        if is_bare && self.cluster.features().has(Feature::Xattr) {
            return (&NO_ATTRIBUTES, Datatype::XATTR);
        }
        (record.value, record.datatype)
    }

    /// Flags, expiry, revision, CAS and, where there are any, options.
    fn extras(&self, record: &Record<'_>) -> Vec<u8> {
        let mut options = if self.by_time { WithMetaExtras::FORCE_ACCEPT } else { 0 };
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

    /// Sends what waits, and counts the answers.
    pub(crate) fn finish(&mut self) -> anyhow::Result<()> {
        let (waiting, _) = (std::mem::take(&mut self.waiting), std::mem::take(&mut self.waiting_bytes));
        let answers = self.cluster.exchange(self.operation, &waiting)?;
        let mut left = Vec::new();
        for (request, answer) in waiting.iter().zip(answers) {
            match Status::from_code(answer.status_code) {
                Some(Status::Success) if request.opcode == opcode::DELETE_WITH_META => {
                    self.counts.tombstones += 1;
                }
                Some(Status::Success) => self.counts.documents += 1,
                Some(Status::KeyEexists) => {
                    self.counts.conflicts += 1;
                    left.push((request, is_lost_tie(&answer)));
                }
                _ => {
                    let (id, bytes) = (request.key.escape_ascii(), request.key.len() + request.value.len());
                    return Err(answer.refused(self.operation))
                        .with_context(|| format!("document {id} of {bytes} bytes"));
                }
            }
        }
        if self.log.is_some() { self.explain(&left) } else { Ok(()) }
    }

    /// Writes down what the bucket has in the place of these, and of each whether its value lost; Get Meta tells no values.
    fn explain(&mut self, left: &[(&DocRequest, bool)]) -> anyhow::Result<()> {
        let question = |(request, _): &(&DocRequest, bool)| DocRequest {
            opcode: opcode::GET_META,
            vbucket: request.vbucket,
            key: request.key.clone(),
            is_repeatable: true,
            ..DocRequest::default()
        };
        let answers =
            self.cluster.exchange(self.operation, &left.iter().map(question).collect::<Vec<_>>())?;
        let Some(log) = &mut self.log else { return Ok(()) };
        for ((request, is_lost_tie), answer) in left.iter().zip(&answers) {
            let (sent, kept) =
                (Rank::sent(request), Rank::kept(answer).filter(|_| answer.is(Status::Success)));
            if !is_lost_tie && sent.zip(kept).is_some_and(|(sent, kept)| sent.is_same(&kept)) {
                self.counts.had_already += 1;
                continue;
            }
            let key = DocKey::parse(&request.key).context("a key that was sent")?;
            log.add(&self.collections.name_of_target(key.collection), key.key, sent, kept)?;
        }
        log.flush()
    }
}

/// Whether the bucket has a version with the same metadata and another value.
fn is_lost_tie(answer: &Answer) -> bool {
    let text: Option<serde_json::Value> = serde_json::from_slice(&answer.value).ok();
    text.is_some_and(|text| text["error"]["context"] == TIE_LOST)
}
