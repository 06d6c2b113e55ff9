//! Injections as tests ask for them, and what they do to requests.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Effect, Effects, Injection, Injections, STATUSES};
use crate::command::Row;
use crate::command_table::ROWS;
use crate::context::{Context, LaterReply, Outcome, Ready};

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
}

impl Injections {
    /// What a request of this command meets; `None` if nothing concerns it.
    pub(super) fn take(&self, row: &Row) -> Option<Effects> {
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
