//! The thread on which the links live.

use std::io;
use std::sync::{Arc, mpsc};

use ::node::doors::{LinkRunner, Timer};
use ::node::replication::download::{Bring, Download, DownloadDial, run_download};
use ::node::replication::{Dial, Link, LinkError, Links, Pace, run};
use base::env::{Env, Task};
use tokio::runtime::{Builder, LocalOptions};
use tokio::task::JoinSet;

use super::wire::Wire;
use crate::timer::RuntimeTimer;
use crate::tls::PeerTls;

/// Runs all links of a node on one thread with its own runtime.
pub struct RuntimeLinks(PeerTls);

impl RuntimeLinks {
    /// Connects so encrypted.
    pub(crate) fn new(tls: PeerTls) -> RuntimeLinks {
        RuntimeLinks(tls)
    }
}

impl LinkRunner for RuntimeLinks {
    fn is_encrypted(&self) -> bool {
        self.0.for_documents().is_some()
    }

    fn download(&self, env: &Env, download: Download) -> io::Result<Task> {
        copy_file(self.0.clone(), env, download)
    }

    fn start(&self, env: &Env, links: Arc<Links>) -> io::Result<Task> {
        let (report, reported) = mpsc::channel();
        let tls = self.0.clone();
        let job =
            move || match Builder::new_current_thread().enable_all().build_local(LocalOptions::default()) {
                Ok(runtime) => {
                    drop(report);
                    runtime.block_on(run_all(links, tls));
                }
                Err(error) => drop(report.send(error)),
            };
        let thread = env.spawn.spawn("replicate", Box::new(job))?;
        match reported.recv() {
            Ok(error) => Err(error),
            Err(mpsc::RecvError) => Ok(thread),
        }
    }
}

/// Copies a file on a thread of its own.
fn copy_file(tls: PeerTls, env: &Env, download: Download) -> io::Result<Task> {
    let job = move || match Builder::new_current_thread().enable_all().build_local(LocalOptions::default()) {
        Ok(runtime) => runtime.block_on(run_download(download, &FileDial(tls))),
        // Who waits for it is told that it was given up.
        Err(_) => drop(download),
    };
    env.spawn.spawn("download", Box::new(job))
}

/// Connects to copy files.
struct FileDial(PeerTls);

impl DownloadDial for FileDial {
    type Wire = Wire;

    async fn connect(&self, env: &Env, node: &str) -> Result<Wire, LinkError> {
        Wire::connect(env, node, self.0.for_documents()).await
    }

    fn timer(&self) -> &dyn Timer {
        &RuntimeTimer
    }
}

/// The time of the runtime that polls.
pub(super) struct RuntimePace;

impl Pace for RuntimePace {
    fn timer(&self) -> &dyn Timer {
        &RuntimeTimer
    }

    fn give_turns(&self) -> impl Future<Output = ()> {
        tokio::task::yield_now()
    }
}

/// Connects over sockets, encrypted with this.
struct RuntimeDial(PeerTls);

impl Dial for RuntimeDial {
    type Wire = Wire;
    type Pace = RuntimePace;

    async fn connect(&self, link: &Link) -> Result<Wire, LinkError> {
        Wire::connect(link.env(), link.node(), self.0.for_documents()).await
    }

    fn pace(&self) -> &RuntimePace {
        &RuntimePace
    }

    fn files(&self) -> Bring {
        let tls = self.0.clone();
        Arc::new(move |env, download| copy_file(tls.clone(), env, download))
    }
}

/// Runs every link until it is closed, and ends when the node stops and none is left.
async fn run_all(links: Arc<Links>, tls: PeerTls) {
    let mut running = JoinSet::new();
    loop {
        let is_stopping = links.is_stopping();
        for link in links.take_new() {
            running.spawn_local(run(link, RuntimeDial(tls.clone())));
        }
        if is_stopping {
            break;
        }
        tokio::select! {
            () = links.changed() => {}
            Some(ended) = running.join_next() => {
                if let Err(error) = ended {
                    tracing::error!(event = "link_panicked", %error, "a link ended in a way it must not");
                }
            }
        }
    }
    while running.join_next().await.is_some() {}
}
