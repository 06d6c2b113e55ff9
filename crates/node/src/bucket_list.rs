//! The buckets that were made while the node ran: a small file of the data directory (record 57).

use std::collections::BTreeMap;
use std::path::Path;

use base::env::{Disk, Env};
use base::{DurabilityLevel, SmallFile, SmallFileError};
use engine::settings::{Key, SETTINGS, Settings};
use kvstore::StorageBackend;
use serde::{Deserialize, Serialize};

use crate::config::{BucketSpec, Hints};
use crate::opened::OpenedBucket;
use crate::{down, missing, naming, node_files};

/// The list. What is in memory is what is in the file.
pub struct BucketList {
    file: SmallFile,
    content: Content,
}

#[derive(Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Content {
    /// Made while the node ran.
    buckets: Vec<Entry>,
    /// Deleted, and perhaps not all of their files are gone.
    removing: Vec<String>,
    /// All that were opened, by name, also those of the configuration. Absent in lists of earlier versions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    opened: BTreeMap<String, OpenedBucket>,
}

#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    quota_bytes: u64,
    replicas: u8,
    flush_enabled: bool,
    durability_min_level: String,
    /// Absent in lists of earlier versions, and where nothing was set.
    #[serde(default, skip_serializing_if = "Hints::is_empty")]
    hints: Hints,
    /// Those that are not as they are by themselves.
    settings: BTreeMap<String, String>,
}

impl Entry {
    fn of(spec: &BucketSpec) -> Entry {
        let defaults = Settings::default();
        let differs = |key| key != Key::MaxSize && spec.settings.get(key) != defaults.get(key);
        let settings = SETTINGS.iter().filter(|setting| differs(setting.key));
        Entry {
            name: spec.name.clone(),
            kind: naming::type_name(spec.kind, spec.backend).to_owned(),
            quota_bytes: spec.quota_bytes,
            replicas: spec.replicas,
            flush_enabled: spec.flush_enabled,
            durability_min_level: naming::durability(spec.durability_min).to_owned(),
            hints: spec.hints,
            settings: settings
                .map(|setting| (setting.name.to_owned(), spec.settings.show(setting.key)))
                .collect(),
        }
    }

    fn spec(&self) -> Option<BucketSpec> {
        let pairs: Vec<(&str, &str)> = self.settings.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        let (kind, backend) = naming::kind_from(&self.kind)?;
        let durability_min: Option<DurabilityLevel> = naming::durability_from(&self.durability_min_level)?;
        let spec = BucketSpec::made(&self.name, self.quota_bytes, kind, &pairs).ok()?;
        Some(BucketSpec {
            backend,
            replicas: self.replicas,
            flush_enabled: self.flush_enabled,
            durability_min,
            hints: self.hints,
            ..spec
        })
    }
}

/// Understands the file's content.
fn parse(bytes: &[u8], _version: u16) -> Result<Content, String> {
    let content: Content = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    match content.buckets.iter().find(|entry| entry.spec().is_none()) {
        None => Ok(content),
        Some(entry) => Err(format!("bucket {:?} has settings that this version does not have", entry.name)),
    }
}

/// What is wrong with a list, if anything is.
pub fn check(bytes: &[u8], version: u16) -> Result<(), String> {
    parse(bytes, version).map(drop)
}

/// The buckets that were opened in a data directory, as far as its list can be read. Changes nothing.
pub(crate) fn opened_in(disk: &dyn Disk, folder: &Path) -> BTreeMap<String, OpenedBucket> {
    node_files::bucket_list(folder)
        .look(disk, parse)
        .ok()
        .flatten()
        .map(|found| found.content.opened)
        .unwrap_or_default()
}

/// The names of the buckets that were made while a node ran on a data directory, as far as its list can be read. Changes
/// nothing.
pub fn made_in(disk: &dyn Disk, folder: &Path) -> Vec<String> {
    let found = node_files::bucket_list(folder).look(disk, parse).ok().flatten();
    let buckets = found.map(|found| found.content.buckets).unwrap_or_default();
    buckets.into_iter().map(|entry| entry.name).collect()
}

/// What a bucket is, as JSON.
pub(crate) fn to_json(spec: &BucketSpec) -> serde_json::Value {
    serde_json::to_value(Entry::of(spec)).unwrap_or_default()
}

/// What a bucket is, from JSON; nothing if this version cannot make one of it.
pub(crate) fn from_json(json: &serde_json::Value) -> Option<BucketSpec> {
    Entry::deserialize(json).ok()?.spec()
}

/// Notes durably in which store a bucket is kept from now on, if it was made while the node ran; says whether it was. The
/// store of another one is in the configuration.
///
/// # Errors
///
/// If the list cannot be read or written.
pub fn keep_in(env: &Env, data: &Path, name: &str, backend: StorageBackend) -> Result<bool, SmallFileError> {
    let mut list = BucketList::read(data, env)?;
    let Some(spec) = list.specs().into_iter().find(|spec| spec.name == name) else { return Ok(false) };
    let spec = BucketSpec { backend, ..spec };
    list.put(&spec, env)?;
    down::describe(env, &node_files::buckets_in(data).join(name), &spec).map(|()| true)
}

impl BucketList {
    /// Reads the list of a data directory; an empty one if there is none.
    ///
    /// # Errors
    ///
    /// Damage, if the list cannot be understood, or if both of its files are missing and a bucket's folder says that
    /// there was one: its buckets would be missing.
    pub fn read(folder: &Path, env: &Env) -> Result<BucketList, SmallFileError> {
        let file = node_files::bucket_list(folder);
        let found =
            file.open(&*env.disk, parse, |fault| tracing::error!(event = "file_copy_damaged", "{fault}"))?;
        match (found, missing::list(&*env.disk, folder)) {
            (None, Some(lost)) => Err(lost),
            (found, _) => Ok(BucketList { file, content: found.unwrap_or_default() }),
        }
    }

    /// A list in the place of one that is damaged, of the buckets that were found. It is written with the next change.
    pub(crate) fn of_found(folder: &Path, specs: &[BucketSpec]) -> BucketList {
        let content = Content { buckets: specs.iter().map(Entry::of).collect(), ..Content::default() };
        BucketList { file: node_files::bucket_list(folder), content }
    }

    /// Writes it as it is.
    pub(crate) fn write(&mut self, env: &Env) -> Result<(), SmallFileError> {
        self.replace(self.content.clone(), env)
    }

    /// The buckets that were made while the node ran.
    pub fn specs(&self) -> Vec<BucketSpec> {
        self.content.buckets.iter().filter_map(Entry::spec).collect()
    }

    /// Those whose files have to go.
    pub fn removing(&self) -> &[String] {
        &self.content.removing
    }

    /// Whether a bucket was made while the node ran.
    pub fn has(&self, name: &str) -> bool {
        self.content.buckets.iter().any(|entry| entry.name == name)
    }

    /// A bucket as it was opened last; `None` if it never was.
    pub(crate) fn opened(&self, name: &str) -> Option<&OpenedBucket> {
        self.content.opened.get(name)
    }

    /// Notes durably what a bucket was opened as; `None`: nothing is known of it any more.
    pub fn note_opened(
        &mut self,
        name: &str,
        opened: Option<OpenedBucket>,
        env: &Env,
    ) -> Result<(), SmallFileError> {
        if self.content.opened.get(name) == opened.as_ref() {
            return Ok(());
        }
        let mut content = self.content.clone();
        match opened {
            Some(opened) => drop(content.opened.insert(name.to_owned(), opened)),
            None => drop(content.opened.remove(name)),
        }
        self.replace(content, env)
    }

    /// Adds a bucket, or what it is now, durably.
    pub fn put(&mut self, spec: &BucketSpec, env: &Env) -> Result<(), SmallFileError> {
        let mut content = self.content.clone();
        content.buckets.retain(|entry| entry.name != spec.name);
        content.buckets.push(Entry::of(spec));
        self.replace(content, env)
    }

    /// Notes durably that a bucket is deleted: from now on its files only wait to be removed.
    pub fn begin_removal(&mut self, name: &str, env: &Env) -> Result<(), SmallFileError> {
        let mut content = self.content.clone();
        content.buckets.retain(|entry| entry.name != name);
        content.removing.retain(|other| other != name);
        content.removing.push(name.to_owned());
        content.opened.remove(name);
        self.replace(content, env)
    }

    /// Notes that the files of a deleted bucket are gone.
    pub fn end_removal(&mut self, name: &str, env: &Env) -> Result<(), SmallFileError> {
        let mut content = self.content.clone();
        content.removing.retain(|other| other != name);
        self.replace(content, env)
    }

    fn replace(&mut self, content: Content, env: &Env) -> Result<(), SmallFileError> {
        // All of it is made of names, numbers and words.
        let bytes = serde_json::to_vec_pretty(&content).unwrap_or_default();
        self.file.write(&*env.disk, &bytes)?;
        self.content = content;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use base::env::OpenMode;
    use engine::BucketKind;

    use super::*;

    #[test]
    fn what_is_put_is_read_again() {
        let (env, _) = Env::sim(1);
        let folder = Path::new("/data");
        env.disk.create_dir_all(folder).expect("a folder");
        let mut list = BucketList::read(folder, &env).expect("there is none");
        let pairs = [("max_ttl", "7"), ("item_eviction_policy", "full_eviction")];
        let spec = BucketSpec::made("a", 100 << 20, BucketKind::Persistent, &pairs).expect("valid");
        let spec = BucketSpec {
            backend: StorageBackend::LogStructured,
            replicas: 2,
            flush_enabled: true,
            durability_min: Some(DurabilityLevel::Majority),
            hints: Hints { replica_index: Some(false), threads: Some(8), rank: None },
            ..spec
        };
        let other = BucketSpec::made("b", 1 << 20, BucketKind::Ephemeral, &[]).expect("valid");
        list.put(&spec, &env).expect("written");
        list.put(&other, &env).expect("written");
        list.put(&spec, &env).expect("written");
        let mut list = BucketList::read(folder, &env).expect("sound");
        assert_eq!(list.specs(), [other.clone(), spec]);
        assert_eq!(made_in(&*env.disk, folder), ["b", "a"]);
        assert_eq!(made_in(&*env.disk, Path::new("/none")), [""; 0]);
        list.begin_removal("a", &env).expect("written");
        let mut list = BucketList::read(folder, &env).expect("sound");
        assert_eq!((list.specs(), list.removing()), (vec![other], &["a".to_owned()][..]));
        list.end_removal("a", &env).expect("written");
        assert!(BucketList::read(folder, &env).expect("sound").removing().is_empty());
    }

    #[test]
    fn a_list_that_is_none_is_an_error() {
        let (env, _) = Env::sim(1);
        let folder = Path::new("/data");
        env.disk.create_dir_all(folder).expect("a folder");
        for text in ["{", r#"{"buckets":[{"name":".."}],"removing":[]}"#, r#"{"other":1}"#] {
            let file =
                env.disk.open(&node_files::bucket_list(folder).path(), OpenMode::Create).expect("a file");
            file.set_len(0).expect("writable");
            file.write_at(text.as_bytes(), 0).expect("writable");
            let error = BucketList::read(folder, &env).err().expect(text).to_string();
            assert!(error.contains("/data/buckets.json cannot be used"), "{error}");
        }
    }
}
