//! Lists of recorded scenarios that are known to differ: `group/name  reason`, a line each, `#` for comments.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

/// Scenario and reason.
pub type ScenarioList = BTreeMap<String, String>;

/// Reads a list.
pub fn read(path: &Path) -> Result<ScenarioList> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| format!("in {}", path.display()))
}

fn parse(text: &str) -> Result<ScenarioList> {
    let mut list = ScenarioList::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((name, reason)) = line.split_once(char::is_whitespace) else {
            bail!("line {}: no reason after {line:?}", index + 1);
        };
        let added = list.insert(name.to_owned(), reason.trim().to_owned()).is_none();
        ensure!(added, "line {}: {name} is listed twice", index + 1);
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_names_and_reasons() {
        let list = parse("# why\n\nget/miss  because of this\n").unwrap();
        assert_eq!(list.get("get/miss").map(String::as_str), Some("because of this"));
    }

    #[test]
    fn wants_a_reason_and_no_name_twice() {
        assert!(parse("get/miss\n").is_err());
        assert!(parse("get/miss a\nget/miss b\n").is_err());
    }
}
