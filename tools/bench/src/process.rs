//! What the kernel says about a process: `/proc/PID`.

use std::fs;
use std::io::ErrorKind;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::io::Errno;

/// Ticks of `/proc/PID/stat` (Linux has 100 on every machine that this runs on).
const TICKS_PER_S: f64 = 100.0;

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

/// Processor time of all threads of a process that are alive (proc(5), `/proc/PID/task/TID/schedstat`).
pub fn cpu_seconds(pid: u32) -> Result<f64> {
    let mut ns = 0.0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = match fs::read_to_string(thread?.path().join("schedstat")) {
            // It has ended meanwhile, before its file was opened or after.
            Err(error)
                if error.kind() == ErrorKind::NotFound
                    || error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) =>
            {
                continue;
            }
            text => text?,
        };
        let on_cpu = text.split(' ').next().context("three figures")?;
        ns += on_cpu.parse::<f64>()?;
    }
    Ok(ns / 1e9)
}

/// What a process uses of one core over this time, with threads that ended meanwhile.
pub fn core_share(pid: u32, over: Duration) -> Result<f64> {
    let (begun, before) = (Instant::now(), whole_cpu_seconds(pid)?);
    thread::sleep(over);
    Ok((whole_cpu_seconds(pid)? - before) / begun.elapsed().as_secs_f64())
}

/// Processor time of all children of this process that have ended (proc(5), fields 16 and 17 of `/proc/PID/stat`).
pub fn children_cpu_seconds() -> Result<f64> {
    two_of_stat("self", 13)
}

/// Processor time of all threads that a process has or had, in steps of 10 ms (fields 14 and 15 of the same file).
pub fn whole_cpu_seconds(pid: u32) -> Result<f64> {
    two_of_stat(&pid.to_string(), 11)
}

/// The sum of two fields of `/proc/PID/stat` that count ticks, so many behind the state.
fn two_of_stat(pid: &str, behind: usize) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, rest) = stat.rsplit_once(") ").context("a name in brackets")?;
    let ticks = rest.split(' ').skip(behind).take(2);
    let ticks: f64 = ticks.map(str::parse::<f64>).sum::<Result<f64, _>>()?;
    Ok(ticks / TICKS_PER_S)
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
    fn finds_processor_times() {
        assert!(cpu_seconds(std::process::id()).unwrap() > 0.0);
        assert!(children_cpu_seconds().unwrap() >= 0.0);
    }

    #[test]
    fn finds_the_resident_memory() {
        assert_eq!(field("Name:\tx\nVmRSS:\t    3 kB\nThreads: 1\n", "VmRSS:"), Some(3 << 10));
    }
}
