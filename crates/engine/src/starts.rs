//! What vouches for the mark of a clean stop and for the manifest: the number of the bucket's last start, the uid of the
//! newest manifest, and ids that were never used.
//!
//! # Guarantees
//!
//! - A mark counts only for the start that wrote it: each start has another number, which is durable before the bucket
//!   serves anything. A mark that is put back after a later start is not believed.
//! - What is noted of the manifest is never more than what `manifest.json` has, and is durable before any vBucket or client
//!   learns of the manifest: a file that has less is an older one, or a change failed and the process ended before that
//!   was put right.

use std::io;
use std::path::Path;

use base::env::{Disk, Env};
use base::planted::{self, Bug};
use base::{CollectionId, ScopeId, TwoSlots};
use serde_json::{Value, json};
use vbucket::ManifestUid;

use crate::collections::NextIds;
use crate::failure::Failure;

const NAME: &str = "starts";
const FORMAT: u64 = 1;

/// The file in a bucket's folder.
pub(crate) fn file(dir: &Path) -> TwoSlots {
    TwoSlots::new(dir, NAME)
}

/// What is noted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Noted {
    /// Rises with every start.
    pub(crate) start: u64,
    /// Of the newest manifest.
    pub(crate) manifest: ManifestUid,
    /// Ids that were never used.
    pub(crate) ids: NextIds,
}

/// What a start, or a manifest, is noted with.
#[derive(Clone, Copy)]
pub(crate) struct StartNote<'a> {
    pub(crate) env: &'a Env,
    /// The bucket's folder.
    pub(crate) dir: &'a Path,
    /// The bucket's identity.
    pub(crate) bucket: &'a str,
    /// Of the newest manifest.
    pub(crate) manifest: ManifestUid,
    /// Ids that were never used.
    pub(crate) ids: NextIds,
}

struct Slot {
    /// Rises with every write.
    write: u64,
    bucket: String,
    noted: Noted,
}

impl Slot {
    fn parse(text: &str) -> Option<Slot> {
        let value: Value = serde_json::from_str(text).ok()?;
        let number = |name: &str| value.get(name).and_then(Value::as_u64);
        let id = |name: &str| number(name).and_then(|id| u32::try_from(id).ok());
        if number("format") != Some(FORMAT) {
            return None;
        }
        let noted = Noted {
            start: number("start")?,
            manifest: ManifestUid(number("manifest")?),
            ids: NextIds {
                scope: ScopeId(id("next_scope")?),
                collection: CollectionId(id("next_collection")?),
            },
        };
        Some(Slot { write: number("write")?, bucket: value.get("bucket")?.as_str()?.to_owned(), noted })
    }

    fn text(&self) -> String {
        json!({
            "format": FORMAT,
            "write": self.write,
            "bucket": self.bucket,
            "start": self.noted.start,
            "manifest": self.noted.manifest.0,
            "next_scope": self.noted.ids.scope.0,
            "next_collection": self.noted.ids.collection.0,
        })
        .to_string()
    }
}

/// What a bucket's folder says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LastStart {
    /// No file: the bucket is new, or an earlier version wrote the folder.
    Missing,
    /// Why the file says nothing.
    Damaged(&'static str),
    /// What is noted.
    Whole(Noted),
}

impl LastStart {
    /// What is noted, if anything can be believed.
    pub(crate) fn noted(&self) -> Option<&Noted> {
        match self {
            LastStart::Whole(noted) if !planted::is(Bug::StartsDoNotVouch) => Some(noted),
            _ => None,
        }
    }
}

/// The file of an open bucket. What is in memory is what is in the file, unless a write failed.
#[derive(Default)]
pub(crate) struct Starts {
    writes: u64,
    /// Whether the last write failed, so that the file may say what was to be written.
    is_undecided: bool,
    noted: Option<Noted>,
}

impl Starts {
    /// Reads the file of a bucket; its owner is looked at if the bucket's identity is known.
    pub(crate) fn read(env: &Env, dir: &Path, owner: Option<&str>) -> Result<(Starts, LastStart), Failure> {
        let nothing = |found| Ok((Starts::default(), found));
        let path = file(dir).path();
        let found =
            file(dir).read(&*env.disk, Slot::parse).map_err(|source| Failure::io("read", &path, source))?;
        let Some(slots) = found else { return nothing(LastStart::Missing) };
        let Some(newest) = slots.whole.into_iter().max_by_key(|slot| slot.write) else {
            tracing::error!(
                event = "starts_file_damaged", path = %path.display(),
                "the file is damaged: the last stop counts as a crash"
            );
            return nothing(LastStart::Damaged("the number of the last start is damaged"));
        };
        if owner.is_some_and(|owner| owner != newest.bucket) {
            tracing::error!(
                event = "starts_file_of_other_bucket", path = %path.display(),
                "the file is of another bucket: the last stop counts as a crash"
            );
            return nothing(LastStart::Damaged("the number of the last start is that of another bucket"));
        }
        if let Some(what) = slots.fault {
            let path = path.display();
            tracing::warn!(
                event = "start_maybe_unnoted", %path, what,
                "one start or manifest more may have been noted; a power failure within a write leaves this, too"
            );
        }
        let (noted, is_undecided) = (Some(newest.noted.clone()), false);
        let starts = Starts { writes: newest.write, noted, is_undecided };
        Ok((starts, LastStart::Whole(newest.noted)))
    }

    /// Notes another start, with the manifest that it found. A full disk does not keep a bucket from being opened: the
    /// start has the number of the one before then.
    pub(crate) fn begin(&mut self, note: StartNote<'_>) -> Result<(), Failure> {
        match self.count(note) {
            Err(Failure::Io { path, source, .. }) if source.kind() == io::ErrorKind::StorageFull => {
                let path = path.display();
                tracing::warn!(
                    event = "start_not_noted", %path, error = %source,
                    "the start is not counted: a mark of an earlier clean stop, put back, would be believed"
                );
                Ok(())
            }
            put => put,
        }
    }

    /// Notes a number above all that the file may have.
    pub(crate) fn count(&mut self, note: StartNote<'_>) -> Result<(), Failure> {
        self.put(note, self.last(note.env).saturating_add(1))
    }

    /// Notes a manifest.
    pub(crate) fn note_manifest(&mut self, note: StartNote<'_>) -> Result<(), Failure> {
        self.put(note, self.last(note.env))
    }

    /// The number that is noted; the time if there is none, as a file that was lost may have counted any start before.
    fn last(&self, env: &Env) -> u64 {
        self.noted.as_ref().map_or(u64::from(env.clock.unix_s()), |noted| noted.start)
    }

    /// The number of this start, which is on disk; `None` if it is not.
    pub(crate) fn number(&self) -> Option<u64> {
        self.noted.as_ref().filter(|_| !self.is_undecided).map(|noted| noted.start)
    }

    fn put(&mut self, note: StartNote<'_>, start: u64) -> Result<(), Failure> {
        let StartNote { env, dir, bucket, manifest, ids } = note;
        let noted = Noted { start, manifest, ids };
        let (file, is_new) = (file(dir), self.noted.is_none());
        let slot = Slot { write: self.writes + 1, bucket: bucket.to_owned(), noted };
        self.is_undecided = true;
        // After a failure the next write is to the same slot: the other one is the only one that is surely whole.
        let written = file.write(&*env.disk, &slot.text(), slot.write, is_new);
        written.map_err(|source| Failure::io("write", &file.path(), source))?;
        (self.writes, self.noted, self.is_undecided) = (slot.write, Some(slot.noted), false);
        Ok(())
    }
}

/// What is wrong with the file of a bucket, or with a manifest of this uid beside it (`None`: there is none). Changes
/// nothing.
pub(crate) fn fault(disk: &dyn Disk, dir: &Path, manifest: Option<ManifestUid>) -> Option<String> {
    let slots = match file(dir).read(disk, Slot::parse) {
        Err(error) => return Some(format!("it cannot be read: {error}")),
        Ok(slots) => slots?,
    };
    let newest = slots.whole.iter().max_by_key(|slot| slot.write);
    let is_older =
        newest.map(|slot| slot.noted.manifest).filter(|noted| manifest.unwrap_or_default() < *noted);
    slots.fault.or_else(|| is_older.map(older))
}

/// What is said of a manifest that is older than what is noted.
pub(crate) fn older(noted: ManifestUid) -> String {
    format!(
        "`{NAME}` says that manifest {noted} was written: manifest.json and its copy are older, or missing"
    )
}
