//! A rolling upgrade: nodes of an older version are replaced by the release, one after the other, while clients write
//! durably. Each hands its vBuckets over, stops, and comes back as the new version over the same folder.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::load::{Load, Tally, Verdict};
use super::{ClusterOptions, Part, Run, id_of, status_of};

/// The parts of the upgrade, by what the cluster is in the middle of.
const STEPS: [&str; 3] = ["the first node is replaced", "the second node", "the third node"];

/// Runs it: old versions alone, each replacement, new versions alone.
pub(super) fn all_parts(options: &ClusterOptions, run: &mut Run) -> Result<(Vec<Part>, Vec<Tally>, Verdict)> {
    let quiet = Duration::from_secs(options.seconds);
    run.begin(options)?;
    let load = Load::start(&run.maps, options.writers);
    let mut parts = Vec::new();
    let mut part = |name: &'static str, what: &mut dyn FnMut() -> Result<()>| -> Result<()> {
        println!("{name} ...");
        let begun = Instant::now();
        what()?;
        parts.push(Part { name, took: begun.elapsed(), remark: String::new() });
        load.check()?;
        load.next_part();
        Ok(())
    };
    let mut rest = || {
        thread::sleep(quiet);
        Ok(())
    };
    part("three nodes of the old version", &mut rest)?;
    run.program = None;
    for (number, name) in STEPS.into_iter().enumerate() {
        part(name, &mut || run.replace(number))?;
        part("mixed, or new at the end", &mut rest)?;
    }
    let written = load.stop()?;
    let verdict = written.verify()?;
    for node in run.nodes.drain(..) {
        node.stop()?;
    }
    Ok((parts, written.parts, verdict))
}

impl Run {
    /// Replaces the node that was started as this number, which is always the first of the list: those that were replaced
    /// are behind it.
    fn replace(&mut self, number: usize) -> Result<()> {
        let old = self.nodes.remove(0);
        self.tell_maps();
        let id = id_of(&self.document(0)?, &old.kv).context("it is a node")?;
        self.post(0, "/controller/startGracefulFailover", &format!("otpNode={id}"))?;
        self.await_document(0, "its vBuckets are handed over", |document| {
            document["rebalance"].is_null() && status_of(document, &old.kv) == Some("failed_over")
        })?;
        old.stop()?;
        self.take_back(number, "new")
    }
}
