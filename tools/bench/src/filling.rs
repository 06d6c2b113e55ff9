//! Documents whose values can be computed, so that what is read can be checked.

use anyhow::{Result, ensure};
use base::vbucket_map::vbucket_of;
use harness::client::Client;
use harness::rng::Rng;

/// Requests that are outstanding at once.
const WINDOW: u32 = 512;
/// As the servers that are measured have it.
const VBUCKETS: u16 = 1024;
const VALUE_BYTES: usize = 512;

/// Documents `0..documents` in their `generation`: each generation replaces all values.
#[derive(Clone, Copy, Debug)]
pub struct Filling {
    /// How many.
    pub documents: u32,
    /// Which values.
    pub generation: u32,
}

fn key(number: u32) -> String {
    format!("filled-{number:013}")
}

impl Filling {
    fn value(self, number: u32) -> Vec<u8> {
        let mut rng = Rng::new(u64::from(self.generation) << 32 | u64::from(number));
        (0..VALUE_BYTES / 8).flat_map(|_| rng.next().to_le_bytes()).collect()
    }

    /// Writes all of them; they are in memory when this returns.
    pub fn write(self, client: &mut Client) -> Result<()> {
        let mut from = 0;
        while from < self.documents {
            let to = self.documents.min(from + WINDOW);
            for number in from..to {
                let key = key(number);
                let vbucket = vbucket_of(key.as_bytes(), VBUCKETS);
                client.push_set(vbucket, key.as_bytes(), 0, &self.value(number), false);
            }
            client.flush()?;
            for _ in from..to {
                let answer = client.answer()?;
                ensure!(answer.is_ok(), "a document was not stored: status 0x{:02x}", answer.status_code);
            }
            from = to;
        }
        Ok(())
    }

    /// Reads one of them, which must have its value.
    pub fn check(self, client: &mut Client, number: u32) -> Result<()> {
        let key = key(number);
        client.push_get(vbucket_of(key.as_bytes(), VBUCKETS), key.as_bytes());
        client.flush()?;
        let answer = client.answer()?;
        ensure!(answer.is_ok(), "document {key} was not read: status 0x{:02x}", answer.status_code);
        ensure!(answer.value == self.value(number), "document {key} has another value than was stored");
        Ok(())
    }

    /// Reads `count` of them, drawn at random.
    pub fn check_some(self, client: &mut Client, rng: &mut Rng, count: u32) -> Result<()> {
        (0..count).try_for_each(|_| self.check(client, self.any(rng)))
    }

    /// The number of one of them.
    pub fn any(self, rng: &mut Rng) -> u32 {
        u32::try_from(rng.below(self.documents.into())).expect("below a number of 32 bits")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_the_same_each_time_and_differ_otherwise() {
        let filling = |generation| Filling { documents: 10, generation };
        assert_eq!(filling(0).value(3), filling(0).value(3));
        assert_ne!(filling(0).value(3), filling(1).value(3));
        assert_ne!(filling(0).value(3), filling(0).value(4));
        assert_eq!((filling(0).value(0).len(), key(7).len()), (VALUE_BYTES, 20));
    }
}
