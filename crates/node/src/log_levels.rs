//! How much the process logs, by part, which an operator may change while it runs. A process has one log, whatever nodes it
//! runs.
//!
//! What the levels mean is the process's: this hands on what it is told, and remembers it.

use std::fmt;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

/// Longer levels are not taken.
const MOST_BYTES: usize = 1 << 10;
/// The levels under which a change of the levels is logged.
const OF_A_CHANGE: &str = "info";

/// Has the log follow levels as they are written in the configuration; why it does not.
type Apply = Box<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

#[derive(Default)]
struct HeldLevels {
    /// What configuration or environment say.
    configured: String,
    /// What was said since, until the next start.
    own: Option<String>,
}

#[derive(Default)]
struct SharedLevels {
    apply: OnceLock<Apply>,
    state: Mutex<HeldLevels>,
}

/// The levels of the process's log. Clones are of the same ones.
#[derive(Clone, Default)]
pub struct LogLevels(Arc<SharedLevels>);

/// What holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Levels {
    /// What is logged.
    pub present: String,
    /// What is logged after a start.
    pub configured: String,
}

impl LogLevels {
    /// Says what makes the log follow levels, and what holds now.
    pub fn drive(
        &self,
        configured: &str,
        apply: impl Fn(&str) -> Result<(), String> + Send + Sync + 'static,
    ) {
        // A process starts its log once.
        let _ = self.0.apply.set(Box::new(apply));
        configured.clone_into(&mut self.0.state.lock().configured);
    }

    /// What holds.
    pub fn levels(&self) -> Levels {
        let state = self.0.state.lock();
        let present = state.own.as_ref().unwrap_or(&state.configured).clone();
        Levels { present, configured: state.configured.clone() }
    }

    /// Has the log follow other levels until the next start, or with `None` those of the configuration again. The levels
    /// before and after, or why nothing was changed.
    pub fn set(&self, wanted: Option<&str>) -> Result<(String, String), String> {
        let Some(apply) = self.0.apply.get() else {
            return Err("the process has no log whose levels can be changed".to_owned());
        };
        if wanted.is_some_and(|wanted| wanted.len() > MOST_BYTES) {
            return Err(format!("the levels are longer than {MOST_BYTES} bytes"));
        }
        // Held meanwhile, so that the log follows what is remembered.
        let mut state = self.0.state.lock();
        let after = wanted.unwrap_or(&state.configured).to_owned();
        apply(&after)?;
        let before = state.own.take().unwrap_or_else(|| state.configured.clone());
        state.own = wanted.map(str::to_owned);
        // Whatever the levels before and after: a log that falls silent says by whose doing.
        apply(OF_A_CHANGE)?;
        tracing::info!(event = "log_levels_changed", before, after, "log levels changed");
        apply(&after)?;
        Ok((before, after))
    }

    /// Has the log follow what the configuration says from now on.
    pub fn follow(&self, configured: &str) -> Result<(), String> {
        let Some(apply) = self.0.apply.get() else { return Ok(()) };
        let mut state = self.0.state.lock();
        apply(configured)?;
        *state = HeldLevels { configured: configured.to_owned(), own: None };
        Ok(())
    }
}

/// The levels of the log that a verbosity stands for, as the field counts them; `None` for those of the configuration.
pub fn of_verbosity(extras: &[u8]) -> Option<&'static str> {
    match extras.try_into().map_or(u32::MAX, u32::from_be_bytes) {
        0 => None,
        1 => Some("debug"),
        _ => Some("trace"),
    }
}

impl fmt::Debug for LogLevels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogLevels")
    }
}

impl PartialEq for LogLevels {
    fn eq(&self, other: &LogLevels) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for LogLevels {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_changed_until_the_configuration_says_otherwise() {
        let levels = LogLevels::default();
        assert!(levels.set(Some("debug")).is_err(), "nothing follows them");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let follows = Arc::clone(&seen);
        levels.drive("info", move |wanted| match wanted {
            "loud" => Err("there is no such level".to_owned()),
            wanted => {
                follows.lock().push(wanted.to_owned());
                Ok(())
            }
        });
        assert_eq!(levels.set(Some("debug")), Ok(("info".to_owned(), "debug".to_owned())));
        assert!(levels.set(Some("loud")).is_err());
        assert!(levels.set(Some(&"x".repeat(MOST_BYTES + 1))).is_err());
        let told = |present: &str, configured: &str| Levels {
            present: present.to_owned(),
            configured: configured.to_owned(),
        };
        assert_eq!(levels.levels(), told("debug", "info"), "what is refused changes nothing");
        assert_eq!(levels.set(None), Ok(("debug".to_owned(), "info".to_owned())));
        assert_eq!(levels.set(Some("trace")), Ok(("info".to_owned(), "trace".to_owned())));
        assert_eq!(levels.follow("warn"), Ok(()));
        assert_eq!(levels.levels(), told("warn", "warn"));
        let each_logged =
            ["debug", "info", "debug", "info", "info", "info", "trace", "info", "trace", "warn"];
        assert_eq!(*seen.lock(), each_logged);
    }
}
