//! What a bucket's journal holds, and which files it vouches for (docs/adr/0014-journal.md).

use std::path::{Path, PathBuf};

use base::env::Disk;
use couchstore::check::Fault;
use kvstore::journal::{Filed, JournalReport, check_journal};
use kvstore::{CatalogReport, check_recorded};
use serde_json::{Value, json};

use super::place::{BucketFiles, is_segment, vbucket_and_revision};
use crate::units::{bytes, thousands};

/// A file to check, as of which header; nothing: as of its last one.
pub(super) type AsOf = (PathBuf, Option<u64>);

/// Reads the journal of a bucket; nothing if it has none.
pub(super) fn read(disk: &dyn Disk, bucket: &BucketFiles) -> anyhow::Result<Option<JournalReport>> {
    let report = check_journal(disk, &bucket.folder)?;
    Ok(Some(report).filter(|report| !report.segments.is_empty()))
}

/// The files that are in use. Behind a journal those are the ones that it vouches for: what else is there was made
/// shortly before a crash and is in the journal, and so is what stands behind the headers that it names.
/// After a clean stop they are the ones that the catalog lists; what is missing of those has been told.
pub(super) fn files_in_use(
    bucket: &BucketFiles,
    catalog: &CatalogReport,
    journal: Option<&JournalReport>,
) -> Vec<AsOf> {
    if let Some(listed) = &catalog.files {
        let is_wanted = |path: &Path| bucket.is_whole || bucket.files.iter().any(|file| file == path);
        let files = listed.values().filter(|(path, _)| is_wanted(path));
        return files.cloned().collect();
    }
    let as_of_last = || bucket.files.iter().map(|file| (file.clone(), None)).collect();
    let Some(on_record) = journal.and_then(|journal| journal.files.as_ref()) else { return as_of_last() };
    let path = |filed: &Filed| bucket.folder.join(format!("{}.couch.{}", filed.vb.0, filed.revision));
    let vouched = on_record.values().filter(|filed| filed.revision > 0);
    let vouched = vouched.map(|filed| (path(filed), filed.known_header_offset()));
    if bucket.is_whole {
        return vouched.collect();
    }
    let offset_of =
        |file: &Path| vouched.clone().find(|(path, _)| path == file).and_then(|(_, offset)| offset);
    bucket.files.iter().map(|file| (file.clone(), offset_of(file))).collect()
}

/// Files that are not what the catalog lists, or do not have the header at the place that the journal has on record.
pub(super) fn of_files(
    disk: &dyn Disk,
    bucket: &BucketFiles,
    catalog: &CatalogReport,
    journal: Option<&JournalReport>,
) -> Vec<Fault> {
    if !bucket.is_whole {
        return Vec::new();
    }
    // If the catalog lists the files, nothing of a journal counts.
    let journal = journal.filter(|_| catalog.files.is_none());
    let on_record = journal.and_then(|journal| Some((journal.files.as_ref()?, journal.told.as_ref())));
    let compared = on_record.map(|(files, told)| check_recorded(disk, &bucket.folder, files, told));
    let not_as_recorded = compared
        .transpose()
        .unwrap_or_else(|failure| Some(vec![(bucket.folder.clone(), 0, failure.to_string())]));
    let fault = |(path, offset, what): (PathBuf, u64, String)| Fault { path: path.into(), offset, what };
    catalog.faults.iter().cloned().chain(not_as_recorded.into_iter().flatten()).map(fault).collect()
}

/// What is wrong with segments, and which vBuckets an earlier start found to miss changes.
pub(super) fn faults(journal: &JournalReport) -> impl Iterator<Item = Fault> {
    let damage = journal.segments.iter().filter_map(|segment| {
        let (offset, what) = segment.damage.clone()?;
        Some(Fault { path: segment.path.as_path().into(), offset, what })
    });
    let last = journal.segments.last();
    let of_last = move |what| Some(Fault { path: last?.path.as_path().into(), offset: 0, what });
    let missing = journal.missing.iter().flatten().map(|(vb, frames)| {
        format!(
            "vBucket {vb} may miss acknowledged changes and is not served: {frames}; a start that can read them serves it again"
        )
    });
    let unknown = journal.missing.is_none().then(|| {
        "it is not known of which vBuckets changes are missing: the bucket does not start".to_owned()
    });
    let given_up = journal.files.iter().flatten();
    let given_up =
        given_up.filter_map(|(vb, filed)| Some(format!("vBucket {vb}: {}", filed.misses_changes()?)));
    damage.chain(missing.chain(unknown).chain(given_up).filter_map(of_last))
}

/// Whether a file of documents lies beside a journal that may hold newer changes.
pub(in crate::commands) fn lies_beside(disk: &dyn Disk, file: &Path) -> bool {
    let is_file = file.file_name().and_then(|name| vbucket_and_revision(name.to_str()?)).is_some();
    let names = file.parent().map(|folder| disk.read_dir(folder).unwrap_or_default());
    is_file && names.is_some_and(|names| names.iter().any(|name| is_segment(name)))
}

/// Sums of a journal.
struct Sums {
    frames: u64,
    records: u64,
    versions: u64,
    used_bytes: u64,
    faults: u64,
}

impl Sums {
    fn of(journal: &JournalReport) -> Sums {
        let sum = |of: fn(&kvstore::journal::SegmentReport) -> u64| journal.segments.iter().map(of).sum();
        Sums {
            frames: sum(|segment| segment.frames),
            records: sum(|segment| segment.records),
            versions: sum(|segment| segment.items),
            used_bytes: sum(|segment| segment.used_bytes),
            faults: sum(|segment| u64::from(segment.damage.is_some())),
        }
    }
}

/// A row for each journal.
pub(super) fn table(journals: &[(&str, JournalReport)]) -> String {
    if journals.is_empty() {
        return String::new();
    }
    let width = journals.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).max(7);
    let mut out = format!(
        "\n{:width$}  {:>8}  {:>9}  {:>9}  {:>13}  {:>9}  {:>6}\n",
        "journal", "segments", "frames", "records", "versions", "bytes", "faults"
    );
    for (name, journal) in journals {
        let sums = Sums::of(journal);
        out.push_str(&format!(
            "{name:width$}  {:>8}  {:>9}  {:>9}  {:>13}  {:>9}  {:>6}\n",
            thousands(journal.segments.len() as u64),
            thousands(sums.frames),
            thousands(sums.records),
            thousands(sums.versions),
            bytes(sums.used_bytes),
            thousands(sums.faults),
        ));
    }
    out
}

/// An object for each journal.
pub(super) fn json_row(bucket: &str, journal: &JournalReport) -> Value {
    let sums = Sums::of(journal);
    json!({
        "type": "journal",
        "bucket": bucket,
        "segments": journal.segments.len(),
        "spares": journal.spares,
        "frames": sums.frames,
        "records": sums.records,
        "versions": sums.versions,
        "bytes": sums.used_bytes,
        "has_unsynced_end": journal.segments.iter().any(|segment| segment.has_unsynced_end),
        "faults": sums.faults,
    })
}
