//! The file of a vBucket as of one commit: its bytes are a whole file with all that was saved, whatever happens meanwhile.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use base::encryption::{DataKeys, EncryptedDisk};
use base::env::{Disk, Env, OpenMode};
use base::{Seqno, VbId};
use couchstore::CouchFile;
use kvstore::{
    Background, Compaction, Couch, CouchConfig, FilesConfig, Journaled, JournaledConfig, KvStore, LogConfig,
    SaveBatch, Values, VbStateDoc, VbucketFile,
};
use store_suite::version;

const VB: VbId = VbId(5);
const DIR: &str = "/bucket";

type Content = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;

fn stores(env: &Env) -> [Arc<dyn KvStore>; 2] {
    let journaled = Journaled::open(env.clone(), Path::new("/journaled"), JournaledConfig::default());
    let couch = Couch::open(env.clone(), Path::new(DIR), CouchConfig::default());
    [Arc::new(journaled.expect("it opens")), Arc::new(couch.expect("it opens"))]
}

/// Saves one document in each of some batches.
fn save(store: &dyn KvStore, seqnos: std::ops::RangeInclusive<u64>) {
    for seqno in seqnos {
        let value = format!("{seqno} ").repeat(seqno as usize % 90);
        let items = [version(0, &format!("k{:02}", seqno % 61), seqno, value.as_bytes())];
        store.save(VB, SaveBatch { items: &items, state: &VbStateDoc::default() }).expect("saved");
    }
}

fn stored(store: &dyn KvStore) -> Content {
    let mut content = Content::new();
    let scanned = store.scan(VB, Seqno(0), Values::Read, &mut |version| {
        let entry = (version.meta().by_seqno.0, version.value().to_vec());
        content.insert(version.stored_key().to_vec(), entry);
        ControlFlow::Continue(())
    });
    scanned.expect("the disk works");
    content
}

/// Reads all of a file, in fragments.
fn image(file: &VbucketFile) -> Vec<u8> {
    let mut bytes = vec![0; file.len() as usize];
    let mut at = 0;
    for part in bytes.chunks_mut(1000) {
        file.read(part, at).expect("the disk works");
        at += part.len() as u64;
    }
    file.read(&mut [0; 8], file.len() + (1 << 20)).expect_err("there are no such bytes");
    bytes
}

/// What bytes have as a file by themselves.
fn content_of(env: &Env, bytes: &[u8]) -> Content {
    let (folder, path) = (Path::new("/copied"), Path::new("/copied/5.couch.1"));
    env.disk.create_dir_all(folder).expect("made");
    let file = env.disk.open(path, OpenMode::Create).expect("made");
    file.set_len(0).expect("empty");
    file.write_at(bytes, 0).expect("written");
    let copy = CouchFile::open_read(&*env.disk, path).expect("it is a file of a vBucket");
    assert!(copy.is_whole_file());
    let (mut content, mut held, mut inflated) = (Content::new(), Vec::new(), Vec::new());
    let walked = copy.changes_since(0, |info| {
        let body = copy.body(&info, &mut held, &mut inflated)?;
        content.insert(info.id.to_vec(), (info.seqno, body.to_vec()));
        Ok::<_, couchstore::Failure>(ControlFlow::Continue(()))
    });
    walked.expect("it is sound");
    content
}

fn names(disk: &dyn Disk, dir: &str) -> Vec<String> {
    let mut names = disk.read_dir(Path::new(dir)).expect("it is there");
    names.sort();
    names
}

#[test]
fn a_file_has_what_was_saved_when_it_was_taken() {
    let (env, _) = Env::sim(3);
    for store in stores(&env) {
        let store = &*store;
        assert!(store.has_vbucket_files() && store.vbucket_file(VB).expect("no failure").is_none());
        save(store, 1..=200);
        let expected = stored(store);
        let before = names(&*env.disk, "/");
        let file = store.vbucket_file(VB).expect("the disk works").expect("there is one");
        assert_eq!(names(&*env.disk, "/"), before, "nothing is written for it");
        assert_eq!((file.high_seqno(), file.version()), (Seqno(200), 13));
        assert!(file.name().starts_with("5.couch."), "{}", file.name());
        let first = image(&file);
        assert_eq!(content_of(&env, &first), expected);
        save(store, 201..=400);
        while store.background_step().expect("the disk works") == Background::Worked {}
        assert_eq!(image(&file), first, "while others save");
        store.compact(VB, &Compaction::default()).expect("compacted");
        save(store, 401..=450);
        assert_eq!(image(&file), first, "behind a compaction");
        let later = store.vbucket_file(VB).expect("the disk works").expect("there is one");
        assert_eq!((later.high_seqno(), stored(store)), (Seqno(450), content_of(&env, &image(&later))));
        store.rollback(VB, Seqno(420)).expect("rolled back");
        store.delete_vbucket(VB).expect("deleted");
        assert_eq!(image(&file), first, "when the vBucket is gone");
        assert!(store.vbucket_file(VB).expect("no failure").is_none());
        save(store, 1..=3);
        assert_eq!(image(&file), first, "and another one is in its place");
        drop((file, later));
    }
}

#[test]
fn a_file_of_an_encrypted_bucket_is_read_in_clear() {
    let (plain, _) = Env::sim(4);
    let env = EncryptedDisk::env(&plain, DataKeys::ephemeral(&plain));
    for store in stores(&env) {
        save(&*store, 1..=100);
        let file = store.vbucket_file(VB).expect("the disk works").expect("there is one");
        assert_eq!(content_of(&plain, &image(&file)), stored(&*store));
    }
}

#[test]
fn vbuckets_that_share_files_have_none_of_their_own() {
    let (env, _) = Env::sim(5);
    let files = FilesConfig::Log(LogConfig::default());
    let config = JournaledConfig { files, ..JournaledConfig::default() };
    let store = Journaled::open(env, Path::new(DIR), config).expect("it opens");
    save(&store, 1..=10);
    assert!(!store.has_vbucket_files() && store.vbucket_file(VB).expect("no failure").is_none());
}
