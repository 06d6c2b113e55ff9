//! Decision records: numbered without gaps that nothing explains, each with a status that is one of the known ones.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use harness::tree;

const FOLDER: &str = "docs/adr";
/// The list of all records, which also says what became of numbers that have none.
const INDEX: &str = "docs/adr/README.md";
/// What a record's status begins with.
const STATUSES: [&str; 4] = ["accepted", "design", "replaced by record ", "withdrawn"];

/// Looks at all records.
pub fn check() -> Result<Vec<String>> {
    let mut records = BTreeMap::new();
    for path in tree::files(&["md"])?.into_iter().filter(|path| path.parent() == Some(Path::new(FOLDER))) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name != "README.md" {
            let text = fs::read_to_string(tree::root().join(&path))
                .with_context(|| format!("cannot read {}", path.display()))?;
            records.insert(name, text);
        }
    }
    let index =
        fs::read_to_string(tree::root().join(INDEX)).with_context(|| format!("cannot read {INDEX}"))?;
    Ok(violations(&records, &index))
}

fn violations(records: &BTreeMap<String, String>, index: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut last = 0;
    for (name, text) in records {
        let number = name.split_once('-').and_then(|(number, _)| number.parse::<usize>().ok());
        let Some(number) = number.filter(|_| name.as_bytes().get(4) == Some(&b'-')) else {
            found.push(format!(
                "records: {FOLDER}/{name}: begin the name with a number of four digits and a dash"
            ));
            continue;
        };
        if number == last {
            found.push(format!("records: {FOLDER}/{name}: the number is another record's as well"));
        }
        for missing in (last + 1..number).filter(|missing| !index.contains(&format!("| {missing:04} |"))) {
            found.push(format!("records: {INDEX}: say what became of number {missing:04}"));
        }
        last = number;
        if !index.contains(&format!("({name})")) {
            found.push(format!("records: {INDEX}: list {name}"));
        }
        let status = text.lines().find_map(|line| line.strip_prefix("Status: "));
        if !status.is_some_and(|status| STATUSES.iter().any(|known| status.starts_with(known))) {
            let known = STATUSES.join(", ");
            found.push(format!("records: {FOLDER}/{name}: a line `Status: ` followed by one of: {known}"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(records: &[(&str, &str)], index: &str) -> usize {
        let of = |(name, text): &(&str, &str)| ((*name).to_owned(), (*text).to_owned());
        violations(&records.iter().map(of).collect(), index).len()
    }

    #[test]
    fn gaps_are_explained_and_records_listed() {
        let records =
            [("0001-a.md", "Status: accepted.\n"), ("0003-b.md", "Status: replaced by record 4.\n")];
        let index = "| [0001](0001-a.md) |\n| 0002 | not used |\n| [0003](0003-b.md) |\n";
        assert_eq!(found(&records, index), 0);
        assert_eq!(found(&records, "(0001-a.md) (0003-b.md)"), 1);
        assert_eq!(found(&records, "(0001-a.md) | 0002 |"), 1);
    }

    #[test]
    fn a_record_has_a_known_status_and_a_number_of_its_own() {
        assert_eq!(found(&[("0001-a.md", "## Status\n\nfine\n")], "(0001-a.md)"), 1);
        let two = [("0001-a.md", "Status: accepted."), ("0001-b.md", "Status: accepted.")];
        assert_eq!(found(&two, "(0001-a.md) (0001-b.md)"), 1);
        assert_eq!(found(&[("1-a.md", "Status: accepted.")], ""), 1);
    }
}
