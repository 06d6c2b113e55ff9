//! A node starts with one damaged file in each place of each kind of file, and serves what is right, or refuses it.

#[cfg(debug_assertions)]
#[path = "../../../simulation/src/known.rs"]
mod known;
mod run;

#[cfg(debug_assertions)]
use base::planted::{Bug, Planted};
use run::{Kind, Outcome, Tally, Trial};

/// Worlds of an ordinary run of the tests.
const WORLDS: u64 = 400;

#[test]
fn what_is_served_with_a_damaged_file_is_right_or_refused() {
    let mut tally = Tally::default();
    (0..WORLDS).for_each(|seed| tally.add(Trial::default().run(seed)));
    println!("{tally}");
    assert_eq!(tally.violations(), 0, "{tally}");
    for kind in Kind::ALL {
        assert!(tally.rows.keys().any(|(_, damage)| *damage == kind.name()), "{kind:?} was not tried");
    }
    let kinds = [
        ("catalog", Kind::BothStale),
        ("small files", Kind::SmallStale),
        ("log segment", Kind::OfAnother),
        ("log run", Kind::OfAnother),
        ("log manifest", Kind::OfAnother),
        ("log segment", Kind::OfBranch),
        ("log run", Kind::OfBranch),
        ("log manifest", Kind::OfBranch),
        ("documents", Kind::OfAnother),
        ("documents", Kind::OfBranch),
    ];
    for (class, kind) in kinds {
        assert!(tally.rows.contains_key(&(class, kind.name())), "{kind:?} of a {class} was not tried");
    }
    for outcome in Outcome::ALL {
        let is_met = tally.rows.values().any(|counts| counts.of(outcome) > 0);
        assert_eq!(is_met, outcome != Outcome::Wrong, "{outcome:?}: {tally}");
    }
    assert!(tally.starts() > WORLDS * 20, "{tally}");
}

/// Worlds in which damage is repaired.
const REPAIRED_WORLDS: u64 = 100;

#[test]
fn what_a_repair_says_is_what_is_served_then() {
    let (mut repaired, mut wrong) = (0, Vec::new());
    for seed in 0..REPAIRED_WORLDS {
        let (count, more) = Trial::default().repair(seed);
        repaired += count;
        wrong.extend(more);
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong[..wrong.len().min(12)].join("\n"));
    assert!(repaired > REPAIRED_WORLDS * 5, "{repaired} were repaired");
}

#[test]
fn what_a_repair_of_a_log_structured_store_says_is_what_is_served_then() {
    let (mut repaired, mut wrong) = (0, Vec::new());
    for seed in 0..REPAIRED_WORLDS {
        let (count, more) = Trial::default().repair_log(seed);
        repaired += count;
        wrong.extend(more);
    }
    println!("{repaired} were repaired");
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong[..wrong.len().min(12)].join("\n"));
    assert!(repaired > REPAIRED_WORLDS * 5, "{repaired} were repaired");
}

/// Mistakes in the product that a damaged file, or its repair, shows (`base::planted`).
#[test]
#[cfg(debug_assertions)]
fn mistakes_in_the_product_are_found() {
    known::must_find(known::Simulator::Damage, |seed| {
        let tally = Trial::default().run(seed);
        if tally.violations() > 0 {
            return Err(tally.to_string().replace('\n', " "));
        }
        let mut wrong = Trial::default().repair(seed).1;
        wrong.extend(Trial::default().repair_log(seed).1);
        wrong.into_iter().next().map_or(Ok(()), Err)
    });
}

/// Worlds in which a mistake of a repair is looked for.
#[cfg(debug_assertions)]
const SEARCHED_WORLDS: u64 = 60;

/// The repair of a log-structured store shows the mistakes of repairs, too.
#[test]
#[cfg(debug_assertions)]
fn mistakes_in_repairs_of_a_log_structured_store_are_found() {
    for bug in [Bug::RepairKeepsHistory, Bug::RepairPassesGap] {
        let _planted = Planted::new(bug);
        let found = (0..SEARCHED_WORLDS).find(|seed| !Trial::default().repair_log(*seed).1.is_empty());
        println!("{bug:?}: world {found:?}");
        assert!(found.is_some(), "{bug:?} is not found");
    }
}
