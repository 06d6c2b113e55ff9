//! Mistakes that are made between nodes, or by a disk, to see that the rules of streams find them. Those of the product
//! are in `base::planted`.

/// What is done wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// Nothing.
    None,
    /// A change is lost on the way.
    SkipMessage,
    /// A change comes a second time.
    ReplayMessage,
    /// The flags of a document get lost.
    LoseFlags,
    /// A deletion arrives as an advance of the seqno.
    LoseDeletion,
    /// A replica is told that it has the histories that it has, whatever the source has.
    KeepFailover,
    /// A replica that was told to roll back is told the next time that it need not.
    NoRollback,
    /// A power loss takes what was synced.
    ForgetSync,
}

/// All of them.
pub const MISTAKES: [Mistake; 7] = [
    Mistake::NoRollback,
    Mistake::SkipMessage,
    Mistake::ReplayMessage,
    Mistake::KeepFailover,
    Mistake::LoseFlags,
    Mistake::LoseDeletion,
    Mistake::ForgetSync,
];
