//! The first byte of each block, and the headers that are not in use.

use crate::check::Faults;
use crate::chunk::{BLOCK, DATA_BLOCK, HEADER_BLOCK, Source};
use crate::encrypted::{METADATA_BLOCK, is_metadata};
use crate::header::{Header, MAX_HEADER};

/// How many blocks are read at once.
const SLAB_BLOCKS: u64 = 64;

/// Looks at the first `end` bytes of a file whose last valid header is at `in_use`, if it has one.
///
/// Data are synced before the header that points to them is written, and a header is smaller than a sector: so a
/// damaged header is no trace of a crash, whether it stands before the last valid one or behind it.
pub(super) fn check(source: &Source, end: u64, in_use: Option<u64>, faults: &mut Faults<'_>) {
    let mut slab = vec![0; (SLAB_BLOCKS * BLOCK).min(end) as usize];
    let mut from = 0;
    while from < end {
        faults.watcher.step(0);
        let n = match source.read_raw(&mut slab, from) {
            Ok(0) => return,
            Ok(n) => n,
            // what is in use of it is read again, chunk by chunk
            Err(failure) => return faults.failure(&failure),
        };
        for (offset, block) in (from..).step_by(BLOCK as usize).zip(slab[..n].chunks(BLOCK as usize)) {
            check_block(source, offset, block, in_use, faults);
        }
        from += n as u64;
    }
}

fn check_block(source: &Source, offset: u64, block: &[u8], in_use: Option<u64>, faults: &mut Faults<'_>) {
    let is_behind = in_use.is_none_or(|in_use| offset > in_use);
    match block.first() {
        // a compaction by the original's tools marks the first block so, though it holds data
        Some(&HEADER_BLOCK) if offset == 0 && block.get(1).is_some_and(|length| length & 0x80 != 0) => {}
        Some(&HEADER_BLOCK) => {
            let head = &block[..block.len().min(MAX_HEADER)];
            let Some(failure) = Header::fault_of(head, offset, source, is_behind) else { return };
            faults.failure(&failure);
            if let (true, Some(in_use)) = (is_behind, in_use) {
                faults.at(offset, format!("this header is not valid: the older one at {in_use} is in use"));
            }
        }
        Some(&DATA_BLOCK) | None => {}
        // a file of version 14 may begin with where its key comes from
        Some(&METADATA_BLOCK) if offset == 0 && is_metadata(block) => {}
        // what lies behind the last header was never vouched for
        Some(_) if is_behind => {}
        Some(mark) => faults.at(offset, format!("a block starts with {mark}, neither data nor header")),
    }
}
