//! What the nodes of a test's process log.

use std::io;
use std::sync::{Arc, Mutex, OnceLock};

/// What all nodes of this process log.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// All tests of a binary listen to one log.
    pub fn listen() -> Log {
        static LOG: OnceLock<Log> = OnceLock::new();
        let begin = || {
            let log = Log::default();
            let writer = log.clone();
            let writer = move || writer.clone();
            tracing_subscriber::fmt().with_ansi(false).with_writer(writer).init();
            log
        };
        LOG.get_or_init(begin).clone()
    }

    /// Whether one line has all of these parts.
    pub fn has_line(&self, parts: &[&str]) -> bool {
        let told = String::from_utf8_lossy(&self.0.lock().expect("nobody panics with it")).into_owned();
        told.lines().any(|line| parts.iter().all(|part| line.contains(part)))
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("nobody panics with it").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
