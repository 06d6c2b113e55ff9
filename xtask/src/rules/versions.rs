//! `deny.toml` names each version of a crate that `Cargo.lock` has beside a newer one, and no other.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result};
use harness::tree;

const LOCK: &str = "Cargo.lock";
const DENY: &str = "deny.toml";

/// Compares both files.
pub fn check() -> Result<Vec<String>> {
    let read = |name: &str| {
        fs::read_to_string(tree::root().join(name)).with_context(|| format!("cannot read {name}"))
    };
    Ok(violations(&read(LOCK)?, &read(DENY)?))
}

fn violations(lock: &str, deny: &str) -> Vec<String> {
    let (needed, named) = (older_versions(lock), skipped(deny));
    let missing = needed.difference(&named).map(|one| {
        format!(
            "versions: {DENY}: skip {one} and say who asks for it, or have that crate take the newest one"
        )
    });
    let stale = named.difference(&needed).map(|one| {
        format!("versions: {DENY}: take {one} out, which {LOCK} does not have beside a newer one")
    });
    missing.chain(stale).collect()
}

/// Each version that is followed by a newer one, as `NAME@VERSION`: Cargo sorts packages by name and version.
fn older_versions(lock: &str) -> BTreeSet<String> {
    let packages = lock.split("[[package]]").skip(1);
    let packages: Vec<(&str, &str)> =
        packages.filter_map(|block| Some((value(block, "name")?, value(block, "version")?))).collect();
    let older = packages.windows(2).filter(|pair| pair[0].0 == pair[1].0);
    older.map(|pair| format!("{}@{}", pair[0].0, pair[0].1)).collect()
}

fn value<'t>(block: &'t str, key: &str) -> Option<&'t str> {
    let quoted = block.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""));
    quoted?.strip_suffix('"')
}

/// The versions that `deny.toml` lets pass.
fn skipped(deny: &str) -> BTreeSet<String> {
    let named =
        deny.lines().filter_map(|line| line.trim_start().strip_prefix("{ crate = \"")?.split_once('"'));
    named.map(|(name, _)| name.to_owned()).filter(|name| name.contains('@')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCKED: &str = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"0.9.0\"\n\n[[package]]\nname = \"a\"\n\
                          version = \"0.10.0\"\ndependencies = [\n \"b\",\n]\n\n[[package]]\nname = \"b\"\nversion = \"1.0.0\"\n";

    #[test]
    fn older_versions_are_named_and_no_others() {
        let with = |skip: &str| {
            violations(LOCKED, &format!("deny = [\n    {{ crate = \"c\" }},\n]\nskip = [\n{skip}]\n"))
        };
        let a = "    { crate = \"a@0.9.0\", reason = \"b\" },\n";
        assert_eq!(with(a), [""; 0]);
        let missing = with("");
        assert!(missing.len() == 1 && missing[0].contains("skip a@0.9.0"), "{missing:?}");
        let stale = with(&format!("{a}    {{ crate = \"b@1.0.0\", reason = \"none\" }},\n"));
        assert!(stale.len() == 1 && stale[0].contains("take b@1.0.0 out"), "{stale:?}");
    }
}
