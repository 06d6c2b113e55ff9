//! CPU time of a process, from `/proc/PID/stat` (proc(5)).

use std::path::Path;

use anyhow::Context;
use base::env::{Env, OpenMode};

/// The line is about 300 bytes long.
const STAT_BYTES: usize = 4_096;

/// Seconds of CPU, user and system, that process `pid` (a number or `self`) has taken since it started.
pub fn seconds(env: &Env, pid: &str) -> anyhow::Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let mut line = vec![0; STAT_BYTES];
    let read = env.disk.open(Path::new(&path), OpenMode::Read).and_then(|file| file.read_at(&mut line, 0));
    let count = read.with_context(|| format!("cannot read {path}; is --server-pid the server's process?"))?;
    let line = String::from_utf8_lossy(&line[..count]).into_owned();
    let ticks = parse_ticks(&line).with_context(|| format!("{path} does not look as it should: {line:?}"))?;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Fields 14 and 15, utime and stime; the second field is a name in brackets that may contain anything.
fn parse_ticks(line: &str) -> Option<u64> {
    let (_, behind_name) = line.rsplit_once(')')?;
    let mut fields = behind_name.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    user.checked_add(system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_fields_behind_a_strange_name() {
        let line = "17 (a ) (b) S 1 2 3 4 5 6 7 8 9 10 300 45 0 0 20 0 4 0 1 2";
        assert_eq!(parse_ticks(line), Some(345));
        assert_eq!(parse_ticks("17 (a) S 1"), None);
        assert_eq!(parse_ticks(""), None);
    }

    #[test]
    fn reads_our_own() {
        assert!(seconds(&Env::real(), "self").is_ok());
        assert!(seconds(&Env::real(), "0").is_err());
    }
}
