//! What a journal needs of the store behind it: the store's commits have names that go on record in the journal, and only
//! a commit on record counts after a crash.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use base::env::Env;
use base::{Seqno, VbId};

use crate::compaction::{Compacted, Compaction, FileAt, RolledBack};
use crate::couch::{self, CouchConfig};
use crate::failure::Failure;
use crate::journal::ToldSeqnos;
use crate::log::LogConfig;
use crate::rocks_config::{HAS_ROCKSDB, RocksConfig, is_rocks_folder};
use crate::state::VbStateDoc;
use crate::store::{KvStore, SaveBatch, StoredVb};

/// Which store keeps the documents of a bucket on disk: for good, from its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StorageBackend {
    /// A couchstore file for each vBucket.
    #[default]
    Couchstore,
    /// Segments and sorted runs that vBuckets share (docs/adr/0129-the-log-structured-store.md).
    LogStructured,
    /// RocksDB, for all vBuckets together, if the binary has it (docs/adr/0222-rocksdb-behind-the-store-trait.md).
    RocksDb,
}

impl StorageBackend {
    /// All of them.
    pub const ALL: [StorageBackend; 3] =
        [StorageBackend::Couchstore, StorageBackend::LogStructured, StorageBackend::RocksDb];

    /// The field's word for it.
    pub fn word(self) -> &'static str {
        match self {
            StorageBackend::Couchstore => "couchstore",
            StorageBackend::LogStructured => "magma",
            StorageBackend::RocksDb => "rocksdb",
        }
    }

    /// The store that a word means; `None` if it is no such word.
    pub fn of_word(word: &str) -> Option<StorageBackend> {
        StorageBackend::ALL.into_iter().find(|backend| backend.word() == word)
    }

    /// Whether this binary can keep documents in it.
    pub fn is_built_in(self) -> bool {
        self != StorageBackend::RocksDb || HAS_ROCKSDB
    }

    /// Whether it needs a journal in front of it, because it has no log of its own.
    pub fn needs_journal(self) -> bool {
        self != StorageBackend::Couchstore
    }

    /// The store whose files a folder has, by one of their names.
    pub(crate) fn of_file(name: &str) -> Option<StorageBackend> {
        if logstore::is_file(name) {
            return Some(StorageBackend::LogStructured);
        }
        if is_rocks_folder(name) {
            return Some(StorageBackend::RocksDb);
        }
        couch::parse_name(name).map(|_| StorageBackend::Couchstore)
    }

    /// The store whose files a folder has, by all names in it: couchstore if there are none of any.
    pub fn of_names(names: &[String]) -> StorageBackend {
        let of = |name: &String| StorageBackend::of_file(name);
        let others = names.iter().filter_map(of).find(|backend| *backend != StorageBackend::Couchstore);
        others.unwrap_or_default()
    }
}

/// Which store is behind a journal, and choices about it.
#[derive(Clone, Copy, Debug)]
pub enum FilesConfig {
    /// A couchstore file for each vBucket.
    Couch(CouchConfig),
    /// A log-structured store for all vBuckets.
    Log(LogConfig),
    /// RocksDB for all vBuckets.
    Rocks(RocksConfig),
}

impl Default for FilesConfig {
    fn default() -> FilesConfig {
        FilesConfig::Couch(CouchConfig::default())
    }
}

/// Which commits a journal has on record.
pub(crate) struct OnRecord<'a> {
    /// The commit of each vBucket that counts; of a vBucket that is not here nothing does.
    pub(crate) commits: &'a BTreeMap<VbId, FileAt>,
    /// vBuckets of which the journal may have lost the newest record: nothing of theirs is removed.
    pub(crate) missing: &'a BTreeSet<VbId>,
    /// How far the journal tells of each vBucket; `None` if it is damaged.
    pub(crate) told: Option<&'a ToldSeqnos>,
}

impl FilesConfig {
    /// Whether a history is kept.
    pub(crate) fn keeps_history(&self) -> bool {
        matches!(self, FilesConfig::Log(log) if log.history.is_on())
    }
}

/// Makes a folder that is not there, with those above it, durably.
pub(crate) fn make_folder(env: &Env, dir: &Path) -> Result<(), Failure> {
    let made = env.disk.create_dir_all_synced(dir);
    made.map_err(|source| Failure::Disk { operation: "make folder", path: dir.to_owned(), source })
}

/// Refuses a folder with files of another store than the expected one.
pub(crate) fn refuse_others(env: &Env, expected: StorageBackend, dir: &Path) -> Result<(), Failure> {
    let names = env.disk.read_dir(dir);
    let names = names.map_err(|source| Failure::Disk { operation: "list", path: dir.to_owned(), source })?;
    names.iter().try_for_each(|name| refuse_of_another(expected, dir, name))
}

/// Files of another store in a bucket's folder are the bucket's, and would be passed over: refuses one.
pub(crate) fn refuse_of_another(expected: StorageBackend, dir: &Path, name: &str) -> Result<(), Failure> {
    let Some(found) = StorageBackend::of_file(name).filter(|found| *found != expected) else { return Ok(()) };
    let is = match found {
        StorageBackend::Couchstore => "a couchstore file",
        StorageBackend::LogStructured => "a file of a log-structured store",
        StorageBackend::RocksDb => "a RocksDB database",
    };
    let what = format!("it has {name}, {is}: the bucket's type is {}, not {}", found.word(), expected.word());
    Err(Failure::OtherStore { dir: dir.to_owned(), what })
}

/// Is told of the commit that is about to be in force, which is durable; of nothing if nothing is about to be stored. If
/// it fails everything stays, and what it was told of is undecided: see [`Files::undecided`].
pub(crate) type BeforeRollback<'a> = dyn Fn(Option<FileAt>) -> Result<(), Failure> + 'a;

/// Is told of the commit that is about to take the place of what a compaction read, which is durable. If it fails the
/// old stays, and the new is undecided.
pub(crate) type BeforeSwitch<'a> = dyn Fn(FileAt) -> Result<(), Failure> + 'a;

/// Commits of a vBucket of which it is not known whether a restart will find them on record.
pub(crate) struct Undecided {
    pub(crate) vb: VbId,
    /// The revisions they are in; without any it is a commit behind the one in use, in the same revision.
    pub(crate) revisions: Vec<u64>,
}

/// A store behind a journal.
pub(crate) trait Files: KvStore {
    /// The folder, for messages.
    fn dir(&self) -> &Path;

    /// How many vBuckets a group may have.
    fn most_at_once(&self) -> usize;

    /// Saves batches of several vBuckets, each vBucket once, and tells which commits are durable now. After a crash only
    /// a commit that is on record counts.
    fn file_group(&self, group: &[(VbId, SaveBatch<'_>)]) -> Vec<Result<FileAt, Failure>>;

    /// A commit of a vBucket is on record: a start asks for this one or for one behind it.
    fn recorded(&self, _vb: VbId, _at: FileAt) {}

    /// The last commit of each vBucket. Of one that cannot be read it is not known: the last place there could be is
    /// given, so that it stays damaged and stays.
    fn positions(&self) -> Vec<(VbId, FileAt)>;

    /// The vBuckets that may have something stored, lowest first.
    fn known(&self) -> Vec<VbId>;

    /// A vBucket as it is stored; nothing if there is none.
    fn stored(&self, vb: VbId) -> Result<Option<StoredVb>, Failure>;

    /// Goes back as [`KvStore::rollback`] does, and calls `before` with the commit that is about to be in force; not if
    /// nothing changes.
    fn rollback_with(&self, vb: VbId, to: Seqno, before: &BeforeRollback<'_>) -> Result<RolledBack, Failure>;

    /// Compacts as [`KvStore::compact`] does, and calls `before` with the commit that is about to be in force.
    fn compact_with(
        &self,
        vb: VbId,
        request: &Compaction<'_>,
        before: &BeforeSwitch<'_>,
    ) -> Result<Compacted, Failure>;

    /// Makes a file that came from another node that of a vBucket, with this state, durably; calls `before` with the commit
    /// that is about to be in force. If that fails the old stays, and the new is undecided.
    ///
    /// # Errors
    ///
    /// If the file cannot be used, or if vBuckets share files.
    fn adopt_with(
        &self,
        _vb: VbId,
        _file: &Path,
        _state: &VbStateDoc,
        _before: &BeforeSwitch<'_>,
    ) -> Result<StoredVb, Failure> {
        let what = "vBuckets share files here: none takes the file of another node".to_owned();
        Err(Failure::OtherStore { dir: self.dir().to_owned(), what })
    }

    /// Moves all files of a vBucket to another folder, durably. Where vBuckets share files, they are copied.
    fn move_files(&self, vb: VbId, to: &Path) -> Result<(), Failure>;

    /// Treats a vBucket as damaged until the next start, because it could not be read when it had to be: what was worked
    /// out without it must not be used, even if the disk is well again.
    fn refuse(&self, vb: VbId, failure: &Failure);

    /// Acknowledged changes of a vBucket are missing in the journal: it is not used until it is deleted or repaired, or
    /// until a start finds them.
    fn miss(&self, vb: VbId, what: String);

    /// The missing changes are given up: later starts do not look for them. Answers what goes on record.
    fn give_up(&self, vb: VbId) -> FileAt;

    /// Whether the catalog lists the commits and says that nothing behind them counts.
    fn are_listed(&self) -> bool;

    /// What is stored of which it is not known whether a restart will find it on record.
    fn undecided(&self) -> Vec<Undecided>;

    /// A record is durable that is newer than what was undecided, and names what is in use: the others go, durably. No
    /// rollback runs meanwhile.
    fn decide(&self, undecided: &Undecided) -> Result<(), Failure>;

    /// Has nothing stand behind the last commit of any vBucket, durably, that another program would take for newer.
    fn cut_tails(&self) -> Result<(), Failure>;

    /// Puts into the catalog, durably, which commit of each vBucket is the last; segments of the journal up to
    /// `generations` are void then. Nothing may stand behind them: see [`Files::cut_tails`].
    fn promise_files(&self, generations: u64) -> Result<(), Failure>;
}
