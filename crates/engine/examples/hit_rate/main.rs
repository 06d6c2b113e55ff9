//! Hit rates of the pager beside plain LRU and the optimum, at several shares of values in memory.
//!
//! `cargo run --release -p engine --example hit_rate -- [--json] [DOCUMENTS [READS_PER_DOCUMENT]]`

mod models;
mod simulation;
mod traces;

use traces::{Trace, moving_zipf, scanned_zipf, zipf};

const RESIDENT_PERCENT: [u32; 3] = [10, 30, 50];

fn main() {
    let mut json = false;
    let mut numbers = Vec::new();
    for argument in std::env::args().skip(1) {
        match argument.parse::<u32>() {
            Ok(number) => numbers.push(number),
            Err(_) if argument == "--json" => json = true,
            Err(_) => panic!("{argument:?} is neither --json nor a number"),
        }
    }
    let documents = numbers.first().copied().unwrap_or(20_000);
    let reads = documents as usize * numbers.get(1).copied().unwrap_or(30) as usize;
    let mut rows = Vec::new();
    println!(
        "{documents} documents, {reads} reads, the last two thirds of them measured; hit rates in percent\n"
    );
    println!(
        "{:<18} {:>9} {:>7} {:>7} {:>11} {:>8} {:>7} {:>12}",
        "trace", "resident", "Stave", "LRU", "unchanging", "optimum", "passes", "evictions"
    );
    for trace in
        [zipf(documents, reads, 1), scanned_zipf(documents, reads, 1), moving_zipf(documents, reads, 1)]
    {
        for percent in RESIDENT_PERCENT {
            rows.push(row(&trace, percent));
        }
    }
    if json {
        println!("{}", serde_json::json!({ "rows": rows }));
    }
}

fn row(trace: &Trace, percent: u32) -> serde_json::Value {
    let outcome = simulation::run(trace, percent);
    println!(
        "{:<18} {:>9.1} {:>7.2} {:>7.2} {:>11.2} {:>8.2} {:>7} {:>12}",
        trace.name,
        outcome.resident * 100.0,
        outcome.stave * 100.0,
        outcome.lru * 100.0,
        outcome.best_unchanging * 100.0,
        outcome.optimum * 100.0,
        outcome.eviction.passes,
        outcome.eviction.evicted_values,
    );
    serde_json::json!({
        "trace": trace.name,
        "resident_percent": percent,
        "resident": outcome.resident,
        "stave": outcome.stave,
        "lru": outcome.lru,
        "best_unchanging": outcome.best_unchanging,
        "optimum": outcome.optimum,
        "passes": outcome.eviction.passes,
    })
}
