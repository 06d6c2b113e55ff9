//! What a run came to: operations by kind and answer, faults by kind, how long writes did not succeed, verdicts.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::check::Verdicts;
use super::fault::Fault;
use super::history::{Class, Event, Op};
use super::schedule::Round;

/// A round that is over.
pub struct Done {
    /// What it was.
    pub round: Round,
    /// From its first fault until the cluster was whole again, in nanoseconds of the machine's monotonic clock.
    pub from: u64,
    /// The end of that.
    pub until: u64,
    /// Commands that the cluster refused.
    pub refused: Vec<String>,
}

/// So many of the rounds with the longest outages are told of one by one.
const SHOWN_ROUNDS: usize = 5;

/// Everything there is to say about a run.
pub struct Report<'a> {
    /// What decided the faults.
    pub seed: u64,
    /// How many nodes there were.
    pub nodes: u8,
    /// How many replicas of each vBucket.
    pub replicas: u8,
    /// All operations.
    pub history: &'a [Event],
    /// All rounds.
    pub rounds: &'a [Done],
    /// What the checker says.
    pub verdicts: &'a Verdicts,
    /// How many lies were found of those that were planted, and which were not.
    pub planted: (usize, usize, Vec<&'static str>),
}

/// How often a kind of fault came, and how long writes did not succeed.
#[derive(Clone, Debug, Default)]
struct Outage {
    /// Rounds that had it.
    count: usize,
    /// Of each the longest time within it in which some key was not written, in milliseconds.
    ms: Vec<u64>,
}

impl Report<'_> {
    /// Whether everything is as it must be.
    pub fn is_good(&self) -> bool {
        let (found, planted, _) = &self.planted;
        self.verdicts.bad.is_empty() && !self.history.is_empty() && found == planted
    }

    fn operations(&self) -> BTreeMap<Op, [u64; 3]> {
        let mut counts: BTreeMap<Op, [u64; 3]> = BTreeMap::new();
        for event in self.history {
            let at = match event.class {
                Class::Ok => 0,
                Class::No => 1,
                Class::Maybe => 2,
            };
            counts.entry(event.op).or_default()[at] += 1;
        }
        counts
    }

    fn errors(&self) -> BTreeMap<&str, u64> {
        let mut counts = BTreeMap::new();
        for event in self.history.iter().filter(|event| event.class != Class::Ok) {
            // Behind the bar the SDK says which operation it was.
            let error = event.error.split(" | ").next().unwrap_or_default();
            *counts.entry(error).or_default() += 1;
        }
        counts
    }

    fn outages(&self) -> BTreeMap<Fault, Outage> {
        let successes = successes(self.history);
        let mut outages: BTreeMap<Fault, Outage> = BTreeMap::new();
        for done in self.rounds {
            let ms = longest_gap(&successes, done.from, done.until) / 1_000_000;
            for fault in &done.round.faults {
                let outage = outages.entry(*fault).or_default();
                outage.count += 1;
                outage.ms.push(ms);
            }
        }
        outages.values_mut().for_each(|outage| outage.ms.sort_unstable());
        outages
    }

    /// The rounds in which some key was not written for longest, with that time in milliseconds and what there was.
    fn longest_rounds(&self) -> Vec<(u64, String)> {
        let successes = successes(self.history);
        let gap = |done: &Done| longest_gap(&successes, done.from, done.until) / 1_000_000;
        let mut rounds: Vec<_> = self.rounds.iter().map(|done| (gap(done), done.round.to_string())).collect();
        rounds.sort_unstable_by(|a, b| b.cmp(a));
        rounds.truncate(SHOWN_ROUNDS);
        rounds
    }

    /// The longest time without a write of some key while nothing was wrong: what the workload itself leaves open.
    fn quiet_ms(&self) -> u64 {
        let successes = successes(self.history);
        let from = self.history.iter().map(|event| event.invoked).min().unwrap_or(0);
        let last = self.history.iter().map(|event| event.answered).max().unwrap_or(0);
        let until = self.rounds.first().map_or(last, |done| done.from);
        longest_gap(&successes, from, until) / 1_000_000
    }

    fn keys(&self) -> u64 {
        self.verdicts.keys.values().sum()
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let operations: BTreeMap<&str, Value> = self
            .operations()
            .into_iter()
            .map(|(op, [ok, no, maybe])| (op.name(), json!({ "ok": ok, "refused": no, "in_doubt": maybe })))
            .collect();
        let faults: BTreeMap<&str, Value> = self
            .outages()
            .into_iter()
            .map(|(fault, outage)| {
                let (most, median) = (outage.ms.last(), outage.ms.get((outage.ms.len() - 1) / 2));
                (fault.name(), json!({ "rounds": outage.count, "longest_ms": most, "median_ms": median }))
            })
            .collect();
        let violations: BTreeMap<&String, &Vec<String>> =
            self.verdicts.bad.iter().map(|(key, verdict)| (key, &verdict.violations)).collect();
        json!({
            "seed": self.seed, "nodes": self.nodes, "replicas": self.replicas,
            "operations": operations, "errors": self.errors(), "rounds": self.rounds.len(), "faults": faults,
            "longest_rounds": self.longest_rounds(),
            "commands_refused": self.rounds.iter().map(|done| done.refused.len()).sum::<usize>(),
            "without_fault_ms": self.quiet_ms(), "lost": self.verdicts.lost(),
            "keys": self.keys(), "linearizable": self.keys() - self.verdicts.bad.len() as u64,
            "violations": violations,
            "planted": self.planted.1, "found": self.planted.0, "missed": self.planted.2,
        })
    }

    /// For people.
    pub fn print(&self) {
        println!("\n{:<22} {:>9} {:>9} {:>9}", "operations", "done", "refused", "in doubt");
        let mut all = [0; 3];
        for (op, [ok, no, maybe]) in self.operations() {
            println!("{:<22} {ok:>9} {no:>9} {maybe:>9}", op.name());
            all = [all[0] + ok, all[1] + no, all[2] + maybe];
        }
        println!("{:<22} {:>9} {:>9} {:>9}", "all", all[0], all[1], all[2]);
        println!("\n{:<40} {:>9}", "errors that the application saw", "times");
        for (error, count) in self.errors() {
            println!("{:<40} {count:>9}", error.chars().take(40).collect::<String>());
        }
        println!(
            "\n{:<22} {:>9} {:>9} {:>9}   ms without a write of some key, until all was whole",
            "faults", "rounds", "median", "longest"
        );
        println!("{:<22} {:>9} {:>9} {:>9}", "none", "-", "-", self.quiet_ms());
        for (fault, outage) in self.outages() {
            let (most, median) = (outage.ms.last(), outage.ms.get((outage.ms.len() - 1) / 2));
            let (most, median) = (most.copied().unwrap_or(0), median.copied().unwrap_or(0));
            println!("{:<22} {:>9} {median:>9} {most:>9}", fault.name(), outage.count);
        }
        println!();
        for (ms, what) in self.longest_rounds() {
            println!("{ms:>9} ms in the round of {what}");
        }
        for why in self.rounds.iter().flat_map(|done| &done.refused) {
            println!("refused: {why}");
        }
        let kinds: Vec<String> =
            self.verdicts.keys.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        println!("\nkeys checked: {} ({})", self.keys(), kinds.join(", "));
        println!("linearizable: {}", self.keys() - self.verdicts.bad.len() as u64);
        println!("durable writes lost: {}", self.verdicts.lost());
        let (found, planted, missed) = &self.planted;
        println!("planted lies found: {found} of {planted}");
        missed.iter().for_each(|name| println!("MISSED {name}"));
        for (key, verdict) in self.verdicts.bad.iter().take(10) {
            println!("FAIL {key}: {} lost", verdict.lost);
            verdict.violations.iter().take(5).for_each(|what| println!("     {what}"));
        }
    }
}

/// When each register and counter was written, by key.
fn successes(history: &[Event]) -> Vec<Vec<u64>> {
    let mut by_key: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    let is_write = |event: &&Event| {
        matches!(event.op, Op::Write | Op::Replace | Op::Increment) && event.class == Class::Ok
    };
    for event in history.iter().filter(is_write) {
        by_key.entry(&event.key).or_default().push(event.answered);
    }
    by_key.values_mut().for_each(|times| times.sort_unstable());
    by_key.into_values().collect()
}

/// The longest part of a span of time in which some key was not written. What a key waited before and after it belongs to
/// other faults: those come one after the other, without a pause.
fn longest_gap(successes: &[Vec<u64>], from: u64, until: u64) -> u64 {
    let of_key = |times: &Vec<u64>| {
        let first = times.partition_point(|at| *at <= from);
        let last = times.partition_point(|at| *at < until);
        let ends = times[first..last.max(first)].iter().copied().chain([until]);
        ends.scan(from, |before, at| Some(at - std::mem::replace(before, at))).max().unwrap_or(0)
    };
    successes.iter().map(of_key).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_those_within_the_span() {
        let times = vec![vec![1, 2, 10, 11, 30], vec![1, 5, 9, 13, 17]];
        assert_eq!(longest_gap(&times, 3, 4), 1);
        assert_eq!(longest_gap(&times, 1, 13), 8);
        assert_eq!(longest_gap(&times, 12, 31), 18);
        assert_eq!(longest_gap(&times, 100, 200), 100);
    }
}
