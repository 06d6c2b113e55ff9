//! What is durable of a move: a small file in the bucket's folder (docs/adr/0057-small-files.md).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use base::env::Disk;
use base::{SmallFile, SmallFileError, VbId};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::files::StorageBackend;

/// The file.
pub(super) const FILE: &str = "migration.json";
/// The folder in the bucket's that the other store has until the move is over.
pub const ELSEWHERE: &str = "migration";

/// How far a move is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RecordStage {
    /// vBuckets are in both stores.
    Moving,
    /// All are in the other store, and the files of the first one go.
    Clearing,
    /// The files of the first one are gone, and those of the other store are brought to the bucket's folder.
    Bringing,
    /// The bucket's folder is the other store's.
    Done,
}

/// A move.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MoveRecord {
    pub(super) stage: RecordStage,
    #[serde(with = "backend_words")]
    pub(super) from: StorageBackend,
    #[serde(with = "backend_words")]
    pub(super) to: StorageBackend,
    /// Whether the vBuckets go back to the first store.
    pub(super) is_cancelled: bool,
    /// The vBuckets that are in the other store; all others are in the first one.
    pub(super) moved: BTreeSet<u16>,
}

/// The field's words for stores.
mod backend_words {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use super::StorageBackend;

    pub(super) fn serialize<S: Serializer>(backend: &StorageBackend, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(backend.word())
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<StorageBackend, D::Error> {
        let word = String::deserialize(from)?;
        StorageBackend::of_word(&word).ok_or_else(|| D::Error::custom(format!("no store is called {word:?}")))
    }
}

fn file(dir: &Path) -> SmallFile {
    SmallFile::new(dir, FILE)
}

fn parse(bytes: &[u8], version: u16) -> Result<MoveRecord, String> {
    if version == 0 {
        return Err("it has no header".to_owned());
    }
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}

fn failed(dir: &Path, error: SmallFileError) -> Failure {
    match error {
        SmallFileError::Io { operation, path, source } => Failure::Disk { operation, path, source },
        other @ SmallFileError::Damaged { .. } => {
            Failure::Catalog { dir: dir.to_owned(), what: other.to_string() }
        }
        other @ SmallFileError::Newer { .. } => {
            Failure::OtherStore { dir: dir.to_owned(), what: other.to_string() }
        }
    }
}

impl MoveRecord {
    /// A move that begins.
    pub(super) fn new(from: StorageBackend, to: StorageBackend) -> MoveRecord {
        MoveRecord { stage: RecordStage::Moving, from, to, is_cancelled: false, moved: BTreeSet::new() }
    }

    /// The end of a move that went back, or never began.
    pub(super) fn back(&self) -> MoveRecord {
        let MoveRecord { from, to, .. } = *self;
        MoveRecord { stage: RecordStage::Done, ..MoveRecord::new(to, from) }
    }

    /// What is on record in a bucket's folder, mended if one of the two files is damaged.
    pub(super) fn read(disk: &dyn Disk, dir: &Path) -> Result<Option<MoveRecord>, Failure> {
        let say = |fault: &str| tracing::error!(event = "file_copy_damaged", "{fault}");
        file(dir).open(disk, parse, say).map_err(|error| failed(dir, error))
    }

    /// The same, and changes nothing.
    pub(super) fn look(disk: &dyn Disk, dir: &Path) -> Result<Option<MoveRecord>, Failure> {
        let found = file(dir).look(disk, parse).map_err(|error| failed(dir, error))?;
        Ok(found.map(|found| found.content))
    }

    /// Puts it on record, durably. After a failure it may be on record, or what was before.
    pub(super) fn write(&self, disk: &dyn Disk, dir: &Path) -> Result<(), Failure> {
        let json = serde_json::to_vec(self).expect("numbers and words have a JSON form");
        file(dir).write(disk, &json).map_err(|error| failed(dir, error))
    }

    /// Takes it off the record, durably.
    pub(super) fn remove(disk: &dyn Disk, dir: &Path) -> Result<(), Failure> {
        file(dir).remove(disk).map_err(|error| failed(dir, error))
    }

    /// Where a vBucket goes to: the other store, or the first one.
    pub(super) fn goes_elsewhere(&self) -> bool {
        !self.is_cancelled
    }

    pub(super) fn has_moved(&self, vb: VbId) -> bool {
        self.moved.contains(&vb.0)
    }
}

/// Where the other store is until the move is over.
pub(super) fn elsewhere(dir: &Path) -> PathBuf {
    dir.join(ELSEWHERE)
}
