//! What signals ask of the process: to stop, or to read its configuration again. No other signal that people send by
//! habit ends it.

use std::future::pending;
use std::io;
use std::sync::mpsc;

use base::env::{Env, OpenMode};
use base::planted::{self, Bug};
use tokio::signal::unix::{Signal as UnixSignal, SignalKind, signal};

/// What the process is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// To stop: SIGTERM, SIGINT (Ctrl-C) or SIGQUIT, by name.
    Stop(&'static str),
    /// SIGHUP: its terminal is gone, or its configuration has changed.
    HangUp,
}

/// Where the process hears the signals that do not ask it to stop. They are kept from the first moment of a start on, so
/// that none ends it; those that ask it to stop do, as a start can be begun again.
pub struct EarlySignals {
    hang_up: Option<UnixSignal>,
    user_1: UnixSignal,
    user_2: UnixSignal,
}

impl EarlySignals {
    /// From now on they are heard; inside of a runtime. SIGHUP is not, if the process was started with it ignored, as
    /// nohup does.
    pub fn new(env: &Env) -> io::Result<EarlySignals> {
        let is_ignored = is_hang_up_ignored(env) || planted::is(Bug::HangUpNotHeard);
        let hang_up = if is_ignored { None } else { Some(signal(SignalKind::hangup())?) };
        let (user_1, user_2) = (signal(SignalKind::user_defined1())?, signal(SignalKind::user_defined2())?);
        Ok(EarlySignals { hang_up, user_1, user_2 })
    }
}

/// Where the process hears signals.
pub struct SignalListener {
    terminate: UnixSignal,
    interrupt: UnixSignal,
    quit: UnixSignal,
    early: EarlySignals,
}

impl SignalListener {
    /// From now on all signals are heard; inside of a runtime.
    pub fn new(early: EarlySignals) -> io::Result<SignalListener> {
        Ok(SignalListener {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            early,
        })
    }

    /// Tells of every signal that asks for something.
    pub async fn hear(mut self, signalled: mpsc::Sender<Signal>) -> io::Result<()> {
        loop {
            let heard = tokio::select! {
                _ = self.terminate.recv() => Some(Signal::Stop("SIGTERM")),
                _ = self.interrupt.recv() => Some(Signal::Stop("SIGINT")),
                _ = self.quit.recv() => Some(Signal::Stop("SIGQUIT")),
                () = heard(&mut self.early.hang_up) => Some(Signal::HangUp),
                _ = self.early.user_1.recv() => ignored("SIGUSR1"),
                _ = self.early.user_2.recv() => ignored("SIGUSR2"),
            };
            if let Some(heard) = heard {
                // The receiver is gone once the node is being stopped.
                let _ = signalled.send(heard);
            }
        }
    }
}

async fn heard(ear: &mut Option<UnixSignal>) {
    match ear {
        Some(ear) => drop(ear.recv().await),
        None => pending().await,
    }
}

fn ignored(signal: &str) -> Option<Signal> {
    tracing::info!(event = "signal_ignored", signal, "the signal asks for nothing here, and is ignored");
    None
}

/// Whether the process was started with SIGHUP ignored (proc(5), /proc/PID/status). False if the system does not say.
fn is_hang_up_ignored(env: &Env) -> bool {
    let read = || {
        let file = env.disk.open("/proc/self/status".as_ref(), OpenMode::Read)?;
        let mut text = vec![0; 16 << 10];
        let read = file.read_at(&mut text, 0)?;
        text.truncate(read);
        Ok::<_, io::Error>(text)
    };
    read().is_ok_and(|text| ignores(&text, SignalKind::hangup().as_raw_value()))
}

fn ignores(status: &[u8], signal: i32) -> bool {
    let text = String::from_utf8_lossy(status);
    let mask = text.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_stands_in_the_mask() {
        assert!(ignores(b"Name:\tstave\nSigIgn:\t0000000000001001\nSigCgt:\t0\n", 1));
        assert!(!ignores(b"Name:\tstave\nSigIgn:\t0000000000001000\nSigCgt:\t0000000000000001\n", 1));
        assert!(!ignores(b"", 1));
    }
}
