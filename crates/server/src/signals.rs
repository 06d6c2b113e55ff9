//! How the process hears that it shall stop.

use std::io;
use std::sync::mpsc;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Where the process hears that it shall stop: SIGTERM, and Ctrl-C.
pub(crate) struct Ears {
    terminate: Signal,
    interrupt: Signal,
}

impl Ears {
    /// From now on signals are heard; inside of a runtime.
    pub(crate) fn new() -> io::Result<Ears> {
        Ok(Ears { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Tells of every signal.
    pub(crate) async fn hear(mut self, signalled: mpsc::Sender<()>) -> io::Result<()> {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => {}
                _ = self.interrupt.recv() => {}
            }
            // Nobody listens any more once the node is being stopped.
            let _ = signalled.send(());
        }
    }
}
