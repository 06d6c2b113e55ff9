//! Mistakes in the product that whole clusters must find (`base::planted`).

use crate::known::{Simulator, must_find};

/// Looks for what clusters are known to find, and prints what it took; panics if something was not found.
pub fn find_all() {
    must_find(Simulator::Clusters, |seed| crate::run(seed).violation.map_or(Ok(()), Err));
}
