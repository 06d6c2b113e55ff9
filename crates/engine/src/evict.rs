//! Taking values out of memory.

use base::{DocKey, NewVersion, VbId, Version};

use crate::bucket::Bucket;
use crate::refusal::Refusal;

impl Bucket {
    /// Takes the value of a key out of memory; its metadata stay, unless whole documents are evicted. False if it has to stay: it is not on disk yet,
    /// locked, or empty. Fine if it is out already.
    pub fn evict_value(&self, vb: VbId, key: DocKey<'_>) -> Result<bool, Refusal> {
        let hash = self.hash(key);
        let now = self.now();
        let version = {
            let shard = self.documents(vb)?;
            let found = shard.vb.find(hash, key)?.filter(|version| !version.is_deleted());
            let version = found.ok_or(Refusal::NotFound)?;
            if self.evicts_whole() {
                let version = version.clone();
                drop(shard);
                return Ok(self.evict_document(vb, hash, &version));
            }
            if !version.is_resident() {
                return Ok(true);
            }
            if !shard.vb.is_evictable(&version, now) {
                return Ok(false);
            }
            version.clone()
        };
        Ok(self.evict_version(vb, hash, &version))
    }

    /// Takes out the value of exactly this version, or all of it, as the policy has it, if it may go.
    pub(crate) fn evict_version(&self, vb: VbId, hash: u64, version: &Version) -> bool {
        if self.evicts_whole() {
            return self.evict_document(vb, hash, version);
        }
        let hollow = NewVersion::without_value(
            &self.context.heap,
            version.meta(),
            version.key(),
            version.value_bytes(),
        );
        let now = self.now();
        let Ok(mut shard) = self.documents(vb) else { return false };
        let taken = shard.vb.take_value(hash, hollow, now);
        drop(shard);
        taken.is_some()
    }
}
