//! What the kernel says about a process: `/proc/PID`.

use std::fs;

use anyhow::{Context, Result};

/// Resident memory of a process.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    resident(&status).context("/proc/PID/status has VmRSS")
}

/// The most resident memory that a process ever had.
pub fn peak_resident_bytes(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    kib_of(&status, "VmHWM:").context("/proc/PID/status has VmHWM")
}

/// Descriptors that a process has open.
pub fn descriptors(pid: u32) -> Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

fn resident(status: &str) -> Option<u64> {
    kib_of(status, "VmRSS:")
}

fn kib_of(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
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
        assert_eq!(resident("Name:\tx\nVmRSS:\t    3 kB\nThreads: 1\n"), Some(3 << 10));
    }
}
