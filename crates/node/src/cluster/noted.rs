//! What the node has of the cluster's buckets, kept with its data: so that a bucket that was made anew, or emptied, while
//! the node was away is recognised.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use base::env::Env;
use base::planted::{self, Bug};
use base::{SmallFile, SmallFileError};
use serde::{Deserialize, Serialize};

const FILE: &str = "cluster-buckets.json";

/// Which bucket of a name it is, and how often it was emptied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    /// The bucket's identity in the cluster's document.
    pub(super) uuid: String,
    /// The flushes of the document that were done here.
    pub(super) flushes: u64,
    /// Whether the node has had the bucket: then one that is not there is lost, and not new.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) had: bool,
}

impl Note {
    /// A bucket of the cluster's document that the node does not have yet.
    pub(super) fn of(bucket: &::cluster::Bucket) -> Note {
        Note { uuid: bucket.uuid.clone(), flushes: bucket.flushes, had: false }
    }
}

/// The file that holds them, in the folder of the node's data.
pub fn file(folder: &Path) -> SmallFile {
    SmallFile::new(folder, FILE)
}

/// Understands the file's content.
pub fn parse(bytes: &[u8], _version: u16) -> Result<Notes, String> {
    serde_json::from_slice(bytes).map(Notes).map_err(|error| error.to_string())
}

/// What is noted of each bucket.
#[derive(Default)]
pub struct Notes(BTreeMap<String, Note>);

/// The notes. What is in memory is what is in the file.
pub(super) struct Noted {
    file: SmallFile,
    notes: BTreeMap<String, Note>,
}

impl Noted {
    /// Reads them from the folder of the node's data; none if there is no file.
    pub(super) fn read(env: &Env, folder: PathBuf) -> io::Result<Noted> {
        let file = file(&folder);
        let found =
            file.open(&*env.disk, parse, |fault| tracing::error!(event = "file_copy_damaged", "{fault}"));
        let notes = found.map_err(into_io)?.unwrap_or_default();
        Ok(Noted { file, notes: notes.0 })
    }

    /// Whether nothing is noted.
    pub(super) fn is_empty(&self) -> bool {
        self.notes.is_empty()
    }

    /// What is known of a bucket.
    pub(super) fn get(&self, name: &str) -> Option<&Note> {
        self.notes.get(name)
    }

    /// Whether this node has had that bucket of the cluster.
    pub(super) fn had(&self, name: &str, uuid: &str) -> bool {
        let is_had = self.get(name).is_some_and(|note| note.had && note.uuid == uuid);
        is_had && !planted::is(Bug::LostBucketBeginsEmpty)
    }

    /// Notes durably what a bucket is, or that there is none.
    pub(super) fn put(&mut self, env: &Env, name: &str, note: Option<Note>) -> io::Result<()> {
        if self.notes.get(name) == note.as_ref() {
            return Ok(());
        }
        let mut notes = self.notes.clone();
        match note {
            Some(note) => notes.insert(name.to_owned(), note),
            None => notes.remove(name),
        };
        self.file.write(&*env.disk, &serde_json::to_vec_pretty(&notes)?).map_err(into_io)?;
        self.notes = notes;
        Ok(())
    }
}

fn into_io(error: SmallFileError) -> io::Error {
    match error {
        SmallFileError::Io { source, .. } => io::Error::new(source.kind(), format!("{FILE}: {source}")),
        damaged => io::Error::new(io::ErrorKind::InvalidData, damaged),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use base::env::OpenMode;

    use super::*;

    #[test]
    fn what_is_noted_is_read_again() {
        let (env, _) = Env::sim(1);
        let folder = Path::new("/data");
        env.disk.create_dir_all(folder).expect("a folder");
        let mut noted = Noted::read(&env, folder.into()).expect("there is none");
        let note = Note { uuid: "u".to_owned(), flushes: 3, had: false };
        noted.put(&env, "a", Some(note.clone())).expect("written");
        noted.put(&env, "b", Some(Note { flushes: 0, ..note.clone() })).expect("written");
        noted.put(&env, "b", None).expect("written");
        let noted = Noted::read(&env, folder.into()).expect("sound");
        assert_eq!((noted.get("a"), noted.get("b")), (Some(&note), None));
    }

    #[test]
    pub(crate) fn a_bucket_that_the_node_has_had_is_known_by_its_identity() {
        let (env, _) = Env::sim(1);
        env.disk.create_dir_all(Path::new("/data")).expect("a folder");
        let mut noted = Noted::read(&env, "/data".into()).expect("there is none");
        let begun = Note { uuid: "u".to_owned(), flushes: 0, had: false };
        noted.put(&env, "a", Some(begun.clone())).expect("written");
        assert!(!noted.had("a", "u"), "it may not have been made before a crash");
        noted.put(&env, "a", Some(Note { had: true, ..begun })).expect("written");
        let noted = Noted::read(&env, "/data".into()).expect("sound");
        assert!(noted.had("a", "u"));
        assert!(!noted.had("a", "v") && !noted.had("b", "u"), "that is another bucket");
    }

    #[test]
    fn what_is_noted_by_earlier_versions_says_nothing_of_that() {
        let notes = parse(b"{\"a\":{\"uuid\":\"u\",\"flushes\":2}}", 0).expect("sound");
        assert_eq!(notes.0["a"], Note { uuid: "u".to_owned(), flushes: 2, had: false });
    }

    #[test]
    fn what_cannot_be_understood_is_an_error() {
        let (env, _) = Env::sim(1);
        env.disk.create_dir_all(Path::new("/data")).expect("a folder");
        let file = env.disk.open(&Path::new("/data").join(FILE), OpenMode::Create).expect("a file");
        file.write_at(b"{\"a\":1}", 0).expect("writable");
        assert!(Noted::read(&env, "/data".into()).is_err());
    }
}
