//! What a node makes of signals: it stops, or reads its configuration again (record 0172).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use base::env::{Env, OpenMode};
use node::reload::Reloaded;
use server::Server;
use server::etcd::EtcdAddress;
use server::signals::Signal;

use super::super::etcd_flags::{EtcdNames, EtcdTexts};
use super::etcd_files::EtcdFiles;
use super::host_names::KnownNames;
use super::{ServeFlags, Setup};
use crate::log::{FollowedLog, Log};

/// What is needed to read the configuration again.
pub(super) struct Again<'e> {
    pub(super) env: &'e Env,
    pub(super) flags: ServeFlags,
    pub(super) descriptors: Option<u64>,
    pub(super) names: KnownNames,
    pub(super) log: Log,
    pub(super) terminal: Terminal,
    /// The cluster that the node joined at its start.
    pub(super) join: Option<EtcdAddress>,
    /// `None` as long as it has joined none.
    pub(super) etcd: Option<EtcdFiles>,
}

/// Between two looks at whether a stop is asked for, while a configuration is read.
const HEARS_EVERY: Duration = Duration::from_millis(20);

/// What came of reading the configuration again.
enum ReadAgain {
    /// It was read, or refused for this reason. Whether SIGHUP came meanwhile.
    Read(Result<Box<Setup>, String>, bool),
    /// The node is to stop.
    Stop,
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

/// What becomes of that which the configuration has etcd shown: `files` takes it, if the node goes on with the etcd that it is
/// for. What cannot be used is told in any case: with that the node would not start again.
fn follow_etcd(
    files: Option<&EtcdFiles>,
    (names, texts): (EtcdNames, anyhow::Result<EtcdTexts>),
    beside: &mut Reloaded,
) {
    let what = "etcd-user, etcd-password-file, etcd-ca, etcd-cert, etcd-key";
    let Some(files) = files else {
        if let Err(error) = texts {
            beside.refused.push(format!("{what}, without which the node does not start again: {error:#}"));
        }
        return;
    };
    match texts.and_then(|texts| files.change(names, texts)) {
        Ok(true) => beside.taken.push(format!("{what}, for requests from now on")),
        Ok(false) => {}
        Err(error) => beside.refused.push(format!("{what}, which stay as they were: {error:#}")),
    }
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
            Signal::HangUp if self.is_end_of_terminal() => {
                tracing::info!(event = "stop_signal", signal = "SIGHUP", "the terminal is closed: stopping");
                true
            }
            Signal::HangUp => self.reload(server),
        }
    }

    /// Reads the configuration again. A file that is not valid changes nothing. Whether the node is to stop.
    fn reload(&mut self, server: &Server) -> bool {
        loop {
            match self.read_again(server) {
                ReadAgain::Stop => return true,
                ReadAgain::Read(read, is_asked_again) => {
                    match read.and_then(|setup| self.apply(server, *setup)) {
                        Ok(()) => {}
                        Err(error) => {
                            tracing::error!(
                                event = "configuration_invalid",
                                error,
                                "the configuration is not valid: nothing was changed"
                            );
                            server.reload_refused();
                        }
                    }
                    if !is_asked_again {
                        return false;
                    }
                }
            }
        }
    }

    /// Reads on a thread of its own, since a disk, a name server or the command that prints a key may not answer: a stop is heard
    /// meanwhile.
    fn read_again(&mut self, server: &Server) -> ReadAgain {
        let (done, reads) = mpsc::channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        let (env, flags, descriptors) = (self.env.clone(), self.flags.clone(), self.descriptors);
        let (mut names, is_cancelled) = (self.names.clone(), Arc::clone(&cancelled));
        let read = move || {
            let setup = Setup::read(&env, flags, descriptors, &mut names, &is_cancelled);
            // If it is not waited for any more, the node stops.
            let _ = done.send((setup.map_err(|error| format!("{error:#}")), names));
        };
        let mut is_asked_again = false;
        if let Err(error) = self.env.spawn.spawn("configuration", Box::new(read)) {
            return ReadAgain::Read(Err(format!("cannot start a thread: {error}")), false);
        }
        loop {
            match reads.recv_timeout(HEARS_EVERY) {
                Ok((setup, names)) => {
                    self.names = names;
                    return ReadAgain::Read(setup.map(Box::new), is_asked_again);
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let why = "reading it ended with a panic, which is an error of this program".to_owned();
                    return ReadAgain::Read(Err(why), is_asked_again);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            match server.signal_within(Duration::ZERO) {
                None => {}
                Some(Signal::HangUp) if !self.is_end_of_terminal() => is_asked_again = true,
                Some(signal) => {
                    cancelled.store(true, Ordering::SeqCst);
                    self.is_stop(server, signal);
                    return ReadAgain::Stop;
                }
            }
        }
    }

    /// Without a configuration file the node was started by hand, and its user has left.
    fn is_end_of_terminal(&self) -> bool {
        self.flags.config.is_none() && self.terminal.is_gone(self.env)
    }

    fn apply(&mut self, server: &Server, setup: Setup) -> Result<(), String> {
        if let Some(why) = server.why_not_keys(&setup.config) {
            return Err(why);
        }
        let wrapping = setup.config.encryption.as_ref();
        let log = self.log.follow(self.env, &setup.log, wrapping, false)?;
        self.log.hand_over_keys(server.node());
        let FollowedLog { levels: log, taken } = log;
        let mut beside = Reloaded { taken, ..Reloaded::default() };
        let is_another = setup.join.is_some() && self.join.is_some() && setup.join != self.join;
        if is_another {
            beside.waiting.push("join, and what etcd is shown there".to_owned());
        }
        // The etcd that this node goes on with is not shown what is for another one.
        follow_etcd(self.etcd.as_ref().filter(|_| !is_another), setup.etcd, &mut beside);
        let told = server.reload_beside(setup.config, beside);
        if !told.refused.is_empty() {
            tracing::error!(event = "configuration_reread", log, "the configuration was read again; {told}");
        } else if !told.waiting.is_empty() {
            tracing::warn!(event = "configuration_reread", log, "the configuration was read again; {told}");
        } else {
            tracing::info!(event = "configuration_reread", log, "the configuration was read again; {told}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_for_another_etcd_is_told_if_it_cannot_be_used() {
        let names = || EtcdNames::of(&node::config::Settings::default()).expect("there are none");
        let mut beside = Reloaded::default();
        follow_etcd(None, (names(), Ok(EtcdTexts::default())), &mut beside);
        assert!(beside.refused.is_empty(), "{:?}", beside.refused);
        follow_etcd(None, (names(), Err(anyhow::anyhow!("half written"))), &mut beside);
        assert!(beside.refused[0].contains("does not start again: half written"), "{:?}", beside.refused);
    }
}
