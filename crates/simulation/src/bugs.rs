//! Mistakes in the product that whole clusters must find (`base::planted`).

use std::collections::BTreeMap;
use std::sync::Mutex;

use base::planted::Planted;

use crate::known::{Simulator, must_find};

/// Looks for what clusters are known to find, and prints what it took; panics if something was not found.
///
/// A seed finds a mistake if something is violated with it and nothing without it.
pub fn find_all() {
    let right = Mutex::new(BTreeMap::new());
    must_find(Simulator::Clusters, |seed| {
        let Some(violation) = crate::run(seed).violation else { return Ok(()) };
        let known = right.lock().expect("nobody panics with it").get(&seed).copied();
        let is_right = known.unwrap_or_else(|| Planted::set_aside(|| crate::run(seed).violation.is_none()));
        right.lock().expect("nobody panics with it").insert(seed, is_right);
        if is_right { Err(violation) } else { Ok(()) }
    });
}
