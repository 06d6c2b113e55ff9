//! ARCHITECTURE.md says how many files a SET leads through, and which: as many as it names.

use std::fs;

use anyhow::{Context, Result};
use harness::tree;

const MAP: &str = "ARCHITECTURE.md";
/// What stands before and behind the number.
const BEFORE: &str = "from the socket to the journal, opens ";
const BEHIND: &str = " files";

/// Looks at the sentence. That the files are there, the rule of paths says.
pub fn check() -> Result<Vec<String>> {
    let map = fs::read_to_string(tree::root().join(MAP)).with_context(|| format!("cannot read {MAP}"))?;
    Ok(violations(&map))
}

fn violations(map: &str) -> Vec<String> {
    let Some(line) = map.lines().find(|line| line.contains(BEFORE)) else {
        return vec![format!("walk: {MAP}: say which files a SET leads through ({BEFORE}...)")];
    };
    let said = line.split(BEFORE).nth(1).and_then(|rest| rest.split(BEHIND).next()?.parse::<usize>().ok());
    let named = line.split('`').skip(1).step_by(2).filter(|path| path.ends_with(".rs")).count();
    if said == Some(named) {
        return Vec::new();
    }
    vec![format!("walk: {MAP}: a SET leads through {said:?} files, it says, and names {named}")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_files_are_named_as_are_said() {
        let told = |text: &str| violations(text).len();
        assert_eq!(told("from the socket to the journal, opens 2 files: `a.rs`, `b.rs`, see `c`."), 0);
        assert_eq!(told("from the socket to the journal, opens 2 files: `a.rs`."), 1);
        assert_eq!(told("from the socket to the journal, opens few files: `a.rs`."), 1);
        assert_eq!(told("nothing of it"), 1);
    }
}
