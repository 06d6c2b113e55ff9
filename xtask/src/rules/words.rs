//! Words of the project's own that the field's terms have replaced: they do not come back as names in the code.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result};
use harness::tree;

/// A retired name, in the two ways in which it would be written, and the field's term. HACKING.md explains the terms.
const RETIRED: [([&str; 2], &str); 9] = [
    (["Shelf", "shelf"], "SegmentPool"),
    (["Loan", "loan"], "FetchPin"),
    (["StandIn", "stand_in"], "InlineFlush"),
    (["Ears", "ears"], "SignalListener"),
    (["Mailbox", "mailbox"], "WakeQueue"),
    (["Letters", "postman"], "SharedWaker"),
    (["Seat", "take_seats"], "ApplyTarget"),
    (["LocalSeat", "seat"], "ApplyTarget"),
    (["Lent", "stand_ins"], "FetchPin or InlineFlush"),
];

/// Looks at all code of the crates.
pub fn check() -> Result<Vec<String>> {
    let mut found = Vec::new();
    for path in tree::files(&["rs"])?.into_iter().filter(|path| path.starts_with("crates")) {
        let text = fs::read_to_string(tree::root().join(&path))
            .with_context(|| format!("cannot read {}", path.display()))?;
        found.extend(violations(&path.display().to_string(), &text));
    }
    Ok(found)
}

fn violations(path: &str, text: &str) -> Vec<String> {
    let words: BTreeSet<&str> = text.split(|char: char| !char.is_alphanumeric() && char != '_').collect();
    let retired = RETIRED.iter().flat_map(|(names, term)| names.map(|name| (name, term)));
    let retired = retired.filter(|(name, _)| words.contains(name));
    retired.map(|(name, term)| format!("words: {path}: say {term} instead of {name}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retired_names_are_found_as_whole_words() {
        let told = |text| violations("a.rs", text);
        assert_eq!(told("self.shelf.lock()"), ["words: a.rs: say SegmentPool instead of shelf"]);
        assert_eq!(told("impl Seat for X {}"), ["words: a.rs: say ApplyTarget instead of Seat"]);
        assert_eq!(told("let bookshelf = seats(years, letters);"), Vec::<String>::new());
    }
}
