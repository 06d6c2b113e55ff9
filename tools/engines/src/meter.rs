//! What the kernel says about this process: bytes written, and the most memory it had.

use std::fs;

use anyhow::{Context, Result};

/// Bytes that this process wrote so far (proc(5), `/proc/PID/io`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Through system calls: `wchar`. What is changed through a memory map is not in it.
    pub calls_bytes: u64,
    /// Pages made dirty: `write_bytes`. A page that is changed again before it goes to disk counts once.
    pub pages_bytes: u64,
}

impl Written {
    /// Up to now.
    pub fn now() -> Result<Written> {
        let text = fs::read_to_string("/proc/self/io").context("/proc/self/io")?;
        Written::parse(&text).context("/proc/self/io has wchar and write_bytes")
    }

    fn parse(text: &str) -> Option<Written> {
        let field = |name: &str| {
            text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")?.trim().parse().ok())
        };
        Some(Written { calls_bytes: field("wchar")?, pages_bytes: field("write_bytes")? })
    }

    /// Since `earlier`.
    pub fn since(self, earlier: Written) -> Written {
        Written {
            calls_bytes: self.calls_bytes - earlier.calls_bytes,
            pages_bytes: self.pages_bytes - earlier.pages_bytes,
        }
    }
}

/// Forgets the most that it had so far (proc(5), `/proc/PID/clear_refs`); what is resident now.
pub fn begin_peak() -> Result<u64> {
    fs::write("/proc/self/clear_refs", "5").context("/proc/self/clear_refs")?;
    from_status("VmRSS:")
}

/// The most resident memory that this process had since.
pub fn peak_resident_bytes() -> Result<u64> {
    from_status("VmHWM:")
}

fn from_status(name: &str) -> Result<u64> {
    let text = fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
    status_bytes(&text, name).with_context(|| format!("/proc/self/status has {name}"))
}

fn status_bytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_prints() {
        let text =
            "rchar: 1\nwchar: 20\nsyscr: 3\nread_bytes: 4\nwrite_bytes: 4096\ncancelled_write_bytes: 0\n";
        assert_eq!(Written::parse(text), Some(Written { calls_bytes: 20, pages_bytes: 4096 }));
        assert_eq!(Written::parse("wchar: 20\n"), None);
        assert_eq!(status_bytes("VmPeak:\t 9 kB\nVmHWM:\t    3 kB\n", "VmHWM:"), Some(3 << 10));
    }

    #[test]
    fn reads_our_own() {
        assert!(begin_peak().is_ok_and(|bytes| bytes > 0));
        assert!(Written::now().is_ok() && peak_resident_bytes().is_ok_and(|bytes| bytes > 0));
    }
}
