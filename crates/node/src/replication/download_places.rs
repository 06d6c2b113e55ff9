//! How many files of vBuckets may come from other nodes at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Each has a thread, and a fragment of a file in memory.
const MOST_DOWNLOADS: usize = 4;

/// The places of a node; all clones are of the same ones.
#[derive(Clone, Default)]
pub struct DownloadPlaces(Arc<AtomicUsize>);

/// One of them, until this is dropped.
pub struct DownloadPlace(Arc<AtomicUsize>);

impl DownloadPlaces {
    /// Takes one, if one is free.
    pub fn take(&self) -> Option<DownloadPlace> {
        let more = |taken| (taken < MOST_DOWNLOADS).then_some(taken + 1);
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.is_ok().then(|| DownloadPlace(Arc::clone(&self.0)))
    }
}

impl Drop for DownloadPlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_so_many_and_no_more() {
        let places = DownloadPlaces::default();
        let mut taken: Vec<_> = std::iter::from_fn(|| places.take()).collect();
        assert_eq!(taken.len(), MOST_DOWNLOADS);
        taken.pop();
        assert!(places.take().is_some());
    }
}
