//! The service manager that started the node, if one did: it is told when the node serves, that it is live, and when it
//! stops (sd_notify(3); records 0105 and 0195).

use std::io;

use base::env::Env;
use sd_notify::NotifyState;
use server::Server;
use server::watchdog::{Liveness, Watchdog};

/// What the manager is told with.
pub(super) struct Manager {
    /// If the manager ends processes that are not live (`WATCHDOG_USEC`, and `WATCHDOG_PID` if it is there).
    watchdog: Option<Watchdog>,
}

impl Manager {
    /// Tells the manager from now on that the node is live, if it asks for that.
    pub(super) fn of_process(env: &Env, server: &Server) -> io::Result<Manager> {
        let allowed = sd_notify::watchdog_enabled().filter(|allowed| !allowed.is_zero());
        let watchdog = allowed.map(|allowed| Watchdog::start(env, server.watched(), allowed, tell_life));
        Ok(Manager { watchdog: watchdog.transpose()? })
    }

    /// The node serves.
    pub(super) fn ready(&self) {
        tell(&[NotifyState::Ready]);
    }

    /// What the node waits for, for `systemctl status`.
    pub(super) fn waits(&self, what: &str) {
        tell(&[NotifyState::Status(what)]);
    }

    /// The node stops, which takes as long as there is much to be written.
    pub(super) fn stopping(&self) {
        tell(&[NotifyState::Stopping]);
        self.watchdog.iter().for_each(Watchdog::stopping);
    }
}

fn tell_life(told: Liveness) {
    match told {
        Liveness::Live => tell(&[NotifyState::Watchdog]),
        Liveness::Hang(threads) => {
            tell(&[NotifyState::Status(&format!("threads that do not answer: {}", threads.join(", ")))]);
        }
        Liveness::Recovered => tell(&[NotifyState::Status("all threads answer again")]),
    }
}

/// Tells the manager (`NOTIFY_SOCKET`), if there is one.
fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(
            event = "service_manager_not_told", %error,
            "the service manager (NOTIFY_SOCKET) was not told how the node is, and may take it for one that hangs"
        );
    }
}
