//! That this node is about to write the first state of a cluster: noted before it does, and until it has noted a state.
//!
//! A node whose folder knows of no cluster does not follow a state that has the node in it, since that state was followed
//! by a node with more in its folder (record 136). A founder that ended before it noted what it wrote is told by this file.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use ::cluster::State;
use base::env::Env;
use base::planted::{self, Bug};
use base::{SmallFile, SmallFileError};

use super::ClusterError;
use crate::node_files;

/// The file, in the folder of the node's data; there is none before and after.
pub fn file(folder: &Path) -> SmallFile {
    SmallFile::new(folder, node_files::FOUNDING)
}

/// Understands the file's content: the identity of the cluster that the node was about to found.
pub fn parse(bytes: &[u8], _version: u16) -> Result<String, String> {
    let text = std::str::from_utf8(bytes).ok().filter(|text| founder(text).is_some());
    text.map(str::to_owned).ok_or_else(|| "it holds no identity of a cluster".to_owned())
}

/// Who founded a cluster: its identity begins with that node's.
fn founder(identity: &str) -> Option<&str> {
    identity.split_once('-').map(|(founder, _)| founder).filter(|founder| !founder.is_empty())
}

fn failed(error: SmallFileError) -> ClusterError {
    ClusterError::Io("whether this node founds a cluster", io::Error::other(error))
}

/// Whether this node is about to found a cluster. What is in memory is what is in the file.
pub(super) struct Founding {
    file: SmallFile,
    is_noted: AtomicBool,
}

impl Founding {
    /// Reads it from the folder of the node's data. A damaged file says nothing, which is told.
    pub(super) fn read(env: &Env, folder: PathBuf) -> Founding {
        let file = file(&folder);
        let found =
            file.open(&*env.disk, parse, |fault| tracing::error!(event = "file_copy_damaged", "{fault}"));
        if let Err(error) = &found {
            tracing::error!(
                event = "founding_unknown", %error,
                "whether this node was founding a cluster is not known"
            );
        }
        Founding { file, is_noted: AtomicBool::new(!matches!(found, Ok(None))) }
    }

    /// Whether this node, by its identity `uuid`, wrote the first state of a cluster and ended before it noted that.
    pub(super) fn is_of(&self, env: &Env, uuid: &str, state: &State) -> bool {
        let found = self.file.open(&*env.disk, parse, |_| {}).ok().flatten();
        let is_own = |identity: &str| founder(identity) == Some(uuid);
        found.is_some_and(|noted| is_own(&noted))
            && is_own(&state.cluster)
            && !planted::is(Bug::FounderForgotten)
    }

    /// Notes durably that this state is about to be written as a cluster's first.
    pub(super) fn note(&self, env: &Env, state: &State) -> Result<(), ClusterError> {
        self.file.write(&*env.disk, state.cluster.as_bytes()).map_err(failed)?;
        self.is_noted.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// The node has noted a state.
    pub(super) fn is_over(&self, env: &Env) -> Result<(), ClusterError> {
        if self.is_noted.load(Ordering::SeqCst) {
            self.file.remove(&*env.disk).map_err(failed)?;
            self.is_noted.store(false, Ordering::SeqCst);
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use ::cluster::{Address, command};

    use super::*;

    #[test]
    pub(crate) fn a_founder_is_known_until_it_has_noted_a_state() {
        let (env, _) = Env::sim(1);
        let folder = PathBuf::from("/data");
        env.disk.create_dir_all(&folder).expect("a folder");
        let founded = |uuid, life| command::found(uuid, &Address::new("h".to_owned(), 1, 2), life);
        let founding = Founding::read(&env, folder.clone());
        assert!(!founding.is_of(&env, "u", &founded("u", 7)), "it was not about to");
        founding.note(&env, &founded("u", 8)).expect("written");
        let founding = Founding::read(&env, folder.clone());
        assert!(founding.is_of(&env, "u", &founded("u", 8)));
        assert!(founding.is_of(&env, "u", &founded("u", 7)), "what it tried before has arrived late");
        assert!(!founding.is_of(&env, "u", &founded("v", 8)), "another one was first");
        assert!(!founding.is_of(&env, "v", &founded("v", 8)), "the file is of another node");
        founding.is_over(&env).expect("removed");
        let founding = Founding::read(&env, folder);
        assert!(!founding.is_of(&env, "u", &founded("u", 8)), "it has noted more");
    }
}
