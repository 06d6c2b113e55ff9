//! What the system says about the process.

use std::path::Path;

use base::env::{Env, OpenMode};

/// Bytes of the process that are in memory; nothing where the system does not say (and in a simulated world).
///
/// `VmRSS` of `/proc/self/status` (proc(5)): in kB whatever the page size is.
pub fn resident_bytes(env: &Env) -> Option<u64> {
    let file = env.disk.open(Path::new("/proc/self/status"), OpenMode::Read).ok()?;
    let mut buf = [0; 4096];
    let read = file.read_at(&mut buf, 0).ok()?;
    parse(std::str::from_utf8(buf.get(..read)?).ok()?)
}

fn parse(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_line() {
        assert_eq!(parse("Name:\tx\nVmHWM:\t  9 kB\nVmRSS:\t    2048 kB\n"), Some(2 << 20));
        assert_eq!(parse("Name:\tx\n"), None);
        assert_eq!(parse("VmRSS:\tmany kB\n"), None);
    }
}
