//! How far a bucket was moved in: where each vBucket there is, in a file that is replaced as a whole.

use std::path::Path;

use anyhow::{Context, bail};
use base::env::Env;
use base::{Seqno, SmallFile, VbUuid};
use serde::{Deserialize, Serialize};

use crate::client::dcp::Position;

/// Room for more vBuckets than there can be.
const MOST_BYTES: u64 = 64 << 20;

/// What the file says.
#[derive(Debug, Serialize, Deserialize)]
struct MoveCheckpoint {
    from_bucket: String,
    to_bucket: String,
    /// Of each vBucket: UUID, seqno, first and last seqno of its snapshot.
    vbuckets: Vec<[u64; 4]>,
}

/// The file of a move.
pub(super) struct CheckpointFile<'e> {
    env: &'e Env,
    file: SmallFile,
    buckets: (String, String),
}

impl<'e> CheckpointFile<'e> {
    pub(super) fn new(
        env: &'e Env,
        path: &Path,
        buckets: (&str, &str),
    ) -> anyhow::Result<CheckpointFile<'e>> {
        let path = std::path::absolute(path)?;
        let name = path.file_name().and_then(|name| name.to_str());
        let (name, folder) = name.zip(path.parent()).context("--checkpoint: name a file")?;
        let file = SmallFile::new(folder, name).at_most(MOST_BYTES);
        Ok(CheckpointFile { env, file, buckets: (buckets.0.to_owned(), buckets.1.to_owned()) })
    }

    /// Where the vBuckets are; `None` if there is no file.
    pub(super) fn read(&self, vbuckets: u16) -> anyhow::Result<Option<Vec<Position>>> {
        let parse = |bytes: &[u8], _: u16| {
            serde_json::from_slice::<MoveCheckpoint>(bytes).map_err(|error| error.to_string())
        };
        let found = self.file.open(&*self.env.disk, parse, |what: &str| eprintln!("stave: {what}"))?;
        let Some(found) = found else { return Ok(None) };
        let path = self.file.path();
        if (&found.from_bucket, &found.to_bucket) != (&self.buckets.0, &self.buckets.1) {
            bail!(
                "{} belongs to a move from bucket `{}` to bucket `{}`; name another file, or remove this one to begin again",
                path.display(),
                found.from_bucket,
                found.to_bucket
            );
        }
        if found.vbuckets.len() != usize::from(vbuckets) {
            bail!(
                "{} is of a bucket with {} vBuckets, and the one there has {vbuckets}; remove the file to begin again",
                path.display(),
                found.vbuckets.len()
            );
        }
        let position = |[uuid, seqno, start, end]: [u64; 4]| Position {
            uuid: VbUuid(uuid),
            seqno: Seqno(seqno),
            snapshot_start: Seqno(start),
            snapshot_end: Seqno(end),
        };
        Ok(Some(found.vbuckets.into_iter().map(position).collect()))
    }

    pub(super) fn write(&self, positions: &[Position]) -> anyhow::Result<()> {
        let numbers = |at: &Position| [at.uuid.0, at.seqno.0, at.snapshot_start.0, at.snapshot_end.0];
        let (from_bucket, to_bucket) = self.buckets.clone();
        let vbuckets = positions.iter().map(numbers).collect();
        let content = serde_json::to_vec(&MoveCheckpoint { from_bucket, to_bucket, vbuckets })?;
        Ok(self.file.write(&*self.env.disk, &content)?)
    }
}
