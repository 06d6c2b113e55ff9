//! The thread on which the links live.

use std::io;
use std::sync::{Arc, mpsc};

use base::env::{Env, Task};
use tokio::runtime::{Builder, LocalOptions};
use tokio::task::JoinSet;

use super::Shared;

/// Starts it.
pub(super) fn start(env: &Env, shared: Arc<Shared>) -> io::Result<Task> {
    let (report, reported) = mpsc::channel();
    let job = move || match Builder::new_current_thread().enable_all().build_local(LocalOptions::default()) {
        Ok(runtime) => {
            drop(report);
            runtime.block_on(run(shared));
        }
        Err(error) => drop(report.send(error)),
    };
    let thread = env.spawn.spawn("replicate", Box::new(job))?;
    match reported.recv() {
        Ok(error) => Err(error),
        Err(mpsc::RecvError) => Ok(thread),
    }
}

/// Runs every link until it is closed, and ends when the node stops and none is left.
async fn run(shared: Arc<Shared>) {
    let mut running = JoinSet::new();
    loop {
        let (new, is_stopping) = {
            let mut state = shared.state.lock();
            (std::mem::take(&mut state.new), state.is_stopping)
        };
        for link in new {
            running.spawn_local(link.run());
        }
        if is_stopping {
            break;
        }
        tokio::select! {
            () = shared.changed.notified() => {}
            Some(ended) = running.join_next() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "a link ended in a way it must not");
                }
            }
        }
    }
    while running.join_next().await.is_some() {}
}
