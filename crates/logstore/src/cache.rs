//! Blocks that were read, within a budget, charged to the bucket's account.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Account, Part};
use parking_lot::Mutex;

use crate::block::{self, Span};
use crate::failure::Failure;
use crate::file::LogFile;

/// Parts of the cache, each with a lock of its own.
const PARTS: usize = 16;
/// What an entry takes beside its block.
const ENTRY_BYTES: usize = 96;

/// Which block: the file's number in the cache, and the offset.
type BlockId = (u64, u64);

/// Blocks of all files of a store.
pub(crate) struct BlockCache {
    parts: Vec<Mutex<CachePart>>,
    account: Account,
    /// Bytes that one part may hold.
    part_bytes: usize,
    hits: AtomicU64,
    misses: AtomicU64,
}

#[derive(Default)]
struct CachePart {
    blocks: BTreeMap<BlockId, Cached>,
    /// In the order in which they are looked at for leaving.
    order: VecDeque<BlockId>,
    bytes: usize,
}

struct Cached {
    content: Arc<Vec<u8>>,
    was_used: bool,
}

/// How the cache does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Reads that found their block.
    pub hits: u64,
    /// Reads that had to read and check it.
    pub misses: u64,
    /// Bytes held.
    pub bytes: u64,
}

impl BlockCache {
    pub(crate) fn new(bytes: usize, account: Account) -> BlockCache {
        let parts = (0..PARTS).map(|_| Mutex::default()).collect();
        let (hits, misses) = (AtomicU64::new(0), AtomicU64::new(0));
        BlockCache { parts, account, part_bytes: bytes / PARTS, hits, misses }
    }

    pub(crate) fn stats(&self) -> CacheStats {
        CacheStats {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            bytes: self.parts.iter().map(|part| part.lock().bytes as u64).sum(),
        }
    }

    fn part(&self, (file, offset): BlockId) -> &Mutex<CachePart> {
        let mixed = (file ^ offset.rotate_left(20)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.parts[(mixed >> 60) as usize % PARTS]
    }

    /// The block at a place, from memory or from the disk.
    pub(crate) fn read(&self, file: &LogFile, span: Span) -> Result<Arc<Vec<u8>>, Failure> {
        let id = (file.cache_id(), span.offset);
        let part = self.part(id);
        if let Some(found) = part.lock().blocks.get_mut(&id) {
            found.was_used = true;
            self.hits.fetch_add(1, Ordering::Relaxed);
            return Ok(found.content.clone());
        }
        self.misses.fetch_add(1, Ordering::Relaxed);
        let content = Arc::new(block::read(file, span)?);
        self.keep(part, id, &content);
        Ok(content)
    }

    fn keep(&self, part: &Mutex<CachePart>, id: BlockId, content: &Arc<Vec<u8>>) {
        let bytes = content.capacity() + ENTRY_BYTES;
        if bytes > self.part_bytes / 2 {
            return;
        }
        let mut part = part.lock();
        if part.blocks.contains_key(&id) {
            return;
        }
        let mut freed = 0;
        while part.bytes - freed + bytes > self.part_bytes {
            let Some(oldest) = part.order.pop_front() else { break };
            match part.blocks.get_mut(&oldest) {
                Some(cached) if cached.was_used => {
                    cached.was_used = false;
                    part.order.push_back(oldest);
                }
                Some(_) => {
                    let gone = part.blocks.remove(&oldest).expect("it was found");
                    freed += gone.content.capacity() + ENTRY_BYTES;
                }
                None => {}
            }
        }
        part.bytes = part.bytes - freed + bytes;
        part.blocks.insert(id, Cached { content: content.clone(), was_used: false });
        part.order.push_back(id);
        drop(part);
        self.account.release(Part::Storage, freed);
        self.account.charge(Part::Storage, bytes);
    }
}

impl Drop for BlockCache {
    fn drop(&mut self) {
        let bytes: usize = self.parts.iter().map(|part| part.lock().bytes).sum();
        self.account.release(Part::Storage, bytes);
    }
}
