//! What the node has of the cluster's buckets, kept with its data: so that a bucket that was made anew, or emptied, while
//! the node was away is recognised.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use base::env::{Env, OpenMode};
use serde::{Deserialize, Serialize};

const FILE: &str = "cluster-buckets.json";
/// What is written before it takes the place of the file.
const NEXT: &str = "cluster-buckets.json.next";
/// More than this is no file of ours.
const MAX_BYTES: u64 = 1 << 20;

/// Which bucket of a name it is, and how often it was emptied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    /// The bucket's identity in the cluster's document.
    pub(super) uuid: String,
    /// The flushes of the document that were done here.
    pub(super) flushes: u64,
}

/// The notes. What is in memory is what is in the file.
pub(super) struct Noted {
    folder: PathBuf,
    notes: BTreeMap<String, Note>,
}

impl Noted {
    /// Reads them from the folder of the node's data; none if there is no file.
    pub(super) fn read(env: &Env, folder: PathBuf) -> io::Result<Noted> {
        let file = match env.disk.open(&folder.join(FILE), OpenMode::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Noted { folder, notes: BTreeMap::new() });
            }
            Err(error) => return Err(error),
        };
        let len = file.len()?;
        let too_long = || io::Error::other(format!("{FILE} is too long"));
        let len = usize::try_from(len).ok().filter(|_| len <= MAX_BYTES).ok_or_else(too_long)?;
        let mut bytes = vec![0; len];
        let read = file.read_at(&mut bytes, 0)?;
        let notes = serde_json::from_slice(&bytes[..read])?;
        Ok(Noted { folder, notes })
    }

    /// What is known of a bucket.
    pub(super) fn get(&self, name: &str) -> Option<&Note> {
        self.notes.get(name)
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
        let next = self.folder.join(NEXT);
        let file = env.disk.open(&next, OpenMode::Create)?;
        file.set_len(0)?;
        file.write_at(&serde_json::to_vec_pretty(&notes)?, 0)?;
        file.sync_data()?;
        env.disk.rename(&next, &self.folder.join(FILE))?;
        env.disk.sync_dir(&self.folder)?;
        self.notes = notes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn what_is_noted_is_read_again() {
        let (env, _) = Env::sim(1);
        let folder = Path::new("/data");
        env.disk.create_dir_all(folder).expect("a folder");
        let mut noted = Noted::read(&env, folder.into()).expect("there is none");
        let note = Note { uuid: "u".to_owned(), flushes: 3 };
        noted.put(&env, "a", Some(note.clone())).expect("written");
        noted.put(&env, "b", Some(Note { flushes: 0, ..note.clone() })).expect("written");
        noted.put(&env, "b", None).expect("written");
        let noted = Noted::read(&env, folder.into()).expect("sound");
        assert_eq!((noted.get("a"), noted.get("b")), (Some(&note), None));
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
