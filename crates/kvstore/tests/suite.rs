//! The suite on each backend.

mod common;

use std::path::Path;

use base::encryption::{DataKeys, EncryptedDisk};
use base::env::{Env, OpenMode};
use common::WithJournal;
use kvstore::{
    CompactionSteps, Couch, CouchConfig, FilesConfig, Journaled, JournaledConfig, KvStore, Memory,
};
use store_suite::{self as suite, Subject};

struct InMemory(Memory);

impl Subject for InMemory {
    fn store(&self) -> &dyn KvStore {
        &self.0
    }

    fn restart(&mut self) {}
}

struct OnDisk {
    env: Env,
    dir: tempfile::TempDir,
    config: CouchConfig,
    store: Couch,
}

impl OnDisk {
    fn new(config: CouchConfig) -> OnDisk {
        OnDisk::on(Env::real(), config)
    }

    fn on(env: Env, config: CouchConfig) -> OnDisk {
        let dir = tempfile::tempdir().expect("a folder");
        let store = open(&env, dir.path(), config);
        OnDisk { env, dir, config, store }
    }
}

fn open(env: &Env, dir: &Path, config: CouchConfig) -> Couch {
    Couch::open(env.clone(), dir, config).expect("the bucket opens")
}

/// A disk whose files are encrypted.
fn encrypted() -> Env {
    EncryptedDisk::env(&Env::real(), DataKeys::ephemeral(&Env::real()))
}

impl Subject for OnDisk {
    fn store(&self) -> &dyn KvStore {
        &self.store
    }

    fn restart(&mut self) {
        self.store = open(&self.env, self.dir.path(), self.config);
    }
}

#[test]
fn memory() {
    suite::run(|| InMemory(Memory::default()));
}

#[test]
fn couch() {
    suite::run(|| OnDisk::new(CouchConfig::default()));
}

#[test]
fn couch_with_few_descriptors_and_small_nodes() {
    let tuning = couchstore::Tuning { leaf_bytes: 300, interior_bytes: 300, compress_nodes: true };
    let compaction = CompactionSteps { step_bytes: 500, last_changes: 3 };
    suite::run(|| OnDisk::new(CouchConfig { max_open_files: 2, tuning, compaction }));
}

#[test]
fn journaled_and_closed() {
    suite::run(|| WithJournal::on(Env::real(), JournaledConfig::default(), true));
}

#[test]
fn journaled_and_killed() {
    suite::run(|| WithJournal::on(Env::real(), JournaledConfig::default(), false));
}

#[test]
fn journaled_with_little_room() {
    let couch = CouchConfig { max_open_files: 2, ..CouchConfig::default() };
    let config = JournaledConfig {
        files: FilesConfig::Couch(couch),
        journal_bytes: 64 << 10,
        ..JournaledConfig::default()
    };
    suite::run(|| WithJournal::on(Env::real(), config, false));
}

#[test]
fn encrypted_files() {
    suite::run(|| OnDisk::on(encrypted(), CouchConfig::default()));
    let tuning = couchstore::Tuning { leaf_bytes: 300, interior_bytes: 300, compress_nodes: true };
    let compaction = CompactionSteps { step_bytes: 500, last_changes: 3 };
    suite::run(|| OnDisk::on(encrypted(), CouchConfig { max_open_files: 2, tuning, compaction }));
}

#[test]
fn encrypted_journal() {
    let couch = CouchConfig { max_open_files: 2, ..CouchConfig::default() };
    let config = JournaledConfig {
        files: FilesConfig::Couch(couch),
        journal_bytes: 64 << 10,
        ..JournaledConfig::default()
    };
    for closes in [false, true] {
        suite::run(|| WithJournal::on(encrypted(), JournaledConfig::default(), closes));
        suite::run(|| WithJournal::on(encrypted(), config, closes));
    }
}

/// Encryption is switched on for files that are there: the journal goes on in a new segment at once, files stay plain
/// until they are compacted. Then it is switched off again.
#[test]
fn files_that_were_closed_before_the_key_changed_are_compacted_too() {
    let plain = Env::real();
    let env = EncryptedDisk::env(&plain, DataKeys::ephemeral(&plain));
    let dir = tempfile::tempdir().expect("a folder");
    // Of two files one is closed.
    let files = FilesConfig::Couch(CouchConfig { max_open_files: 1, ..CouchConfig::default() });
    let config = JournaledConfig { files, ..JournaledConfig::default() };
    let store = Journaled::without_journal(env.clone(), dir.path(), config).expect("it opens");
    let vbs = [base::VbId(1), base::VbId(2)];
    for vb in vbs {
        let items = [suite::version(0, "key", 1, b"body")];
        let batch = kvstore::SaveBatch { items: &items, state: &kvstore::VbStateDoc::default() };
        store.save(vb, batch).expect("a save");
    }
    let current = || vbs.map(|vb| store.usage(vb).expect("it is known").is_current);
    assert_eq!(current(), [true; 2]);
    for is_on in [false, true] {
        env.disk.set_encrypting(is_on);
        assert_eq!(current(), [false; 2], "{is_on}");
        for vb in vbs {
            store.compact(vb, &kvstore::Compaction::default()).expect("a compaction");
        }
        assert_eq!(current(), [true; 2], "{is_on}");
    }
    store.close().expect("it closes");
}

/// What was plain in segments that wait for their next use goes when encryption is switched on.
#[test]
fn no_spare_segment_keeps_what_was_plain() {
    const BODY: &[u8] = b"a body that is looked for";
    let plain = Env::real();
    let env = EncryptedDisk::env(&plain, DataKeys::ephemeral(&plain));
    env.disk.set_encrypting(false);
    let dir = tempfile::tempdir().expect("a folder");
    let (journal_bytes, file_after) = (64 << 10, std::time::Duration::ZERO);
    let config = JournaledConfig { journal_bytes, file_after, ..JournaledConfig::default() };
    let store = Journaled::open(env.clone(), dir.path(), config).expect("it opens");
    let save = |seqno: u64| {
        let items = [suite::version(0, &format!("key{seqno}"), seqno, &BODY.repeat(40))];
        let batch = kvstore::SaveBatch { items: &items, state: &kvstore::VbStateDoc::default() };
        store.save(base::VbId(1), batch).expect("a save");
    };
    let rest = || while store.background_step().expect("it works") == kvstore::Background::Worked {};
    let spares_with_body = || {
        let names = plain.disk.read_dir(dir.path()).expect("a list");
        let spares = names.into_iter().filter(|name| name.starts_with("journal.spare."));
        let shows = |name: &String| {
            let file = plain.disk.open(&dir.path().join(name), OpenMode::Read).expect("it is there");
            let mut bytes = vec![0; file.len().expect("a length") as usize];
            file.read_at(&mut bytes, 0).expect("a read");
            bytes.windows(BODY.len()).any(|window| window == BODY)
        };
        spares.filter(shows).count()
    };
    (1..200).for_each(save);
    rest();
    assert!(spares_with_body() > 0);
    env.disk.set_encrypting(true);
    rest();
    assert_eq!(spares_with_body(), 0);
    // Nor those that were in use at that moment.
    (200..400).for_each(save);
    rest();
    assert_eq!(spares_with_body(), 0);
    store.close().expect("it closes");
}

#[test]
fn encryption_comes_and_goes() {
    const BODY: &[u8] = b"a body that is looked for";
    let plain = Env::real();
    let keys = DataKeys::ephemeral(&plain);
    let dir = tempfile::tempdir().expect("a folder");
    let vb = base::VbId(3);
    let shows = |name: &str| {
        let file = plain.disk.open(&dir.path().join(name), OpenMode::Read).expect("it is there");
        let mut bytes = vec![0; file.len().expect("a length") as usize];
        file.read_at(&mut bytes, 0).expect("a read");
        bytes.windows(BODY.len()).any(|window| window == BODY)
    };
    let names = || plain.disk.read_dir(dir.path()).expect("a list");
    let save = |store: &Journaled, seqno| {
        let items = [suite::version(0, &format!("key{seqno}"), seqno, BODY)];
        let batch = kvstore::SaveBatch { items: &items, state: &kvstore::VbStateDoc::default() };
        store.save(vb, batch).expect("a save");
    };
    let env = EncryptedDisk::env(&plain, keys.clone());
    for (env, seqno, is_plain) in [(&plain, 1, true), (&env, 2, false)] {
        let store = Journaled::open(env.clone(), dir.path(), JournaledConfig::default()).expect("it opens");
        if seqno == 2 {
            store.states().expect("they are read");
            assert!(!store.usage(vb).expect("it is known").is_current);
        }
        save(&store, seqno);
        let journal = names().into_iter().filter(|name| name.starts_with("journal."));
        assert_eq!(journal.into_iter().any(|name| shows(&name)), is_plain);
        if seqno == 2 {
            store.compact(vb, &kvstore::Compaction::default()).expect("a compaction");
            assert!(store.usage(vb).expect("it is known").is_current);
        }
        store.close().expect("it closes");
    }
    assert!(!names().iter().any(|name| shows(name)), "{:?}", names());
    // Read with the keys, written plain.
    let off = DataKeys::default();
    off.add(&keys);
    let store = Journaled::open(EncryptedDisk::env(&plain, off), dir.path(), JournaledConfig::default());
    let store = store.expect("it opens");
    save(&store, 3);
    store.compact(vb, &kvstore::Compaction::default()).expect("a compaction");
    store.close().expect("it closes");
    let store = Journaled::open(plain.clone(), dir.path(), JournaledConfig::default()).expect("it opens");
    for seqno in 1..4 {
        let key = format!("key{seqno}");
        let found = store.get(vb, base::DocKey::new(key.as_bytes())).expect("a read").expect("it is there");
        assert_eq!(found.value(), BODY);
    }
}

#[test]
fn open_files_are_bounded() {
    let subject = OnDisk::new(CouchConfig { max_open_files: 4, ..CouchConfig::default() });
    for round in 0..3 {
        for vb in 0..10 {
            let state = kvstore::VbStateDoc { max_cas: round, ..Default::default() };
            subject.store.save_state(base::VbId(vb), &state).expect("a save");
            assert!(subject.store.stats().open_files <= 4);
        }
    }
    let stats = subject.store.stats();
    assert_eq!((stats.saves, stats.file_evictions, stats.failures), (30, 16, 0));
}
