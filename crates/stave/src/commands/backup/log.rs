//! What `stave backup list`, `show`, `verify` and `prune` say of the log of a bucket.

use base::env::Env;
use serde_json::{Value, json};

use crate::backup::{Backup, BackupError, ChangeLog, GapSet, Repository};
use crate::units::{bytes, counted, duration, moment_text, thousands};

/// Gaps that are printed of a part of a log.
const MOST_GAPS: usize = 20;
/// Gaps that are named in JSON.
const MOST_JSON_GAPS: usize = 1000;

/// What a log has.
pub(super) struct LogReport {
    pub(super) text: String,
    pub(super) json: Value,
    /// What is to be told beside it.
    pub(super) warning: Option<String>,
}

/// Reads a log, without its entries; with all its gaps by name if `is_long`. `None` if there is none.
pub(super) fn report(
    repository: &Repository<'_>,
    bucket: &str,
    is_long: bool,
) -> Result<Option<LogReport>, BackupError> {
    describe(&ChangeLog::open(repository, bucket)?, bucket, is_long)
}

fn describe(log: &ChangeLog, bucket: &str, is_long: bool) -> Result<Option<LogReport>, BackupError> {
    let epochs = log.epochs();
    if epochs.is_empty() {
        return Ok(None);
    }
    let ranges = gap_ranges(log)?;
    let head = |kind: &str| head(bucket, kind, is_long);
    let (mut text, mut parts) = (String::new(), Vec::new());
    let mut before: Option<u64> = None;
    for (epoch, ranges) in epochs.iter().zip(&ranges) {
        let (from, horizon) = (moment_text(epoch.from), moment_text(epoch.horizon));
        if let Some(before) = before {
            let what = match epoch.from.checked_sub(before) {
                Some(lost) => format!("no moments for {}", duration(lost)),
                None => format!("moments from {from} on are those of the next part"),
            };
            text.push_str(&format!("{} {what}: {}\n", head("log"), epoch.why));
        }
        before = Some(epoch.horizon);
        let (segments, stored) = (counted(epoch.len() as u64, "segment", "segments"), bytes(epoch.bytes));
        text.push_str(&format!("{} {from} to {horizon}, {segments}, {stored}\n", head("log")));
        let inside: Vec<(u64, u64)> = ranges.ranges().collect();
        let total: u64 = inside.iter().map(|(from, to)| to - from).sum();
        if !inside.is_empty() {
            let (gaps, total) = (counted(inside.len() as u64, "gap", "gaps"), duration(total));
            text.push_str(&format!("{} {gaps}, together {total}\n", head("log")));
        }
        if is_long {
            for (from, to) in inside.iter().take(MOST_GAPS) {
                let (from, to, lasts) = (moment_text(*from), moment_text(*to), duration(to - from));
                text.push_str(&format!("{} {from} to {to}, {lasts}\n", head("gap")));
            }
            if inside.len() > MOST_GAPS {
                let more = thousands((inside.len() - MOST_GAPS) as u64);
                text.push_str(&format!("{} and {more} more; --json names more of them\n", head("gap")));
            }
        }
        let named: Vec<Value> = inside
            .iter()
            .take(MOST_JSON_GAPS)
            .map(|(from, to)| json!({"from": moment_text(*from), "to": moment_text(*to)}))
            .collect();
        parts.push(json!({"bucket": bucket, "from": from, "to": horizon, "why": epoch.why,
            "segments": epoch.len(), "stored_bytes": epoch.bytes, "gap_count": inside.len(),
            "gap_ms": total / 1_000_000, "gaps": named}));
    }
    if log.torn_bytes() > 0 {
        let torn = bytes(log.torn_bytes());
        text.push_str(&format!("{} {torn} at the end are not whole, and do not count\n", head("log")));
    }
    Ok(Some(LogReport { text, json: json!(parts), warning: None }))
}

/// The moments of each epoch that cannot be restored.
pub(super) fn gap_ranges(log: &ChangeLog) -> Result<Vec<GapSet>, BackupError> {
    let epochs = log.epochs();
    let mut ranges: Vec<GapSet> = epochs.iter().map(|_| GapSet::default()).collect();
    // What is missing until an epoch ends is missing up to its horizon.
    log.each_gap(&mut |gap| {
        let (from, to) = (gap.from.1, gap.to.1);
        let of_gap = epochs.iter().zip(&mut ranges).find(|(epoch, _)| epoch.number == gap.epoch);
        let Some((epoch, ranges)) = of_gap.filter(|(epoch, _)| from <= epoch.horizon && to >= epoch.from)
        else {
            return;
        };
        ranges.add(from.max(epoch.from), to.min(epoch.horizon.max(from) + 1));
    })?;
    Ok(ranges)
}

/// What a line about a log begins with: in a list below the columns of backups, whose moment it has none of.
fn head(bucket: &str, kind: &str, is_long: bool) -> String {
    if is_long { format!("{bucket:<24} {kind:<6}") } else { format!("{bucket:<24} {:<22} {kind:<6}", "-") }
}

/// Reads all of a log; what to print of it, `None` if there is none.
pub(super) fn verify(
    env: &Env,
    repository: &Repository<'_>,
    bucket: &str,
) -> Result<Option<LogReport>, BackupError> {
    let log = ChangeLog::open(repository, bucket)?;
    let Some(report) = describe(&log, bucket, true)? else { return Ok(None) };
    let (frames, changes) = log.verify(&*env.disk)?;
    let (shown, of_frames) = (thousands(changes), thousands(frames));
    let text = format!("{bucket} log: sound, {shown} changes in {of_frames} frames\n{}", report.text);
    let warning = repository.clear_warning(None, log.plain_segments());
    let json = json!({"parts": report.json, "changes": changes, "frames": frames});
    Ok(Some(LogReport { text, json, warning }))
}

/// How many segments at the beginning of a log are not needed if `oldest` is the oldest backup that is gone on from, and no
/// moment before `cutoff` is wanted.
pub(super) fn unneeded_segments(
    repository: &Repository<'_>,
    log: &ChangeLog,
    oldest: &Backup,
    cutoff: u64,
) -> Result<usize, BackupError> {
    let lines = repository.lines(oldest)?;
    let bases: Vec<u64> = lines.values().map(|line| line.to).collect();
    Ok(log.unneeded(&bases, cutoff))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_list_have_its_columns() {
        assert_eq!(head("b", "log", false).find("log"), Some(24 + 1 + 22 + 1));
        assert_eq!(head("b", "log", true).find("log"), Some(24 + 1));
    }
}
