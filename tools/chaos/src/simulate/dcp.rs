//! `cargo xtask simulate --dcp`: the simulators of streams and replicas, and one table of what they did.

use anyhow::Result;
use harness::child::{cargo, each_line};

/// Package and test, the test in it, and what its table is headed by.
const SIMULATORS: [(&str, &str, &str, &str); 2] = [
    (
        "dcp",
        "faults",
        "strict_consumers_end_with_the_documents_of_the_bucket",
        "one node, strict consumers of everything, collections and scopes",
    ),
    (
        "simulation",
        "streams",
        "replicas_end_with_what_the_active_node_has",
        "two or three nodes that follow each other, and a third party",
    ),
];

/// What one of them counted, in its order.
type Rows = Vec<(String, u64)>;

/// Runs so many seeds of each from the first on; whether nothing was violated.
pub fn run(first: u64, seeds: u64, json: bool) -> Result<bool> {
    let mut all = Vec::new();
    let mut passed = true;
    for (package, test, name, title) in SIMULATORS {
        let mut command = cargo(&["test", "--locked", "--quiet", "--package", package, "--test", test]);
        command.args(["--", "--nocapture", name]);
        command.env("DCP_FIRST_SEED", first.to_string()).env("DCP_SEEDS", seeds.to_string());
        let mut rows = Rows::new();
        passed &= each_line(&mut command, |line| rows.extend(row(line)))?;
        // Whoever broke off before the end has counted nothing.
        passed &= rows.iter().any(|(name, count)| name == "violations" && *count == 0);
        all.push((title, rows));
    }
    if json {
        let of = |(title, rows): &(&str, Rows)| {
            let rows: serde_json::Map<String, serde_json::Value> =
                rows.iter().map(|(name, count)| (name.replace(' ', "_"), (*count).into())).collect();
            ((*title).to_owned(), rows.into())
        };
        let all: serde_json::Map<String, serde_json::Value> = all.iter().map(of).collect();
        println!("{}", serde_json::Value::from(all));
    } else {
        for (title, rows) in &all {
            println!("\n{title}");
            rows.iter().for_each(|(name, count)| println!("{name:>40} {count}"));
        }
    }
    Ok(passed)
}

/// A line of a table: a name that is set to the right of its column, and a number.
fn row(line: &str) -> Option<(String, u64)> {
    let (name, count) = line.strip_prefix("  ")?.rsplit_once(' ')?;
    Some((name.trim().to_owned(), count.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_lines_of_a_table_and_no_others() {
        let name = "rollbacks";
        assert_eq!(row(&format!("{name:>40} 12")), Some(("rollbacks".to_owned(), 12)));
        assert_eq!(row(&format!("{:>40} 3", "  its rollbacks")), Some(("its rollbacks".to_owned(), 3)));
        assert_eq!(row("100 of 3000 seeds, violations so far: 0"), None);
        assert_eq!(row("seed 12: the replica has 4"), None);
        assert_eq!(row("   8: core::panicking::panic_fmt"), None);
    }
}
