//! Floors: a crate depends only on lower ones, as the table in ARCHITECTURE.md says.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use harness::{child, tree};

/// Folders whose packages stand outside the floors: they may depend on any crate, and no crate on them.
const OUTSIDE: [&str; 2] = ["tools", "xtask"];
/// What only the floors from `server` up may know: the async runtime and what is built on it.
const RUNTIME: [&str; 7] = ["tokio", "axum", "hyper", "http-body", "socket2", "rustls", "tokio-rustls"];
/// The first floor that may know the async runtime.
const RUNTIME_FROM: &str = "server";

/// A row of the table.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    floor: u32,
    planned: bool,
}

/// Compares the workspace with the table.
pub fn check() -> Result<Vec<String>> {
    let document = fs::read_to_string(tree::root().join("ARCHITECTURE.md")).context("ARCHITECTURE.md")?;
    let metadata = child::output(&mut child::cargo(&["metadata", "--format-version", "1", "--no-deps"]))?;
    violations(&table(&document), &serde_json::from_str(&metadata)?)
}

/// Reads rows like `| 1 | `protocol` | ... |`; a crate that does not exist yet is marked `(planned)`.
fn table(document: &str) -> BTreeMap<String, Row> {
    let row = |line: &str| -> Option<(String, Row)> {
        let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
        let floor = cells.next()?.parse().ok()?;
        let cell = cells.next()?;
        let name = cell.strip_prefix('`')?.split('`').next()?;
        Some((name.to_owned(), Row { floor, planned: cell.contains("(planned)") }))
    };
    document.lines().filter_map(row).collect()
}

fn violations<'m>(table: &BTreeMap<String, Row>, metadata: &'m Value) -> Result<Vec<String>> {
    let packages = metadata["packages"].as_array().context("cargo metadata has packages")?;
    let mut found = Vec::new();
    let mut present = Vec::new();
    let name_of = |package: &'m Value| package["name"].as_str().context("a package has a name");
    let outside: Vec<&str> =
        packages.iter().filter(|package| is_outside(package)).map(name_of).collect::<Result<_>>()?;
    for package in packages.iter().filter(|package| !is_outside(package)) {
        let name = name_of(package)?;
        present.push(name);
        let Some(row) = table.get(name) else {
            found.push(format!(
                "floors: `{name}` has no row: give it a floor in the table of ARCHITECTURE.md"
            ));
            continue;
        };
        if row.planned {
            found
                .push(format!("floors: `{name}` exists: take `(planned)` out of its row in ARCHITECTURE.md"));
        }
        for dependency in dependencies(package)? {
            found.extend(judge(table, name, row, dependency));
            if outside.contains(&dependency) {
                found.push(format!(
                    "floors: `{name}` depends on the tool `{dependency}`: move what both need to a crate"
                ));
            }
        }
    }
    for (name, row) in table {
        if !row.planned && !present.contains(&name.as_str()) {
            found.push(format!("floors: `{name}` does not exist: remove its row, or mark it `(planned)`"));
        }
    }
    Ok(found)
}

/// Whether a package is a tool: by the folder its manifest is in, below the root of the tree.
fn is_outside(package: &Value) -> bool {
    let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
    let first = manifest.strip_prefix(tree::root()).ok().and_then(|path| path.iter().next());
    first.is_some_and(|first| OUTSIDE.iter().any(|folder| first == *folder))
}

/// Names of what a package needs to run or to be built; dev-dependencies may reach anywhere.
fn dependencies(package: &Value) -> Result<impl Iterator<Item = &str>> {
    let all = package["dependencies"].as_array().context("a package has dependencies")?;
    Ok(all.iter().filter(|d| d["kind"] != "dev").filter_map(|d| d["name"].as_str()))
}

fn judge(table: &BTreeMap<String, Row>, name: &str, row: &Row, dependency: &str) -> Option<String> {
    let runtime_floor = table.get(RUNTIME_FROM).map_or(0, |server| server.floor);
    if RUNTIME.contains(&dependency) && row.floor < runtime_floor {
        return Some(format!(
            "floors: `{name}` depends on `{dependency}`, but only `{RUNTIME_FROM}` and above know the runtime: \
             return an effect or take a value, and let `{RUNTIME_FROM}` wait"
        ));
    }
    let other = table.get(dependency)?;
    (other.floor >= row.floor).then(|| {
        format!(
            "floors: `{name}` (floor {}) depends on `{dependency}` (floor {}): move what both need to a lower \
             floor, or let a higher one join them",
            row.floor, other.floor
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "| floor | crate | rule |\n|---|---|---|\n| 0 | `low` | a |\n| 1 | `high` | b |\n\
                         | 2 | `later` (planned) | c |\n| 3 | `server` | d |\n";

    fn found(packages: &str) -> Vec<String> {
        let metadata = serde_json::from_str(&format!("{{\"packages\":[{packages}]}}")).unwrap();
        violations(&table(TABLE), &metadata).unwrap()
    }

    fn package(name: &str, needs: &[(&str, &str)]) -> String {
        let needs: Vec<String> =
            needs.iter().map(|(name, kind)| format!("{{\"name\":\"{name}\",\"kind\":{kind}}}")).collect();
        format!("{{\"name\":\"{name}\",\"dependencies\":[{}]}}", needs.join(","))
    }

    fn workspace(low_needs: &[(&str, &str)]) -> Vec<String> {
        let all = [package("low", low_needs), package("high", &[("low", "null")]), package("server", &[])];
        found(&all.join(","))
    }

    #[test]
    fn reads_the_table() {
        let table = table(TABLE);
        assert_eq!(table["high"], Row { floor: 1, planned: false });
        assert_eq!(table["later"], Row { floor: 2, planned: true });
    }

    #[test]
    fn downwards_is_fine_and_tests_may_reach_up() {
        assert_eq!(workspace(&[("high", "\"dev\""), ("serde", "null")]), Vec::<String>::new());
    }

    #[test]
    fn upwards_is_not() {
        assert_eq!(workspace(&[("high", "null")]).len(), 1);
        assert_eq!(workspace(&[("tokio", "null")]).len(), 1);
    }

    #[test]
    fn tools_have_no_floor_and_no_crate_needs_them() {
        let manifest = tree::root().join("tools/tool/Cargo.toml");
        let tool = |needs: &str| {
            let manifest = manifest.display();
            format!("{{\"name\":\"tool\",\"manifest_path\":\"{manifest}\",\"dependencies\":[{needs}]}}")
        };
        let of = |low: &[(&str, &str)], tool: String| {
            found(&[package("low", low), package("high", &[]), package("server", &[]), tool].join(",")).len()
        };
        assert_eq!(of(&[("tool", "\"dev\"")], tool("{\"name\":\"server\",\"kind\":null}")), 0);
        assert_eq!(of(&[("tool", "null")], tool("")), 1);
    }

    #[test]
    fn table_and_workspace_name_the_same_crates() {
        assert_eq!(found(&package("stray", &[])).len(), 1 + 3);
    }
}
