//! Which unsynced bytes and names are on the disk after the power went.

/// The fate of everything that was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survival {
    /// All of it is lost.
    Synced,
    /// All of it reached the disk in time.
    Everything,
    /// The seed decides, sector by sector and name by name: lost, torn, out of order.
    Seeded(u64),
}

impl Survival {
    pub(super) fn seed(self) -> u64 {
        match self {
            Survival::Seeded(seed) => seed,
            Survival::Synced | Survival::Everything => 0,
        }
    }
}
