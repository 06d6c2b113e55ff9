//! Who wants to know which vBuckets have news: one for each connection that streams changes.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use base::VbId;
use parking_lot::Mutex;

use crate::wakes::{Ring, assert_unlocked};

/// Bits of a word.
const BITS: usize = u64::BITS as usize;

/// Collects which vBuckets have something for a connection, and wakes it once for all of them.
///
/// Marking is an atomic or, whoever does it and however many are marked already.
pub struct Follower {
    words: Box<[AtomicU64]>,
    /// Whether anything was marked since the last look.
    is_marked: AtomicBool,
    wake: Box<dyn Fn() + Send + Sync>,
    /// Bytes that its backfills have made ready and that are not sent yet.
    pub(crate) buffered: AtomicUsize,
    /// Bytes of lists of changes that its streams have taken from memory.
    listed: AtomicUsize,
    /// Its backfills that wait until it has taken some of that; what they are it does not know.
    pub(crate) parked: Mutex<Vec<Arc<dyn Any + Send + Sync>>>,
}

impl Follower {
    /// A follower of this number of vBuckets. `wake` is called from any thread, under no vBucket's lock, when something was
    /// marked for the first time since the last look: it must be short.
    pub fn new(vbuckets: u16, wake: impl Fn() + Send + Sync + 'static) -> Arc<Follower> {
        let words = (0..usize::from(vbuckets).div_ceil(BITS)).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Follower {
            words,
            is_marked: AtomicBool::new(false),
            wake: Box::new(wake),
            buffered: AtomicUsize::new(0),
            listed: AtomicUsize::new(0),
            parked: Mutex::default(),
        })
    }

    /// Bytes that wait for the connection: what backfills have made ready for it, and lists of changes from memory. The
    /// changes themselves are the bucket's.
    pub fn waiting_bytes(&self) -> usize {
        self.buffered.load(Ordering::Relaxed) + self.listed.load(Ordering::Relaxed)
    }

    /// A list of changes from memory takes `after` bytes instead of `before`.
    pub fn list_takes(&self, before: usize, after: usize) {
        self.listed.fetch_add(after, Ordering::Relaxed);
        self.listed.fetch_sub(before, Ordering::Relaxed);
    }

    /// Notes that a vBucket has something, and wakes.
    pub fn mark(&self, vb: VbId) {
        if self.note(vb) {
            self.ring();
        }
    }

    /// Notes that a vBucket has something. Whether it is to be woken: soon, since others that note something rely on it.
    #[must_use]
    pub(crate) fn note(&self, vb: VbId) -> bool {
        let (word, bit) = (usize::from(vb.0) / BITS, 1 << (usize::from(vb.0) % BITS));
        // Whoever looks sees the bit if it sees that something is marked.
        self.words[word].fetch_or(bit, Ordering::AcqRel) & bit == 0
            && !self.is_marked.swap(true, Ordering::AcqRel)
    }

    /// Whether something was marked since the last look.
    pub fn is_marked(&self) -> bool {
        self.is_marked.load(Ordering::Acquire)
    }

    /// Shows what was marked since the last look, lowest first.
    pub fn take(&self, mut see: impl FnMut(VbId)) {
        // What is marked from here on wakes again, whether this look sees it or not.
        if !self.is_marked.swap(false, Ordering::AcqRel) {
            return;
        }
        for (at, word) in self.words.iter().enumerate() {
            let mut bits = word.swap(0, Ordering::AcqRel);
            while bits != 0 {
                see(VbId((at * BITS + bits.trailing_zeros() as usize) as u16));
                bits &= bits - 1;
            }
        }
    }
}

impl Ring for Follower {
    fn ring(&self) {
        assert_unlocked();
        (self.wake)();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(follower: &Follower) -> Vec<u16> {
        let mut all = Vec::new();
        follower.take(|vb| all.push(vb.0));
        all
    }

    #[test]
    fn many_marks_wake_once() {
        let wakes = Arc::new(AtomicUsize::new(0));
        let counter = wakes.clone();
        let follower = Follower::new(1024, move || {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        assert!(taken(&follower).is_empty());
        for vb in [1023, 0, 64, 63, 0] {
            follower.mark(VbId(vb));
        }
        assert_eq!((wakes.load(Ordering::Relaxed), taken(&follower)), (1, vec![0, 63, 64, 1023]));
        follower.mark(VbId(5));
        assert_eq!((wakes.load(Ordering::Relaxed), taken(&follower)), (2, vec![5]));
        assert!(taken(&follower).is_empty() && !follower.is_marked());
    }

    #[test]
    fn no_mark_is_lost_between_threads() {
        let follower = Follower::new(256, || {});
        let marked: Vec<u16> = (0..256).collect();
        let seen = std::thread::scope(|scope| {
            let looking = scope.spawn(|| {
                let mut seen = std::collections::BTreeSet::new();
                while seen.len() < 256 {
                    follower.take(|vb| {
                        seen.insert(vb.0);
                    });
                }
                seen
            });
            for part in marked.chunks(64) {
                let follower = &follower;
                scope.spawn(move || part.iter().for_each(|vb| follower.mark(VbId(*vb))));
            }
            looking.join().expect("it ends when it has seen all")
        });
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), marked);
    }
}
