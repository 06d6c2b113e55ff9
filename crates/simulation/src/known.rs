//! Which simulator finds which mistake in the product, and with which seed (`base::planted`).
//!
//! The tests of the other simulators have this file, too, so that there is one table.

use base::planted::{Bug, find};

/// What looks for mistakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Simulator {
    /// Whole clusters with real data: `crates/simulation`.
    Clusters,
    /// The cluster's logic over toy data: `crates/cluster/tests/simulation`.
    Logic,
    /// Nodes that replicate to each other: `crates/dcp/tests/replication`.
    Replication,
    /// Power losses of a bucket: `crates/sim/tests/engine.rs`.
    Crashes,
    /// Power losses of a bucket with sync writes: `crates/sim/tests/sync_writes.rs`.
    SyncWriteCrashes,
    /// Crash states of the store behind a journal: `crates/sim/tests/crash_states.rs`.
    CrashStates,
}

/// Who finds what, and the seed that did when this was written. Each mistake is found by one of them at least.
pub const KNOWN: &[(Bug, Simulator, u64)] = &[
    (Bug::JournalNotSynced, Simulator::Replication, 2),
    (Bug::FilesNotSynced, Simulator::Replication, 1),
    (Bug::ReplayStopsEarly, Simulator::Replication, 2),
    (Bug::NoHistoryAfterCrash, Simulator::Replication, 0),
    (Bug::PurgeNotTold, Simulator::Replication, 0),
    (Bug::RollbackLeavesMemory, Simulator::Replication, 0),
    (Bug::RollbackTooShort, Simulator::Replication, 0),
    (Bug::NoHistoryAtPromotion, Simulator::Replication, 0),
    (Bug::KeepFailoverTable, Simulator::Replication, 0),
    (Bug::StreamSkipsDisk, Simulator::Replication, 0),
    (Bug::SwitchRepeatsOne, Simulator::Replication, 0),
    (Bug::ExpirationsNotSent, Simulator::Replication, 0),
    (Bug::TakeoverLeavesActive, Simulator::Replication, 0),
    (Bug::StateNotSaved, Simulator::Replication, 0),
    (Bug::SnapshotForgottenAtRestart, Simulator::Replication, 0),
    (Bug::SwitchSkips, Simulator::Replication, 0),
    (Bug::PromotedInsideSnapshot, Simulator::Replication, 0),
    (Bug::TakeoverForgetsRest, Simulator::Replication, 0),
    (Bug::CasForgottenAtRestart, Simulator::Crashes, 0),
    (Bug::NoHistoryAfterCrash, Simulator::Crashes, 0),
    (Bug::FilesNotSynced, Simulator::Crashes, 0),
    (Bug::CommitBeforeDisk, Simulator::SyncWriteCrashes, 0),
    (Bug::AnswerBeforeCommit, Simulator::SyncWriteCrashes, 0),
    (Bug::PreparesNotSaved, Simulator::SyncWriteCrashes, 0),
    (Bug::WarmupForgetsPrepares, Simulator::SyncWriteCrashes, 0),
    (Bug::FilesNotSynced, Simulator::SyncWriteCrashes, 0),
    (Bug::JournalNotSynced, Simulator::CrashStates, 0),
    (Bug::FilesNotSynced, Simulator::CrashStates, 0),
    (Bug::ReplayStopsEarly, Simulator::CrashStates, 0),
    (Bug::TornRecordTaken, Simulator::CrashStates, 0),
    (Bug::FenceSkipped, Simulator::Logic, 0),
    (Bug::NoLeaseMargin, Simulator::Logic, 0),
    (Bug::FirstIsChosen, Simulator::Logic, 0),
    (Bug::ChosenTooEarly, Simulator::Logic, 0),
    (Bug::MovedTooEarly, Simulator::Logic, 0),
    (Bug::NotSettled, Simulator::Logic, 0),
    (Bug::HandedOverComesBack, Simulator::Logic, 0),
    (Bug::LossesIgnored, Simulator::Logic, 0),
    (Bug::ChosenByFew, Simulator::Logic, 0),
    (Bug::BlindWrite, Simulator::Logic, 0),
    (Bug::ReportWithoutPrepares, Simulator::Logic, 0),
    (Bug::StreamBeforeAdmission, Simulator::Logic, 0),
    (Bug::HeldCopyFollows, Simulator::Logic, 0),
    (Bug::SilentStaysInChain, Simulator::Logic, 0),
    (Bug::CommitBeforeDisk, Simulator::Clusters, 0),
    (Bug::AcknowledgeBeforeDisk, Simulator::Clusters, 0),
    (Bug::AcknowledgeInsideSnapshot, Simulator::Clusters, 0),
    (Bug::MajorityOfDefined, Simulator::Clusters, 0),
    (Bug::StrangerCounts, Simulator::Clusters, 0),
    (Bug::OneChainAsked, Simulator::Clusters, 0),
    (Bug::CommitOutOfOrder, Simulator::Clusters, 0),
    (Bug::ForgetPrepareAtPromotion, Simulator::Clusters, 0),
    (Bug::AbortLostOnReplica, Simulator::Clusters, 0),
    (Bug::PrepareIgnoresCas, Simulator::Clusters, 0),
    (Bug::WriteUnderPrepare, Simulator::Clusters, 0),
    (Bug::ReadSeesPrepare, Simulator::Clusters, 0),
    (Bug::AnswerBeforeCommit, Simulator::Clusters, 0),
    (Bug::FailedSaveCounts, Simulator::Clusters, 0),
    (Bug::JournalNotSynced, Simulator::Clusters, 0),
    (Bug::FilesNotSynced, Simulator::Clusters, 0),
    (Bug::PreparesNotSaved, Simulator::Clusters, 0),
    (Bug::StateNotSaved, Simulator::Clusters, 0),
    (Bug::ReplayStopsEarly, Simulator::Clusters, 0),
    (Bug::TornRecordTaken, Simulator::Clusters, 0),
    (Bug::WarmupForgetsPrepares, Simulator::Clusters, 0),
    (Bug::DroppedNotHidden, Simulator::Clusters, 0),
    (Bug::NoHistoryAfterCrash, Simulator::Clusters, 0),
    (Bug::CasForgottenAtRestart, Simulator::Clusters, 0),
    (Bug::SnapshotForgottenAtRestart, Simulator::Clusters, 0),
    (Bug::DirtyDocumentEvicted, Simulator::Clusters, 0),
    (Bug::CompactionDropsPrepares, Simulator::Clusters, 0),
    (Bug::PurgeNotTold, Simulator::Clusters, 0),
    (Bug::DroppedCollectionKept, Simulator::Clusters, 0),
    (Bug::RollbackLeavesMemory, Simulator::Clusters, 0),
    (Bug::RollbackTooShort, Simulator::Clusters, 0),
    (Bug::NoHistoryAtPromotion, Simulator::Clusters, 0),
    (Bug::KeepFailoverTable, Simulator::Clusters, 0),
    (Bug::PromotedInsideSnapshot, Simulator::Clusters, 0),
    (Bug::StreamSkipsDisk, Simulator::Clusters, 0),
    (Bug::SwitchRepeatsOne, Simulator::Clusters, 0),
    (Bug::SwitchSkips, Simulator::Clusters, 0),
    (Bug::ExpirationsNotSent, Simulator::Clusters, 0),
    (Bug::TakeoverLeavesActive, Simulator::Clusters, 0),
    (Bug::TakeoverForgetsRest, Simulator::Clusters, 0),
    (Bug::FenceSkipped, Simulator::Clusters, 0),
    (Bug::NoLeaseMargin, Simulator::Clusters, 0),
    (Bug::FirstIsChosen, Simulator::Clusters, 0),
    (Bug::ChosenTooEarly, Simulator::Clusters, 0),
    (Bug::MovedTooEarly, Simulator::Clusters, 0),
    (Bug::NotSettled, Simulator::Clusters, 0),
    (Bug::HandedOverComesBack, Simulator::Clusters, 0),
    (Bug::LossesIgnored, Simulator::Clusters, 0),
    (Bug::ChosenByFew, Simulator::Clusters, 0),
    (Bug::BlindWrite, Simulator::Clusters, 0),
    (Bug::SameLife, Simulator::Clusters, 0),
    (Bug::ServedBeforeAdmission, Simulator::Clusters, 0),
    (Bug::ReportedTooEarly, Simulator::Clusters, 0),
    (Bug::ReportWithoutPrepares, Simulator::Clusters, 0),
    (Bug::StreamBeforeAdmission, Simulator::Clusters, 0),
    (Bug::HeldCopyFollows, Simulator::Clusters, 0),
    (Bug::SilentStaysInChain, Simulator::Clusters, 0),
];

/// Set in the environment, a search begins with seed 0 instead of the one that is known, and tries as many seeds as it
/// says.
pub const SEARCH: &str = "PLANTED_SEARCH";
/// Seeds that are tried from the known one on: the product changes, and with it what a seed brings about.
const SEEDS: u64 = 200;

/// Looks for all mistakes that a simulator is known to find, and prints what it took. Returns those that were not found.
pub fn look_for(simulator: Simulator, mut run: impl FnMut(u64) -> Result<(), String>) -> Vec<Bug> {
    let search = std::env::var(SEARCH).ok().and_then(|seeds| seeds.parse().ok());
    let mut missed = Vec::new();
    for (bug, _, seed) in KNOWN.iter().filter(|(_, by, _)| *by == simulator) {
        let seeds = search.map_or(*seed..*seed + SEEDS, |seeds| 0..seeds);
        match find(*bug, seeds.clone(), &mut run) {
            Ok(found) => println!("{simulator:?}: {found}"),
            Err(made) => {
                println!("{simulator:?}: {bug:?} was not found in {seeds:?}, and made {made} times");
                missed.push(*bug);
            }
        }
    }
    missed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mistake_is_found_by_somebody() {
        for bug in Bug::ALL {
            assert!(KNOWN.iter().any(|(known, ..)| known == bug), "nobody finds {bug:?}");
        }
    }
}
