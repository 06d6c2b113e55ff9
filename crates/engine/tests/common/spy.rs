//! A store that counts and delays what is read from it, and fails where it is told to.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use base::{Datatype, DocKey, Heap, NewVersion, Seqno, VbId, Version, VersionMeta};
use kvstore::{
    Compacted, Compaction, Counts, Failure, KvStore, RolledBack, SaveBatch, Snapshot, States, Stats, Usage,
    Values, VbStateDoc,
};
use parking_lot::Mutex;

type Hook = Box<dyn FnOnce() + Send>;

/// The store around another one.
pub struct Spy {
    inner: Arc<dyn KvStore>,
    /// vBuckets in the order in which something of them was saved.
    pub saves: Mutex<Vec<VbId>>,
    /// Keys of each batch that was read.
    pub batches: Mutex<Vec<(VbId, Vec<String>)>>,
    /// vBuckets in the order in which they were scanned for metadata, and for values.
    pub scans: Arc<Mutex<Vec<(VbId, Seqno, Values)>>>,
    /// Run after the next batch is read, before it is given to whoever asked.
    pub after_read: Mutex<Option<Hook>>,
    /// Run in the middle of the next scan.
    pub in_scan: Arc<Mutex<Option<Hook>>>,
    /// Run before the next rollback or removal of a vBucket.
    pub before_replacing: Mutex<Option<Hook>>,
    /// Keys that cannot be read.
    pub unreadable: Mutex<BTreeSet<String>>,
    /// Keys whose values are read as bytes that are no Snappy block, as their datatype says then.
    pub spoiled: Mutex<BTreeSet<String>>,
    /// vBuckets that cannot be scanned.
    pub damaged: Arc<Mutex<BTreeSet<VbId>>>,
}

impl Spy {
    pub fn new(inner: Arc<dyn KvStore>) -> Spy {
        Spy {
            inner,
            saves: Mutex::default(),
            batches: Mutex::default(),
            scans: Arc::default(),
            after_read: Mutex::default(),
            in_scan: Arc::default(),
            before_replacing: Mutex::default(),
            unreadable: Mutex::default(),
            spoiled: Mutex::default(),
            damaged: Arc::default(),
        }
    }

    fn replacing(&self) {
        let hook = self.before_replacing.lock().take();
        if let Some(hook) = hook {
            hook();
        }
    }
}

fn name(key: &DocKey<'_>) -> String {
    String::from_utf8_lossy(key.key).into_owned()
}

/// The version with a value that is not what its datatype says.
fn spoil(version: &Version) -> Version {
    let meta = VersionMeta { datatype: version.meta().datatype.with(Datatype::SNAPPY), ..version.meta() };
    NewVersion::new(Heap::shared(), meta, version.key(), &[b"no block"]).publish()
}

impl KvStore for Spy {
    fn save_group(&self, group: &[(VbId, SaveBatch<'_>)]) -> Vec<Result<(), Failure>> {
        self.saves.lock().extend(group.iter().map(|(vb, _)| *vb));
        self.inner.save_group(group)
    }

    fn get(&self, vb: VbId, key: DocKey<'_>) -> Result<Option<Version>, Failure> {
        self.inner.get(vb, key)
    }

    fn get_many(&self, vb: VbId, keys: &[DocKey<'_>]) -> Vec<Result<Option<Version>, Failure>> {
        self.batches.lock().push((vb, keys.iter().map(name).collect()));
        let mut answers = self.inner.get_many(vb, keys);
        for (key, answer) in keys.iter().zip(&mut answers) {
            if self.unreadable.lock().contains(&name(key)) {
                *answer = Err(Failure::NoVbucket { vb });
            }
            if self.spoiled.lock().contains(&name(key)) {
                *answer = answer
                    .as_ref()
                    .map(|found| found.as_ref().map(spoil))
                    .map_err(|_| Failure::NoVbucket { vb });
            }
        }
        let hook = self.after_read.lock().take();
        if let Some(hook) = hook {
            hook();
        }
        answers
    }

    fn snapshot(&self, vb: VbId) -> Result<Option<Box<dyn Snapshot>>, Failure> {
        let Some(inner) = self.inner.snapshot(vb)? else { return Ok(None) };
        let (scans, in_scan, damaged) = (self.scans.clone(), self.in_scan.clone(), self.damaged.clone());
        Ok(Some(Box::new(SpiedSnapshot { vb, inner, scans, in_scan, damaged })))
    }

    fn rollback(&self, vb: VbId, to: Seqno) -> Result<RolledBack, Failure> {
        self.replacing();
        self.inner.rollback(vb, to)
    }

    fn compact(&self, vb: VbId, request: &Compaction<'_>) -> Result<Compacted, Failure> {
        self.inner.compact(vb, request)
    }

    fn states(&self) -> Result<States, Failure> {
        self.inner.states()
    }

    fn counts(&self, vb: VbId) -> Result<Counts, Failure> {
        self.inner.counts(vb)
    }

    fn usage(&self, vb: VbId) -> Option<Usage> {
        self.inner.usage(vb)
    }

    fn delete_vbucket(&self, vb: VbId) -> Result<(), Failure> {
        self.replacing();
        self.inner.delete_vbucket(vb)
    }

    fn stats(&self) -> Stats {
        self.inner.stats()
    }
}

/// A snapshot whose scans are watched.
struct SpiedSnapshot {
    vb: VbId,
    inner: Box<dyn Snapshot>,
    scans: Arc<Mutex<Vec<(VbId, Seqno, Values)>>>,
    in_scan: Arc<Mutex<Option<Hook>>>,
    damaged: Arc<Mutex<BTreeSet<VbId>>>,
}

impl Snapshot for SpiedSnapshot {
    fn state(&self) -> Result<VbStateDoc, Failure> {
        self.inner.state()
    }

    fn high_seqno(&self) -> Seqno {
        self.inner.high_seqno()
    }

    fn purge_seqno(&self) -> Seqno {
        self.inner.purge_seqno()
    }

    fn get(&self, key: DocKey<'_>) -> Result<Option<Version>, Failure> {
        self.inner.get(key)
    }

    fn scan(
        &self,
        from: Seqno,
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        self.scans.lock().push((self.vb, from, values));
        let mut seen = 0;
        self.inner.scan(from, values, &mut |version| {
            seen += 1;
            let hook = if seen == 2 { self.in_scan.lock().take() } else { None };
            if let Some(hook) = hook {
                hook();
            }
            visit(version)
        })?;
        if self.damaged.lock().contains(&self.vb) {
            return Err(Failure::NoVbucket { vb: self.vb });
        }
        Ok(())
    }

    fn scan_all(
        &self,
        from: Seqno,
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        self.inner.scan_all(from, values, visit)
    }

    fn scan_keys(
        &self,
        from: &[u8],
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        self.inner.scan_keys(from, values, visit)
    }
}
