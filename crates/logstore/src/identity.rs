//! Whose file a file is: said in its header, and, but for a manifest, by the manifest that names it.
//!
//! *Guarantee:* a file of another folder, of another place in this one, or of a copy of the folder that went on by itself
//! is not taken for the one that is named.

use std::path::Path;
use std::sync::Arc;

use base::planted::{self, Bug};

use crate::codec::{u32_at, u64_at};
use crate::failure::Failure;
use crate::segment::HEADER_BYTES;

/// Bytes of a header with an identity.
pub(crate) const ID_HEADER_BYTES: usize = HEADER_BYTES + 40;

/// Which file a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    /// The folder, by the caller's number; 0 if the folder had none yet.
    pub(crate) owner: u128,
    pub(crate) shard: usize,
    /// The number of a segment or a run; of a manifest the number of shards.
    pub(crate) number: u64,
    /// Random, made with the file; 0 in one of an earlier version, which has no identity.
    pub(crate) nonce: u64,
}

impl FileId {
    /// What checksums of its parts begin with.
    pub(crate) fn seed(&self) -> u64 {
        if self.nonce == 0 { self.number } else { self.nonce }
    }

    /// A header with this identity.
    pub(crate) fn header(&self, first: &[u8; HEADER_BYTES]) -> [u8; ID_HEADER_BYTES] {
        let mut header = [0; ID_HEADER_BYTES];
        header[..16].copy_from_slice(first);
        header[16..32].copy_from_slice(&self.owner.to_le_bytes());
        header[32..36].copy_from_slice(&(self.shard as u32).to_le_bytes());
        header[36..44].copy_from_slice(&self.number.to_le_bytes());
        header[44..52].copy_from_slice(&self.nonce.to_le_bytes());
        let crc = crc32c::crc32c(&header[..52]);
        header[52..].copy_from_slice(&crc.to_le_bytes());
        header
    }

    /// The identity in a header.
    pub(crate) fn of(header: &[u8], path: &Arc<Path>) -> Result<FileId, Failure> {
        if header.len() < ID_HEADER_BYTES || crc32c::crc32c(&header[..52]) != u32_at(header, 52) {
            return Err(Failure::damaged(path, 0, "the header of the file"));
        }
        Ok(FileId {
            owner: u128::from(u64_at(header, 24)) << 64 | u128::from(u64_at(header, 16)),
            shard: u32_at(header, 32) as usize,
            number: u64_at(header, 36),
            nonce: u64_at(header, 44),
        })
    }

    /// Refuses a file that says it is another one than this. A folder or a file without a number of its own says nothing
    /// of whose it is.
    pub(crate) fn check(&self, found: &FileId, path: &Arc<Path>) -> Result<(), Failure> {
        if planted::is(Bug::LogIdentityIgnored) {
            return Ok(());
        }
        let foreign = |what: String| Err(Failure::Foreign { path: path.clone(), what });
        if (found.nonce == 0) != (self.nonce == 0) {
            let version = if found.nonce == 0 { "an earlier" } else { "a later" };
            return foreign(format!("it is of {version} version than the file that the manifest names"));
        }
        if found.owner != 0 && self.owner != 0 && found.owner != self.owner {
            return foreign(format!(
                "it is of store {:032x}, this folder is store {:032x}",
                found.owner, self.owner
            ));
        }
        if (found.shard, found.number) != (self.shard, self.number) {
            return foreign(format!(
                "it is {} of shard {}, not {} of shard {}",
                found.number, found.shard, self.number, self.shard
            ));
        }
        if found.nonce != self.nonce {
            return foreign("it is of a copy of this folder that went on by itself".to_owned());
        }
        Ok(())
    }
}
