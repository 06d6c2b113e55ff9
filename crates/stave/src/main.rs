//! stave
fn main() {}
