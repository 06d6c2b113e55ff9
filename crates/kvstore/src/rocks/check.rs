//! Whether all that a RocksDB database has is sound, and what the catalog promises. Nothing is changed.

use std::collections::BTreeMap;
use std::path::Path;

use base::VbId;
use base::env::{CopyOnWriteDisk, Env};
use std::sync::Arc;

use super::database::{Database, Family, Moment};
use super::layout::{Head, OWNER, PREFIX, seqno_of, split, start_of, take_entry, take_seqno};
use super::store::{at_of, item_in};
use crate::catalog;
use crate::failure::Failure;
use crate::log::LogReport;
use crate::log::check::check_promised;
use crate::log::item::{GONE, PREPARE, VersionMaker};
use crate::rocks_config::{FOLDER, RocksConfig};
use crate::store::Values;

/// What a database that is only read may write into memory: nothing of it goes through the disk.
const NOTHING: u64 = 0;
/// So many items are read between two steps.
const STEP: u64 = 1024;

/// Reads all of the database in a bucket's folder, to the end whatever is wrong.
pub(super) fn check(env: &Env, dir: &Path, step: &mut dyn FnMut(u64)) -> Result<LogReport, Failure> {
    let disk = Arc::new(CopyOnWriteDisk::new(env.disk.clone(), NOTHING));
    let reading = Env { disk, ..env.clone() };
    let mut report = LogReport::default();
    let database = match Database::open(&reading, dir, &RocksConfig::default()) {
        Ok(database) => Arc::new(database),
        Err(damage) if damage.is_damage() => {
            report.faults.push((dir.join(FOLDER), 0, damage.to_string()));
            return Ok(report);
        }
        Err(failure) => return Err(failure),
    };
    measure(&reading, &database, &mut report)?;
    let moment = Moment::of(&database);
    let heads = heads(&database, &mut report);
    for (vb, head) in &heads {
        let mut seen = CheckedVb { vb: *vb, step, report: &mut report, documents: 0, tombstones: 0, read: 0 };
        if let Err(failure) = seen.keys(&moment, env).and_then(|()| seen.seqnos(&moment)) {
            seen.fault(failure.to_string());
            continue;
        }
        seen.compare(head);
    }
    let commits = heads.iter().map(|(vb, head)| (*vb, at_of(head))).collect();
    let found = (catalog::find(&*env.disk, dir)?, "a RocksDB database");
    check_promised(env, dir, found, |_| None, &commits, &mut report)?;
    Ok(report)
}

/// How many files there are, and their bytes.
fn measure(env: &Env, database: &Database, report: &mut LogReport) -> Result<(), Failure> {
    let folder = database.folder();
    let failed = |operation, source| Failure::Disk { operation, path: folder.to_owned(), source };
    for name in env.disk.read_dir(folder).map_err(|source| failed("list", source))? {
        let file = env.disk.open(&folder.join(name), base::env::OpenMode::Read);
        let len = file.and_then(|file| file.len()).map_err(|source| failed("measure a file of", source))?;
        report.files += 1;
        report.bytes += len;
    }
    Ok(())
}

fn heads(database: &Database, report: &mut LogReport) -> BTreeMap<VbId, Head> {
    let mut heads = BTreeMap::new();
    let mut walk = database.walk_all(Family::State);
    while let Some((key, value)) = walk.item() {
        if let Some((vb, [0])) = split(key).filter(|_| key != OWNER) {
            match Head::decode(value) {
                Ok(head) => drop(heads.insert(vb, head)),
                Err(what) => {
                    report.faults.push((database.folder().to_owned(), 0, format!("vBucket {vb}: {what}")))
                }
            }
        }
        walk.next();
    }
    if let Err(error) = walk.status() {
        report.faults.push((database.folder().to_owned(), 0, error.to_string()));
    }
    heads
}

/// What is found of a vBucket.
struct CheckedVb<'c> {
    vb: VbId,
    step: &'c mut dyn FnMut(u64),
    report: &'c mut LogReport,
    documents: u64,
    tombstones: u64,
    read: u64,
}

impl CheckedVb<'_> {
    fn fault(&mut self, what: String) {
        self.report.faults.push((FOLDER.into(), 0, what));
    }

    /// Each key names a version that is there, and is of that key.
    fn keys(&mut self, moment: &Moment, env: &Env) -> Result<(), Failure> {
        let (database, vb) = (moment.database(), self.vb);
        let maker = VersionMaker { vb, dir: database.folder(), heap: &env.heap };
        let mut walk = moment.walk(vb, Family::Keys, &start_of(vb));
        while let Some((key, value)) = walk.item() {
            let entry = take_entry(value);
            let entry = entry.ok_or_else(|| database.damaged(vb, "an entry of a key makes no sense"))?;
            let bytes = moment.get_pinned(vb, Family::Seqnos, &seqno_of(vb, entry.seqno))?;
            let bytes =
                bytes.ok_or_else(|| database.damaged(vb, "a version that a key names is not there"))?;
            let item = item_in(database, vb, (entry.seqno, &bytes), Some(&key[PREFIX..]))?;
            maker.version(&item, Values::Read)?;
            self.tombstones += u64::from(entry.flags & GONE != 0);
            self.documents += u64::from(entry.flags & (GONE | PREPARE) == 0);
            self.read += 1;
            if self.read.is_multiple_of(STEP) {
                (self.step)(STEP);
            }
            walk.next();
        }
        (self.step)(self.read % STEP);
        walk.status().map_err(database.failed(vb, "read"))
    }

    /// Each version by seqno makes sense.
    fn seqnos(&mut self, moment: &Moment) -> Result<(), Failure> {
        let (database, vb) = (moment.database(), self.vb);
        let mut walk = moment.walk(vb, Family::Seqnos, &start_of(vb));
        while let Some((key, value)) = walk.item() {
            let seqno = split(key).and_then(|(_, rest)| take_seqno(rest));
            let seqno = seqno.ok_or_else(|| database.damaged(vb, "a seqno makes no sense"))?;
            item_in(database, vb, (seqno, value), None)?;
            walk.next();
        }
        walk.status().map_err(database.failed(vb, "read"))
    }

    /// Counts are those of what is there. Documents of dropped collections, and system events, are not counted there.
    fn compare(&mut self, head: &Head) {
        let counted = head.state.tally.documents();
        if head.state.tombstones != self.tombstones || counted > self.documents {
            let what = format!(
                "vBucket {}: {counted} documents and {} tombstones are counted, and {} and {} are there",
                self.vb, head.state.tombstones, self.documents, self.tombstones
            );
            self.fault(what);
        }
        self.report.documents += counted;
        self.report.tombstones += head.state.tombstones;
    }
}
