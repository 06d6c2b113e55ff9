//! Ends the process when the one that started it ends, so that tests that are killed leave no cluster behind.

use anyhow::Context;
use base::env::Env;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, getppid, kill_process};

#[cfg(target_os = "linux")]
use self::system::ProcessHandle as Watched;
#[cfg(not(target_os = "linux"))]
use self::system::ProcessNumber as Watched;
use crate::cli::WrongArguments;

/// Watches the process that started this one from now on, or the one that is named; when it ends, this process hears
/// SIGTERM and stops cleanly.
///
/// The process is watched, not the thread that started this one: runtimes start children on threads that end earlier.
/// The first process of a machine or a container never ends, and is not watched unless it is named.
pub(super) fn end_with_parent(env: &Env, named: Option<Pid>) -> anyhow::Result<()> {
    let Some(parent) = named.or_else(|| getppid().filter(|parent| *parent != Pid::INIT)) else {
        return Ok(());
    };
    let watched = match Watched::of(parent) {
        Ok(watched) => watched,
        Err(Errno::SRCH) if named.is_some() => {
            let pid = parent.as_raw_nonzero();
            let what = format!("--with-parent {pid}: there is no such process; give the id of one that runs");
            return Err(WrongArguments(what).into());
        }
        // It has just ended.
        Err(Errno::SRCH) => return kill_process(getpid(), Signal::TERM).context("cannot stop"),
        Err(error) => {
            tracing::warn!(
                event = "parent_not_watched", %error,
                "cannot watch the process that started this one; this one stays when that one ends"
            );
            return Ok(());
        }
    };
    let watch = move || {
        watched.wait();
        tracing::info!(
            event = "parent_ended",
            parent = parent.as_raw_nonzero().get(),
            "the process that started this one has ended"
        );
        // This process is there: it sends the signal to itself.
        let _ = kill_process(getpid(), Signal::TERM);
    };
    env.spawn.spawn("parent", Box::new(watch)).map(drop).context("cannot start a thread")
}

#[cfg(target_os = "linux")]
mod system {
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::fd::OwnedFd;
    use rustix::io::{self, Errno};
    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    /// A process whose end is waited for.
    pub struct ProcessHandle(OwnedFd);

    impl ProcessHandle {
        pub fn of(process: Pid) -> io::Result<ProcessHandle> {
            pidfd_open(process, PidfdFlags::empty()).map(ProcessHandle)
        }

        /// Returns when it has ended.
        pub fn wait(&self) {
            let mut ends = [PollFd::new(&self.0, PollFlags::IN)];
            while poll(&mut ends, None) == Err(Errno::INTR) {}
        }
    }
}

/// Elsewhere there is no handle of a process: it is looked for every second. Another process that gets its number in
/// between is taken for it.
#[cfg(not(target_os = "linux"))]
mod system {
    use rustix::event::{Timespec, poll};
    use rustix::io::{self, Errno};
    use rustix::process::{Pid, test_kill_process};

    const LOOK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

    /// A process whose end is waited for.
    pub struct ProcessNumber(Pid);

    impl ProcessNumber {
        pub fn of(process: Pid) -> io::Result<ProcessNumber> {
            match test_kill_process(process) {
                Err(Errno::SRCH) => Err(Errno::SRCH),
                _ => Ok(ProcessNumber(process)),
            }
        }

        /// Returns when it has ended.
        pub fn wait(&self) {
            while test_kill_process(self.0) != Err(Errno::SRCH) {
                let _ = poll(&mut [], Some(&LOOK));
            }
        }
    }
}
