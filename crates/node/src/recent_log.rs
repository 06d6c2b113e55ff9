//! The last lines of the process's log, for users who look at the node over HTTP. A process has one log, whatever nodes it
//! runs.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

/// Bytes of lines that are kept, at most.
const MOST_BYTES: usize = 256 << 10;
/// A longer line is not kept.
const MOST_LINE_BYTES: usize = 16 << 10;

#[derive(Default)]
struct Lines {
    lines: VecDeque<Box<str>>,
    bytes: usize,
}

/// The last lines, each an object of JSON as `log-format = "json"` writes it. Clones are of the same ones.
#[derive(Clone, Default)]
pub struct RecentLog(Arc<Mutex<Lines>>);

impl RecentLog {
    /// Keeps a line, and drops the oldest for it; one that is no text or too long is not kept.
    pub fn add(&self, line: &[u8]) {
        let Some(line) = std::str::from_utf8(line).ok().filter(|line| line.len() <= MOST_LINE_BYTES) else {
            return;
        };
        let mut of = self.0.lock();
        while of.bytes + line.len() > MOST_BYTES {
            let Some(oldest) = of.lines.pop_front() else { break };
            of.bytes -= oldest.len();
        }
        of.bytes += line.len();
        of.lines.push_back(line.into());
    }

    /// The last ones, the oldest first; at most `most`.
    pub fn last(&self, most: usize) -> Vec<Box<str>> {
        let of = self.0.lock();
        of.lines.iter().skip(of.lines.len().saturating_sub(most)).cloned().collect()
    }
}

impl fmt::Debug for RecentLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecentLog")
    }
}

impl PartialEq for RecentLog {
    fn eq(&self, other: &RecentLog) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for RecentLog {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_within_a_bound() {
        let log = RecentLog::default();
        log.add(&[0xff]);
        log.add(&vec![b'x'; MOST_LINE_BYTES + 1]);
        assert!(log.last(10).is_empty());
        (0..10_000).for_each(|n| log.add(format!("{n:0100}").as_bytes()));
        let kept = log.last(usize::MAX);
        assert_eq!(kept.len(), MOST_BYTES / 100);
        assert!(kept[kept.len() - 1].ends_with("9999"));
        assert_eq!(log.last(2), kept[kept.len() - 2..]);
        log.add(&vec![b'y'; MOST_LINE_BYTES]);
        assert!(log.last(usize::MAX).iter().map(|line| line.len()).sum::<usize>() <= MOST_BYTES);
    }
}
