//! Whole clusters find the mistakes that are planted in the product.

#[test]
fn mistakes_in_the_product_are_found() {
    simulation::bugs::find_all();
}
