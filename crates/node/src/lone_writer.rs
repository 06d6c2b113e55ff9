//! Which connection may write to the disk itself: one that for a while has done nothing but wait for one sync write at a
//! time (docs/adr/0051-a-writer-alone-flushes.md).

use std::time::Duration;

use engine::InlineFlushOutcome;

/// Sync writes in a row, each of them alone, after which a connection is expected to go on like that.
const TURNS: u8 = 8;
/// A disk that takes longer is left to the flusher: the way there and back is no matter then.
const LONGEST: Duration = Duration::from_millis(2);

/// What a connection has done lately.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoneWriter {
    turns: u8,
}

impl LoneWriter {
    /// The client sent whole requests: one sync write that waits for the disk, with nothing else to wait for, or
    /// something else.
    pub fn asked(&mut self, is_lone_write: bool) {
        self.turns = if is_lone_write { self.turns.saturating_add(1).min(TURNS) } else { 0 };
    }

    /// Whether the next thing that it asks for will be a sync write, alone.
    pub fn is_expected(&self) -> bool {
        self.turns >= TURNS
    }

    /// It stood in for the flusher.
    pub fn stood_in(&mut self, what: InlineFlushOutcome) {
        match what {
            InlineFlushOutcome::Wrote(time) if time <= LONGEST => {}
            // Others write, too; or the disk is slow, or fails.
            InlineFlushOutcome::Nothing | InlineFlushOutcome::Wrote(_) | InlineFlushOutcome::Failed => {
                self.turns = 0
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(lone_writes: usize) -> LoneWriter {
        let mut writer = LoneWriter::default();
        (0..lone_writes).for_each(|_| writer.asked(true));
        writer
    }

    #[test]
    fn whoever_writes_alone_for_a_while_is_expected_to_go_on() {
        assert!(!after(7).is_expected());
        let mut writer = after(1000);
        assert!(writer.is_expected());
        writer.asked(false);
        assert!(!writer.is_expected());
        (0..7).for_each(|_| writer.asked(true));
        assert!(!writer.is_expected(), "again for a while");
    }

    #[test]
    fn a_disk_that_is_busy_or_slow_or_fails_is_left_to_the_flusher() {
        for (what, is_expected) in [
            (InlineFlushOutcome::Nothing, false),
            (InlineFlushOutcome::Wrote(Duration::from_micros(100)), true),
            (InlineFlushOutcome::Wrote(Duration::from_millis(3)), false),
            (InlineFlushOutcome::Failed, false),
        ] {
            let mut writer = after(8);
            writer.stood_in(what);
            assert_eq!(writer.is_expected(), is_expected, "{what:?}");
        }
    }
}
