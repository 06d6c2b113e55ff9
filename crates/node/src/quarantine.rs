//! Folders of buckets that a cluster deleted, and damaged files, kept for a while: a cluster's state can be lost or restored
//! by mistake, and what was deleted on its word can be taken back by hand as long as it is here.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::env::Env;
use base::planted::{self, Bug};
use parking_lot::Mutex;

/// Where they are, below the folder of data.
pub(crate) const FOLDER: &str = "quarantine";

/// The folder, and for how long each entry stays, in seconds; 0 keeps none.
///
/// An entry is called `SECONDS-NUMBER-NAME`: when it came, in seconds since 1970, a number that makes it another name
/// than all that are there, and the name of the bucket.
///
/// How long it has been here is counted by the clock that nobody sets, while a process of the node looks: a wall clock that
/// jumps ahead erases nothing, and each start counts anew.
#[derive(Clone, Debug)]
pub struct Quarantine {
    folder: PathBuf,
    keep_s: u64,
    /// Since when this process has seen each entry.
    seen: Arc<Mutex<BTreeMap<String, Duration>>>,
}

impl Quarantine {
    /// The quarantine of the data directory `data`, which keeps files for `keep_s` seconds.
    pub fn new(data: &Path, keep_s: u64) -> Quarantine {
        Quarantine { folder: data.join(FOLDER), keep_s, seen: Arc::default() }
    }

    fn entries(&self, env: &Env) -> io::Result<Vec<String>> {
        match env.disk.read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            names => names,
        }
    }

    /// Removes a folder: it comes here, or goes at once if nothing is kept. Fine if it is not there (any more).
    pub fn remove(&self, env: &Env, folder: &Path, name: &str) -> io::Result<()> {
        if self.keep_s == 0 {
            return env.disk.remove_dir_all(folder);
        }
        match env.disk.read_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            names => names?,
        };
        let entry = self.fresh(env, name)?;
        env.disk.create_dir_all_synced(&self.folder)?;
        env.disk.rename(folder, &self.folder.join(&entry))?;
        env.disk.sync_dir(&self.folder)?;
        tracing::info!(
            event = "bucket_files_quarantined",
            bucket = name,
            entry,
            keep_s = self.keep_s,
            "the files of a deleted bucket are in quarantine"
        );
        Ok(())
    }

    /// Removes the folder of a bucket from `buckets`, durably. Fine if it is not there any more; one that failed is to be
    /// tried again, also after a restart.
    pub fn remove_bucket(&self, env: &Env, buckets: &Path, name: &str) -> io::Result<()> {
        self.remove(env, &buckets.join(name), name)?;
        match env.disk.sync_dir(buckets) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    /// A name that no entry has.
    fn fresh(&self, env: &Env, name: &str) -> io::Result<String> {
        let (now, there) = (env.clock.unix_s(), self.entries(env)?);
        let mut named = (0..=there.len()).map(|number| format!("{now}-{number}-{name}"));
        let is_fresh = |entry: &String| !there.contains(entry);
        named
            .find(is_fresh)
            .ok_or_else(|| io::Error::other("each of more names than there are entries is taken"))
    }

    /// Where damaged files of something may be moved, which are kept as long as others are. It is not made.
    pub fn place(&self, env: &Env, name: &str) -> io::Result<PathBuf> {
        Ok(self.folder.join(self.fresh(env, name)?))
    }

    /// Erases what has been here for long enough. An entry that cannot be erased does not keep a later one.
    ///
    /// # Errors
    ///
    /// The first failure. Each call tries all entries again.
    pub fn erase_old(&self, env: &Env) -> io::Result<()> {
        let (now, keep) = (env.clock.monotonic(), Duration::from_secs(self.keep_s));
        let mut entries = self.entries(env)?;
        // What somebody else put here stays.
        entries.retain(|entry| came(entry).is_some());
        let mut seen = self.seen.lock();
        seen.retain(|entry, _| entries.contains(entry));
        let mut first_failure = Ok(());
        for entry in entries {
            let since = *seen.entry(entry.clone()).or_insert(now);
            let is_old = if planted::is(Bug::QuarantineByWallClock) {
                came(&entry).is_some_and(|came| u64::from(env.clock.unix_s()) >= came + self.keep_s)
            } else {
                now.saturating_sub(since) >= keep
            };
            if !is_old {
                continue;
            }
            let path = self.folder.join(&entry);
            match env.disk.remove_dir_all(&path) {
                Ok(()) => {
                    tracing::info!(event = "quarantine_erased", entry, "files in quarantine were erased")
                }
                Err(error) => {
                    let error = io::Error::new(error.kind(), format!("{}: {error}", path.display()));
                    first_failure = first_failure.and(Err(error));
                }
            }
        }
        first_failure
    }
}

/// When an entry came, if it is one of ours.
fn came(entry: &str) -> Option<u64> {
    entry.split('-').next()?.parse().ok()
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the files are on the real disk")]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_jumps_ahead_erases_nothing() {
        let ((sim, handles), data) = (Env::sim(1), tempfile::tempdir().expect("a folder"));
        let env = Env { clock: sim.clock, ..Env::real() };
        let folder = data.path().join("buckets/b");
        std::fs::create_dir_all(&folder).expect("a folder");
        let quarantine = Quarantine::new(data.path(), 3_600);
        quarantine.remove(&env, &folder, "b").expect("it comes here");
        let is_there = || {
            quarantine.erase_old(&env).expect("the disk works");
            quarantine.entries(&env).expect("a list").len() == 1
        };
        assert!(is_there());
        handles.clock.set_unix_ns(env.clock.unix_ns() + 1_000 * 86_400 * 1_000_000_000);
        assert!(is_there(), "by the wall clock years have gone");
        handles.clock.advance(Duration::from_secs(3_599));
        assert!(is_there());
        handles.clock.advance(Duration::from_secs(1));
        assert!(!is_there());
    }

    #[test]
    fn an_entry_that_cannot_be_erased_does_not_keep_a_later_one() {
        let (env, data) = (Env::real(), tempfile::tempdir().expect("a folder"));
        let here = data.path().join(FOLDER);
        std::fs::create_dir_all(here.join("1-0-later")).expect("a folder");
        // A file with the name of an entry cannot be removed as a folder.
        std::fs::write(here.join("0-0-stuck"), "").expect("a file");
        let quarantine = Quarantine::new(data.path(), 0);
        let error = quarantine.erase_old(&env).expect_err("one of them stays");
        assert!(error.to_string().contains("0-0-stuck"), "{error}");
        assert_eq!(quarantine.entries(&env).expect("a list"), ["0-0-stuck"]);
    }

    #[test]
    fn what_is_removed_stays_for_a_while() {
        let (env, data) = (Env::real(), tempfile::tempdir().expect("a folder"));
        let folder = data.path().join("buckets/b");
        let make = || {
            std::fs::create_dir_all(&folder).expect("a folder");
            std::fs::write(folder.join("file"), "").expect("a file");
        };
        let quarantine = Quarantine::new(data.path(), 3_600);
        quarantine.remove(&env, &folder, "b").expect("there is none");
        for _ in 0..2 {
            make();
            quarantine.remove(&env, &folder, "b").expect("it comes here");
            assert!(!folder.exists());
        }
        std::fs::write(data.path().join(FOLDER).join("notes"), "").expect("somebody else's file");
        quarantine.erase_old(&env).expect("nothing is old");
        let entries = quarantine.entries(&env).expect("a list");
        assert_eq!(entries.len(), 3, "{entries:?}");
        let bucket = entries.iter().find(|entry| entry.ends_with("-b")).expect("it is named");
        assert!(data.path().join(FOLDER).join(bucket).join("file").exists());
        let none = Quarantine::new(data.path(), 0);
        none.erase_old(&env).expect("all are old");
        assert_eq!(quarantine.entries(&env).expect("a list"), ["notes"]);
        make();
        none.remove(&env, &folder, "b").expect("it goes at once");
        assert!(quarantine.entries(&env).expect("a list").len() == 1 && !folder.exists());
    }
}
