//! Who owns which vBucket: one document in a coordination store, a leader that changes it, agents that follow it.
//!
//! Everything here is a state machine: no socket, no runtime; time and what the store holds come in as arguments.
//! The order of reading: [`state`] (the document), [`command`] (what administrators may ask), [`leader`] (how the
//! document moves on), [`tenure`] (which process wrote which revision), [`agent`] (what a node does about it), [`fence`] (when a node must not serve), [`promise`]
//! (how nodes serve while the store is away), [`store`].

pub mod agent;
pub mod apply;
pub mod authority;
pub mod command;
pub mod damage;
pub mod fence;
pub mod filling;
#[doc(hidden)]
pub mod fuzz;
pub mod keys;
pub mod leader;
pub mod life;
pub mod membership;
pub mod placement;
pub mod promise;
mod refusals;
pub mod report;
pub mod state;
pub mod store;
pub mod store_report;
pub mod tenure;
pub mod view;

pub use agent::{Agent, Want};
pub use apply::{ApplyTarget, Following, Given, apply_bucket, let_go};
pub use authority::{Authority, Renewed};
pub use command::{Command, Refused};
pub use damage::Damaged;
pub use fence::{Fence, Pass};
pub use leader::{Leader, LeaderConfig, MemberMove, Standing, store_moves};
pub use life::Life;
pub use membership::{Fate, Membership, Stale};
pub use promise::{Granter, Holder};
pub use refusals::Refusals;
pub use report::{Applied, Member, Report, VbReport};
pub use state::{Address, Bucket, Chain, Limits, Node, NodeId, State, Status, Step};
pub use store::{MemoryStore, Snapshot, Store};
pub use store_report::{StoreReport, StoreStage};
pub use tenure::{Line, Place, Writer};
pub use view::View;
