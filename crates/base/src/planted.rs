//! Mistakes that are planted in the product to see that the simulators find them.
//!
//! Each has one marked place, `planted::is(Bug::X)`. In a build without debug assertions, such as a release build, that
//! is `false` when the compiler looks, and nothing of it is compiled in. In a build with them, the mistake that a thread
//! has planted is made by what runs on that thread: the simulators have one thread each. A test of a whole process starts
//! that with the mistake's name in its environment ([`OF_PROCESS`]). Only tests plant mistakes.

#[cfg(debug_assertions)]
mod search;

/// The variable that names the mistake of a whole process, in a build in which mistakes can be planted.
pub const OF_PROCESS: &str = "STAVE_PLANTED";

/// Whether mistakes can be planted in this build.
pub const IS_COMPILED_IN: bool = cfg!(debug_assertions);

macro_rules! bugs {
    ($($(#[doc = $says:literal])+ $name:ident,)+) => {
        /// A mistake.
        #[derive(Clone, Copy, PartialEq, Eq)]
        #[cfg_attr(debug_assertions, derive(Debug, PartialOrd, Ord, Hash))]
        pub enum Bug {
            $($(#[doc = $says])+ $name,)+
        }

        #[cfg(debug_assertions)]
        impl Bug {
            /// All of them.
            pub const ALL: &[Bug] = &[$(Bug::$name,)+];

            /// What is done wrong, in a sentence.
            pub fn says(self) -> &'static str {
                match self {
                    $(Bug::$name => concat!($($says,)+).trim_ascii(),)+
                }
            }
        }
    };
}

bugs! {
    // Sync writes.
    /// A prepare that must be on the active node's disk first is committed as soon as a majority has it.
    CommitBeforeDisk,
    /// A replica acknowledges prepares that must be on its disk while they are in memory alone.
    AcknowledgeBeforeDisk,
    /// A replica acknowledges prepares of a snapshot that is not complete.
    AcknowledgeInsideSnapshot,
    /// Members of a chain that are not defined do not count when the majority is worked out.
    MajorityOfDefined,
    /// The acknowledgement of a node outside of the chain counts like a member's.
    StrangerCounts,
    /// Of two chains only the first is asked.
    OneChainAsked,
    /// Prepares are committed as soon as each of them is safe, not in their order.
    CommitOutOfOrder,
    /// Whoever becomes active forgets the prepares that are in flight.
    ForgetPrepareAtPromotion,
    /// A replica that receives an abort keeps the prepare.
    AbortLostOnReplica,
    /// A durable write is not refused because the document has another CAS.
    PrepareIgnoresCas,
    /// A write is let through while a prepare of its document is in flight.
    WriteUnderPrepare,
    /// Readers see what is prepared.
    ReadSeesPrepare,
    /// A durable write is answered when it is prepared.
    AnswerBeforeCommit,
    /// What is prepared alone takes its document's place at once, whatever its level asks.
    AloneSeenAtOnce,
    /// What is prepared alone is committed whenever somebody looks, whether or not it is on disk.
    AloneCommittedBeforeDisk,
    /// Streams are given what is prepared alone before it is on disk.
    AloneStreamedBeforeDisk,
    /// Whoever gives a vBucket a topology is answered before what was prepared alone is on disk.
    TopologyForgetsAlone,
    // From memory to disk and back.
    /// What the disk refused to save is told to be saved.
    FailedSaveCounts,
    /// The manifest of a log-structured store is not synced before a commit is told of.
    ManifestNotSynced,
    /// A merge of runs keeps no version for rollbacks.
    MergeForgetsPoints,
    /// A rewrite of segments keeps no version for rollbacks.
    RewriteForgetsPoints,
    /// A start keeps commits behind the one that is on record.
    LaterCommitsStay,
    /// The journal is not synced before it is told of.
    JournalNotSynced,
    /// Files are not synced when something is filed.
    FilesNotSynced,
    /// The flusher leaves out prepares that are in flight.
    PreparesNotSaved,
    /// A changed role or history is not written until documents change.
    StateNotSaved,
    /// After a clean stop the highest revision of a vBucket's file is in use, whichever the catalog lists.
    HighestRevisionWins,
    /// After a clean stop the last valid header of a file is believed, whichever the catalog lists.
    LastHeaderBelieved,
    /// It is not looked at whose file a file says that it is.
    IdentityIgnored,
    /// After a clean stop a file that does not reach to the header that the catalog lists is taken for one that is not
    /// there, and its vBucket for an empty one.
    VoidFileRead,
    /// A compacted file says which revision it is with its next commit only.
    IdentityLate,
    /// A segment of the journal that the catalog names may be missing.
    LostSegmentIgnored,
    /// vBuckets of which a damaged frame of the journal had something are served.
    GapHidesNothing,
    /// A segment of an earlier journal that is there again is read.
    VoidSegmentBelieved,
    /// A segment of another journal is read in the place of one that the next segment was begun behind.
    ForeignSegmentRead,
    /// After a start the segment in which a save begins that goes on in the next one counts as not needed.
    BeginningNotNeeded,
    /// After a crash it is not looked at which header stands at the place that the journal has on record.
    RecordedHeaderUnchecked,
    /// After a crash a file of documents may have changes that the journal does not tell of: an older journal is believed.
    OlderJournalBelieved,
    /// A catalog that is older than what a log-structured store has is believed: the store goes back.
    OlderCatalogBelieved,
    /// It is not looked at whose file a segment, a run or a manifest of a log-structured store is.
    LogIdentityIgnored,
    /// A vBucket that lost something in a repair goes on with its history.
    RepairKeepsHistory,
    /// A repair uses what the journal has behind missing frames.
    RepairPassesGap,
    /// A repair takes frames for not needed because of records that are in a gap.
    RepairForgetsOlderFrames,
    /// The checksum of a copy of the catalog is not compared.
    CatalogChecksumIgnored,
    /// A rollback writes to a file while the catalog lists it.
    WrittenWhileListed,
    /// A segment of a journal that has a header and no frame is taken for a journal.
    HeaderIsJournal,
    /// Recovery stops one frame before the journal's end.
    ReplayStopsEarly,
    /// The checksum of a journal's record is not looked at.
    TornRecordTaken,
    /// Recovery skips saves whose seqnos are below one that it has seen.
    OlderSavesSkipped,
    /// The journal lets go of segments before what could not be filed of them is journaled again.
    ReleasedBeforeCarried,
    /// The checksum of a small file that decides about data is not compared.
    SmallFileChecksumIgnored,
    /// A start goes on with an empty state for a vBucket whose file it could not read.
    UnreadStateBelieved,
    /// A manifest whose change failed is not decided again, whichever of the two a restart finds.
    FailedManifestLeft,
    /// After a rollback that failed the memory goes on, whatever the store has.
    FailedRollbackIgnored,
    /// After a removal that failed the memory goes on, whatever the store has.
    FailedRemovalIgnored,
    /// An empty folder, or that of another bucket, in the place of a bucket's is taken for the bucket.
    EmptyFolderBelieved,
    /// A manifest that is older than what the bucket's vBuckets have stored is believed.
    OlderManifestBelieved,
    /// The mark of a clean stop and the manifest are believed whatever `starts` says of them.
    StartsDoNotVouch,
    /// What the folders of its buckets have seen of the cluster is not asked when a member starts.
    BucketsDoNotVouch,
    /// A node that ended within the founding of a cluster is not taken for its founder.
    FounderForgotten,
    /// A bucket that cannot be opened keeps the node from starting.
    OneBucketEndsStart,
    /// A bucket that cannot be closed keeps those behind it from being closed.
    OneBucketEndsStop,
    /// Files in quarantine age by the wall clock.
    QuarantineByWallClock,
    /// Loading after a start passes over prepares in flight.
    WarmupForgetsPrepares,
    /// Documents of dropped collections are seen like others until they are erased.
    DroppedNotHidden,
    /// After a crash an active vBucket's history goes on as if nothing could have been lost.
    NoHistoryAfterCrash,
    /// A clean stop vouches for vBuckets that could not be read since a crash.
    CrashForgotten,
    /// A restart forgets which CAS was given out last.
    CasForgottenAtRestart,
    /// Of two versions with the same metadata the one that comes last wins.
    TieGoesToLast,
    /// Of two versions with the same metadata and other values each side keeps its own.
    TieKeepsBoth,
    /// Where the last write wins, the revision is compared first.
    RevisionBeforeTime,
    /// A tombstone is compared with what comes from elsewhere by expiry and flags as well.
    TombstoneComparesFlags,
    /// A CAS from elsewhere moves the CAS clock, however far ahead it lies.
    FarCasMovesClock,
    /// A restart forgets that a replica stood in the middle of a snapshot.
    SnapshotForgottenAtRestart,
    /// A document that is not on disk yet leaves memory.
    DirtyDocumentEvicted,
    /// Compaction leaves out prepares that are in flight.
    CompactionDropsPrepares,
    /// Tombstones are purged, and the vBucket's purge seqno stays as it was.
    PurgeNotTold,
    /// The documents of a dropped collection stay on disk.
    DroppedCollectionKept,
    // From node to node.
    /// A rollback leaves the memory as it was.
    RollbackLeavesMemory,
    /// A producer lets its consumer keep one change too many.
    RollbackTooShort,
    /// Whoever becomes active begins no new history.
    NoHistoryAtPromotion,
    /// A replica keeps its own failover table when a stream is accepted.
    KeepFailoverTable,
    /// A vBucket that becomes active inside a snapshot takes what it has for whole.
    PromotedInsideSnapshot,
    /// A replica takes its history of changes for whole over a snapshot from which versions are missing.
    HistoryOverGap,
    /// A stream whose cursor was dropped, or that comes late, goes on where memory begins.
    StreamSkipsDisk,
    /// The switch from disk to memory sends the last change once more.
    SwitchRepeatsOne,
    /// The switch from disk to memory passes over the first change behind what was read.
    SwitchSkips,
    /// Expirations are not sent.
    ExpirationsNotSent,
    /// Whoever hands a vBucket over goes on serving it.
    TakeoverLeavesActive,
    /// The last changes of a vBucket are not sent before it is handed over.
    TakeoverForgetsRest,
    // Who owns what.
    /// A node serves whatever its lease says.
    FenceSkipped,
    /// A lease is used to its very end.
    NoLeaseMargin,
    /// The clock by which leases run out stands still while the machine is suspended.
    LeaseClockStops,
    /// A node that belongs to a cluster starts as one that decides itself what it serves.
    MemberStartsAlone,
    /// A node that has not begun to join its cluster yet decides itself about buckets.
    JoiningNodeDecides,
    /// Whoever is active first among those who answered is chosen, not the furthest.
    FirstIsChosen,
    /// A choice does not wait until whoever may have served has stopped.
    ChosenTooEarly,
    /// What takes over is written before new copies have caught up.
    MovedTooEarly,
    /// After a failover the chain counts as whole at once.
    NotSettled,
    /// What a copy has of a snapshot that has not come as a whole counts as if it were everything up to there.
    PartOfSnapshotCounts,
    /// A node that handed a vBucket over makes it active again by itself.
    HandedOverComesBack,
    /// A node is failed over by itself although durable writes may go with it.
    LossesIgnored,
    /// A node is failed over although the copies that are left had no connection to it for long.
    CutOffCopyCounts,
    /// A node takes over more vBuckets although the nodes that are to follow it have never done so.
    TakeoverNotProven,
    /// A choice is made by those who answer, however few of the chain they are.
    ChosenByFew,
    /// Documents are written without comparing.
    BlindWrite,
    /// A new life of a node calls itself like the one before.
    SameLife,
    /// A life serves whether or not it was admitted, and whether or not the node is as the document says.
    ServedBeforeAdmission,
    /// A node says that it has become as the document says before it has.
    ReportedTooEarly,
    /// Reports say nothing of prepares.
    ReportWithoutPrepares,
    /// A life that was not admitted lets others follow it.
    StreamBeforeAdmission,
    /// Copies that are to stand still go on following.
    HeldCopyFollows,
    /// A silent member of the chain stays in it when a choice is made.
    SilentStaysInChain,
    /// The only node of an ephemeral vBucket's chain begins empty when its process was started again, whatever other nodes
    /// have kept.
    LoneBeginsEmpty,
    // Nothing is lost, and somebody waits.
    /// A fence that was shut because a lease was not renewed in time does not open when it is.
    FenceStaysShut,
    /// A replica does not say that prepares are on its disk before more of the vBucket comes.
    SavedPreparesNotTold,
    /// Who becomes active does not commit the prepares that were in flight.
    AdoptedLeftOpen,
    /// Who waits for prepares of a vBucket that is not active any more is not told.
    WaitersForgotten,
    /// A stream that its producer has refused is not asked for again.
    RefusedStreamForgotten,
    /// What a consumer has answered gives its stream no turn.
    AnswerGivesNoTurn,
    /// Nobody's new life is admitted while it is not chosen who serves a vBucket.
    AdmissionWaits,
    /// A choice waits until who served says that it has stopped, although its lease is over.
    GoneMustReport,
    /// A takeover whose last message was lost is waited for for ever.
    StrandedForEver,
    /// Who was failed over, and has what a choice waits for, is not taken back.
    WitnessNotAsked,
    // The store is away.
    /// A promise is used to its very end, as if all clocks went alike.
    PromiseDriftIgnored,
    /// A choice does not wait for what the answering nodes have promised.
    PromisesNotWaitedFor,
    /// Promises of a minority are enough.
    MinorityPromiseCounts,
    /// A node serves by promises although one that could take over has not promised.
    TakerNotAsked,
    /// A node promises whatever it is asked for, although it has seen that the asking node is to serve no more.
    PromisedToAnybody,
    /// A life that has lost its lease, and to which no node promises anything, goes on with another lease.
    LapsedLifeGoesOn,
    /// A bucket that could not be made what the document says goes on serving what others may take over.
    FailedBucketServes,
    /// A forced failover gives up the last copy of a vBucket while the node that has it may still serve by promises.
    GivenUpTooEarly,
    /// The time in which a leader did not reach the store counts against nodes that were missing before.
    OutageCountsAsAbsence,
    // The store is restored from an older state.
    /// A node follows a state that is older than one that it has seen.
    OlderStateFollowed,
    /// Revisions of a branch that was given up are compared with those of the branch that was adopted, and what a node goes
    /// by that asks for a promise is taken for what it has let go as of.
    BranchesCompared,
    /// Revisions that were written in different tenures are compared, as if a store that is restored told it.
    TenuresCompared,
    /// A node drops a bucket of which the state says nothing.
    AbsentMeansDeleted,
    /// Manifests, ids of collections and counts of flushes go back with a state that is adopted.
    AdoptedNumbersGoBack,
    // Damage.
    /// A replica that says that its copy is damaged stays in its chain.
    DamagedStillCounts,
    /// A choice that needs a copy goes on without it as soon as it is damaged, whoever else has answered.
    DamagedNotNeeded,
    /// A damaged copy is never set aside, so that nothing fills it again.
    DamagedNeverFilled,
    /// A damaged copy counts in a choice like one that is not there.
    DamagedMeansEmpty,
    /// A node takes a damaged vBucket, of which nothing is in memory, for one that is to begin empty.
    DamagedBeginsEmpty,
    /// A node sets damaged files aside whether or not another node has the vBucket.
    LastCopySetAside,
    /// A node sets the files of a damaged vBucket aside while it follows another node or is served.
    SetAsideInUse,
    /// A copy that is built from a damaged active one has not caught up before that has saved what it never can.
    MoveWaitsForDamaged,
    /// A damaged copy of a node that was failed over counts in a choice like one that is not there.
    DamagedAwayIsEmpty,
    // A node's connections.
    /// A request that waited for the disk is handled twice.
    HandledTwice,
    /// A sync write that nobody decides any more is answered as if it was committed.
    GivenUpIsSuccess,
    /// A sync write that may still be committed is answered as if it was refused.
    AmbiguousIsRefused,
    /// A request of a client that did not agree to another order is handled while the one before it waits.
    AnswersOutOfOrder,
    /// A change that returns the document's metadata is answered when it is prepared.
    ReturnMetaBeforeCommit,
    /// A touch is answered when it is prepared.
    TouchBeforeCommit,
    /// A session goes on with the bucket that it had selected after that is deleted.
    DeletedBucketStays,
    /// A session keeps the rights of its login, whatever becomes of its user's roles.
    RolesNotFollowed,
    // Links between nodes.
    /// A link that is connected again does not follow the first of its vBuckets again.
    LinkForgetsVbucket,
    /// A link takes over as many vBuckets at once as are wanted of it.
    TakeoverLimitIgnored,
    /// A link is not connected again after its source did not have the bucket.
    RefusedLinkGivesUp,
    /// A link that is connected does not hear that something else is wanted of it.
    DeclarationNotHeard,
    // What clients may do, and what they may make a node hold.
    /// A stored value that cannot be read is served as an empty one.
    UnreadableIsEmpty,
    /// Each vBucket gets a record of its own in the journal for an event of all vBuckets.
    EventsNotShared,
    /// A bucket that cannot be applied keeps those behind it from being applied.
    OneBucketEndsApply,
    /// A member makes a bucket again, empty, that it had and whose folder is gone.
    LostBucketBeginsEmpty,
    /// Each byte of a request's head gives an HTTP client more time.
    HeadHasNoDeadline,
    /// An HTTP client that does not take its answer keeps its connection.
    StoppedReaderStays,
    /// A client of the KV protocol that does not take what is sent keeps its connection.
    StoppedClientStays,
    /// A client that does not complete a frame keeps its connection, with what is reserved for the frame.
    UnfinishedFrameStays,
    /// Files and clients get every descriptor of the process.
    NoDescriptorsInReserve,
    /// What is reserved for connections has no limit.
    ConnectionMemoryHasNoLimit,
    /// Answers for a client that has not logged in are made, however many of them it has not taken.
    StrangersAreAnsweredOn,
    /// A turn of a connection ends by the number of its requests alone.
    TurnHasNoEnd,
    /// A connection that must be closed after an answer that came later waits for bytes of its client.
    AnswersCloseNothing,
    /// A thread for long work gives up its place a while after it found that nothing waits.
    LaneLeavesLate,
    /// Failed logins have no client wait.
    GuessesAreFree,
    /// The right to a stream is asked for by the features of the client's last HELLO, not by what is streamed.
    HelloDecidesStreamRights,
    /// A user who may only read may set the expiry time of a document.
    ReaderTouches,
    /// A user who administers one bucket may do what is for administrators of the cluster.
    BucketAdminRulesCluster,
    /// A request that a web page of others sends is handled.
    PagesOfOthersAct,
    /// A node that logs in to another one says its password as it is to one that knows no other way.
    PasswordInClear,
    /// Files that a node makes are readable for every user of the machine.
    FilesForAll,
    /// What takes long is done by the worker that serves other clients, too.
    LongWorkStays,
    /// Changes are made while a snapshot of the bucket holds them.
    ChangesNotHeld,
    // What a node makes wait.
    /// SIGHUP is not heard, and ends the process as if it was killed.
    HangUpNotHeard,
    /// A cursor is written by the thread that accepts connections and serves HTTP.
    CursorOnSharedThread,
    /// While a vBucket goes back, roles of others do not change, and nothing of them is written.
    RollbackHoldsAll,
    /// Each change of the cluster's state writes all of it.
    WholeStateWritten,
}

/// Whether this mistake is to be made here.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub const fn is(_: Bug) -> bool {
    false
}

#[cfg(debug_assertions)]
pub use on::{Planted, is, planted, reached};
#[cfg(debug_assertions)]
pub use search::{Found, find};

#[cfg(debug_assertions)]
mod on {
    use std::cell::Cell;
    use std::sync::LazyLock;

    use super::{Bug, OF_PROCESS};

    static OF_ALL_THREADS: LazyLock<Option<Bug>> = LazyLock::new(|| {
        let name = std::env::var(OF_PROCESS).ok()?;
        Bug::ALL.iter().copied().find(|bug| format!("{bug:?}") == name)
    });

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
        static REACHED: Cell<u64> = const { Cell::new(0) };
    }

    /// Whether this mistake is to be made here: it is the one that this thread has planted, or that of the process.
    pub fn is(bug: Bug) -> bool {
        let is_it = PLANTED.get() == Some(bug) || *OF_ALL_THREADS == Some(bug);
        REACHED.set(REACHED.get() + u64::from(is_it));
        is_it
    }

    /// The mistake that this thread has planted.
    pub fn planted() -> Option<Bug> {
        PLANTED.get()
    }

    /// How often the place of the mistake that is planted was come by, since it was.
    pub fn reached() -> u64 {
        REACHED.get()
    }

    /// A mistake that is made on this thread as long as this lives; one at a time.
    #[derive(Debug)]
    #[must_use = "the mistake is made as long as this lives"]
    pub struct Planted(());

    impl Planted {
        /// Plants a mistake. There must be none.
        pub fn new(bug: Bug) -> Planted {
            assert_eq!(PLANTED.replace(Some(bug)), None, "one mistake at a time");
            REACHED.set(0);
            Planted(())
        }

        /// Does something without the mistake that is planted, if one is.
        pub fn set_aside<T>(work: impl FnOnce() -> T) -> T {
            let planted = PLANTED.replace(None);
            let done = work();
            PLANTED.set(planted);
            done
        }
    }

    impl Drop for Planted {
        fn drop(&mut self) {
            PLANTED.set(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(not(debug_assertions))]
    fn nothing_is_planted_in_what_is_shipped() {
        const IS_COMMON: bool = is(Bug::FenceSkipped);
        const { assert!(!IS_COMMON && !IS_COMPILED_IN) };
    }

    #[test]
    #[cfg(debug_assertions)]
    fn a_mistake_is_made_as_long_as_it_is_planted() {
        assert!(Bug::ALL.iter().all(|bug| !is(*bug)));
        let planted = Planted::new(Bug::FenceSkipped);
        assert!(is(Bug::FenceSkipped) && !is(Bug::NotSettled));
        assert_eq!(reached(), 1);
        drop(planted);
        assert!(!is(Bug::FenceSkipped));
        assert!(Bug::ALL.iter().all(|bug| bug.says().ends_with('.')));
    }

    #[test]
    #[cfg(debug_assertions)]
    fn seeds_are_tried_until_one_finds_the_mistake() {
        let run = |seed| if seed == 4 && is(Bug::NotSettled) { Err("lost\nmore".to_owned()) } else { Ok(()) };
        let found = find(Bug::NotSettled, 2..9, run).expect("seed 4 finds it");
        assert_eq!((found.seed, found.tried, &*found.violation), (4, 3, "lost"));
        assert_eq!(find(Bug::FenceSkipped, 2..9, run), Err(0));
        assert_eq!(find(Bug::NotSettled, 5..9, run), Err(0));
        let found =
            find(Bug::FenceSkipped, 0..1, |_| panic!("a broken invariant")).expect("a panic is found");
        assert_eq!((&*found.violation, is(Bug::FenceSkipped)), ("a broken invariant", false));
    }
}
