//! What the kernel says about a process: `/proc/PID`.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// Processor time of all threads of a process, user and system, dead threads included.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let ticks = cpu_ticks(&stat).context("/proc/PID/stat has times")?;
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// Fields 14 and 15 (proc(5)); the second field, the name, may hold anything but ends with the last bracket.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let user: u64 = fields.nth(11)?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// Resident memory of a process.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse().ok());
    kib.map(|kib: u64| kib << 10).context("/proc/PID/status has VmRSS")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_times_behind_any_name() {
        let stat = "7 (a ) b) S 1 2 3 4 5 6 7 8 9 10 30 12 13 14 15";
        assert_eq!(cpu_ticks(stat), Some(42));
    }
}
