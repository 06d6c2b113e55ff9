//! A store in memory whose lasting entries are in a file too, for a cluster of one node.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::SmallFile;
use base::env::Env;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{Commit, Entry, LeaseId, MemoryStore, Snapshot, Store, StoreFailure, Swap, Swapped, Version};

/// The most bytes of the file: the state of 30 buckets with many collections, and little else.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// A store for the nodes of one process that survives it. What is under a lease does not.
pub struct FileStore {
    env: Env,
    file: SmallFile,
    memory: MemoryStore,
    /// Held while the file is written, so that its order is that of the changes.
    writing: Mutex<()>,
    /// The same one for each who asks, so that all wait for the same changes.
    siblings: Mutex<BTreeMap<String, Arc<FileStore>>>,
}

#[derive(Serialize, Deserialize)]
struct Content {
    version: u64,
    entries: BTreeMap<String, (u64, String)>,
}

impl FileStore {
    /// Opens the file, or begins an empty store if there is none. `say` is told what is wrong with one of its two copies.
    pub fn open(env: &Env, path: &Path, say: impl FnMut(&str)) -> io::Result<FileStore> {
        let name = path.file_name().and_then(|name| name.to_str()).ok_or(io::ErrorKind::InvalidInput)?;
        let folder = path.parent().unwrap_or(Path::new("."));
        let file = SmallFile::new(folder, name).at_most(MAX_FILE_BYTES);
        let parse = |json: &[u8], _| serde_json::from_slice(json).map_err(|error| error.to_string());
        let found = file.open(&*env.disk, parse, say);
        let first = || Content { version: 1, entries: BTreeMap::new() };
        let content: Content = found.map_err(io::Error::other)?.unwrap_or_else(first);
        let entry =
            |(version, value): (u64, String)| Entry { value: value.into_bytes(), version: Version(version) };
        let entries = content.entries.into_iter().map(|(key, stored)| (key, entry(stored))).collect();
        let memory = MemoryStore::with(env.clock.clone(), Version(content.version), entries);
        Ok(FileStore { env: env.clone(), file, memory, writing: Mutex::new(()), siblings: Mutex::default() })
    }

    /// Writes all that lasts.
    fn write(&self, lasting: &Snapshot) -> io::Result<()> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(io::Error::other);
        let entries = lasting.entries.iter();
        let entries = entries.map(|(key, entry)| Ok((key.clone(), (entry.version.0, text(&entry.value)?))));
        let content =
            Content { version: lasting.version.0, entries: entries.collect::<io::Result<BTreeMap<_, _>>>()? };
        let json = serde_json::to_vec(&content).map_err(io::Error::other)?;
        self.file.write(&*self.env.disk, &json).map_err(io::Error::other)
    }
}

impl Store for FileStore {
    fn sibling(&self, name: &str) -> Result<Option<Arc<dyn Store>>, StoreFailure> {
        let mut siblings = self.siblings.lock();
        if let Some(there) = siblings.get(name) {
            return Ok(Some(Arc::clone(there) as Arc<dyn Store>));
        }
        let path = self.file.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("cluster");
        let mut faults = String::new();
        let opened =
            FileStore::open(&self.env, &path.with_file_name(format!("{stem}-{name}.json")), |fault| {
                faults.push_str(fault)
            });
        let failed =
            |error: io::Error| StoreFailure { operation: "open", reason: format!("{error} {faults}") };
        let sibling = Arc::new(opened.map_err(failed)?);
        siblings.insert(name.to_owned(), Arc::clone(&sibling));
        Ok(Some(sibling))
    }

    fn read(&self) -> Result<Snapshot, StoreFailure> {
        self.memory.read()
    }

    fn swap(&self, swap: Swap<'_>) -> Result<Swapped, StoreFailure> {
        if swap.lease.is_some() {
            return self.memory.swap(swap);
        }
        let _writing = self.writing.lock();
        // The file first: nobody shall see what a restart could take back. Only this changes lasting entries, so that
        // what is found here is what will be swapped.
        let mut lasting = self.memory.lasting();
        let is = self.memory.read()?.version_of(swap.key);
        if swap.expected.is_some_and(|expected| expected != is) {
            return Ok(Swapped::Conflict);
        }
        // Versions of the file may be behind those of memory, which leased entries move on, but never before them.
        let version = Version(lasting.version.0 + 1);
        match swap.value {
            Some(value) => {
                lasting.entries.insert(swap.key.to_owned(), Entry { value: value.to_vec(), version })
            }
            None => lasting.entries.remove(swap.key),
        };
        lasting.version = version;
        let failed = |error: io::Error| StoreFailure { operation: "write", reason: error.to_string() };
        self.write(&lasting).map_err(failed)?;
        self.memory.swap(swap)
    }

    fn commit(&self, commit: Commit<'_>) -> Result<Swapped, StoreFailure> {
        if commit.lease.is_some() {
            return self.memory.commit(commit);
        }
        let _writing = self.writing.lock();
        let mut lasting = self.memory.lasting();
        let is = self.memory.read()?;
        if commit.guard.is_some_and(|(key, expected)| is.version_of(key) != expected) {
            return Ok(Swapped::Conflict);
        }
        let version = Version(lasting.version.0 + 1);
        for put in commit.puts {
            match &put.value {
                Some(value) => {
                    lasting.entries.insert(put.key.clone(), Entry { value: value.clone(), version })
                }
                None => lasting.entries.remove(&put.key),
            };
        }
        lasting.version = version;
        let failed = |error: io::Error| StoreFailure { operation: "write", reason: error.to_string() };
        self.write(&lasting).map_err(failed)?;
        self.memory.commit(commit)
    }

    fn wait(&self, after: Version, at_most: Duration) -> Result<(), StoreFailure> {
        self.memory.wait(after, at_most)
    }

    fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreFailure> {
        self.memory.grant(ttl)
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<bool, StoreFailure> {
        self.memory.keep_alive(lease)
    }

    fn revoke(&self, lease: LeaseId) -> Result<(), StoreFailure> {
        self.memory.revoke(lease)
    }
}

#[cfg(test)]
mod tests {
    use base::env::OpenMode;

    use super::*;
    use crate::store::suite;

    fn put<'a>(key: &'a str, value: &'a [u8], lease: Option<LeaseId>) -> Swap<'a> {
        Swap { key, expected: None, value: Some(value), lease }
    }

    #[test]
    fn does_what_a_store_must() {
        let (env, handles) = Env::sim(1);
        env.disk.create_dir_all(Path::new("/data")).expect("a folder");
        let store = FileStore::open(&env, Path::new("/data/cluster.json"), |_| {}).expect("a new one");
        suite::run(&store, &|by| handles.clock.advance(by));
    }

    #[test]
    fn what_lasts_is_there_after_a_restart() {
        let (env, _) = Env::sim(1);
        env.disk.create_dir_all(Path::new("/data")).expect("a folder");
        let path = Path::new("/data/cluster.json");
        let before = {
            let store = FileStore::open(&env, path, |_| {}).expect("a new one");
            let lease = store.grant(Duration::from_secs(1)).expect("a lease");
            store.swap(put("members/a", b"x", Some(lease))).expect("done");
            store.swap(put("state", b"{}", None)).expect("done");
            store.read().expect("read")
        };
        let store = FileStore::open(&env, path, |_| {}).expect("it is there");
        let after = store.read().expect("read");
        assert_eq!(after.entries.keys().collect::<Vec<_>>(), ["state"]);
        assert_eq!(after.entries["state"].value, b"{}");
        assert!(after.version <= before.version);
        let moved =
            store.swap(Swap { expected: Some(after.entries["state"].version), ..put("state", b"[]", None) });
        assert!(matches!(moved, Ok(Swapped::Done(version)) if version > after.version));
    }

    #[test]
    fn damage_is_told() {
        let (env, _) = Env::sim(1);
        env.disk.create_dir_all(Path::new("/data")).expect("a folder");
        let path = Path::new("/data/cluster.json");
        env.disk.open(path, OpenMode::Create).and_then(|file| file.write_at(b"{\"ver", 0)).expect("written");
        assert!(FileStore::open(&env, path, |_| {}).is_err());
    }
}
