//! Delays and refusals that a test asks for, applied to admitted requests before their handlers see them.
//!
//! Only `stave dev` adds any. A node without injections pays one load a request.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use protocol::Status;
use serde_json::{Value, json};

use crate::command::Row;
use crate::command_table::ROWS;
use crate::context::{Context, LaterReply, Outcome, Ready};

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
    /// A request waits this long before it is handled.
    pub fn delay(command: Option<&str>, delay: Duration, times: Option<u64>) -> Result<Injection, String> {
        Injection::new(command, Effect::Delay(delay), times)
    }

    /// A request is refused with a status that can be injected.
    pub fn refuse(command: Option<&str>, status: &str, times: Option<u64>) -> Result<Injection, String> {
        let found = STATUSES.iter().find(|(name, _)| *name == status);
        let names = || STATUSES.map(|(name, _)| name).join(", ");
        let (_, status) = found.ok_or_else(|| format!("status={status}: give one of {}", names()))?;
        Injection::new(command, Effect::Refuse(*status), times)
    }

    fn new(command: Option<&str>, effect: Effect, times: Option<u64>) -> Result<Injection, String> {
        if times == Some(0) {
            return Err("times=0: give a number from 1 on, or none: until it is healed".to_owned());
        }
        let named = |text: &str| {
            let row = ROWS.iter().find(|row| row.name.eq_ignore_ascii_case(text));
            row.map(|row| row.name).ok_or_else(|| {
                format!(
                    "opcode={text}: there is no such command; give a name of docs/reference/protocol.md, such as get"
                )
            })
        };
        Ok(Injection { command: command.map(named).transpose()?, effect, left: times })
    }

    fn concerns(&self, row: &Row) -> bool {
        self.command.map_or(row.is_fenced, |name| name == row.name)
    }

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

    /// What a request of this command meets; `None` if nothing concerns it.
    fn take(&self, row: &Row) -> Option<Effects> {
        if !self.is_on.load(Ordering::Relaxed) {
            return None;
        }
        let mut list = self.list.lock();
        let mut effects: Option<Effects> = None;
        for injection in list.iter_mut().filter(|injection| injection.concerns(row)) {
            let met = effects.get_or_insert_default();
            match injection.effect {
                Effect::Delay(delay) => met.delay = met.delay.saturating_add(delay),
                Effect::Refuse(status) if met.status.is_none() => met.status = Some(status),
                Effect::Refuse(_) => continue,
            }
            injection.left = injection.left.map(|left| left - 1);
        }
        list.retain(|injection| injection.left != Some(0));
        self.is_on.store(!list.is_empty(), Ordering::Relaxed);
        effects
    }
}

/// Delays or refuses a request that was not handled before; `None` if its handler is to see it.
#[inline]
pub(crate) fn apply(ctx: &mut Context<'_>) -> Option<Outcome> {
    // A request that is handled again has met its injections.
    if ctx.looks > 0 {
        return None;
    }
    let Effects { delay, status } = ctx.node.injections.take(ctx.row)?;
    if delay.is_zero() {
        return status.map(|status| ctx.status(status));
    }
    let wait = ctx.node.doors().timer.after(delay);
    Some(match status {
        None => Outcome::Again(Box::pin(async move {
            wait.await;
            Ready::Look(None)
        })),
        Some(status) => Outcome::Later(Box::pin(async move {
            wait.await;
            LaterReply::status(status)
        })),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
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
