//! Numbers from a seed, and telling what happens.

use std::sync::OnceLock;

/// Numbers from a seed (splitmix64).
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Tells what happens, if somebody wants to know.
pub fn show(what: impl FnOnce() -> String) {
    static IS_SHOWN: OnceLock<bool> = OnceLock::new();
    if *IS_SHOWN.get_or_init(|| std::env::var_os("DCP_SHOW").is_some()) {
        println!("{}", what());
    }
}
