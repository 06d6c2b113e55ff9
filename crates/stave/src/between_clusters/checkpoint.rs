//! How far a bucket was sent: where each vBucket that is read is, and what the bucket that is sent to is known to have
//! kept, in a file that is replaced as a whole.

use std::path::Path;

use anyhow::{Context, bail};
use base::env::Env;
use base::{Seqno, SmallFile, VbUuid};
use serde::{Deserialize, Serialize};

use super::kept::{KeptPoint, KeptPoints};
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
    /// The oldest first; files that were written before there were any have none.
    #[serde(default)]
    kept: Vec<StoredPoint>,
    /// Of each vBucket that is sent to: the UUID of the history that it was in last; older files do not say.
    #[serde(default)]
    histories: Vec<u64>,
    /// Its highest seqno then; older files do not say.
    #[serde(default)]
    heights: Vec<u64>,
    /// Which documents are sent, and as what; older files do not say.
    #[serde(default)]
    choice: Option<String>,
}

/// A [`KeptPoint`].
#[derive(Debug, Serialize, Deserialize)]
struct StoredPoint {
    /// As those of the file.
    vbuckets: Vec<[u64; 4]>,
    /// Of each vBucket that is sent to: UUID and highest seqno.
    sent_to: Vec<(u64, u64)>,
}

fn numbers(at: &Position) -> [u64; 4] {
    [at.uuid.0, at.seqno.0, at.snapshot_start.0, at.snapshot_end.0]
}

fn position([uuid, seqno, start, end]: [u64; 4]) -> Position {
    Position {
        uuid: VbUuid(uuid),
        seqno: Seqno(seqno),
        snapshot_start: Seqno(start),
        snapshot_end: Seqno(end),
    }
}

/// The file of one direction between two clusters.
pub(crate) struct CheckpointFile<'e> {
    env: &'e Env,
    file: SmallFile,
    buckets: (String, String),
    choice: String,
}

impl<'e> CheckpointFile<'e> {
    pub(crate) fn new(
        env: &'e Env,
        path: &Path,
        buckets: (&str, &str),
        choice: String,
    ) -> anyhow::Result<CheckpointFile<'e>> {
        let path = std::path::absolute(path)?;
        let name = path.file_name().and_then(|name| name.to_str());
        let (name, folder) = name.zip(path.parent()).context("--checkpoint: name a file")?;
        let file = SmallFile::new(folder, name).at_most(MOST_BYTES);
        Ok(CheckpointFile { env, file, buckets: (buckets.0.to_owned(), buckets.1.to_owned()), choice })
    }

    /// Where the vBuckets are, and the points; `None` if there is no file.
    pub(super) fn read(&self, vbuckets: u16) -> anyhow::Result<Option<(Vec<Position>, KeptPoints)>> {
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
        if let Some(choice) = found.choice.filter(|choice| *choice != self.choice) {
            bail!(
                "{} was written with {choice}, and this command has {}: what the two do not both send would be missing; \
                 give the same options, name another file, or remove this one to begin again",
                path.display(),
                self.choice
            );
        }
        if found.vbuckets.len() != usize::from(vbuckets) {
            bail!(
                "{} is of a bucket with {} vBuckets, and the one there has {vbuckets}; remove the file to begin again",
                path.display(),
                found.vbuckets.len()
            );
        }
        let of_all = |all: Vec<[u64; 4]>| all.into_iter().map(position).collect::<Vec<_>>();
        let point = |stored: StoredPoint| {
            let is_of_these = stored.vbuckets.len() == usize::from(vbuckets);
            is_of_these.then(|| KeptPoint { positions: of_all(stored.vbuckets), heights: stored.sent_to })
        };
        let points = found.kept.into_iter().filter_map(point).collect();
        let heights = found.heights.into_iter().chain(std::iter::repeat(0));
        let seen = found.histories.into_iter().zip(heights).collect();
        Ok(Some((of_all(found.vbuckets), KeptPoints::of(points, seen))))
    }

    pub(super) fn write(&self, positions: &[Position], kept: &KeptPoints) -> anyhow::Result<()> {
        let (from_bucket, to_bucket) = self.buckets.clone();
        let of_all = |all: &[Position]| all.iter().map(numbers).collect();
        let stored = |point: &KeptPoint| StoredPoint {
            vbuckets: of_all(&point.positions),
            sent_to: point.heights.clone(),
        };
        let (histories, heights) = kept.seen().iter().copied().unzip();
        let kept = kept.few().into_iter().map(stored).collect();
        let vbuckets = of_all(positions);
        let content = serde_json::to_vec(&MoveCheckpoint {
            from_bucket,
            to_bucket,
            vbuckets,
            kept,
            histories,
            heights,
            choice: Some(self.choice.clone()),
        })?;
        Ok(self.file.write(&*self.env.disk, &content)?)
    }
}
