//! What was tried of the table, and what came of it.

use std::collections::BTreeMap;
use std::fmt;

use super::trial::{Cell, Outcome};

/// Examples that are kept of a task.
const MOST_EXAMPLES: usize = 3;

/// Counts of one task and kind of call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub cells: u64,
    pub trials: u64,
    /// Trials in which no call went wrong within the task.
    pub idle: u64,
    pub struck: u64,
    pub violations: u64,
}

/// Counts of all.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// By store, task and kind of call.
    pub rows: BTreeMap<(String, &'static str, String), Counts>,
    pub examples: BTreeMap<(String, &'static str), Vec<String>>,
}

impl Tally {
    pub fn row(&mut self, cell: &Cell) -> &mut Counts {
        let key = (format!("{:?}", cell.kind), cell.task.name, format!("{:?}", cell.call));
        self.rows.entry(key).or_default()
    }

    pub fn judge(&mut self, cell: &Cell, nth: u64, outcome: &Outcome) {
        let row = self.row(cell);
        row.trials += 1;
        row.struck += outcome.struck;
        row.idle += u64::from(outcome.struck == 0);
        row.violations += u64::from(!outcome.wrong.is_empty());
        if let Some(what) = outcome.wrong.first() {
            let more = outcome.wrong.len() - 1;
            let examples = self.examples.entry((format!("{:?}", cell.kind), cell.task.name)).or_default();
            examples.push(format!("{cell}, call {nth}: {what} ({more} more)"));
            examples.truncate(MOST_EXAMPLES);
        }
    }

    pub fn sum(&self) -> Counts {
        let mut sum = Counts::default();
        for row in self.rows.values() {
            sum.cells += row.cells;
            sum.trials += row.trials;
            sum.idle += row.idle;
            sum.struck += row.struck;
            sum.violations += row.violations;
        }
        sum
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((kind, task, call), row) in &self.rows {
            let Counts { cells, trials, idle, struck, violations } = row;
            writeln!(
                f,
                "{kind:9} {task:52} {call:9} {cells:3} cells, {trials:4} trials, {struck:6} failed calls, {idle} idle, {violations} violations"
            )?;
        }
        let Counts { cells, trials, idle, struck, violations } = self.sum();
        writeln!(
            f,
            "{cells} cells, {trials} trials, {struck} failed calls, {idle} idle, {violations} violations"
        )?;
        self.examples.values().flatten().try_for_each(|example| writeln!(f, "VIOLATION {example}"))
    }
}
