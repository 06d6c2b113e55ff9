//! Bodies for fuzzers: what must hold for any bytes.

use std::path::Path;

use base::env::{Env, OpenMode, SimHandles};
use base::{CollectionId, DocKey, Seqno, VbId};

use crate::{Couch, CouchConfig, KvStore, SaveBatch, VbStateDoc};

const FOLDER: &str = "/fuzz";
const FILE: &str = "/fuzz/0.couch.1";
const VB: VbId = VbId(0);

fn world() -> Env {
    let env = SimHandles::new(1).env();
    env.disk.create_dir_all(FOLDER.as_ref()).expect("a folder");
    env
}

/// Any bytes as the file of a vBucket: the store opens, and what it cannot read is a failure.
pub fn fuzz_store(bytes: &[u8]) {
    let env = world();
    let file = env.disk.open(FILE.as_ref(), OpenMode::CreateNew).expect("a file");
    file.write_at(bytes, 0).expect("a write");
    let Ok(store) = Couch::open(env, FOLDER.as_ref(), CouchConfig::default()) else { return };
    let _ = store.states();
    let _ = store.counts(VB);
    let _ = store.get(VB, DocKey { collection: CollectionId::DEFAULT, key: b"k" });
    let _ = store.snapshot(VB);
    let _ = store.rollback(VB, Seqno(0));
}

/// Seeds of [`fuzz_store`].
pub fn store_seeds() -> Vec<Vec<u8>> {
    let env = world();
    let store = Couch::open(env.clone(), FOLDER.as_ref(), CouchConfig::default()).expect("an empty folder");
    let state = VbStateDoc::default();
    store.save(VB, SaveBatch { items: &[], state: &state }).expect("an empty disk");
    let file = env.disk.open(Path::new(FILE), OpenMode::Read).expect("it was just written");
    let mut bytes = vec![0; file.len().expect("it is there") as usize];
    file.read_at(&mut bytes, 0).expect("it is there");
    vec![bytes]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_files_never_panic() {
        base::fuzz::replay(1, 1_000, &store_seeds(), fuzz_store);
    }
}
