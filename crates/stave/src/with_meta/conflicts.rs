//! A file that says which documents were left as the bucket had them, and what was sent in vain.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the client's end is not part of a node"
)]

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use base::env::Env;
use protocol::reader::Reader;
use serde_json::{Value, json};

use crate::client::{Answer, DocRequest};

/// A version of a document, as conflicts are resolved by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rank {
    cas: u64,
    rev_seqno: u64,
    is_deleted: bool,
    /// Flags and expiry of a document; of a tombstone they are not compared.
    rest: Option<(u32, u32)>,
}

impl Rank {
    /// Of what a request with metadata sends: flags, expiry, revision, CAS.
    pub(super) fn sent(request: &DocRequest) -> Option<Rank> {
        let mut reader = Reader(&request.extras);
        let (rest, rev_seqno, cas) = ((reader.u32()?, reader.u32()?), reader.u64()?, reader.u64()?);
        let is_deleted = request.opcode == protocol::opcode::DELETE_WITH_META;
        Some(Rank { cas, rev_seqno, is_deleted, rest: (!is_deleted).then_some(rest) })
    }

    /// Of what Get Meta told: whether it is deleted, flags, expiry, revision; the CAS is the answer's.
    pub(super) fn kept(answer: &Answer) -> Option<Rank> {
        let mut reader = Reader(&answer.extras);
        let is_deleted = reader.u32()? & 1 != 0;
        let (rest, rev_seqno) = ((reader.u32()?, reader.u32()?), reader.u64()?);
        Some(Rank { cas: answer.cas.0, rev_seqno, is_deleted, rest: (!is_deleted).then_some(rest) })
    }

    /// Whether both are one and the same version, as far as metadata tell.
    pub(super) fn is_same(&self, other: &Rank) -> bool {
        self == other
    }

    /// Whether both have the same CAS and revision, so that something else decided.
    fn is_tied(&self, other: &Rank) -> bool {
        self.cas == other.cas && self.rev_seqno == other.rev_seqno
    }

    fn json(&self) -> Value {
        json!({ "cas": self.cas.to_string(), "revision": self.rev_seqno, "deleted": self.is_deleted })
    }
}

/// The file: a line of JSON for each document.
pub(crate) struct ConflictLog {
    path: PathBuf,
    file: BufWriter<File>,
    env: Env,
}

impl ConflictLog {
    /// Goes on behind what is in the file.
    pub(crate) fn open(env: &Env, path: &Path) -> anyhow::Result<ConflictLog> {
        let file = File::options().create(true).append(true).open(path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(ConflictLog { path: path.to_owned(), file: BufWriter::new(file), env: env.clone() })
    }

    /// A document was left as it was, which now is `kept`; `None` if it is gone by now.
    pub(super) fn add(
        &mut self,
        collection: &str,
        key: &[u8],
        sent: Option<Rank>,
        kept: Option<Rank>,
    ) -> anyhow::Result<()> {
        let rank = |of: Option<Rank>| of.map_or(Value::Null, |rank| rank.json());
        let line = json!({
            "at": node::calendar::timestamp(self.env.clock.unix_ns()),
            "collection": collection,
            "key": key.escape_ascii().to_string(),
            "kept": rank(kept),
            "left_out": rank(sent),
            "tie": sent.zip(kept).is_some_and(|(sent, kept)| sent.is_tied(&kept)),
        });
        writeln!(self.file, "{line}").with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// What was added is in the file.
    pub(super) fn flush(&mut self) -> anyhow::Result<()> {
        self.file.flush().with_context(|| format!("cannot write {}", self.path.display()))
    }
}
