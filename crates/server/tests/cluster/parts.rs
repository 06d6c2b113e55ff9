//! Tests of clusters by what they are about.

use super::*;

#[path = "alternate.rs"]
mod alternate;
#[path = "silent.rs"]
mod silent;
