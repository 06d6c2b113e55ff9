//! Whole clusters find the mistakes that are planted in the product.

#[test]
fn mistakes_in_the_product_are_found() {
    let missed = simulation::bugs::not_found();
    assert!(missed.is_empty(), "not found: {missed:?}");
}
