//! The service manager is told that a node is live while each thread that serves clients answers, and not while one hangs.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

mod support;

use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

use base::env::{Clock, Env};
use protocol::Status;
use server::watchdog::{Liveness, Watchdog};
use support::{Client, http, start, start_in};

/// What the manager allows; not what it takes.
const ALLOWED: Duration = Duration::from_millis(200);
/// For what is to come; far more than it takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Far more than there are before a hang is seen.
const MOST_BEATS: u32 = 300;

/// The machine's clock, which threads whose names begin so do not come back from while it is shut.
struct Door {
    clock: Arc<dyn Clock>,
    shut_for: Mutex<Option<&'static str>>,
    opened: Condvar,
}

impl Door {
    fn set(&self, shut_for: Option<&'static str>) {
        *self.shut_for.lock().expect("no test panics here") = shut_for;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let thread = std::thread::current();
        let is_shut = |shut: &mut Option<&str>| {
            shut.is_some_and(|name| thread.name().unwrap_or_default().starts_with(name))
        };
        let shut = self.shut_for.lock().expect("no test panics here");
        drop(self.opened.wait_while(shut, is_shut).expect("no test panics here"));
    }
}

impl Clock for Door {
    fn unix_ns(&self) -> u64 {
        self.clock.unix_ns()
    }

    fn monotonic_ns(&self) -> u64 {
        self.pass();
        self.clock.monotonic_ns()
    }
}

fn world() -> (Env, Arc<Door>) {
    let real = Env::real();
    let door = Door { clock: Arc::clone(&real.clock), shut_for: Mutex::default(), opened: Condvar::new() };
    let door = Arc::new(door);
    (Env { clock: Arc::clone(&door) as Arc<dyn Clock>, ..real }, door)
}

/// Opens the door when a test ends early: a thread that hangs is not joined.
struct Opens(Arc<Door>);

impl Drop for Opens {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

#[test]
fn an_idle_node_is_live() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let (tell, told) = mpsc::channel();
    let watchdog = Watchdog::start(&Env::real(), server.watched(), ALLOWED, move |what| _ = tell.send(what));
    let watchdog = watchdog.expect("a thread");
    // A busy machine may be late, which is said and is over.
    let mut beats = 0;
    while beats < 5 {
        beats += u32::from(told.recv_timeout(PATIENCE).expect("a beat") == Liveness::Live);
    }
    drop(watchdog);
    server.stop().expect("a clean stop");
}

#[test]
fn a_worker_that_hangs_ends_the_beats_until_it_answers_again() {
    for (name, hangs) in [("worker-", "worker-0"), ("http", "http")] {
        let folder = tempfile::tempdir().expect("a folder");
        let (env, door) = world();
        let _opens = Opens(Arc::clone(&door));
        let server = start_in(env, folder.path(), "threads = 1\n");
        let (tell, told) = mpsc::channel();
        // Its own clock is open.
        let watchdog =
            Watchdog::start(&Env::real(), server.watched(), ALLOWED, move |what| _ = tell.send(what));
        let watchdog = watchdog.expect("a thread");
        assert_eq!(told.recv_timeout(PATIENCE), Ok(Liveness::Live));
        door.set(Some(name));
        let names_it = |what: &Liveness| matches!(what, Liveness::Hang(threads) if threads.iter().any(|thread| thread == hangs));
        // A worker comes to the door once a second, when it ticks.
        let within = (0..MOST_BEATS).map(|_| told.recv_timeout(PATIENCE).expect("it is told"));
        assert!({ within }.any(|what| names_it(&what)), "{hangs} hangs, and the beats go on");
        // Longer than the manager waits before it ends the process. Others may be late, too, on a busy machine.
        while let Ok(what) = told.recv_timeout(ALLOWED * 2) {
            assert!(matches!(what, Liveness::Hang(_)), "{hangs} hangs, and the manager is told {what:?}");
        }
        door.set(None);
        while told.recv_timeout(PATIENCE).expect("a beat") != Liveness::Live {}
        assert_eq!(told.recv_timeout(PATIENCE), Ok(Liveness::Recovered));
        let mut client = Client::connect(&server, "default", &[]);
        assert_eq!(client.set(b"k", b"1"), Some(Status::Success));
        assert_eq!(http(&server, "GET", "/healthz", "").0, 200);
        drop(watchdog);
        server.stop().expect("a clean stop");
    }
}

#[test]
fn a_node_that_stops_is_live_to_its_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let (tell, told) = mpsc::channel();
    let watchdog = Watchdog::start(&Env::real(), server.watched(), ALLOWED, move |what| _ = tell.send(what));
    let watchdog = watchdog.expect("a thread");
    watchdog.stopping();
    server.stop().expect("a clean stop");
    // None of its threads is there any more.
    let hung = told.try_iter().filter(|what| *what != Liveness::Live).count();
    let mut beats = 0;
    while beats < 2 {
        beats += u32::from(told.recv_timeout(PATIENCE).expect("a beat") == Liveness::Live);
    }
    drop(watchdog);
    // What was late before the stop may have been said, and is over.
    assert!(hung <= 2 && told.into_iter().all(|what| !matches!(what, Liveness::Hang(_))), "{hung}");
}
