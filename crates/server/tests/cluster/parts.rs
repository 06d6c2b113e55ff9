//! Tests of clusters by what they are about.

use super::*;

#[path = "alternate.rs"]
mod alternate;
#[path = "over_time.rs"]
mod over_time;
#[path = "settings.rs"]
mod settings;
#[path = "silent.rs"]
mod silent;
#[path = "traffic.rs"]
mod traffic;
