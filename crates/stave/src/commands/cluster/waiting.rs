//! Waiting for what a cluster does, with a line on standard error about how far it is.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::bail;
use base::env::Env;
use serde_json::Value;

use crate::client::HttpTarget;
use crate::commands::dcp_tail::watch_interrupt;

/// Between two looks at how far it is.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Between two lines into a file or a pipe.
const LINE_EVERY: Duration = Duration::from_secs(2);
const BAR_WIDTH: usize = 40;
/// A rebalance that has not gone on for this long is said to be still, with what the cluster has to say of it.
const STILL_AFTER: Duration = Duration::from_secs(10);
/// What notes of the cluster say that keep a rebalance from going on.
const CAUSES: [&str; 4] = ["has had no connection to", " is down", "damage on", "nothing serves"];
/// So many looks in a row may fail: the node that is asked may be busy, or lose its coordination store for a while.
const MOST_FAILURES: u32 = 50;

/// What was said on standard error: one line, rewritten in place, on a terminal; else a line whenever it is another one,
/// at most every [`LINE_EVERY`], so that logs of scripts show that it goes on.
struct RebalanceLine {
    in_place: bool,
    last: String,
    said_at: Option<Duration>,
    /// A rebalance was seen: what the cluster says before that is about an earlier one.
    has_begun: bool,
    /// How far it was when it went on last, and when that was.
    went_on: (f64, Duration),
}

impl RebalanceLine {
    fn new(in_place: bool) -> RebalanceLine {
        let went_on = (0.0, Duration::ZERO);
        RebalanceLine { in_place, last: String::new(), said_at: None, has_begun: false, went_on }
    }

    /// What to write about what a cluster says at `now`, if anything.
    fn look(&mut self, now: Duration, cluster: &Value) -> Option<String> {
        let runs = !cluster["state"]["rebalance"].is_null();
        self.has_begun |= runs;
        if self.has_begun && !runs {
            if cluster["state"]["finished"]["outcome"] != "done" {
                return None;
            }
            // A log ends with the last line, too, however soon after the one before it that is.
            self.said_at = None;
        }
        if self.has_begun {
            let why = self.why_still(now, cluster);
            return self.step(now, format!("{}{why}", bar(cluster, now)));
        }
        // Without a rebalance only the choice of active copies is waited for.
        let is_long = now >= LINE_EVERY;
        let waits = super::choices(cluster);
        if is_long && waits > 0 { self.step(now, choosing(cluster, waits)) } else { None }
    }

    /// What the cluster says of a rebalance that has not gone on for a while; empty if it does.
    fn why_still(&mut self, now: Duration, cluster: &Value) -> String {
        let progress = cluster["progress"].as_f64().unwrap_or(1.0);
        if (progress - self.went_on.0).abs() > f64::EPSILON {
            self.went_on = (progress, now);
        }
        if cluster["state"]["rebalance"].is_null() || now < self.went_on.1 + STILL_AFTER {
            return String::new();
        }
        let notes = cluster["notes"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let is_cause = |note: &&str| CAUSES.iter().any(|cause| note.contains(cause));
        let causes: Vec<&str> = notes.filter(is_cause).collect();
        if causes.is_empty() { String::new() } else { format!("; it does not go on: {}", causes.join("; ")) }
    }

    /// What to write for this line at `now`, if anything.
    fn step(&mut self, now: Duration, line: String) -> Option<String> {
        let is_early = self.said_at.is_some_and(|at| now < at + LINE_EVERY);
        if line == self.last || (is_early && !self.in_place) {
            return None;
        }
        self.said_at = Some(now);
        let written = if self.in_place { format!("\r{line}\x1b[K") } else { format!("{line}\n") };
        self.last = line;
        Some(written)
    }

    /// What to write when it is over.
    fn end(&self) -> &'static str {
        if self.in_place && !self.last.is_empty() { "\n" } else { "" }
    }
}

/// Looks until it is so, and shows how far it is meanwhile. A node that does not answer for a moment is asked again.
pub(super) fn until(env: &Env, target: &HttpTarget, is_so: &dyn Fn(&Value) -> bool) -> anyhow::Result<Value> {
    let interrupted = watch_interrupt(env)?;
    let mut progress = RebalanceLine::new(std::io::stderr().is_terminal());
    let begun = env.clock.monotonic();
    let mut failures = 0;
    loop {
        match target.request("GET", "/v1/cluster", None) {
            Ok(cluster) => {
                failures = 0;
                let elapsed = env.clock.monotonic() - begun;
                let written = progress.look(elapsed, &cluster).unwrap_or_default();
                let is_over = is_so(&cluster);
                let end = if is_over { progress.end() } else { "" };
                // Nobody may be there to read it.
                let _ = write!(std::io::stderr().lock(), "{written}{end}");
                if is_over {
                    return Ok(cluster);
                }
            }
            Err(error) if failures >= MOST_FAILURES => return Err(error),
            Err(_) => failures += 1,
        }
        if AtomicBool::load(&interrupted, Ordering::Relaxed) {
            let ends = if progress.has_begun { "; `stave cluster rebalance --stop` ends it" } else { "" };
            bail!("interrupted, the cluster goes on{ends}");
        }
        std::thread::park_timeout(LOOK_EVERY);
    }
}

/// What the choice of active copies waits for, as the cluster says it.
fn choosing(cluster: &Value, vbuckets: usize) -> String {
    let notes = cluster["notes"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let of_choice = notes.filter(|note| {
        note.contains("vBuckets") && note.contains(" wait") || note.contains("nothing serves")
    });
    let why: Vec<&str> = of_choice.collect();
    let why = if why.is_empty() { String::new() } else { format!("; {}", why.join("; ")) };
    format!("{vbuckets} vBuckets wait for the choice of their active copy{why}")
}

/// One line about how far a rebalance is, and how long it will take at this rate.
pub(super) fn bar(cluster: &Value, elapsed: Duration) -> String {
    let progress = cluster["progress"].as_f64().unwrap_or(1.0).clamp(0.0, 1.0);
    let full = (progress * BAR_WIDTH as f64).round() as usize;
    let (full, empty) = ("#".repeat(full), "-".repeat(BAR_WIDTH - full.min(BAR_WIDTH)));
    let total = cluster["state"]["rebalance"]["total"].as_u64();
    if total == Some(0) {
        return "there is nothing to move".to_owned();
    }
    let moved = total.map_or(String::new(), |total| {
        format!("  {} of {total} vBuckets", (progress * total as f64).round())
    });
    let left = elapsed.as_secs_f64() * (1.0 - progress) / progress;
    let left = if total.is_some() && !elapsed.is_zero() && left.is_finite() {
        format!(", {left:.0} s left")
    } else {
        String::new()
    };
    format!("[{full}{empty}] {:>3.0} %{moved}{left}", progress * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_said_without_a_terminal() {
        let mut progress = RebalanceLine::new(false);
        let at = |ms| Duration::from_millis(ms);
        assert_eq!(progress.step(at(0), "1 %".into()), Some("1 %\n".into()));
        assert_eq!(progress.step(at(1900), "2 %".into()), None, "too early");
        assert_eq!(progress.step(at(2000), "3 %".into()), Some("3 %\n".into()));
        assert_eq!(progress.step(at(9000), "3 %".into()), None, "nothing new");
        assert_eq!(progress.end(), "");
        let mut in_place = RebalanceLine::new(true);
        assert_eq!(in_place.end(), "");
        assert_eq!(in_place.step(at(0), "1 %".into()), Some("\r1 %\x1b[K".into()));
        assert_eq!(in_place.step(at(1), "2 %".into()), Some("\r2 %\x1b[K".into()));
        assert_eq!(in_place.end(), "\n");
    }

    #[test]
    fn a_rebalance_that_stands_still_says_why() {
        let mut progress = RebalanceLine::new(false);
        let at = |done: f64, notes: &[&str]| serde_json::json!({ "progress": done, "notes": notes, "state": { "rebalance": { "total": 4 } } });
        let down = "bucket b: n_2 has had no connection to n_1 for more than 10 s: refused";
        let notes = &[down, "all documents of bucket c are being removed"][..];
        let s = Duration::from_secs;
        let line = |progress: &mut RebalanceLine, now, cluster: &Value| {
            progress.look(s(now), cluster).expect("a line")
        };
        assert!(!line(&mut progress, 0, &at(0.5, notes)).contains("refused"), "it has only begun");
        let still = line(&mut progress, 10, &at(0.5, notes));
        assert!(still.contains("does not go on") && still.contains("refused"), "{still}");
        assert!(!still.contains("removed"), "{still}");
        assert!(!line(&mut progress, 20, &at(0.75, notes)).contains("refused"), "it goes on");
    }

    #[test]
    fn an_earlier_rebalance_has_no_bar() {
        let mut progress = RebalanceLine::new(false);
        let over = serde_json::json!({ "progress": 1.0, "state": { "rebalance": null } });
        assert_eq!(progress.look(Duration::ZERO, &over), None);
        let runs = serde_json::json!({ "progress": 0.5, "state": { "rebalance": { "total": 4 } } });
        assert!(progress.look(Duration::ZERO, &runs).is_some_and(|line| line.contains("2 of 4 vBuckets")));
        let ended = |outcome: &str| {
            serde_json::json!({
                "progress": 1.0, "state": { "rebalance": null, "finished": { "outcome": outcome } }
            })
        };
        assert_eq!(progress.look(Duration::from_secs(2), &ended("cancelled")), None, "not all was moved");
        let last = progress.look(Duration::from_millis(1), &ended("done"));
        assert!(last.is_some_and(|line| line.contains("100 %")), "the one that was shown");
        assert_eq!(progress.look(Duration::from_secs(3), &ended("done")), None, "nothing new");
    }
}
