//! Mistakes that the model could make where it stands for what is not in this crate, for the simulation to find. Those
//! of the product are planted in it (`base::planted`).

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A lease's time is counted from the answer.
    FenceFromAnswer,
    /// The leader takes nodes for gone whose leases have not run out.
    PromoteEarly,
    /// What takes over becomes active even if it was told to stop meanwhile.
    LateTakeover,
    /// A node that was started anew goes on with what it was active for.
    NotHeld,
}

impl Bug {
    /// All of them.
    pub const ALL: &[Bug] = &[Bug::FenceFromAnswer, Bug::PromoteEarly, Bug::LateTakeover, Bug::NotHeld];
}
