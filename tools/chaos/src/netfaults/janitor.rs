//! Cleaning up after a run, however it ended: a process of its own waits until the run is gone.

use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use harness::tree;
use rustix::process::{Pid, Signal, kill_process};

use super::world;

/// What the scratch folders of all runs begin with.
pub const SCRATCH: &str = "faults";
/// How long killed processes may take to end.
const ENDED_WITHIN: Duration = Duration::from_secs(20);
/// How long a command that makes a namespace may go on after the run was killed.
const LAST_COMMAND: Duration = Duration::from_millis(500);

/// The process that cleans up when its standard input ends: with the run, or when this is dropped.
pub struct Janitor {
    child: Child,
}

impl Janitor {
    /// Starts it. Ctrl-C in a terminal does not reach it.
    pub fn start() -> Result<Janitor> {
        let run = std::process::id().to_string();
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["faults", "--clean-up-after", &run]).stdin(Stdio::piped()).process_group(0);
        Ok(Janitor { child: command.spawn().context("cannot start the process that cleans up")? })
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        if !self.child.wait().is_ok_and(|status| status.success()) {
            eprintln!("the network namespaces of this run may still be there: see `ip netns`");
        }
    }
}

/// What the process does: waits until nobody holds the other end of its input, then cleans up.
pub fn wait_and_clean(run: u32) -> Result<()> {
    // Whatever ends the wait, the run is over.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    clean(run)?;
    // A command that the run had begun may have come to its end after that.
    thread::sleep(LAST_COMMAND);
    clean(run)
}

/// Cleans up after runs whose processes are gone, and whose janitors were killed with them.
pub fn sweep() -> Result<()> {
    let mut runs: Vec<u32> = world::namespaces().into_iter().map(|(run, _)| run).collect();
    runs.dedup();
    for run in runs {
        // Another program may have got the number meanwhile.
        let comm = fs::read_to_string(format!("/proc/{run}/comm")).unwrap_or_default();
        if comm.trim() != "xtask" {
            eprintln!("cleaning up after run {run}, which was killed");
            clean(run)?;
        }
    }
    Ok(())
}

/// Removes everything of a run: processes, namespaces, mounted images.
fn clean(run: u32) -> Result<()> {
    let mounted = mounts(&fs::read_to_string("/proc/mounts")?, &scratch_of(run));
    for at in &mounted {
        // Processes that wait for a frozen file system do not end; it mostly is not frozen.
        let _ = Command::new("fsfreeze").arg("--unfreeze").arg(at).stderr(Stdio::null()).status();
    }
    let ours: Vec<String> =
        world::namespaces().into_iter().filter(|(of, _)| *of == run).map(|(_, name)| name).collect();
    let begun = Instant::now();
    loop {
        let left: Vec<i32> = ours.iter().flat_map(|namespace| world::processes(namespace)).collect();
        if left.is_empty() || begun.elapsed() > ENDED_WITHIN {
            break;
        }
        for pid in left.into_iter().filter_map(Pid::from_raw) {
            // It may have ended by itself.
            let _ = kill_process(pid, Signal::KILL);
        }
        thread::sleep(Duration::from_millis(20));
    }
    for namespace in &ours {
        world::remove(namespace)?;
    }
    for at in &mounted {
        let _ = Command::new("umount").arg("--lazy").arg(at).stderr(Stdio::null()).status();
    }
    Ok(())
}

fn scratch_of(run: u32) -> PathBuf {
    tree::target().join("xtask").join(format!("{SCRATCH}-{run}"))
}

/// What is mounted below a folder, by the kernel's table.
fn mounts(table: &str, below: &Path) -> Vec<PathBuf> {
    let points = table.lines().filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
    points.filter(|point| point.starts_with(below)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_mounts_of_a_run() {
        let table = "/dev/loop0 /x/faults-7/disk-1 ext4 rw 0 0\n/dev/loop1 /x/faults-77/disk-1 ext4 rw 0 0\nproc /proc proc rw 0 0\n";
        assert_eq!(mounts(table, Path::new("/x/faults-7")), [PathBuf::from("/x/faults-7/disk-1")]);
    }
}
