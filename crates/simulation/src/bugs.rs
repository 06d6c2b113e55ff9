//! Mistakes in the product that whole clusters must find (`base::planted`).

use crate::known::{Simulator, must_find};

/// Looks for what clusters are known to find, and prints what it took; panics if something was not found.
pub fn find_all() {
    must_find(Simulator::Clusters, |seed| crate::run(seed).violation.map_or(Ok(()), Err));
}

/// The same of nodes with streams between them, without a cluster.
pub fn find_all_of_streams() {
    must_find(Simulator::Streams, |seed| crate::run_streams(seed, crate::Mistake::None).map(drop));
}
