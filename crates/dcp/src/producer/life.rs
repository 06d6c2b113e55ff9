//! Whether the consumer lives: noops, and backfills for which it has no room.

use std::time::Duration;

use base::VbId;

use super::Producer;

/// What is to be done about a connection after some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tick {
    /// Nothing until then, on the monotonic clock.
    Wait(Duration),
    /// A noop is to be sent with this opaque.
    Noop(u32),
    /// The consumer does not answer: close.
    Dead,
    /// Nothing at all.
    Never,
}

/// The consumer is dead if nothing was heard of it for so long while it owes an answer (kv_engine's configuration,
/// dcp_idle_timeout).
const MOST_SILENT: Duration = Duration::from_secs(360);
/// Between two looks at streams whose consumer may have stopped reading.
const STALL_LOOK: Duration = Duration::from_secs(10);

impl Producer {
    /// What is to be done about the consumer's life at `now` on the monotonic clock.
    pub fn tick(&mut self, now: Duration) -> Tick {
        if std::mem::take(&mut self.is_heard) {
            self.heard_at = now;
        }
        let stalled = self.look_for_stalled(now);
        if !self.agreed.noop {
            return stalled.map_or(Tick::Never, Tick::Wait);
        }
        let interval = Duration::from_secs(self.agreed.noop_interval_s.into());
        let due = *self.noop_at.get_or_insert(now + interval);
        let wait = |until: Duration| Tick::Wait(stalled.map_or(until, |look| look.min(until)));
        if self.noop_sent {
            // The next one is sent when this one is answered.
            let dead_at = self.heard_at + MOST_SILENT.max(interval);
            return if now >= dead_at { Tick::Dead } else { wait(dead_at) };
        }
        if now < due {
            return wait(due);
        }
        self.noop_sent = true;
        self.progress.note_noop(true);
        // By the plan, not by when somebody came to look: being late does not add up.
        self.noop_at = Some((due + interval).max(now));
        self.noop_opaque = self.noop_opaque.wrapping_add(1);
        Tick::Noop(self.noop_opaque)
    }

    /// Gives up backfills whose consumer takes nothing. When to look again, if there are backfills at all.
    fn look_for_stalled(&mut self, now: Duration) -> Option<Duration> {
        if self.on_disk.get() == 0 {
            self.stall_look_at = None;
            return None;
        }
        let look_at = *self.stall_look_at.get_or_insert(now + STALL_LOOK);
        if now < look_at {
            return Some(look_at);
        }
        for at in 0..self.slots.len() {
            let mut any = false;
            let mut next = self.slots[at].as_deref_mut();
            while let Some(stream) = next {
                any |= stream.is_on_disk() && stream.give_up_if_stalled(&self.bucket, &self.on_disk, now);
                next = stream.next.as_deref_mut();
            }
            if any {
                self.enqueue(VbId(at as u16));
            }
        }
        self.serve_line();
        self.stall_look_at = Some(now + STALL_LOOK);
        self.stall_look_at
    }
}
