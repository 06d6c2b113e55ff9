//! The thread that writes the audit log, and its step, which tests and simulators call themselves.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::env::Task;

use super::events::AuditEvent;
use super::record::AuditRecord;
use super::{AuditLog, AuditPlace};

/// What was written is durable after this time, and a failed write is tried again.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest between two looks for files to remove, and until a failed rotation is tried again.
const LONG_PAUSE: Duration = Duration::from_secs(60);

impl AuditLog {
    /// Starts the thread that writes.
    pub fn start(self: &Arc<AuditLog>) -> io::Result<Task> {
        let log = Arc::clone(self);
        self.env.spawn.spawn("audit", Box::new(move || log.run()))
    }

    fn run(&self) {
        loop {
            let pause = self.write_step();
            let mut waiting = self.waiting.lock();
            if waiting.is_stopping {
                break;
            }
            if self.is_failing.load(Ordering::Relaxed) {
                // Each record would try the disk again.
                self.wake.wait_while_for(&mut waiting, |waiting| !waiting.is_stopping, pause);
            } else if !std::mem::take(&mut waiting.is_woken) {
                self.wake.wait_for(&mut waiting, pause);
                waiting.is_woken = false;
            }
        }
        self.write_step();
        self.end();
    }

    /// Has the thread write what waits, and end.
    pub fn stop(&self) {
        self.record_counts(self.env.clock.monotonic(), true);
        self.record(AuditRecord::new(AuditEvent::AuditStopped));
        self.waiting.lock().is_stopping = true;
        self.wake.notify_one();
    }

    /// Makes all durable; what could not be written is left out.
    fn end(&self) {
        if let Some(place) = &mut *self.place.lock() {
            let synced = place.file.sync();
            self.note(synced, "sync");
            let left = place.pending.len() as u64;
            if left > 0 {
                self.drop_records(left);
            }
        }
    }

    /// Writes what waits, rotates and removes what is due. Answers how long there is nothing to do unless records come.
    pub fn write_step(&self) -> Duration {
        let now = self.env.clock.monotonic();
        self.record_counts(now, false);
        let pause = self.write_waiting();
        self.strangers.lock().wait(now).map_or(pause, |wait| pause.min(wait))
    }

    /// The same of what is in the queue.
    fn write_waiting(&self) -> Duration {
        let mut place = self.place.lock();
        let Some(place) = &mut *place else { return LONG_PAUSE };
        let settings = self.settings();
        place.pending.append(&mut self.waiting.lock().lines);
        let (now_ns, now_s) = (self.env.clock.monotonic_ns(), self.env.clock.unix_ns() / 1_000_000_000);
        let is_written = self.write(place, settings.rotate_size, now_ns);
        let is_due = place.file.rotation_s(settings.rotate_interval).is_some_and(|due_s| due_s <= now_s);
        if is_due {
            self.rotate(place, now_ns);
        }
        let is_to_prune = place.pruned_ns.is_none_or(|at_ns| now_ns >= at_ns + LONG_PAUSE.as_nanos() as u64);
        if settings.prune_age > 0 && is_to_prune {
            let pruned = place.file.prune(settings.prune_age * 60, settings.rotate_interval);
            self.note(pruned, "remove");
            place.pruned_ns = Some(now_ns);
        }
        if !is_written {
            return PAUSE;
        }
        if now_ns < place.synced_ns + PAUSE.as_nanos() as u64 {
            return Duration::from_nanos(place.synced_ns + PAUSE.as_nanos() as u64 - now_ns);
        }
        let synced = place.file.sync();
        if self.note(synced, "sync") {
            place.synced_ns = now_ns;
        }
        LONG_PAUSE
    }

    /// Whether all that waited is written.
    fn write(&self, place: &mut AuditPlace, rotate_size: u64, now_ns: u64) -> bool {
        while let Some(first) = place.pending.front() {
            if place.file.len() > 0 && place.file.len() + first.len() as u64 > rotate_size {
                self.rotate(place, now_ns);
            }
            let room = rotate_size.saturating_sub(place.file.len()) as usize;
            let mut lines = Vec::new();
            let mut records = 0;
            for line in &place.pending {
                if records > 0 && lines.len() + line.len() > room {
                    break;
                }
                lines.extend_from_slice(line);
                records += 1;
            }
            let added = place.file.add(&lines);
            if !self.note(added, "write") {
                return false;
            }
            place.pending.drain(..records);
            self.written.fetch_add(records as u64, Ordering::Relaxed);
            let mut waiting = self.waiting.lock();
            waiting.records -= records;
            waiting.bytes -= lines.len();
            drop(waiting);
            self.memory.give_back(lines.len());
        }
        if self.is_failing.load(Ordering::Relaxed) {
            let mended = place.file.try_again();
            if !self.note(mended, "sync") {
                return false;
            }
            self.is_failing.store(false, Ordering::Relaxed);
        }
        true
    }

    /// A file that cannot be given its name goes on.
    fn rotate(&self, place: &mut AuditPlace, now_ns: u64) {
        let failed_ns = place.rotation_failed_ns;
        if failed_ns.is_some_and(|at_ns| now_ns < at_ns + LONG_PAUSE.as_nanos() as u64) {
            return;
        }
        let rotated = place.file.rotate();
        place.rotation_failed_ns = (!self.note(rotated, "rotate")).then_some(now_ns);
        place.pruned_ns = None;
    }

    /// Whether something went well; else it is counted and told.
    fn note(&self, done: io::Result<()>, operation: &'static str) -> bool {
        let Err(error) = done else { return true };
        self.failures.fetch_add(1, Ordering::Relaxed);
        if operation == "write" || operation == "sync" {
            self.is_failing.store(true, Ordering::Relaxed);
        }
        if let Some(left_out) = self.told_failure.admit(self.env.clock.monotonic()) {
            let folder = self.log_path();
            tracing::error!(
                event = "audit_write_failed", operation, folder = %folder.display(), %error, left_out,
                "the audit log cannot be written"
            );
        }
        false
    }
}
