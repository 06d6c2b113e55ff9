//! Tells the service manager that the process is live, for as long as each thread that serves clients is (record 0195).
//!
//! No beat is sent unless each of these threads has answered a question, or was seen waiting for the disk, since the beat
//! before it. A thread that hangs (in a circle of locks, in a loop without an end) does not answer; the manager hears no
//! beat, and ends the process. A slow disk is no such reason: a new process would wait for the same disk.
//!
//! Threads of buckets, which may wait for the disk at any time, are not asked.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use base::env::{Env, File, OpenMode, Task};
use tokio::sync::Notify;

/// What the system says of the thread that opens it (proc(5)).
const STATE_OF_THREAD: &str = "/proc/thread-self/stat";
/// So often the threads are looked at between two beats: one that is late delays a beat by a part of the time alone.
const LOOKS: u32 = 8;
/// The shortest time between two looks, whatever the manager asks for.
const LEAST_STEP: Duration = Duration::from_millis(1);

/// A thread with an async runtime, which answers as soon as that runtime comes to it.
pub struct WatchedThread {
    name: String,
    asked: AtomicU64,
    answered: AtomicU64,
    question: Notify,
    /// What the system says of the thread; opened by the thread at its first answer.
    state: OnceLock<Option<Arc<dyn File>>>,
}

impl WatchedThread {
    /// A thread of this name. While it is not asked it costs nothing.
    pub(crate) fn new(name: &str) -> Arc<WatchedThread> {
        Arc::new(WatchedThread {
            name: name.to_owned(),
            asked: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            question: Notify::new(),
            state: OnceLock::new(),
        })
    }

    /// Answers for as long as it is polled, on the thread itself.
    pub(crate) async fn answer(&self, env: &Env) {
        loop {
            self.question.notified().await;
            self.state.get_or_init(|| {
                let disk = env.beneath().disk;
                disk.open(STATE_OF_THREAD.as_ref(), OpenMode::Read).ok()
            });
            self.answered.store(self.asked.load(Ordering::Acquire), Ordering::Release);
        }
    }

    fn ask(&self) {
        self.asked.fetch_add(1, Ordering::AcqRel);
        self.question.notify_one();
    }

    fn is_live(&self) -> bool {
        self.answered.load(Ordering::Acquire) == self.asked.load(Ordering::Acquire) || self.waits_for_disk()
    }

    /// Whether the thread is in a call that waits for a disk at this moment. False if the system does not say.
    fn waits_for_disk(&self) -> bool {
        let Some(Some(file)) = self.state.get() else { return false };
        let mut text = [0; 512];
        file.read_at(&mut text, 0).is_ok_and(|read| is_disk_sleep(&text[..read]))
    }
}

/// Whether a thread is in the state D, uninterruptible sleep, by its `stat`: `PID (NAME) STATE ...`.
fn is_disk_sleep(stat: &[u8]) -> bool {
    // The name may hold anything.
    let end = stat.iter().rposition(|byte| *byte == b')');
    end.is_some_and(|end| stat[end + 1..].trim_ascii_start().first() == Some(&b'D'))
}

/// What the manager may be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// The process is live.
    Live,
    /// These threads have not answered for half of the time that the manager allows. Said once of each until the next beat.
    Hang(Vec<String>),
    /// All answer again, after they hung.
    Recovered,
}

/// Decides when the process counts as live.
///
/// # Units
///
/// Times are those of a monotonic clock.
struct Judge {
    /// Between two beats.
    period: Duration,
    last_beat: Duration,
    /// Which threads were live since the last beat.
    seen: Vec<bool>,
    /// Which threads were said to be late since then.
    said: Vec<bool>,
}

/// What comes of a look.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// It is too early for a beat, or threads are late, of all of which that was said.
    Wait,
    /// A beat, and the next question; whether a hang is over.
    Beat { recovered: bool },
    /// Threads that are late, and of which that was not said.
    Late(Vec<usize>),
}

impl Judge {
    fn new(period: Duration, threads: usize, now: Duration) -> Judge {
        Judge { period, last_beat: now, seen: vec![false; threads], said: vec![false; threads] }
    }

    fn look(&mut self, now: Duration, is_live: impl Fn(usize) -> bool) -> Verdict {
        for (at, seen) in self.seen.iter_mut().enumerate() {
            *seen = *seen || is_live(at);
        }
        if now.saturating_sub(self.last_beat) < self.period {
            return Verdict::Wait;
        }
        if self.seen.iter().all(|seen| *seen) {
            self.last_beat = now;
            self.seen.fill(false);
            let recovered = self.said.contains(&true);
            self.said.fill(false);
            return Verdict::Beat { recovered };
        }
        let late: Vec<usize> = (0..self.seen.len()).filter(|at| !self.seen[*at] && !self.said[*at]).collect();
        late.iter().for_each(|at| self.said[*at] = true);
        if late.is_empty() { Verdict::Wait } else { Verdict::Late(late) }
    }
}

/// The thread that asks, and beats. Dropping it ends the beats.
pub struct Watchdog {
    is_stopping: Arc<AtomicBool>,
    _goes_on: mpsc::Sender<()>,
    _thread: Task,
}

impl Watchdog {
    /// Starts it. `allowed` is the longest time without a beat after which the manager ends the process; `tell` may block.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub fn start(
        env: &Env,
        threads: Vec<Arc<WatchedThread>>,
        allowed: Duration,
        tell: impl Fn(Liveness) + Send + 'static,
    ) -> io::Result<Watchdog> {
        let (goes_on, ends) = mpsc::channel();
        let is_stopping = Arc::new(AtomicBool::new(false));
        let clock = Arc::clone(&env.clock);
        let stopping = Arc::clone(&is_stopping);
        let job = move || {
            let (period, step) = (allowed / 2, (allowed / 2 / LOOKS).max(LEAST_STEP));
            let ask = || threads.iter().for_each(|thread| thread.ask());
            let mut judge = Judge::new(period, threads.len(), clock.monotonic());
            ask();
            tell(Liveness::Live);
            while ends.recv_timeout(step) == Err(mpsc::RecvTimeoutError::Timeout) {
                let is_live = |at: usize| stopping.load(Ordering::Acquire) || threads[at].is_live();
                match judge.look(clock.monotonic(), is_live) {
                    Verdict::Wait => {}
                    Verdict::Beat { recovered } => {
                        ask();
                        tell(Liveness::Live);
                        if recovered {
                            tell(Liveness::Recovered);
                            tracing::info!(
                                event = "threads_answer",
                                "all threads that serve clients answer again"
                            );
                        }
                    }
                    Verdict::Late(late) => {
                        let names: Vec<String> = late.iter().map(|at| threads[*at].name.clone()).collect();
                        // The log's file may be what hangs.
                        tell(Liveness::Hang(names.clone()));
                        log_hang(&names, period, allowed);
                    }
                }
            }
        };
        let thread = env.spawn.spawn("watchdog", Box::new(job))?;
        Ok(Watchdog { is_stopping, _goes_on: goes_on, _thread: thread })
    }

    /// The process stops: from now on it counts as live, since its threads end one after the other. The manager has a
    /// limit of its own for a stop.
    pub fn stopping(&self) {
        self.is_stopping.store(true, Ordering::Release);
    }
}

fn log_hang(names: &[String], period: Duration, allowed: Duration) {
    tracing::error!(
        event = "threads_hang",
        threads = names.join(" "),
        for_ms = period.as_millis() as u64,
        allowed_ms = allowed.as_millis() as u64,
        "threads that serve clients do not answer: the service manager is not told that the node is live, and ends it \
         when its time is over"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A simulated clock, and which threads are live.
    struct World {
        now: Duration,
        live: Vec<bool>,
        judge: Judge,
    }

    impl World {
        fn new() -> World {
            let judge = Judge::new(Duration::from_secs(8), 2, Duration::ZERO);
            World { now: Duration::ZERO, live: vec![true, true], judge }
        }

        /// Looks once a second.
        fn pass(&mut self, seconds: u64) -> Vec<Verdict> {
            (0..seconds)
                .map(|_| {
                    self.now += Duration::from_secs(1);
                    self.judge.look(self.now, |at| self.live[at])
                })
                .filter(|verdict| *verdict != Verdict::Wait)
                .collect()
        }
    }

    const BEAT: Verdict = Verdict::Beat { recovered: false };

    #[test]
    fn a_process_whose_threads_answer_beats_at_half_of_the_time() {
        let mut world = World::new();
        assert_eq!(world.pass(7), []);
        assert_eq!(world.pass(1), [BEAT]);
        assert_eq!(world.pass(24), [BEAT, BEAT, BEAT]);
    }

    #[test]
    fn one_thread_that_hangs_keeps_the_beat_back_and_is_named_once() {
        let mut world = World::new();
        assert_eq!(world.pass(8), [BEAT]);
        world.live[1] = false;
        assert_eq!(world.pass(7), []);
        assert_eq!(world.pass(100), [Verdict::Late(vec![1])]);
        world.live[0] = false;
        assert_eq!(world.pass(8), [], "it was live once");
        world.live[1] = true;
        assert_eq!(world.pass(1), [Verdict::Beat { recovered: true }], "at once");
        assert_eq!(world.pass(100), [Verdict::Late(vec![0])]);
        world.live[0] = true;
        assert_eq!(world.pass(1), [Verdict::Beat { recovered: true }]);
        assert_eq!(world.pass(8), [BEAT]);
    }

    #[test]
    fn a_thread_that_was_live_at_one_look_since_the_last_beat_is_no_reason() {
        let mut world = World::new();
        assert_eq!(world.pass(8), [BEAT]);
        world.live[0] = false;
        assert_eq!(world.pass(3), []);
        world.live[0] = true;
        assert_eq!(world.pass(1), []);
        world.live[0] = false;
        assert_eq!(world.pass(4), [BEAT], "it answered meanwhile");
        assert_eq!(world.pass(8), [Verdict::Late(vec![0])]);
    }

    #[test]
    fn a_process_that_was_stopped_and_goes_on_beats_at_its_next_look() {
        let mut world = World::new();
        assert_eq!(world.pass(9), [BEAT]);
        world.now += Duration::from_secs(3600);
        assert_eq!(world.pass(1), [BEAT]);
        assert_eq!(world.pass(7), []);
    }

    #[test]
    fn the_state_of_a_thread_stands_behind_its_name() {
        assert!(is_disk_sleep(b"12 (worker-0) D 1 12 12 0"));
        assert!(!is_disk_sleep(b"12 (worker-0) S 1 12 12 0"));
        assert!(!is_disk_sleep(b"12 (a) D) S 1 12 12 0"));
        assert!(!is_disk_sleep(b"12 (worker-0)"));
        assert!(!is_disk_sleep(b""));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_that_runs_does_not_wait_for_the_disk() {
        let env = Env::real();
        let watched = WatchedThread::new("this");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        watched.ask();
        assert!(!watched.is_live(), "it was asked and has not answered");
        let answered = async {
            tokio::select! {
                () = watched.answer(&env) => {}
                () = async { while !watched.is_live() { tokio::task::yield_now().await } } => {}
            }
        };
        runtime.block_on(answered);
        let file = watched.state.get().and_then(Option::as_ref).expect("the system says it");
        let mut text = [0; 512];
        let read = file.read_at(&mut text, 0).expect("it is read");
        assert!(String::from_utf8_lossy(&text[..read]).contains(") R "), "{:?}", &text[..read]);
        assert!(!watched.waits_for_disk());
    }
}
