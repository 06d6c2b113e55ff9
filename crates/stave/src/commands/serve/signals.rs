//! What a node makes of signals: it stops, or reads its configuration again (record 0172).

use base::env::{Env, OpenMode};
use server::Server;
use server::signals::Signal;

use super::host_names::KnownNames;
use super::{ServeFlags, Setup};
use crate::log::{Followed, Log};

/// What is needed to read the configuration again.
pub(super) struct Again<'e> {
    pub(super) env: &'e Env,
    pub(super) flags: ServeFlags,
    pub(super) descriptors: Option<u64>,
    pub(super) names: KnownNames,
    pub(super) log: Log,
    pub(super) terminal: Terminal,
}

/// The terminal that a process was started from (tty(4)). The system takes it from the process before it sends SIGHUP.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terminal {
    was_there: bool,
}

impl Terminal {
    /// What a process has at its start. Services and most containers have none.
    pub(super) fn of_process(env: &Env) -> Terminal {
        Terminal { was_there: is_there(env) }
    }

    /// Whether it has been closed.
    fn is_gone(self, env: &Env) -> bool {
        self.was_there && !is_there(env)
    }
}

fn is_there(env: &Env) -> bool {
    env.disk.open("/dev/tty".as_ref(), OpenMode::Read).is_ok()
}

impl Again<'_> {
    /// Waits until the node is told to stop.
    pub(super) fn wait_for_stop(&mut self, server: &Server) {
        while !self.is_stop(server, server.next_signal()) {}
    }

    /// Whether a signal tells the node to stop. If it does not, what it asks for is done.
    pub(super) fn is_stop(&mut self, server: &Server, signal: Signal) -> bool {
        match signal {
            Signal::Stop(signal) => {
                tracing::info!(event = "stop_signal", signal, "stopping");
                true
            }
            // Without a configuration file the node was started by hand, and its user has left.
            Signal::HangUp if self.flags.config.is_none() && self.terminal.is_gone(self.env) => {
                tracing::info!(event = "stop_signal", signal = "SIGHUP", "the terminal is closed: stopping");
                true
            }
            Signal::HangUp => {
                self.reload(server);
                false
            }
        }
    }

    /// A file that is not valid changes nothing.
    fn reload(&mut self, server: &Server) {
        let setup = match Setup::read(self.env, self.flags.clone(), self.descriptors, &mut self.names) {
            Ok(setup) => setup,
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(
                    event = "configuration_invalid",
                    error,
                    "the configuration is not valid: nothing was changed"
                );
                server.reload_refused();
                return;
            }
        };
        let wrapping = setup.config.encryption.as_ref();
        let log = match self.log.follow(self.env, &setup.log, wrapping, false) {
            Ok(log) => log,
            Err(error) => {
                tracing::error!(
                    event = "configuration_invalid",
                    error,
                    "the configuration is not valid: nothing was changed"
                );
                server.reload_refused();
                return;
            }
        };
        self.log.hand_over_keys(server.node());
        let Followed { levels: log, taken } = log;
        let told = server.reload_with(setup.config, taken);
        if !told.refused.is_empty() {
            tracing::error!(event = "configuration_reread", log, "the configuration was read again; {told}");
        } else if !told.waiting.is_empty() {
            tracing::warn!(event = "configuration_reread", log, "the configuration was read again; {told}");
        } else {
            tracing::info!(event = "configuration_reread", log, "the configuration was read again; {told}");
        }
    }
}
