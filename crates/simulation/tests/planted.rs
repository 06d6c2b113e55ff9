//! Whole clusters find the mistakes that are planted in the product.

use base::planted::Bug;
use simulation::known::KNOWN;

#[test]
fn mistakes_in_the_product_are_found() {
    simulation::bugs::find_all();
}

/// The guide says of each mistake who finds it, and how many there are.
#[test]
fn each_mistake_is_listed_in_the_guide() {
    let guide = include_str!("../../../HACKING.md");
    let count = Bug::ALL.len();
    assert!(guide.contains(&format!("names {count} mistakes")), "HACKING.md: there are {count} mistakes");
    for bug in Bug::ALL {
        let row = guide.lines().find(|line| line.starts_with(&format!("| `{bug:?}` | ")));
        let row = row.unwrap_or_else(|| panic!("HACKING.md does not list {bug:?}"));
        for (_, by, seed) in KNOWN.iter().filter(|(known, ..)| known == bug) {
            assert!(row.contains(&format!("{by:?} {seed}")), "HACKING.md: {bug:?} is found by {by:?} {seed}");
        }
    }
}
