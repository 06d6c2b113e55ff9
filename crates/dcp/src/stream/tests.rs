//! What a stream costs.

use super::*;

#[test]
fn an_idle_stream_is_small() {
    // Beside it there are its slot, its cursor and its place among the followers: see docs/adr/0026-dcp.md.
    // Allocators hand out 120 bytes in a block of 128, and 128 in one of 144.
    assert!(size_of::<Stream>() <= 120, "{} bytes", size_of::<Stream>());
}
