//! The files of the audit log: `audit.log`, which records are added to, and those that it was before, called
//! `HOST-BEGIN-audit.log` after the moment of their first record.
//!
//! *Guarantee:* each line is a whole record, except that a crash or an error can leave one torn line, which is ended before
//! the next record. After an error the file is opened again.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::env::{Disk, Env, File, OpenMode};

use crate::calendar::{civil, parse_moment};

/// The file that records are added to.
const CURRENT: &str = "audit.log";
/// What the names of earlier ones end with.
const ROTATED: &str = "-audit.log";
/// How much of a file is read to find its first record.
const HEAD_BYTES: u64 = 64 << 10;
/// Longest host name that is used.
const MOST_HOST_BYTES: usize = 64;

struct Open {
    file: Arc<dyn File>,
    len: u64,
    /// When its first record was made, in seconds since 1970.
    begun_s: u64,
    /// Whether something was written since the last sync.
    is_unsynced: bool,
    /// Whether its last line has no end.
    is_torn: bool,
}

/// The file that records are added to, and its folder.
pub(crate) struct AuditFile {
    env: Env,
    folder: PathBuf,
    host: String,
    open: Option<Open>,
}

/// The machine's name, as far as a file may be called so.
pub(crate) fn host_of(disk: &dyn Disk) -> String {
    let mut bytes = [0; MOST_HOST_BYTES];
    let read = disk
        .open(Path::new("/proc/sys/kernel/hostname"), OpenMode::Read)
        .and_then(|file| file.read_at(&mut bytes, 0))
        .unwrap_or(0);
    let name = String::from_utf8_lossy(&bytes[..read]);
    let name: String =
        name.trim().chars().filter(|c| c.is_ascii_alphanumeric() || "-._".contains(*c)).collect();
    if name.is_empty() { "localhost".to_owned() } else { name }
}

impl AuditFile {
    pub(crate) fn new(env: Env, folder: PathBuf) -> AuditFile {
        let host = host_of(&*env.disk);
        AuditFile { env, folder, host, open: None }
    }

    fn now_s(&self) -> u64 {
        self.env.clock.unix_ns() / 1_000_000_000
    }

    fn opened(&mut self) -> io::Result<&mut Open> {
        if self.open.is_none() {
            let disk = &*self.env.disk;
            disk.create_dir_all_synced(&self.folder)?;
            let file = disk.open(&self.folder.join(CURRENT), OpenMode::Create)?;
            disk.sync_dir(&self.folder)?;
            let len = file.len()?;
            let mut last = [b'\n'];
            if len > 0 {
                file.read_at(&mut last, len - 1)?;
            }
            let begun_s = first_moment(&*file, len)?.unwrap_or_else(|| self.now_s());
            // What an earlier process or an error left may not be durable.
            self.open = Some(Open { file, len, begun_s, is_unsynced: len > 0, is_torn: last != [b'\n'] });
        }
        self.open.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Bytes of the file; 0 if it is not open.
    pub(crate) fn len(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.len)
    }

    /// Adds lines, each with its end. After an error none, some or all of them are there.
    pub(crate) fn add(&mut self, lines: &[u8]) -> io::Result<()> {
        let now_s = self.now_s();
        let open = self.opened()?;
        if open.len == 0 {
            open.begun_s = now_s;
        }
        let torn = open.is_torn.then(|| [b"\n", lines].concat());
        let bytes = torn.as_deref().unwrap_or(lines);
        let at = if open.is_unsynced { open.len } else { open.file.append_from(open.len) };
        let written = open.file.write_at(bytes, at);
        (open.len, open.is_unsynced, open.is_torn) = (at + bytes.len() as u64, true, false);
        if written.is_err() {
            self.open = None;
        }
        written
    }

    /// Whether the file can be opened and synced again, after an error.
    pub(crate) fn try_again(&mut self) -> io::Result<()> {
        self.opened()?.is_unsynced = true;
        self.sync()
    }

    /// Makes what was added durable.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        let Some(open) = self.open.as_mut().filter(|open| open.is_unsynced) else { return Ok(()) };
        let synced = open.file.sync_data();
        open.is_unsynced = false;
        if synced.is_err() {
            self.open = None;
        }
        synced
    }

    /// When the file is old enough to be rotated, in seconds since 1970; `None` if it is empty.
    pub(crate) fn rotation_s(&self, interval_s: u64) -> Option<u64> {
        self.open.as_ref().filter(|open| open.len > 0).map(|open| open.begun_s.saturating_add(interval_s))
    }

    /// Gives the file its name for good, and lets the next record begin another one.
    pub(crate) fn rotate(&mut self) -> io::Result<()> {
        self.sync()?;
        let begun_s = match &self.open {
            Some(open) if open.len > 0 => open.begun_s,
            _ => return Ok(()),
        };
        let disk = &*self.env.disk;
        let (year, month, day, second) = civil(begun_s);
        let (hour, minute, rest) = (second / 3_600, second / 60 % 60, second % 60);
        let begun = format!("{year:04}-{month:02}-{day:02}T{hour:02}-{minute:02}-{rest:02}");
        let there = disk.read_dir(&self.folder)?;
        let name = (0..).map(|at| match at {
            0 => format!("{}-{begun}{ROTATED}", self.host),
            at => format!("{}-{begun}-{at}{ROTATED}", self.host),
        });
        let name = name.into_iter().find(|name| !there.contains(name)).unwrap_or_default();
        disk.rename(&self.folder.join(CURRENT), &self.folder.join(name))?;
        self.open = None;
        disk.sync_dir(&self.folder)
    }

    /// Removes rotated files whose last record is older than this many seconds. One whose last record cannot be read goes by
    /// the longest that it can have been written to: `interval_s` from when it began.
    pub(crate) fn prune(&self, age_s: u64, interval_s: u64) -> io::Result<()> {
        let disk = &*self.env.disk;
        let until_s = self.now_s().saturating_sub(age_s);
        let names = match disk.read_dir(&self.folder) {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let prefix = format!("{}-", self.host);
        for name in names {
            let begun = name.strip_suffix(ROTATED).and_then(|name| name.strip_prefix(&prefix));
            // What began later has no record that is old enough: few files are read.
            let Some(begun_s) = begun.and_then(parse_moment).filter(|begun_s| *begun_s <= until_s) else {
                continue;
            };
            let path = self.folder.join(&name);
            let file = disk.open(&path, OpenMode::Read)?;
            let last_s = last_moment(&*file, file.len()?)?;
            if last_s.unwrap_or(begun_s.saturating_add(interval_s)) <= until_s {
                drop(file);
                disk.remove_file(&path)?;
            }
        }
        Ok(())
    }
}

/// When the last record of a file was made; `None` if there is none that can be read.
fn last_moment(file: &dyn File, len: u64) -> io::Result<Option<u64>> {
    let from = len.saturating_sub(HEAD_BYTES);
    let mut bytes = vec![0; (len - from) as usize];
    let read = file.read_at(&mut bytes, from)?;
    let mut lines = bytes[..read].rsplit(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    Ok(lines.next().and_then(moment_of))
}

/// When a record was made.
fn moment_of(line: &[u8]) -> Option<u64> {
    let record: serde_json::Value = serde_json::from_slice(line).ok()?;
    parse_moment(record["timestamp"].as_str()?)
}

/// When the first record of a file was made; `None` if there is none that can be read.
fn first_moment(file: &dyn File, len: u64) -> io::Result<Option<u64>> {
    let mut bytes = vec![0; len.min(HEAD_BYTES) as usize];
    let read = file.read_at(&mut bytes, 0)?;
    let line = bytes[..read].split(|byte| *byte == b'\n').next().unwrap_or_default();
    Ok(moment_of(line))
}
