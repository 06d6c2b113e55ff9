//! What a stream costs.

use super::*;

#[test]
fn an_idle_stream_is_small() {
    // Beside it there are its slot, its cursor and its place among the followers: see docs/adr/0026-dcp.md.
    assert!(size_of::<Stream>() <= 128, "{} bytes", size_of::<Stream>());
}
