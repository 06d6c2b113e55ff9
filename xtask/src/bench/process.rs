//! What the kernel says about a process: `/proc/PID`.

use std::fs;

use anyhow::{Context, Result};

/// Resident memory of a process.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    of_status(pid, "VmRSS:")
}

/// Resident memory of a process that no file backs: heaps and stacks.
pub fn anonymous_bytes(pid: u32) -> Result<u64> {
    of_status(pid, "RssAnon:")
}

fn of_status(pid: u32, name: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    field(&status, name).with_context(|| format!("/proc/PID/status has {name}"))
}

/// The most resident memory that a process ever had.
pub fn peak_resident_bytes(pid: u32) -> Result<u64> {
    of_status(pid, "VmHWM:")
}

/// Descriptors that a process has open.
pub fn descriptors(pid: u32) -> Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

fn field(status: &str, name: &str) -> Option<u64> {
    let kib: u64 =
        status.lines().find_map(|line| line.strip_prefix(name))?.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_our_own_descriptors() {
        let file = fs::File::open("/proc/self/status").unwrap();
        assert!(descriptors(std::process::id()).unwrap() > 1);
        drop(file);
    }

    #[test]
    fn finds_the_resident_memory() {
        assert_eq!(field("Name:\tx\nVmRSS:\t    3 kB\nThreads: 1\n", "VmRSS:"), Some(3 << 10));
    }
}
