//! Whole clusters find the mistakes that are planted in the product.

fn are_found(share: usize) {
    let missed = simulation::bugs::not_found(share);
    assert!(missed.is_empty(), "not found: {missed:?}");
}

#[test]
fn mistakes_in_the_product_are_found() {
    are_found(0);
}

#[test]
fn mistakes_in_the_product_are_found_too() {
    const { assert!(simulation::known::SHARES == 2) };
    are_found(1);
}
