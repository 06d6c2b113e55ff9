//! The file of a bucket's manifest, and what its vBuckets' files say if it cannot be used.
//!
//! # Guarantees
//!
//! - A manifest with a changed bit is never served. If both copies of the file are damaged, the manifest is the newest that
//!   a vBucket has stored; if no vBucket has stored one, the bucket does not open. If both are missing, the manifest is
//!   that of the vBuckets, too; the bucket is a new one only if no vBucket has stored any.
//! - A manifest that is older than what a vBucket has stored is never used. On a node alone it is damaged in the same sense.
//!   A member's vBuckets may have followed a node that knew more, so there it is ordinary: the newest that a vBucket has
//!   stored takes its place, until the cluster's is newer.
//! - A manifest that is older than what `starts` notes is an older file that was put back, even if no vBucket has stored the
//!   newer one. On a node alone the newest that is left goes on under a newer uid, so that no client takes it for the one
//!   that is lost. A member goes on with what it has until the cluster's manifest takes its place.
//! - The file of a version that wrote no checksum is compared with every vBucket that stored the same manifest.

use std::path::Path;

use base::env::Env;
use base::planted::{self, Bug};
use base::{CollectionId, ScopeId, SmallFile, SmallFileError};
use kvstore::StoredManifest;
use serde_json::Value;
use vbucket::{Manifest, ManifestUid};

use crate::collections::NextIds;
use crate::failure::Failure;
use crate::starts::{self, Noted};

/// Holds the manifest, and ids that were never used.
const NAME: &str = "manifest.json";
/// The longest manifest, in bytes: the allowed scopes and collections have no longer names.
const MAX_BYTES: u64 = 8 << 20;
/// A manifest that was put together from vBuckets may not know all ids that were ever used: of collections that were
/// dropped and erased nothing is left. This number is passed over.
const PASSED_OVER_IDS: u32 = 1 << 16;

/// A manifest with ids that were never used, and the format version that it was read from; 0: without checksum.
type Read = (Manifest, NextIds, u16);

/// The file, of a bucket with this identity if that is known.
pub(crate) fn file(dir: &Path, bucket: Option<&str>) -> SmallFile {
    SmallFile::new(dir, NAME).owned_by(bucket.unwrap_or_default()).at_most(MAX_BYTES)
}

/// Understands the file's content.
pub(crate) fn parse(bytes: &[u8], version: u16) -> Result<Read, String> {
    let value: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let manifest = value.get("manifest").ok_or("it has no manifest")?;
    let manifest = Manifest::from_json(manifest).map_err(|error| error.to_string())?;
    let id = |name: &str| {
        let id = value.get(name).and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
        id.ok_or(format!("{name} is no id"))
    };
    let ids = NextIds { scope: ScopeId(id("next_scope")?), collection: CollectionId(id("next_collection")?) };
    Ok((manifest, ids, version))
}

/// Saves a manifest, durably.
pub(crate) fn save(
    env: &Env,
    dir: &Path,
    bucket: &str,
    manifest: &Manifest,
    ids: NextIds,
) -> Result<(), Failure> {
    let (scope, collection) = (ids.scope.0, ids.collection.0);
    let manifest = manifest.to_text();
    let text = format!("{{\"manifest\":{manifest},\"next_collection\":{collection},\"next_scope\":{scope}}}");
    Ok(file(dir, Some(bucket)).write(&*env.disk, text.as_bytes())?)
}

/// What was found in a bucket's folder.
pub(crate) struct Found {
    outcome: Result<Option<Read>, SmallFileError>,
    is_uneven: bool,
    /// Whether it may name another identity, and has to name the bucket's before that is written.
    is_foreign: bool,
    /// The newest manifest that a vBucket stored.
    newest: Option<Manifest>,
    /// What a vBucket says otherwise under the uid that the file has.
    contradiction: Option<String>,
    /// The newest manifest that was written, as `starts` says.
    noted: Option<ManifestUid>,
    highest_ids: NextIds,
}

/// Reads the file of a bucket; its owner is looked at if the bucket's identity is known.
pub(crate) fn find(
    env: &Env,
    dir: &Path,
    bucket: Option<&str>,
    noted: Option<&Noted>,
) -> Result<Found, Failure> {
    let mut found = Found {
        outcome: Ok(None),
        is_uneven: false,
        is_foreign: bucket.is_none(),
        newest: None,
        contradiction: None,
        noted: noted.map(|noted| noted.manifest),
        highest_ids: noted.map_or(NextIds::default(), |noted| noted.ids),
    };
    match file(dir, bucket).look(&*env.disk, parse) {
        Ok(None) => {}
        Ok(Some(read)) => {
            if let Some(fault) = &read.fault {
                tracing::error!(
                    event = "file_copy_damaged",
                    "{fault}; the other of its two files is whole and is used"
                );
            }
            found.is_uneven = read.is_uneven();
            found.outcome = Ok(Some(read.content));
        }
        Err(error) if error.is_damage() => found.outcome = Err(error),
        Err(error) => return Err(error.into()),
    }
    Ok(found)
}

impl Found {
    /// Looks at what a vBucket's file has.
    pub(crate) fn compare(&mut self, stored: &StoredManifest) {
        let scopes = stored.scopes.iter().map(|one| one.scope.clone());
        let open = stored.open.iter().map(|one| one.collection.clone());
        let Ok(manifest) = Manifest::new(stored.uid, scopes, open) else { return };
        let dropped = stored.dropped.iter().map(|one| CollectionId(one.id.0.saturating_add(1))).max();
        self.highest_ids = self.highest_ids.above(&manifest);
        self.highest_ids.collection = self.highest_ids.collection.max(dropped.unwrap_or_default());
        if let Ok(Some((of_file, _, version))) = &self.outcome
            && *version == 0
            && of_file.uid() == manifest.uid()
            && *of_file != manifest
        {
            let what =
                "a vBucket has stored another manifest under the same uid, and the file has no checksum";
            self.contradiction = Some(what.to_owned());
        }
        if self.newest.as_ref().is_none_or(|newest| newest.uid() < manifest.uid()) {
            self.newest = Some(manifest);
        }
    }

    /// Whether the file is of an older manifest than a vBucket. Of a bucket that follows no other node that is damage: the
    /// file is written before any vBucket learns of a change.
    fn is_older(&self) -> bool {
        let Ok(Some((of_file, ..))) = &self.outcome else { return false };
        self.newest.as_ref().is_some_and(|newest| newest.uid() > of_file.uid())
    }

    /// The uid that `starts` notes, if the file is of an older manifest, or missing.
    fn lost(&self) -> Option<ManifestUid> {
        let of_file = match &self.outcome {
            Ok(Some((of_file, ..))) => of_file.uid(),
            _ => ManifestUid(0),
        };
        self.noted.filter(|noted| *noted > of_file && !planted::is(Bug::OlderManifestBelieved))
    }

    /// The bucket's manifest once all vBuckets were looked at; written again if that is needed. `is_member`: the vBuckets
    /// may have followed other nodes.
    pub(crate) fn settle(
        mut self,
        env: &Env,
        dir: &Path,
        bucket: &str,
        is_member: bool,
    ) -> Result<(Manifest, NextIds), Failure> {
        let is_older = self.is_older() && !planted::is(Bug::OlderManifestBelieved);
        let lost = self.note_older(dir, is_older, is_member);
        let Found { outcome, is_uneven, is_foreign, newest, contradiction, highest_ids, .. } = self;
        let (error, newest) = match (outcome, contradiction, newest) {
            (Ok(None), None, newest)
                if newest.as_ref().is_none_or(|newest| newest.uid() == ManifestUid(0)) =>
            {
                return Ok((Manifest::default(), highest_ids));
            }
            // Collections are never dropped because a file is missing.
            (Ok(None), what, newest) => {
                let stored = || "it and its copy are missing, and a vBucket has stored a manifest".to_owned();
                let what = what.unwrap_or_else(stored);
                (SmallFileError::Damaged { path: file(dir, None).path(), what }, newest)
            }
            (Ok(Some((manifest, ids, _))), None, newest) => {
                // No id is given twice, even if the file is older than the vBuckets.
                let ids = higher(ids, highest_ids);
                let manifest = match newest.filter(|_| is_older) {
                    Some(newest) => {
                        tracing::warn!(
                            event = "manifest_taken_from_vbucket",
                            manifest = %dir.display(), uid = %manifest.uid(), stored = %newest.uid(),
                            "a vBucket has stored a newer manifest, as one does that follows another node before this \
                             node learns of a change; it is the bucket's from now on"
                        );
                        newest
                    }
                    None => manifest,
                };
                if is_foreign {
                    save(env, dir, bucket, &manifest, ids)?;
                } else if (is_uneven || is_older)
                    && let Err(error) = save(env, dir, bucket, &manifest, ids)
                {
                    log_files_stay(&error);
                }
                return Ok((manifest, ids));
            }
            (Ok(Some((of_file, ..))), Some(what), newest) => {
                let is_left = newest.as_ref().is_none_or(|newest| newest.uid() < of_file.uid());
                let newest = if lost.is_some() && is_left { Some(of_file) } else { newest };
                (SmallFileError::Damaged { path: file(dir, None).path(), what }, newest)
            }
            (Err(error), _, newest) => (error, newest),
        };
        let Some(manifest) = newest.filter(|newest| newest.uid() > ManifestUid(0)) else {
            return Err(error.into());
        };
        let manifest = match lost.filter(|noted| !is_member && *noted > manifest.uid()) {
            Some(noted) => under_newer_uid(manifest, noted),
            None => manifest,
        };
        tracing::error!(
            event = "manifest_rebuilt", manifest = %dir.display(), %error, uid = %manifest.uid(),
            "the manifest is put together again from what is left: look whether collections are missing, or were dropped before"
        );
        let ids = above_passed_over(highest_ids);
        save(env, dir, bucket, &manifest, ids)?;
        Ok((manifest, ids))
    }

    /// Says that the manifest is older than what is noted, or that of a vBucket: of a bucket of a node alone that is
    /// damage. Answers the uid that is lost.
    fn note_older(&mut self, dir: &Path, is_older: bool, is_member: bool) -> Option<ManifestUid> {
        if is_older && !is_member {
            let what =
                "a vBucket has stored a newer manifest: it and its copy are older than the bucket's files";
            self.contradiction = Some(what.to_owned());
        }
        let noted = self.lost()?;
        if is_member {
            tracing::warn!(
                event = "manifest_older",
                manifest = %dir.display(), %noted,
                "the manifest is older than one that was written: that of the cluster takes its place"
            );
        } else {
            self.contradiction.get_or_insert(starts::older(noted));
        }
        Some(noted)
    }
}

fn higher(one: NextIds, other: NextIds) -> NextIds {
    NextIds { scope: one.scope.max(other.scope), collection: one.collection.max(other.collection) }
}

fn above_passed_over(ids: NextIds) -> NextIds {
    NextIds {
        scope: ScopeId(ids.scope.0.saturating_add(PASSED_OVER_IDS)),
        collection: CollectionId(ids.collection.0.saturating_add(PASSED_OVER_IDS)),
    }
}

/// The same scopes and collections under a uid that no client has seen.
fn under_newer_uid(manifest: Manifest, noted: ManifestUid) -> Manifest {
    let uid = ManifestUid(noted.0.saturating_add(1));
    let newer = Manifest::new(uid, manifest.scopes().cloned(), manifest.collections().cloned());
    newer.unwrap_or(manifest)
}

fn log_files_stay(error: &Failure) {
    tracing::warn!(
        event = "manifest_files_stay", %error,
        "the two files of the manifest cannot be written, and stay as they are until the next start"
    );
}
