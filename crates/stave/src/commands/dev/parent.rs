//! Ends the process when the one that started it ends, so that tests that are killed leave no cluster behind.

use anyhow::Context;
use base::env::Env;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, getppid, kill_process, pidfd_open};

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
    let handle = match pidfd_open(parent, PidfdFlags::empty()) {
        Ok(handle) => handle,
        Err(Errno::SRCH) if named.is_some() => {
            let pid = parent.as_raw_nonzero();
            let what = format!("--with-parent {pid}: there is no such process; give the id of one that runs");
            return Err(WrongArguments(what).into());
        }
        // It has just ended.
        Err(Errno::SRCH) => return kill_process(getpid(), Signal::TERM).context("cannot stop"),
        Err(error) => {
            tracing::warn!(%error, "cannot watch the process that started this one; this one stays when that one ends");
            return Ok(());
        }
    };
    let watch = move || {
        let mut ends = [PollFd::new(&handle, PollFlags::IN)];
        while poll(&mut ends, None) == Err(Errno::INTR) {}
        tracing::info!(parent = parent.as_raw_nonzero().get(), "the process that started this one has ended");
        // This process is there: it sends the signal to itself.
        let _ = kill_process(getpid(), Signal::TERM);
    };
    env.spawn.spawn("parent", Box::new(watch)).map(drop).context("cannot start a thread")
}
