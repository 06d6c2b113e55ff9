//! Reading ahead where a file is read in order: few large reads in place of many small ones.

use std::io;
use std::sync::Arc;

use base::env::File;
use parking_lot::Mutex;

use crate::chunk::Source;
use crate::snapshot::Snapshot;

/// How much is read at once.
const WINDOW_BYTES: u64 = 128 << 10;
/// How far before the place that is asked for: what was saved together is asked for in another order.
const BEFORE_BYTES: u64 = 16 << 10;
/// How many places in the file are read in order at the same time: bodies and the trees.
const WINDOWS: usize = 4;
/// So many reads in order are needed before it is taken for a habit.
const HABIT: u32 = 3;

/// A file whose content is not written any more, as far as it is read.
pub(crate) struct Ahead {
    file: Arc<dyn File>,
    windows: Mutex<Windows>,
}

#[derive(Default)]
struct Windows {
    windows: [Window; WINDOWS],
    now: u64,
}

#[derive(Default)]
struct Window {
    start: u64,
    bytes: Vec<u8>,
    /// Where the last read near it ended.
    last_end: u64,
    /// Reads in order since it was begun.
    in_order: u32,
    used: u64,
}

impl Window {
    fn holds(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let from = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        self.bytes.get(from..from.checked_add(len)?)
    }

    fn is_near(&self, offset: u64) -> bool {
        offset + BEFORE_BYTES >= self.last_end && offset <= self.last_end + WINDOW_BYTES
    }
}

impl Ahead {
    pub(crate) fn new(file: Arc<dyn File>) -> Ahead {
        Ahead { file, windows: Mutex::default() }
    }

    /// Reads a window that begins before `offset`, if the file lets it.
    fn fill(&self, window: &mut Window, offset: u64) {
        window.start = offset.saturating_sub(BEFORE_BYTES);
        window.bytes.resize((BEFORE_BYTES + WINDOW_BYTES) as usize, 0);
        let read = self.file.read_at(&mut window.bytes, window.start).unwrap_or(0);
        window.bytes.truncate(read);
    }
}

impl Snapshot {
    /// The same, for one who reads all of it in order.
    pub(crate) fn read_ahead(self) -> Snapshot {
        let file = Arc::new(Ahead::new(self.source.file.clone()));
        Snapshot { source: Source { file, ..self.source }, ..self }
    }
}

impl File for Ahead {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let windows = &mut *self.windows.lock();
        windows.now += 1;
        let now = windows.now;
        let end = offset + buf.len() as u64;
        let held = windows.windows.iter_mut().find(|window| window.holds(offset, buf.len()).is_some());
        if let Some(window) = held {
            (window.used, window.last_end) = (now, end);
            buf.copy_from_slice(window.holds(offset, buf.len()).expect("found by it"));
            return Ok(buf.len());
        }
        let near = windows.windows.iter_mut().find(|window| window.used > 0 && window.is_near(offset));
        if let Some(window) = near {
            (window.used, window.last_end) = (now, end);
            window.in_order += 1;
            if window.in_order >= HABIT {
                self.fill(window, offset);
                if let Some(bytes) = window.holds(offset, buf.len()) {
                    buf.copy_from_slice(bytes);
                    return Ok(buf.len());
                }
            }
        } else if let Some(oldest) = windows.windows.iter_mut().min_by_key(|window| window.used) {
            (oldest.used, oldest.last_end, oldest.in_order) = (now, end, 0);
            oldest.bytes.clear();
        }
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn append_from(&self, end: u64) -> u64 {
        self.file.append_from(end)
    }

    fn is_current(&self) -> bool {
        self.file.is_current()
    }

    fn key_changes(&self) -> u64 {
        self.file.key_changes()
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicU64, Ordering};

    use base::env::{Disk, OpenMode};

    use super::*;
    use crate::fuzz::OneFile;

    struct Counted(Arc<dyn File>, Arc<AtomicU64>);

    impl File for Counted {
        fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.read_at(buf, offset)
        }

        fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
            unreachable!("nothing is written")
        }

        fn sync_data(&self) -> io::Result<()> {
            Ok(())
        }

        fn len(&self) -> io::Result<u64> {
            self.0.len()
        }

        fn set_len(&self, _: u64) -> io::Result<()> {
            unreachable!("nothing is written")
        }
    }

    #[test]
    fn it_reads_the_same_in_fewer_reads() {
        let bytes: Vec<u8> = (0..1_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let file = OneFile(bytes.as_slice().into()).open(Path::new("x"), OpenMode::Read).expect("a file");
        let reads = Arc::new(AtomicU64::new(0));
        let ahead = Ahead::new(Arc::new(Counted(file, reads.clone())));
        let mut random = 1u64;
        for i in 0..2_000u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let len = (random >> 60) as usize * 40 + 1;
            // two places in order, one of which jumps a little, and now and then any place, behind the end too
            let places = [i * 480, 300_000 + i * 300 + (random >> 33) % 4_000, (random >> 40) % 1_100_000];
            for offset in &places[..if i % 50 == 0 { 3 } else { 2 }] {
                let mut buf = vec![0; len];
                let n = ahead.read_at(&mut buf, *offset).expect("a read");
                let rest = bytes.get(*offset as usize..).unwrap_or_default();
                assert_eq!(buf[..n], rest[..len.min(rest.len())]);
            }
        }
        let reads = reads.load(Ordering::Relaxed);
        assert!(reads < 400, "{reads} reads in place of 4,040");
    }
}
