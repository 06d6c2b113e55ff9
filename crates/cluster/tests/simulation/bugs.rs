//! Mistakes that an implementation could make, for the simulation to find.

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A node serves whatever its lease says.
    SkipFence,
    /// A lease's time is counted from the answer, and all of it is used.
    FenceFromAnswer,
    /// The leader takes nodes for gone whose leases have not run out.
    PromoteEarly,
    /// Documents are written without comparing.
    BlindWrite,
    /// A new life of a node calls itself like the old one, and need not be admitted.
    SameLife,
    /// A node says that it has become as a document says before it has.
    ReportFirst,
    /// Reports say nothing of prepares.
    ForgetPrepared,
    /// What takes over becomes active even if it was told to stop meanwhile.
    LateTakeover,
    /// Copies that are to stand still go on following.
    FollowOn,
    /// A node that was started anew lets others follow it before it is admitted.
    StreamFirst,
}

impl Bug {
    /// All of them.
    pub const ALL: &[Bug] = &[
        Bug::SkipFence,
        Bug::FenceFromAnswer,
        Bug::PromoteEarly,
        Bug::BlindWrite,
        Bug::SameLife,
        Bug::ReportFirst,
        Bug::ForgetPrepared,
        Bug::LateTakeover,
        Bug::FollowOn,
        Bug::StreamFirst,
    ];
}
