//! Delays and refusals that a test asks for, applied to admitted requests before their handlers see them.
//!
//! Only `stave dev` adds any. A node without injections pays one load a request.

pub(crate) mod apply;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use protocol::Status;
use serde_json::{Value, json};

/// Statuses that can be injected, with the names that tests give them.
const STATUSES: [(&str, Status); 4] = [
    ("temporary-failure", Status::Etmpfail),
    ("busy", Status::Ebusy),
    ("out-of-memory", Status::Enomem),
    ("internal-error", Status::Einternal),
];

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    Delay(Duration),
    Refuse(Status),
}

/// Something that happens to requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injection {
    /// To which command; `None`: to all commands that are answered from documents.
    command: Option<&'static str>,
    effect: Effect,
    /// To how many more requests; `None`: until it is cleared.
    left: Option<u64>,
}

impl Injection {
    fn to_json(self) -> Value {
        let (delay_ms, status) = match self.effect {
            Effect::Delay(delay) => (Some(delay.as_millis()), None),
            Effect::Refuse(status) => (None, STATUSES.iter().find(|(_, known)| *known == status)),
        };
        let status = status.map(|(name, _)| *name);
        json!({ "opcode": self.command, "delay_ms": delay_ms, "status": status, "left": self.left })
    }
}

/// What a request meets: delays add up, the first refusal counts.
#[derive(Debug, Default, PartialEq, Eq)]
struct Effects {
    delay: Duration,
    status: Option<Status>,
}

/// The injections of a node.
#[derive(Debug, Default)]
pub struct Injections {
    is_on: AtomicBool,
    list: Mutex<Vec<Injection>>,
}

impl Injections {
    /// Adds one behind the others.
    pub fn add(&self, injection: Injection) {
        let mut list = self.list.lock();
        list.push(injection);
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Takes all back. Requests that wait already wait to the end of their delay.
    pub fn clear(&self) {
        let mut list = self.list.lock();
        list.clear();
        self.is_on.store(false, Ordering::Relaxed);
    }

    /// All, oldest first.
    pub fn to_json(&self) -> Value {
        self.list.lock().iter().map(|injection| injection.to_json()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Row;
    use crate::command::find;
    use protocol::opcode;

    fn row(opcode: u8) -> &'static Row {
        find(opcode).expect("a command")
    }

    #[test]
    fn delays_add_up_and_the_first_refusal_counts() {
        let injections = Injections::default();
        assert_eq!(injections.take(row(opcode::GET)), None);
        let ms = Duration::from_millis;
        injections.add(Injection::delay(None, ms(2), None).expect("valid"));
        injections.add(Injection::delay(Some("get"), ms(3), Some(1)).expect("valid"));
        injections.add(Injection::refuse(Some("get"), "busy", Some(2)).expect("valid"));
        injections.add(Injection::refuse(None, "temporary-failure", None).expect("valid"));
        let met = |delay, status| Some(Effects { delay: ms(delay), status: Some(status) });
        assert_eq!(injections.take(row(opcode::GET)), met(5, Status::Ebusy));
        assert_eq!(injections.take(row(opcode::SET)), met(2, Status::Etmpfail));
        assert_eq!(injections.take(row(opcode::GET)), met(2, Status::Ebusy));
        assert_eq!(injections.take(row(opcode::GET)), met(2, Status::Etmpfail));
        // Logins and maps go on.
        assert_eq!(injections.take(row(opcode::SASL_AUTH)), None);
        injections.clear();
        assert_eq!(injections.take(row(opcode::GET)), None);
    }

    #[test]
    fn wrong_ones_say_what_is_right() {
        let wrong = |made: Result<Injection, String>| made.expect_err("it is wrong");
        assert!(wrong(Injection::refuse(None, "maybe", None)).contains("temporary-failure, busy"));
        assert!(wrong(Injection::delay(Some("fetch"), Duration::ZERO, None)).starts_with("opcode=fetch: "));
        assert!(wrong(Injection::refuse(None, "busy", Some(0))).starts_with("times=0: "));
    }
}
