//! What nodes have of memory, disk and documents, as they tell it to each other.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};

/// Threads that ask other nodes at the same time: an address whose name is looked up for long keeps one.
pub(super) const MOST_ASKED: usize = 32;

/// What requests share that ask other nodes.
pub(super) struct Asking {
    /// When others were asked last, on the monotonic clock, and what came of it. Held while they are asked.
    pub(super) last: Mutex<Option<(u64, Arc<Figures>)>>,
    places: Arc<Semaphore>,
}

impl Asking {
    /// A place for one thread that asks another node, if there is one.
    pub(super) fn place(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.places).try_acquire_owned().ok()
    }
}

impl Default for Asking {
    fn default() -> Asking {
        Asking { last: Mutex::new(None), places: Arc::new(Semaphore::new(MOST_ASKED)) }
    }
}

/// What there is of a bucket, and what was done with it in each second of the last sample. A node of an earlier version
/// does not tell all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct OfBucket {
    pub(super) documents: u64,
    /// Those of vBuckets that replicate, and those of all vBuckets.
    pub(super) replica_documents: u64,
    pub(super) all_documents: u64,
    pub(super) used_bytes: u64,
    pub(super) quota_bytes: u64,
    /// Documents of active vBuckets whose value is not in memory.
    pub(super) not_resident: u64,
    pub(super) disk_queue: u64,
    /// Bytes of the files, and bytes in them that are in use.
    pub(super) file_bytes: u64,
    pub(super) data_bytes: u64,
    pub(super) rates: Rates,
}

/// What a node has, or several together.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Figures {
    pub(super) memory_quota_bytes: u64,
    pub(super) buckets: BTreeMap<String, OfBucket>,
    /// By the identities of the nodes.
    #[serde(default)]
    pub(super) nodes: BTreeMap<String, OfNode>,
}

/// What one node has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct OfNode {
    /// The machine's memory, and what of it is free; 0 if the system does not say it.
    pub(super) memory_bytes: u64,
    pub(super) free_bytes: u64,
    /// The memory that the node's container may use.
    pub(super) limit_bytes: u64,
    pub(super) swap_bytes: u64,
    pub(super) swap_used_bytes: u64,
    /// Processors whose time the node may use.
    pub(super) cores: f64,
    /// How busy all processors were since the last sample, and how much of them others had, in percent.
    pub(super) busy_percent: Option<f64>,
    pub(super) stolen_percent: Option<f64>,
    pub(super) stalls: u64,
    /// The file system of the node's files; 0 if it is not known.
    pub(super) disk_bytes: u64,
    pub(super) disk_free_bytes: u64,
    /// What files take of it; an earlier version does not tell it.
    pub(super) disk_used_bytes: Option<u64>,
    /// The quota of all buckets together.
    pub(super) quota_bytes: u64,
    /// Since it was started; an earlier version does not tell it.
    pub(super) uptime_s: Option<u64>,
    /// The version of its program; an earlier version does not tell it.
    pub(super) version: Option<[u16; 3]>,
    /// All of its buckets.
    pub(super) buckets: OfBucket,
}

impl OfNode {
    /// What files take of the file system. What is reserved for the system's administrator is not used.
    pub(super) fn disk_used(&self) -> u64 {
        self.disk_used_bytes.unwrap_or_else(|| self.disk_bytes.saturating_sub(self.disk_free_bytes))
    }

    /// As the field's monitors read it.
    pub(super) fn system_stats(&self) -> Value {
        let mut told = json!({
            "cpu_cores_available": self.cores,
            "swap_total": self.swap_bytes,
            "swap_used": self.swap_used_bytes,
            "mem_total": self.memory_bytes,
            "mem_free": self.free_bytes,
            "mem_limit": self.limit_bytes,
            "allocstall": self.stalls,
        });
        let shares = [("cpu_utilization_rate", self.busy_percent), ("cpu_stolen_rate", self.stolen_percent)];
        for (name, percent) in shares.into_iter().filter_map(|(name, share)| Some((name, share?))) {
            told[name] = json!(percent);
        }
        told
    }
}

impl OfBucket {
    pub(super) fn add(&mut self, other: &OfBucket) {
        let sums = [
            (&mut self.documents, other.documents),
            (&mut self.replica_documents, other.replica_documents),
            (&mut self.all_documents, other.all_documents),
            (&mut self.used_bytes, other.used_bytes),
            (&mut self.quota_bytes, other.quota_bytes),
            (&mut self.not_resident, other.not_resident),
            (&mut self.disk_queue, other.disk_queue),
            (&mut self.file_bytes, other.file_bytes),
            (&mut self.data_bytes, other.data_bytes),
        ];
        for (sum, more) in sums {
            *sum = sum.saturating_add(more);
        }
        self.rates.add(&other.rates);
    }
}

impl Figures {
    /// What there is of a bucket; nothing if there is none.
    pub(super) fn of(&self, bucket: &str) -> OfBucket {
        self.buckets.get(bucket).copied().unwrap_or_default()
    }

    pub(super) fn add(&mut self, other: Figures) {
        self.memory_quota_bytes = self.memory_quota_bytes.saturating_add(other.memory_quota_bytes);
        for (name, of) in other.buckets {
            self.buckets.entry(name).or_default().add(&of);
        }
        self.nodes.extend(other.nodes);
    }
}

/// What was done in each second, on average over the last sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Rates {
    pub(super) gets: f64,
    pub(super) misses: f64,
    pub(super) stores: f64,
    pub(super) deletes: f64,
    /// Values that were read from disk for clients.
    pub(super) fetched: f64,
}

impl Rates {
    pub(super) fn add(&mut self, other: &Rates) {
        self.gets += other.gets;
        self.misses += other.misses;
        self.stores += other.stores;
        self.deletes += other.deletes;
        self.fetched += other.fetched;
    }

    /// All operations of clients.
    pub(super) fn ops(&self) -> f64 {
        self.gets + self.stores + self.deletes
    }
}
