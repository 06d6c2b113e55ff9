//! The keys of a node's folders, as far as they are open.

use std::collections::BTreeMap;

use base::encryption::{KeyError, KeyRing, WrappingKeys};
use parking_lot::{Mutex, RwLock};

use crate::config::Config;
use crate::encryption_progress::ProgressLook;

/// The keys of the folders that are open: of the folder of data, and of each bucket's.
#[derive(Default)]
pub(crate) struct FolderKeys {
    /// By bucket.
    pub(super) rings: Mutex<BTreeMap<String, KeyRing>>,
    /// What was found of the files of buckets, by bucket. Taken behind `rings`.
    pub(super) looks: Mutex<BTreeMap<String, ProgressLook>>,
    /// What wraps keys since it was exchanged; `None` as long as it is what the configuration of the start says.
    pub(super) wrapping: Mutex<Option<WrappingKeys>>,
    /// Read while a bucket's keys are being opened, until they are in `rings`: an exchange waits for that. Taken first.
    pub(super) opening: RwLock<()>,
}

impl FolderKeys {
    /// What keys are wrapped with on a node that was started with `config`; `None` if nothing is encrypted.
    pub(super) fn wrapping(&self, config: &Config) -> Option<WrappingKeys> {
        self.wrapping.lock().clone().or_else(|| config.encryption.clone())
    }

    pub(super) fn put(&self, name: &str, ring: KeyRing) {
        self.rings.lock().insert(name.to_owned(), ring);
    }

    /// The folder of a bucket is removed.
    pub(crate) fn forget(&self, bucket: &str) {
        let mut rings = self.rings.lock();
        rings.remove(bucket);
        self.looks.lock().remove(bucket);
    }

    /// Does something with the keys of each folder, also behind one where that fails. Returns for how many.
    ///
    /// # Errors
    ///
    /// The first failure.
    pub(super) fn each(
        &self,
        mut work: impl FnMut(&mut KeyRing) -> Result<(), KeyError>,
    ) -> Result<usize, KeyError> {
        let mut rings = self.rings.lock();
        let failures: Vec<KeyError> = rings.values_mut().filter_map(|ring| work(ring).err()).collect();
        failures.into_iter().next().map_or(Ok(rings.len()), Err)
    }
}
