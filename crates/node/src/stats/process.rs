//! What the system says about the process.

use std::path::Path;

use base::env::{Env, OpenMode};

/// Bytes of the process that are in memory; nothing where the system does not say (and in a simulated world).
///
/// `VmRSS` of `/proc/self/status` (proc(5)): in kB whatever the page size is.
pub fn resident_bytes(env: &Env) -> Option<u64> {
    resident_of(&read(env, "/proc/self/status")?)
}

/// Processor time that the process has taken, its own and that of the system for it, in seconds; nothing where the system
/// does not say.
///
/// `utime` and `stime` of `/proc/self/stat` (proc(5)), in ticks of which Linux tells a hundred for a second on each machine.
pub(super) fn cpu_seconds(env: &Env) -> Option<f64> {
    cpu_of(&read(env, "/proc/self/stat")?)
}

/// How many files and sockets the process has open; nothing where the system does not say.
pub(super) fn open_files(env: &Env) -> Option<usize> {
    // Its look at the folder is one of them.
    Some(env.disk.read_dir(Path::new("/proc/self/fd")).ok()?.len().saturating_sub(1))
}

fn read(env: &Env, path: &str) -> Option<String> {
    let file = env.disk.open(Path::new(path), OpenMode::Read).ok()?;
    let mut buf = [0; 4096];
    let read = file.read_at(&mut buf, 0).ok()?;
    String::from_utf8(buf.get(..read)?.to_vec()).ok()
}

fn cpu_of(stat: &str) -> Option<f64> {
    // Behind the name, which may have spaces and brackets of its own.
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_whitespace().skip(11);
    let ticks = fields.next()?.parse::<u64>().ok()?.checked_add(fields.next()?.parse().ok()?)?;
    Some(ticks as f64 / 100.0)
}

fn resident_of(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_line() {
        assert_eq!(resident_of("Name:\tx\nVmHWM:\t  9 kB\nVmRSS:\t    2048 kB\n"), Some(2 << 20));
        assert_eq!(resident_of("Name:\tx\n"), None);
        assert_eq!(resident_of("VmRSS:\tmany kB\n"), None);
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 900 0 3 0 250 50 0 0 20 0 9 0 5 6 7";
        assert_eq!(cpu_of(stat), Some(3.0));
        assert_eq!(cpu_of("7 (a) S 1"), None);
    }
}
