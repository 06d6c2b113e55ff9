//! Numbers in README.md are those of the binary and of the pages that have the measurements.

const README: &str = include_str!("../../../../README.md");
const MEASUREMENTS: &str = include_str!("../../../../docs/measurements.md");
const PERFORMANCE: &str = include_str!("../../../../docs/performance.md");
const WORKSPACE: &str = include_str!("../../../../Cargo.toml");
const REQUIREMENTS: &str = include_str!("../../../../tests/conformance/python/requirements.txt");

/// The text between two others, at the first place.
fn between<'a>(text: &'a str, before: &str, behind: &str) -> &'a str {
    let rest = text.split_once(before).unwrap_or_else(|| panic!("there is no {before:?}")).1;
    rest.split_once(behind).unwrap_or_else(|| panic!("there is no {behind:?} behind {before:?}")).0
}

/// The first number of a cell, whose range stands in brackets.
fn number(cell: &str) -> f64 {
    let number = cell.trim().split(' ').next().unwrap_or_default();
    number.parse().unwrap_or_else(|_| panic!("{cell:?} begins with no number"))
}

#[test]
fn versions_are_those_that_are_built_and_tested_with() {
    let rust = between(WORKSPACE, "rust-version = \"", "\"");
    assert!(README.contains(&format!("It needs Rust {rust} or later")), "README.md: Rust {rust}");
    let sdk = REQUIREMENTS.lines().find(|line| line.starts_with("couchbase==")).expect("the SDK is pinned");
    assert!(README.contains(&format!("pip install {sdk}\n")), "README.md: {sdk}");
}

#[test]
fn documents_that_survive_are_those_that_were_measured() {
    let documents = between(README, "lost none of ", " documents");
    let row = MEASUREMENTS.lines().find(|row| row.contains("lost in 50 rounds of `kill -9` under load"));
    let row = row.expect("measurements.md has the rounds");
    assert!(README.contains("Fifty rounds of `kill -9` under load"), "README.md has the rounds");
    assert!(row.contains(&format!("| 0 of {documents} |")), "{row}");
}

/// Reads, writes and both; inserts, of which memcached needs more than twice as much, are not in the claim.
#[test]
fn processor_time_beside_memcached_is_what_was_measured() {
    let claim = between(README, "An operation costs ", " times the processor time that memcached needs");
    let (least, most) = claim.split_once(" to ").expect("two numbers");
    let table = between(PERFORMANCE, "| | memcached | redis | redis-aof | stave |\n", "\n\n");
    let kinds = ["mixed_", "reads_", "writes_"];
    let rows = table
        .lines()
        .map(|row| row.split(" | ").map(|cell| cell.trim_matches('|').trim()).collect::<Vec<_>>());
    let rows: Vec<Vec<&str>> = rows.filter(|row| kinds.iter().any(|kind| row[0].starts_with(kind))).collect();
    assert_eq!(rows.len(), 6, "{rows:?}");
    let ratios: Vec<f64> = rows.iter().map(|row| number(row[4]) / number(row[1])).collect();
    let found = |pick: fn(f64, f64) -> f64, from| ratios.iter().copied().fold(from, pick);
    let outward = (found(f64::min, f64::MAX) * 10.0).floor() / 10.0;
    let upward = (found(f64::max, 0.0) * 10.0).ceil() / 10.0;
    assert_eq!((number(least), number(most)), (outward, upward), "{ratios:?}");
}

/// The first session finds a node that was told nothing but its password.
#[test]
fn the_address_is_that_of_a_node_that_is_told_nothing() {
    let settings = node::Settings::default();
    let config =
        node::Config::new(settings, "data".into(), 1, || "password".to_owned()).expect("the defaults");
    assert!(README.contains(&format!("couchbase://{}", config.kv_addr)), "README.md: {}", config.kv_addr);
}
