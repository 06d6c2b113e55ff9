//! The tree is held to the rules by `cargo test` as well.

use super::all;

#[test]
fn the_tree_keeps_the_rules() {
    let violations: Vec<String> = all().unwrap().into_iter().flat_map(|(_, violations)| violations).collect();
    assert!(violations.is_empty(), "\n{}\n", violations.join("\n"));
}
