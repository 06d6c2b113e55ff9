//! The first byte of each block, and the headers that are not in use.

use crate::check::Faults;
use crate::chunk::{BLOCK, DATA_BLOCK, HEADER_BLOCK};
use crate::header::{Header, MAX_HEADER};
use crate::snapshot::Snapshot;

/// How many blocks are read at once.
const SLAB_BLOCKS: u64 = 64;

/// Data are synced before the header that points to them is written, and a header is smaller than a sector: so a
/// damaged header is no trace of a crash, whether it stands before the last valid one or behind it.
pub(super) fn check(file: &Snapshot, faults: &mut Faults<'_>) {
    let mut slab = vec![0; (SLAB_BLOCKS * BLOCK) as usize];
    let mut from = 0;
    while from < file.file_bytes {
        faults.watcher.step(0);
        let n = match file.source.read_raw(&mut slab, from) {
            Ok(0) => return,
            Ok(n) => n,
            // what is in use is read once more, block by block of it
            Err(failure) => return faults.failure(&failure),
        };
        for (offset, block) in (from..).step_by(BLOCK as usize).zip(slab[..n].chunks(BLOCK as usize)) {
            check_block(file, faults, offset, block);
        }
        from += n as u64;
    }
}

fn check_block(file: &Snapshot, faults: &mut Faults<'_>, offset: u64, block: &[u8]) {
    let in_use = file.header.offset;
    match block.first() {
        Some(&HEADER_BLOCK) if offset > in_use => faults.at(
            offset,
            format!("a header behind the last valid one (at {in_use}) is damaged, or what it points to"),
        ),
        Some(&HEADER_BLOCK) if Header::is_damaged(&block[..block.len().min(MAX_HEADER)], offset) => {
            faults.at(offset, "a header that is no longer in use is damaged");
        }
        Some(&(HEADER_BLOCK | DATA_BLOCK)) | None => {}
        // what lies behind the last header was never vouched for
        Some(_) if offset > in_use => {}
        Some(mark) => faults.at(offset, format!("a block starts with {mark}, neither data nor header")),
    }
}
