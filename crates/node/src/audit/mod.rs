//! The audit log: who logged in or could not, who changed what, as lines of JSON with the original's numbers and names
//! (record 106).
//!
//! # Guarantees
//!
//! - What records an event never waits for the disk: the line goes into a bounded queue that is charged to the memory of
//!   connections, and a thread writes it.
//! - If the queue is full or the disk refuses, records are left out and counted, or what must be recorded is refused, as
//!   the settings say.
//! - What clients have recorded that have not logged in is bounded in a time: the rest of it is a count.
//! - While the log is off, or an event is not recorded, it costs one relaxed load.
//! - No password and no value of a document is recorded.

pub mod events;
pub(crate) mod kv;
mod log_file;
pub mod record;
pub(crate) mod sessions;
pub mod settings;
pub mod start;
mod strangers;
mod writer;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base::env::Env;
use base::{RateLimit, SmallFileError};
use events::AuditEvent;
use log_file::AuditFile;
use parking_lot::{Condvar, Mutex, RwLock};
use record::AuditRecord;
use settings::{AuditSettings, FailurePolicy, WrongField};
use strangers::{StrangerTold, Strangers};

use crate::connection_memory::ConnectionMemory;
use crate::written;

/// Records that wait for the disk, at most. What must be recorded is refused from half of that on, so that what was
/// admitted finds room.
const MOST_RECORDS: usize = 32_768;
/// Bytes of them.
const MOST_BYTES: usize = 8 << 20;
/// The folder of a data directory with the files.
const FOLDER: &str = "audit";

/// Lines that wait for the disk.
#[derive(Default)]
struct WaitingLines {
    lines: VecDeque<Vec<u8>>,
    /// Records that are not written, those in the writer's hand included.
    records: usize,
    /// Bytes of them.
    bytes: usize,
    is_woken: bool,
    is_stopping: bool,
}

/// Where settings and files are, once the node has a folder.
struct AuditPlace {
    /// The data directory.
    folder: PathBuf,
    file: AuditFile,
    /// What was taken out of the queue and is not written.
    pending: VecDeque<Vec<u8>>,
    synced_ns: u64,
    pruned_ns: Option<u64>,
    rotation_failed_ns: Option<u64>,
}

/// What is told of something that is refused.
pub(crate) const CANNOT_BE_RECORDED: &str = "the audit log cannot be written, and what must be recorded is refused \
                                             (failurePolicy=refuse): look at the node's log, make room or mend the disk";

/// Why something is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", CANNOT_BE_RECORDED)]
pub struct AuditRefused;

/// Why settings were not changed.
#[derive(Debug)]
pub enum AuditError {
    /// Fields of the form are not valid.
    Fields(Vec<WrongField>),
    /// The node has no data directory.
    NotHere,
}

/// The audit log of a node.
pub struct AuditLog {
    env: Env,
    memory: Arc<ConnectionMemory>,
    /// The set of events that are recorded; empty while the log is off.
    recorded: AtomicU64,
    /// Whether the last write failed.
    is_failing: AtomicBool,
    refuses: AtomicBool,
    settings: RwLock<Arc<AuditSettings>>,
    waiting: Mutex<WaitingLines>,
    strangers: Mutex<Strangers>,
    wake: Condvar,
    /// Held while the disk works.
    place: Mutex<Option<AuditPlace>>,
    log_path: RwLock<PathBuf>,
    dropped: AtomicU64,
    written: AtomicU64,
    refused: AtomicU64,
    failures: AtomicU64,
    told_dropped: RateLimit,
    told_failure: RateLimit,
}

/// What the log has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditFigures {
    /// Whether it is on.
    pub is_on: bool,
    /// Whether the last write failed.
    pub is_failing: bool,
    /// Records that were left out.
    pub dropped: u64,
    /// Records that were written.
    pub written: u64,
    /// Requests that were refused because they could not be recorded.
    pub refused: u64,
    /// Writes, syncs and rotations that failed.
    pub failures: u64,
    /// Records that wait.
    pub waiting: usize,
    /// Bytes of them.
    pub waiting_bytes: usize,
}

impl AuditLog {
    pub(crate) fn new(env: Env, memory: Arc<ConnectionMemory>) -> AuditLog {
        AuditLog {
            env,
            memory,
            recorded: AtomicU64::new(0),
            is_failing: AtomicBool::new(false),
            refuses: AtomicBool::new(false),
            settings: RwLock::default(),
            waiting: Mutex::default(),
            strangers: Mutex::default(),
            wake: Condvar::new(),
            place: Mutex::default(),
            log_path: RwLock::default(),
            dropped: AtomicU64::new(0),
            written: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            told_dropped: RateLimit::new(),
            told_failure: RateLimit::new(),
        }
    }

    /// Reads the settings of a data directory. If both copies are damaged, or lost, the log is on, with the defaults: what was to be
    /// recorded is not lost without a word.
    pub fn read(&self, data_dir: &Path) {
        let (file, say) =
            (settings::file(data_dir), |fault: &str| tracing::error!(event = "file_copy_damaged", "{fault}"));
        let found =
            written::open(&*self.env.disk, data_dir, &file, settings::parse, say).unwrap_or_else(|error| {
                tracing::error!(
                    event = "audit_settings_unreadable", %error,
                    "the settings of the audit log cannot be read: it is on, with the defaults"
                );
                Some(AuditSettings::switched_on())
            });
        let log_path = data_dir.join(FOLDER);
        *self.place.lock() = Some(AuditPlace {
            folder: data_dir.to_owned(),
            file: AuditFile::new(self.env.clone(), log_path.clone()),
            pending: VecDeque::new(),
            synced_ns: 0,
            pruned_ns: None,
            rotation_failed_ns: None,
        });
        *self.log_path.write() = log_path;
        self.go_by(found.unwrap_or_default());
    }

    fn go_by(&self, settings: AuditSettings) {
        let (recorded, version) = (settings.recorded(), settings.uid);
        let started = AuditRecord::new(AuditEvent::AuditStarted)
            .with("auditd_enabled", settings.auditd_enabled)
            .with("rotate_interval", settings.rotate_interval)
            .with("rotate_size", settings.rotate_size)
            .with("prune_age", settings.prune_age)
            .with("log_path", self.log_path.read().display().to_string())
            .with("hostname", log_file::host_of(&*self.env.disk))
            .with("descriptors_path", "")
            .with("version", 2)
            .with("uuid", version.to_string());
        self.refuses.store(settings.failure_policy == FailurePolicy::Refuse, Ordering::Relaxed);
        *self.settings.write() = Arc::new(settings);
        self.recorded.store(recorded, Ordering::Release);
        self.record(started);
        self.wake_writer();
    }

    /// Changes settings, durably. If the file cannot be written, they hold all the same until the node starts again, and the
    /// answer says why: where a full disk keeps users out because nothing can be recorded, taking that back must not need the
    /// disk. Blocks while the disk works.
    pub fn change(
        &self,
        fields: &[(String, String)],
        is_user: impl Fn(&str) -> bool,
        record: AuditRecord,
    ) -> Result<Option<SmallFileError>, AuditError> {
        let mut place = self.place.lock();
        let place = place.as_mut().ok_or(AuditError::NotHere)?;
        // A shorter time holds for the files that there are, too.
        place.pruned_ns = None;
        let folder = &place.folder;
        let before = self.settings();
        let mut next = before.changed(fields, &self.log_path(), is_user).map_err(AuditError::Fields)?;
        next.uid = self.env.random.next_u64() >> 32;
        let bytes = serde_json::to_vec_pretty(&next).unwrap_or_default();
        let not_kept = written::write(&*self.env.disk, folder, &settings::file(folder), &bytes).err();
        if let Some(error) = &not_kept {
            tracing::warn!(
                event = "audit_settings_not_kept", %error,
                "the settings of the audit log hold, but cannot be written: the next start goes by those before"
            );
        }
        // As a change that switches the log off is recorded before, and one that switches it on behind.
        let mut told = record;
        if let serde_json::Value::Object(fields) = next.told(&self.log_path()) {
            told = fields.into_iter().fold(told, |told, (name, value)| told.with(&snake(&name), value));
        }
        let is_ending = !next.auditd_enabled;
        if is_ending {
            self.record(told);
            self.go_by(next);
        } else {
            self.go_by(next);
            self.record(told);
        }
        Ok(not_kept)
    }

    /// Goes by what the configuration names of the settings, durably. What cannot be kept is logged, and holds until the
    /// node stops. Blocks while the disk works.
    pub fn follow(&self, named: &[(String, String)]) {
        // The fields were looked at when the configuration was read, and a user may be made later.
        let next = self.settings().changed(named, &self.log_path(), |_| true);
        if next.is_ok_and(|next| next != *self.settings()) {
            let record = AuditRecord::new(AuditEvent::AuditConfigured);
            if let Err(error) = self.change(named, |_| true, record) {
                tracing::error!(
                    event = "audit_configuration_invalid",
                    ?error,
                    "the table [audit] of the configuration does not hold"
                );
            }
        }
    }

    /// The settings.
    pub fn settings(&self) -> Arc<AuditSettings> {
        Arc::clone(&self.settings.read())
    }

    /// The folder of the files.
    pub fn log_path(&self) -> PathBuf {
        self.log_path.read().clone()
    }

    /// Whether anything is recorded.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.recorded.load(Ordering::Relaxed) != 0
    }

    /// Whether an event is recorded.
    #[inline]
    pub fn wants(&self, event: AuditEvent) -> bool {
        self.recorded.load(Ordering::Relaxed) & event.bit() != 0
    }

    /// Whether an event may happen: it need not be recorded, or can be, or is only counted if it cannot.
    pub fn admit(&self, event: AuditEvent) -> Result<(), AuditRefused> {
        if !self.wants(event) || !self.refuses.load(Ordering::Relaxed) {
            return Ok(());
        }
        let has_room = {
            let waiting = self.waiting.lock();
            waiting.records < MOST_RECORDS / 2 && waiting.bytes < MOST_BYTES / 2
        };
        if has_room && !self.is_failing.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        Err(AuditRefused)
    }

    /// Records an event, unless it is not recorded, or not of this user.
    pub fn record(&self, record: AuditRecord) {
        let event = record.event();
        if !self.wants(event) {
            return;
        }
        if event.row().is_filterable && record.user().is_some_and(|user| self.settings().leaves_out(user)) {
            return;
        }
        let mut line = record.line(self.env.clock.unix_ns());
        line.push(b'\n');
        let mut waiting = self.waiting.lock();
        if waiting.records >= MOST_RECORDS || waiting.bytes + line.len() > MOST_BYTES {
            drop(waiting);
            self.drop_records(1);
            return;
        }
        self.memory.add(line.len());
        waiting.records += 1;
        waiting.bytes += line.len();
        waiting.lines.push_back(line);
        waiting.is_woken = true;
        drop(waiting);
        self.wake.notify_one();
    }

    /// Whether an event of a client that has not logged in is recorded by itself: if not, it is counted by its reason, and the
    /// count is recorded later.
    pub fn admits_stranger(&self, event: AuditEvent, reason: &'static str, address: Option<IpAddr>) -> bool {
        if !self.wants(event) {
            return false;
        }
        let now = self.env.clock.monotonic();
        self.record_counts(now, false);
        let told = self.strangers.lock().count(event, reason, address, now);
        if told == StrangerTold::FirstLater {
            // The thread may sleep beyond the time when that is due.
            self.wake_writer();
        }
        told == StrangerTold::Now
    }

    /// Records what strangers did and was left out, once that is due, or at the `end`.
    fn record_counts(&self, now: Duration, end: bool) {
        let due = self.strangers.lock().due(now, end);
        due.into_iter().for_each(|record| self.record(record));
    }

    fn drop_records(&self, records: u64) {
        let dropped = self.dropped.fetch_add(records, Ordering::Relaxed) + records;
        if let Some(left_out) = self.told_dropped.admit(self.env.clock.monotonic()) {
            tracing::error!(
                event = "audit_records_left_out",
                dropped,
                left_out,
                "audit records are left out"
            );
        }
    }

    fn wake_writer(&self) {
        self.waiting.lock().is_woken = true;
        self.wake.notify_one();
    }

    /// What it has come to.
    pub fn figures(&self) -> AuditFigures {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (waiting, waiting_bytes) = {
            let waiting = self.waiting.lock();
            (waiting.records, waiting.bytes)
        };
        AuditFigures {
            is_on: self.is_on(),
            is_failing: self.is_failing.load(Ordering::Relaxed),
            dropped: of(&self.dropped),
            written: of(&self.written),
            refused: of(&self.refused),
            failures: of(&self.failures),
            waiting,
            waiting_bytes,
        }
    }
}

/// The name of a setting as records have it.
fn snake(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out.replace("disabled_users", "disabled_userids")
}
