//! Mistakes in the product that whole clusters must find (`base::planted`).

use std::collections::BTreeMap;

use base::planted::{Bug, Planted};

use crate::known::{Simulator, look_for};

/// Looks for one share of what clusters are known to find, prints what it took, and returns those that were not found.
///
/// A seed finds a mistake if something is violated with it and nothing without it.
pub fn not_found(share: usize) -> Vec<Bug> {
    let mut is_right = BTreeMap::new();
    look_for(Simulator::Clusters, share, |seed| {
        let Some(violation) = crate::run(seed).violation else { return Ok(()) };
        let without = || Planted::set_aside(|| crate::run(seed).violation.is_none());
        if *is_right.entry(seed).or_insert_with(without) { Err(violation) } else { Ok(()) }
    })
}
