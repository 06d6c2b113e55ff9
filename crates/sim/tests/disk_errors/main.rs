//! What was promised is there after disk errors that come and go during any background task, and any end of the process.

mod covered;
#[cfg(debug_assertions)]
#[path = "../../../simulation/src/known.rs"]
mod known;
mod run;

use run::{Deletions, Kind, Much, Tally, all_of};

/// Set in the environment, only cells whose name contains this are tried, and all that is wrong with them is printed.
const ONLY: &str = "DISK_ERRORS_ONLY";

/// Set in the environment, each call of each cell is tried instead of one.
const FULL: &str = "DISK_ERRORS_FULL";
/// Calls of a cell that are tried then; of more as many, spread over them.
const MOST_CALLS: u64 = 48;

fn how_much() -> Much {
    if std::env::var(FULL).is_ok() { Much::AtMost(MOST_CALLS) } else { Much::OneEach }
}

/// Tries the table of one store.
fn try_all(kind: Kind, much: Much) -> Tally {
    let base = run::base(kind);
    let mut tally = Tally::default();
    let only = std::env::var(ONLY).ok();
    for (cell, calls) in all_of(&base, kind) {
        if only.as_ref().is_some_and(|only| !cell.to_string().contains(only)) {
            continue;
        }
        tally.row(&cell).cells += 1;
        for nth in cell.choose(calls, much) {
            let outcome = cell.run(&base, nth);
            if only.is_some() && !outcome.wrong.is_empty() {
                println!("{cell}, call {nth}: {:#?}", outcome.wrong);
            }
            tally.judge(&cell, nth, &outcome);
        }
    }
    tally
}

fn holds(kind: Kind, much: Much) {
    let tally = try_all(kind, much);
    println!("{tally}");
    let sum = tally.sum();
    assert_eq!((sum.violations, sum.idle), (0, 0), "{tally}");
}

#[test]
fn a_bucket_with_a_journal_keeps_what_it_promised() {
    holds(Kind::Journaled, how_much());
}

#[test]
fn a_bucket_without_a_journal_keeps_what_it_promised() {
    holds(Kind::Files, how_much());
}

#[test]
fn a_bucket_with_full_eviction_keeps_what_it_promised() {
    holds(Kind::Full, how_much());
}

#[test]
fn a_bucket_in_a_log_structured_store_keeps_what_it_promised() {
    holds(Kind::Log, how_much());
}

#[test]
fn an_ephemeral_bucket_keeps_what_it_is() {
    holds(Kind::Ephemeral, how_much());
}

#[test]
fn a_deleted_bucket_is_whole_in_quarantine_until_its_time_is_over() {
    let tried = Deletions::of(&run::base(Kind::Journaled)).try_all(how_much());
    println!("deletion of a bucket: {} trials, {} idle", tried.trials, tried.idle);
    assert!(
        tried.wrong.is_empty(),
        "{} wrong: {:#?}",
        tried.wrong.len(),
        &tried.wrong[..tried.wrong.len().min(8)]
    );
    assert!(tried.idle == 0 && tried.trials > 100, "{tried:?}");
}

/// Mistakes in the product that disk errors in a background task show (`base::planted`). A seed is some cells.
#[test]
#[cfg(debug_assertions)]
fn mistakes_in_the_product_are_found() {
    const CELLS_A_SEED: u64 = 40;
    let bases = Kind::FORMER.map(|kind| (kind, run::base(kind)));
    let tables: Vec<_> = bases.iter().map(|(kind, base)| (base, all_of(base, *kind))).collect();
    let deletions = Deletions::of(&run::base(Kind::Journaled));
    known::must_find(known::Simulator::DiskErrors, |seed| {
        deletions.try_one(seed)?;
        let mut rng = base::env::sim::SplitMix64::new(seed);
        for _ in 0..CELLS_A_SEED {
            let (base, cells) = &tables[rng.below(tables.len() as u64) as usize];
            let (cell, calls) = &cells[rng.below(cells.len() as u64) as usize];
            let nth = rng.between(1, *calls);
            if let Some(what) = cell.run(base, nth).wrong.first() {
                return Err(format!("{cell}, call {nth}: {what}"));
            }
        }
        Ok(())
    });
}
