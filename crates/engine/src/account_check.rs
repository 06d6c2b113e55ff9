//! Compares the account with what the heap says, and gives back what is free.

use std::time::Duration;

use base::Part;
use base::memory::{HeapUsage, Parts, trim_system, trim_system_above, trim_system_in_time};

use crate::bucket_core::Core;
use crate::keeper::{Chore, Next, Slice};
use crate::memory::MemoryAccount;
use crate::settings::Key;

/// How far the account may be from the heap: versions are allocated and freed while both are read.
const TOLERANCE_PERCENT: u64 = 1;
const TOLERANCE_BYTES: u64 = 1 << 20;

/// The account beside the figures of those who hand out the memory.
#[derive(Clone, Debug, Default)]
pub struct AccountFigures {
    /// What is charged, by part.
    pub charged: Parts,
    /// The sum of it, as decisions are taken by.
    pub estimate_bytes: u64,
    /// What the bucket's heap holds.
    pub heap: HeapUsage,
}

impl AccountFigures {
    /// By how many bytes the account of documents is off.
    pub fn difference_bytes(&self) -> u64 {
        (self.charged[Part::Documents as usize].max(0) as u64).abs_diff(self.heap.used_bytes)
    }

    /// Whether the account says what the heap says.
    pub fn is_right(&self) -> bool {
        self.difference_bytes() <= self.heap.used_bytes / 100 * TOLERANCE_PERCENT + TOLERANCE_BYTES
    }
}

/// Bounds what the system's allocator keeps beside a bucket's quota of what was freed.
pub(crate) fn limit_free_memory(memory: &MemoryAccount) {
    trim_system_above(most_free_bytes(memory));
}

fn most_free_bytes(memory: &MemoryAccount) -> u64 {
    (memory.quota_bytes() / MOST_FREE_ONE_IN).max(LEAST_MOST_FREE_BYTES)
}

impl Core {
    /// The account beside the figures of those who hand out the memory.
    pub fn account_check(&self) -> AccountFigures {
        AccountFigures {
            charged: self.context.account().exact(),
            estimate_bytes: self.memory.used_bytes(),
            heap: self.context.heap.usage(),
        }
    }
}

/// While there is work, the system's allocator may keep such a part of the quota free,
const MOST_FREE_ONE_IN: u64 = 16;
/// and this at least: giving back and taking again costs a page fault for each page.
const LEAST_MOST_FREE_BYTES: u64 = 16 << 20;

/// Compares the account with what the heap says, and gives back what was needed only while there was work.
#[derive(Default)]
pub(crate) struct AccountCheck {
    /// When the account was compared last.
    compared: Option<Duration>,
    /// How much was in use at the last look.
    used_bytes: u64,
    /// Whether what was free has been given back since there was work.
    is_trimmed: bool,
}

impl AccountCheck {
    /// Once the bucket rests, buffers of saves and bursts are not needed any more; they lie free between what stays,
    /// where neither allocator gives them back by itself.
    fn trim(&mut self, core: &Core) {
        let used = core.memory.used_bytes();
        if std::mem::replace(&mut self.used_bytes, used) != used {
            self.is_trimmed = false;
            trim_system_in_time(core.env.clock.monotonic(), most_free_bytes(&core.memory));
        } else if !std::mem::replace(&mut self.is_trimmed, true) {
            core.context.heap.trim();
            core.context.tables.trim();
            trim_system();
        }
    }
}

impl Chore for AccountCheck {
    type Of = Core;

    fn step(&mut self, core: &Core, _slice: &Slice<'_>) -> Next {
        self.trim(core);
        // The quota may be another one by now.
        core.memory.scale_estimate();
        let now = core.env.clock.monotonic();
        let interval = Duration::from_secs(core.settings.get(Key::AccountCheckInterval));
        if self.compared.is_some_and(|compared| now < compared + interval) {
            return Next::After(core.keeper.look_again_after());
        }
        self.compared = Some(now);
        let figures = core.account_check();
        if !figures.is_right() {
            tracing::warn!(
                event = "memory_account_wrong",
                bucket = core.name(),
                charged_bytes = figures.charged[Part::Documents as usize],
                heap_bytes = figures.heap.used_bytes,
                "the account of documents is not what the heap says"
            );
        }
        Next::After(core.keeper.look_again_after())
    }
}
