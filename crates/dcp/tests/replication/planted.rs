//! Mistakes in the product that two or three nodes which replicate to each other must find (`base::planted`).

use base::planted::{Bug, find};

use crate::mistakes::Mistake;

#[test]
fn look_for_all() {
    let seeds = crate::number("DCP_SEEDS").unwrap_or(20);
    for bug in Bug::ALL {
        match find(*bug, 0..seeds, |seed| crate::run(seed, Mistake::None).map(drop)) {
            Ok(found) => println!("{found}"),
            Err(made) => println!("{bug:?}: not found in {seeds} seeds, made {made} times"),
        }
    }
}
