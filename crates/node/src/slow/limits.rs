//! How long each command may take before it is a slow operation: as the bucket says, or the command's own limit.

use std::sync::atomic::{AtomicU32, Ordering};

use engine::Bucket;
use engine::settings::Key;
use protocol::opcode;

/// Of requests without a bucket, and of buckets whose setting was not changed, in milliseconds.
const DEFAULT_LIMIT_MS: u64 = 500;
/// No command may be given more, in milliseconds: a day.
const MOST_MS: u32 = 86_400_000;

/// Commands with limits of their own from the start, in milliseconds, as in kv_engine's `opcode-attributes.json`.
const FROM_THE_START: [(u8, u32); 4] = [
    (opcode::SELECT_BUCKET, 10),
    (opcode::RANGE_SCAN_CONTINUE, 5_000),
    (opcode::SEQNO_PERSISTENCE, 30_200),
    (opcode::COMPACT_DB, 1_800_000),
];

/// What is wrong with a limit.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum SlowLimitError {
    /// No command is called so.
    #[error(
        "there is no command {0:?}; commands are written as in the reference of the protocol, for example Get"
    )]
    Unknown(String),
    /// It is no time.
    #[error("{0} = {1:?}: give milliseconds from 1 to {MOST_MS}, or \"default\"")]
    Value(String, String),
}

/// A limit as it was written: the command, and its milliseconds; nothing: as it is from the start.
pub type SlowLimit = (u8, Option<u32>);

/// Reads a limit: a command by its name, in any case, and milliseconds or `default`.
pub fn parse(command: &str, limit: &str) -> Result<SlowLimit, SlowLimitError> {
    let is_it = |code: &u8| opcode::name(*code).is_some_and(|name| name.eq_ignore_ascii_case(command));
    let code = (0..=u8::MAX).find(is_it).ok_or_else(|| SlowLimitError::Unknown(command.to_owned()))?;
    if limit == "default" {
        return Ok((code, None));
    }
    let ms = limit.parse().ok().filter(|ms| (1..=MOST_MS).contains(ms));
    match ms {
        Some(ms) => Ok((code, Some(ms))),
        None => Err(SlowLimitError::Value(command.to_owned(), limit.to_owned())),
    }
}

/// The limits of all commands; changed at run time, one by one.
#[derive(Debug)]
pub struct SlowLimits {
    /// By the command's number, in milliseconds; 0: as the bucket says.
    own_ms: [AtomicU32; 256],
}

impl Default for SlowLimits {
    fn default() -> SlowLimits {
        SlowLimits { own_ms: std::array::from_fn(|code| AtomicU32::new(from_the_start(code as u8))) }
    }
}

fn from_the_start(code: u8) -> u32 {
    FROM_THE_START.iter().find(|(other, _)| *other == code).map_or(0, |(_, ms)| *ms)
}

impl SlowLimits {
    /// Has a command take so long at most from now on.
    pub fn set(&self, (code, ms): SlowLimit) {
        self.own_ms[usize::from(code)].store(ms.unwrap_or_else(|| from_the_start(code)), Ordering::Relaxed);
    }

    /// The same, with a line in the log.
    pub fn change(&self, (code, ms): SlowLimit) {
        let told = || match self.own_ms[usize::from(code)].load(Ordering::Relaxed) {
            0 => "as the bucket says".to_owned(),
            ms => format!("{ms} ms"),
        };
        let old = told();
        self.set((code, ms));
        let (new, command) = (told(), opcode::name(code).unwrap_or("unknown"));
        tracing::info!(
            event = "slow_limit_changed",
            command,
            old,
            new,
            "how long a command may take until it is a slow operation was changed"
        );
    }

    /// These limits hold, and otherwise those from the start.
    pub fn follow(&self, limits: &[SlowLimit]) {
        (0..=u8::MAX).for_each(|code| self.set((code, None)));
        limits.iter().for_each(|limit| self.set(*limit));
    }

    /// The commands that have limits of their own, by name, with their milliseconds.
    pub fn own(&self) -> Vec<(&'static str, u32)> {
        let of = |code: u8| (opcode::name(code), self.own_ms[usize::from(code)].load(Ordering::Relaxed));
        let named = (0..=u8::MAX).map(of).filter(|(_, ms)| *ms > 0);
        let mut own: Vec<_> = named.filter_map(|(name, ms)| Some((name?, ms))).collect();
        own.sort_unstable();
        own
    }

    /// How long a command may take in a bucket, in nanoseconds.
    pub(super) fn limit_ns(&self, code: u8, bucket: Option<&Bucket>) -> u64 {
        let ms = match self.own_ms[usize::from(code)].load(Ordering::Relaxed) {
            0 => bucket.map_or(DEFAULT_LIMIT_MS, |bucket| bucket.settings().get(Key::SlowOperationThreshold)),
            own => u64::from(own),
        };
        ms * 1_000_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(limits: &SlowLimits, codes: &[u8]) -> Vec<u64> {
        codes.iter().map(|code| limits.limit_ns(*code, None) / 1_000_000).collect()
    }

    #[test]
    fn some_commands_may_take_longer_than_others() {
        let limits = SlowLimits::default();
        let codes = [opcode::GET, opcode::SELECT_BUCKET, opcode::COMPACT_DB];
        assert_eq!(ms(&limits, &codes), [500, 10, 1_800_000]);
        limits.set(parse("get", "20").expect("a limit"));
        limits.set(parse("SelectBucket", "30").expect("a limit"));
        assert_eq!(ms(&limits, &codes), [20, 30, 1_800_000]);
        limits.set(parse("SelectBucket", "default").expect("a limit"));
        assert_eq!(ms(&limits, &codes), [20, 10, 1_800_000]);
        limits.follow(&[(opcode::COMPACT_DB, Some(7))]);
        assert_eq!(ms(&limits, &codes), [500, 10, 7]);
        let own: Vec<u8> = FROM_THE_START.iter().map(|(code, _)| *code).collect();
        assert_eq!(limits.own().len(), own.len());
    }

    #[test]
    fn what_is_no_limit_is_refused_with_what_would_be_right() {
        for (command, limit, part) in [
            ("Fetch", "5", "no command \"Fetch\""),
            ("Get", "0", "from 1 to 86400000"),
            ("Get", "86400001", "from 1 to 86400000"),
            ("Get", "5s", "Get = \"5s\""),
        ] {
            let wrong = parse(command, limit).expect_err(limit).to_string();
            assert!(wrong.contains(part), "{wrong}");
        }
    }
}
