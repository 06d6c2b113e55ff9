//! Where randomness comes from.

use ring::rand::SecureRandom;

/// A source of random bytes.
pub trait Random: Send + Sync {
    /// Fills `bytes`. The real source is fit for keys and nonces.
    fn fill(&self, bytes: &mut [u8]);

    /// A random number.
    fn next_u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }
}

/// The kernel's generator.
pub struct RealRandom;

impl Random for RealRandom {
    fn fill(&self, bytes: &mut [u8]) {
        let filled = ring::rand::SystemRandom::new().fill(bytes);
        filled.expect("the kernel's generator answers once the machine is up");
    }
}
