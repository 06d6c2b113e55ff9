//! Fuzz bodies: each takes any bytes and must return without a panic.
