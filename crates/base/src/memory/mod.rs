//! Memory that is charged to somebody: accounts, and the heap that document versions come from.

mod account;
mod heap;

pub use account::{Account, PARTS, Part, Parts};
pub use heap::Heap;
