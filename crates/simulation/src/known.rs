//! Which simulator finds which mistake in the product, and with which seed (`base::planted`).
//!
//! The tests of the other simulators have this file, too, so that there is one table.

use std::ops::Range;
use std::sync::Mutex;
use std::thread;

use base::planted::{Bug, Planted, find};

/// What looks for mistakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Simulator {
    /// Whole clusters with real data: `crates/simulation`.
    Clusters,
    /// The cluster's logic over toy data: `crates/cluster/tests/simulation`.
    Logic,
    /// Two or three nodes with streams between them, without a cluster: `crates/simulation/src/streams`.
    Streams,
    /// Power losses of a bucket: `crates/sim/tests/engine.rs`.
    Crashes,
    /// Power losses of a bucket with sync writes: `crates/sim/tests/sync_writes.rs`.
    SyncWriteCrashes,
    /// Crash states of the store behind a journal: `crates/sim/tests/crash_states.rs`.
    CrashStates,
    /// Stops after disk errors, and files that are changed before the next start: `crates/sim/tests/stops.rs`.
    Stops,
    /// Starts of a bucket with one damaged file: `crates/sim/tests/mutate`.
    Damage,
    /// Maps beside a log-structured store, and its crash states: `crates/logstore/tests/log_model.rs`.
    LogStore,
    /// Disk errors in each background task of a bucket: `crates/sim/tests/disk_errors`.
    DiskErrors,
    /// No simulator, but tests: of values that cannot be read, `crates/engine/tests/unreadable.rs`.
    Values,
    /// The same: of what a repair keeps, `crates/kvstore/tests/repair.rs`.
    Repairs,
    /// The same: of what the journal vouches for, `crates/kvstore/tests/journal_vouches.rs`.
    Journals,
    /// The same: of what a change of the manifest costs, `crates/engine/tests/manifest_cost.rs`.
    ManifestCost,
    /// The same: of small files that are put back, `crates/engine/tests/small_files.rs`.
    SmallFiles,
    /// The same: of the limits and rights of clients, `crates/node/src/tests/planted.rs`.
    Node,
    /// The same: of who may use which address, `crates/server/src/http/access.rs`.
    Http,
    /// The same, by seed: of conflicts between clusters, `crates/vbucket/tests/conflict_model.rs`.
    Conflicts,
    /// The same: of what fits into the coordination store, `crates/cluster/tests/sizes.rs`.
    Sizes,
    /// The same: of links between nodes that stay down, `crates/cluster/tests/links.rs`.
    Links,
    /// The same: of states of a store that was restored, `crates/cluster/src/membership.rs`.
    Branches,
    /// The same: of what goes on while a vBucket goes back, `crates/engine/tests/rollback.rs`.
    Rollbacks,
    /// The same, by seed: of the history of changes on replicas, `crates/dcp/tests/history_replicas.rs`.
    Histories,
    /// The same, in a process of its own: of threads that serve many clients, `crates/server/tests/disk_threads.rs`.
    DiskThreads,
    /// The same, with a node in a process of its own: of signals, `crates/stave/tests/signals.rs`.
    Signals,
}

impl Simulator {
    /// Seeds that are tried from the known one on: the product changes, and with it what a seed brings about.
    fn seeds(self) -> u64 {
        // One of its seeds takes some milliseconds.
        if self == Simulator::Logic { 4_000 } else { 400 }
    }
}

/// Who finds what, and the first seed that did when this was written.
pub const KNOWN: &[(Bug, Simulator, u64)] = &[
    (Bug::CommitBeforeDisk, Simulator::Clusters, 0),
    (Bug::AcknowledgeBeforeDisk, Simulator::Clusters, 0),
    (Bug::AcknowledgeInsideSnapshot, Simulator::Clusters, 1),
    (Bug::MajorityOfDefined, Simulator::Clusters, 0),
    (Bug::StrangerCounts, Simulator::Clusters, 3),
    (Bug::OneChainAsked, Simulator::Clusters, 42),
    (Bug::CommitOutOfOrder, Simulator::Clusters, 22),
    (Bug::ForgetPrepareAtPromotion, Simulator::Clusters, 4),
    (Bug::AbortLostOnReplica, Simulator::Clusters, 14),
    (Bug::PrepareIgnoresCas, Simulator::Clusters, 1),
    (Bug::WriteUnderPrepare, Simulator::Clusters, 1),
    (Bug::ReadSeesPrepare, Simulator::Clusters, 0),
    (Bug::AnswerBeforeCommit, Simulator::Clusters, 0),
    (Bug::FailedSaveCounts, Simulator::Clusters, 29),
    (Bug::PreparesNotSaved, Simulator::Clusters, 1),
    (Bug::StateNotSaved, Simulator::Clusters, 8),
    (Bug::DroppedNotHidden, Simulator::Clusters, 3),
    (Bug::CompactionDropsPrepares, Simulator::Clusters, 23),
    (Bug::DroppedCollectionKept, Simulator::Clusters, 3),
    (Bug::StreamSkipsDisk, Simulator::Clusters, 0),
    (Bug::SwitchRepeatsOne, Simulator::Clusters, 0),
    (Bug::TakeoverLeavesActive, Simulator::Clusters, 0),
    (Bug::TakeoverForgetsRest, Simulator::Clusters, 77),
    (Bug::FenceSkipped, Simulator::Clusters, 9),
    (Bug::HandedOverComesBack, Simulator::Clusters, 0),
    (Bug::BlindWrite, Simulator::Clusters, 0),
    (Bug::DirtyDocumentEvicted, Simulator::Clusters, 76),
    (Bug::SwitchSkips, Simulator::Clusters, 1),
    (Bug::FenceStaysShut, Simulator::Clusters, 18),
    (Bug::SavedPreparesNotTold, Simulator::Clusters, 1),
    (Bug::AdoptedLeftOpen, Simulator::Clusters, 1),
    (Bug::WaitersForgotten, Simulator::Clusters, 4),
    (Bug::RefusedStreamForgotten, Simulator::Clusters, 1),
    (Bug::AnswerGivesNoTurn, Simulator::Clusters, 6),
    (Bug::AdmissionWaits, Simulator::Clusters, 120),
    (Bug::GoneMustReport, Simulator::Clusters, 1),
    (Bug::WitnessNotAsked, Simulator::Clusters, 165),
    (Bug::DamagedNeverFilled, Simulator::Clusters, 70),
    (Bug::MoveWaitsForDamaged, Simulator::Clusters, 78),
    (Bug::LoneBeginsEmpty, Simulator::Clusters, 3352),
    (Bug::HandledTwice, Simulator::Clusters, 8),
    (Bug::LeaseClockStops, Simulator::Clusters, 9),
    (Bug::MemberStartsAlone, Simulator::Clusters, 3),
    (Bug::GivenUpIsSuccess, Simulator::Clusters, 0),
    (Bug::AmbiguousIsRefused, Simulator::Clusters, 0),
    (Bug::LinkForgetsVbucket, Simulator::Clusters, 1),
    (Bug::RefusedLinkGivesUp, Simulator::Clusters, 15),
    (Bug::DeclarationNotHeard, Simulator::Clusters, 0),
    (Bug::FenceSkipped, Simulator::Logic, 5),
    (Bug::NoLeaseMargin, Simulator::Logic, 351),
    (Bug::FirstIsChosen, Simulator::Logic, 25),
    (Bug::ChosenTooEarly, Simulator::Logic, 91),
    (Bug::MovedTooEarly, Simulator::Logic, 53),
    (Bug::NotSettled, Simulator::Logic, 280),
    (Bug::PartOfSnapshotCounts, Simulator::Logic, 3832),
    (Bug::HandedOverComesBack, Simulator::Logic, 1),
    (Bug::LossesIgnored, Simulator::Logic, 38),
    (Bug::CutOffCopyCounts, Simulator::Links, 0),
    (Bug::TakeoverNotProven, Simulator::Links, 0),
    (Bug::ChosenByFew, Simulator::Logic, 443),
    (Bug::BlindWrite, Simulator::Logic, 4),
    (Bug::SameLife, Simulator::Logic, 137),
    (Bug::ServedBeforeAdmission, Simulator::Logic, 1146),
    (Bug::ReportedTooEarly, Simulator::Logic, 6997),
    (Bug::ReportWithoutPrepares, Simulator::Logic, 7289),
    (Bug::StreamBeforeAdmission, Simulator::Logic, 180),
    (Bug::HeldCopyFollows, Simulator::Logic, 2392),
    (Bug::SilentStaysInChain, Simulator::Logic, 9151),
    (Bug::FenceStaysShut, Simulator::Logic, 14),
    (Bug::AdmissionWaits, Simulator::Logic, 11),
    (Bug::StrandedForEver, Simulator::Logic, 98),
    (Bug::WitnessNotAsked, Simulator::Logic, 11),
    (Bug::PromiseDriftIgnored, Simulator::Logic, 62),
    (Bug::PromisesNotWaitedFor, Simulator::Logic, 28),
    (Bug::MinorityPromiseCounts, Simulator::Logic, 167),
    (Bug::TakerNotAsked, Simulator::Logic, 322),
    (Bug::PromisedToAnybody, Simulator::Logic, 208),
    (Bug::LapsedLifeGoesOn, Simulator::Logic, 825),
    (Bug::GivenUpTooEarly, Simulator::Logic, 157),
    (Bug::FailedBucketServes, Simulator::Logic, 3094),
    (Bug::OlderStateFollowed, Simulator::Logic, 1834),
    (Bug::BranchesCompared, Simulator::Logic, 490),
    (Bug::TenuresCompared, Simulator::Branches, 0),
    (Bug::AbsentMeansDeleted, Simulator::Logic, 12),
    (Bug::DamagedStillCounts, Simulator::Logic, 2),
    (Bug::DamagedNotNeeded, Simulator::Logic, 3509),
    (Bug::DamagedNeverFilled, Simulator::Logic, 2),
    (Bug::DamagedMeansEmpty, Simulator::Logic, 5),
    (Bug::DamagedAwayIsEmpty, Simulator::Logic, 3634),
    (Bug::DamagedBeginsEmpty, Simulator::Logic, 5),
    (Bug::LastCopySetAside, Simulator::Logic, 4),
    (Bug::SetAsideInUse, Simulator::Logic, 2),
    (Bug::JournalNotSynced, Simulator::Streams, 2),
    (Bug::FilesNotSynced, Simulator::Streams, 0),
    (Bug::ReplayStopsEarly, Simulator::Streams, 0),
    (Bug::NoHistoryAfterCrash, Simulator::Streams, 0),
    (Bug::SnapshotForgottenAtRestart, Simulator::Streams, 0),
    (Bug::PurgeNotTold, Simulator::Streams, 0),
    (Bug::RollbackLeavesMemory, Simulator::Streams, 0),
    (Bug::RollbackTooShort, Simulator::Streams, 0),
    (Bug::NoHistoryAtPromotion, Simulator::Streams, 0),
    (Bug::KeepFailoverTable, Simulator::Streams, 0),
    (Bug::PromotedInsideSnapshot, Simulator::Streams, 45),
    (Bug::HistoryOverGap, Simulator::Histories, 0),
    (Bug::StreamSkipsDisk, Simulator::Streams, 0),
    (Bug::SwitchRepeatsOne, Simulator::Streams, 0),
    (Bug::SwitchSkips, Simulator::Streams, 0),
    (Bug::AnswerGivesNoTurn, Simulator::Streams, 0),
    (Bug::ExpirationsNotSent, Simulator::Streams, 0),
    (Bug::TakeoverLeavesActive, Simulator::Streams, 0),
    (Bug::FilesNotSynced, Simulator::Crashes, 0),
    (Bug::NoHistoryAfterCrash, Simulator::Crashes, 0),
    (Bug::CasForgottenAtRestart, Simulator::Crashes, 0),
    (Bug::CommitBeforeDisk, Simulator::SyncWriteCrashes, 0),
    (Bug::ReadSeesPrepare, Simulator::SyncWriteCrashes, 3),
    (Bug::AnswerBeforeCommit, Simulator::SyncWriteCrashes, 0),
    (Bug::FilesNotSynced, Simulator::SyncWriteCrashes, 0),
    (Bug::PreparesNotSaved, Simulator::SyncWriteCrashes, 0),
    (Bug::WarmupForgetsPrepares, Simulator::SyncWriteCrashes, 0),
    (Bug::AloneSeenAtOnce, Simulator::SyncWriteCrashes, 1),
    (Bug::AloneCommittedBeforeDisk, Simulator::SyncWriteCrashes, 15),
    (Bug::AloneStreamedBeforeDisk, Simulator::SyncWriteCrashes, 1),
    (Bug::TopologyForgetsAlone, Simulator::SyncWriteCrashes, 15),
    (Bug::JournalNotSynced, Simulator::CrashStates, 0),
    (Bug::FilesNotSynced, Simulator::CrashStates, 0),
    (Bug::ReplayStopsEarly, Simulator::CrashStates, 0),
    (Bug::TornRecordTaken, Simulator::CrashStates, 0),
    (Bug::OlderSavesSkipped, Simulator::CrashStates, 0),
    (Bug::ReleasedBeforeCarried, Simulator::CrashStates, 0),
    (Bug::HighestRevisionWins, Simulator::Stops, 19),
    (Bug::LastHeaderBelieved, Simulator::Stops, 19),
    (Bug::LostSegmentIgnored, Simulator::Stops, 1),
    (Bug::VoidFileRead, Simulator::Stops, 9),
    (Bug::IdentityLate, Simulator::Stops, 0),
    (Bug::IdentityLate, Simulator::CrashStates, 0),
    (Bug::CrashForgotten, Simulator::Crashes, 0),
    (Bug::FarCasMovesClock, Simulator::Crashes, 0),
    (Bug::HighestRevisionWins, Simulator::Damage, 0),
    (Bug::LastHeaderBelieved, Simulator::Damage, 0),
    (Bug::IdentityIgnored, Simulator::Damage, 6),
    (Bug::LostSegmentIgnored, Simulator::Damage, 6),
    (Bug::GapHidesNothing, Simulator::Damage, 11),
    (Bug::VoidSegmentBelieved, Simulator::Damage, 3),
    (Bug::ForeignSegmentRead, Simulator::Damage, 0),
    (Bug::BeginningNotNeeded, Simulator::Journals, 0),
    (Bug::RecordedHeaderUnchecked, Simulator::Journals, 0),
    (Bug::OlderJournalBelieved, Simulator::Journals, 0),
    (Bug::OlderCatalogBelieved, Simulator::Damage, 0),
    (Bug::LogIdentityIgnored, Simulator::Damage, 0),
    (Bug::CatalogChecksumIgnored, Simulator::Damage, 4),
    (Bug::SmallFileChecksumIgnored, Simulator::Damage, 0),
    (Bug::RepairKeepsHistory, Simulator::Damage, 0),
    (Bug::RepairPassesGap, Simulator::Damage, 11),
    (Bug::OutageCountsAsAbsence, Simulator::Logic, 460),
    (Bug::RepairForgetsOlderFrames, Simulator::Repairs, 0),
    (Bug::UnreadStateBelieved, Simulator::DiskErrors, 8),
    (Bug::FailedManifestLeft, Simulator::DiskErrors, 11),
    (Bug::FailedRollbackIgnored, Simulator::DiskErrors, 4),
    (Bug::FailedRemovalIgnored, Simulator::DiskErrors, 3),
    (Bug::EmptyFolderBelieved, Simulator::Damage, 0),
    (Bug::OneBucketEndsStart, Simulator::Damage, 0),
    (Bug::OneBucketEndsStop, Simulator::Damage, 0),
    (Bug::OlderManifestBelieved, Simulator::Damage, 0),
    (Bug::BucketsDoNotVouch, Simulator::Damage, 1),
    (Bug::HeaderIsJournal, Simulator::CrashStates, 0),
    (Bug::WrittenWhileListed, Simulator::CrashStates, 20),
    (Bug::QuarantineByWallClock, Simulator::DiskErrors, 23),
    (Bug::ManifestNotSynced, Simulator::LogStore, 0),
    (Bug::MergeForgetsPoints, Simulator::LogStore, 1),
    (Bug::RewriteForgetsPoints, Simulator::LogStore, 3),
    (Bug::LaterCommitsStay, Simulator::LogStore, 0),
    (Bug::UnreadableIsEmpty, Simulator::Values, 0),
    (Bug::EventsNotShared, Simulator::ManifestCost, 0),
    (Bug::StartsDoNotVouch, Simulator::SmallFiles, 0),
    (Bug::FounderForgotten, Simulator::Node, 0),
    (Bug::JoiningNodeDecides, Simulator::Node, 0),
    (Bug::AdoptedNumbersGoBack, Simulator::Node, 0),
    (Bug::PasswordInClear, Simulator::Node, 0),
    (Bug::FilesForAll, Simulator::Node, 0),
    (Bug::LongWorkStays, Simulator::Node, 0),
    (Bug::ChangesNotHeld, Simulator::Node, 0),
    (Bug::AnswersOutOfOrder, Simulator::Node, 0),
    (Bug::ReturnMetaBeforeCommit, Simulator::Node, 0),
    (Bug::TouchBeforeCommit, Simulator::Node, 0),
    (Bug::DeletedBucketStays, Simulator::Node, 0),
    (Bug::RolesNotFollowed, Simulator::Node, 0),
    (Bug::HangUpNotHeard, Simulator::Signals, 0),
    (Bug::CursorOnSharedThread, Simulator::DiskThreads, 0),
    (Bug::RollbackHoldsAll, Simulator::Rollbacks, 0),
    (Bug::WholeStateWritten, Simulator::Sizes, 0),
    (Bug::OneBucketEndsApply, Simulator::Node, 0),
    (Bug::LostBucketBeginsEmpty, Simulator::Node, 0),
    (Bug::HeadHasNoDeadline, Simulator::Node, 0),
    (Bug::StoppedReaderStays, Simulator::Node, 0),
    (Bug::StoppedClientStays, Simulator::Node, 0),
    (Bug::UnfinishedFrameStays, Simulator::Node, 0),
    (Bug::NoDescriptorsInReserve, Simulator::Node, 0),
    (Bug::ConnectionMemoryHasNoLimit, Simulator::Node, 0),
    (Bug::StrangersAreAnsweredOn, Simulator::Node, 0),
    (Bug::TurnHasNoEnd, Simulator::Node, 0),
    (Bug::AnswersCloseNothing, Simulator::Node, 0),
    (Bug::LaneLeavesLate, Simulator::Node, 0),
    (Bug::GuessesAreFree, Simulator::Node, 0),
    (Bug::HelloDecidesStreamRights, Simulator::Node, 0),
    (Bug::ReaderTouches, Simulator::Node, 0),
    (Bug::TakeoverLimitIgnored, Simulator::Node, 0),
    (Bug::TieGoesToLast, Simulator::Conflicts, 0),
    (Bug::TieKeepsBoth, Simulator::Conflicts, 0),
    (Bug::RevisionBeforeTime, Simulator::Conflicts, 0),
    (Bug::TombstoneComparesFlags, Simulator::Conflicts, 0),
    (Bug::BucketAdminRulesCluster, Simulator::Http, 0),
    (Bug::PagesOfOthersAct, Simulator::Http, 0),
];

/// Set in the environment, everything is looked for, from seed 0 on, with as many seeds as it says.
pub const SEARCH: &str = "PLANTED_SEARCH";
/// Set in the environment beside it, only mistakes with one of these names are looked for; commas lie between them.
pub const ONLY: &str = "PLANTED_ONLY";
/// Set in the environment beside them, the search begins with this seed.
pub const FIRST: &str = "PLANTED_FIRST";
/// With so many seeds the place of a mistake is come by, if it ever is.
const UNREACHED: u64 = 20;

/// So many threads share the mistakes of a simulator; each makes one at a time.
const THREADS: usize = 2;

/// Looks for the mistakes that a simulator is known to find, and prints what it took.
///
/// # Panics
///
/// If one of them was not found.
pub fn must_find(simulator: Simulator, run: impl Fn(u64) -> Result<(), String> + Sync) {
    let wanted = Mutex::new(wanted(simulator).into_iter());
    let missed = Mutex::new(Vec::new());
    let work = || {
        loop {
            let next = wanted.lock().expect("nobody panics with it").next();
            let Some((bug, seeds)) = next else { break };
            if !is_found(simulator, bug, seeds, &run) {
                missed.lock().expect("nobody panics with it").push(bug);
            }
        }
    };
    thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(work))));
    let missed = missed.into_inner().expect("nobody panics with it");
    assert!(missed.is_empty(), "not found: {missed:?}");
}

/// What is looked for, and with which seeds.
fn wanted(simulator: Simulator) -> Vec<(Bug, Range<u64>)> {
    let search = std::env::var(SEARCH).ok().and_then(|seeds| seeds.parse::<u64>().ok());
    let only = std::env::var(ONLY).ok();
    let is_wanted =
        |bug: Bug| only.as_ref().is_none_or(|only| only.split(',').any(|name| name == format!("{bug:?}")));
    let mut wanted: Vec<(Bug, Range<u64>)> = match search {
        Some(seeds) => {
            let first = std::env::var(FIRST).ok().and_then(|first| first.parse().ok()).unwrap_or(0);
            Bug::ALL.iter().map(|bug| (*bug, first..first + seeds)).collect()
        }
        None => known(simulator).map(|(bug, seed)| (bug, seed..seed + simulator.seeds())).collect(),
    };
    wanted.retain(|(bug, _)| is_wanted(*bug));
    wanted
}

fn known(simulator: Simulator) -> impl Iterator<Item = (Bug, u64)> {
    KNOWN.iter().filter(move |(_, by, _)| *by == simulator).map(|(bug, _, seed)| (*bug, *seed))
}

/// Looks for one mistake; whether it was found, or is not known to be.
fn is_found(
    simulator: Simulator,
    bug: Bug,
    seeds: Range<u64>,
    run: impl Fn(u64) -> Result<(), String>,
) -> bool {
    // What a seed finds without the mistake, too, is something else.
    let run = |seed| {
        let found = run(seed);
        if found.is_err() && Planted::set_aside(|| run(seed)).is_err() { Ok(()) } else { found }
    };
    let middle = seeds.end.min(seeds.start + UNREACHED);
    let (first, rest) = (seeds.start..middle, middle..seeds.end);
    // What a simulator never comes by it need not look for any longer.
    let found = match find(bug, first, &run) {
        Err(made) if made > 0 => find(bug, rest, &run).map_err(|more| made + more),
        found => found,
    };
    match &found {
        Ok(found) => println!("{simulator:?}: {found}"),
        Err(made) => println!("{simulator:?}: {bug:?} was not found in {seeds:?}, and made {made} times"),
    }
    found.is_ok() || known(simulator).all(|(known, _)| known != bug)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mistake_is_found_by_somebody() {
        for bug in Bug::ALL {
            assert!(KNOWN.iter().any(|(known, ..)| known == bug), "{bug:?} is found by nobody");
        }
    }
}
