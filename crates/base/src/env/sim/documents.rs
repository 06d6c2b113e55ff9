//! Names of documents as simulators use them: short ones, and ones as long as a name may be.

/// The long names of a run begin with so many bytes that are the same in all of them.
const SHARED_BYTES: usize = 200;
/// They are repeated in a long name; no two beside each other are a character of UTF-8.
const BYTES: [u8; 5] = [0xff, 0x80, 0xc3, 0x00, b'k'];
/// The last bytes of a long name.
const PADDING: u8 = 0xfe;
/// Long names end up to so many bytes before the limit.
const SHORTER: u64 = 5;

/// Which names the documents of a run have: in half of the runs all are short, in the others every second one is long. A
/// number always has the same name, so that a run takes its course whether or not names are long.
#[derive(Clone, Copy, Debug)]
pub struct DocumentNames {
    seed: u64,
    most_bytes: usize,
}

impl DocumentNames {
    /// Those of a run with this seed, whose longest name has this number of bytes.
    pub fn of(seed: u64, most_bytes: usize) -> DocumentNames {
        assert!(most_bytes > SHARED_BYTES + 40, "{most_bytes} bytes have no room for what tells names apart");
        DocumentNames { seed, most_bytes }
    }

    /// The name of document `number`, which has `text` in it.
    pub fn with_text(&self, number: u64, text: &str) -> Vec<u8> {
        let is_long = self.seed % 2 == 1 && number % 2 == 1;
        if !is_long {
            return text.as_bytes().to_vec();
        }
        let mut name: Vec<u8> =
            BYTES.iter().cycle().skip((self.seed % 5) as usize).take(SHARED_BYTES).copied().collect();
        name.extend_from_slice(text.as_bytes());
        let shorter = (number / 2 + self.seed) % (SHORTER + 1);
        name.resize(self.most_bytes - shorter as usize, PADDING);
        name
    }

    /// The name of document `number`.
    pub fn name(&self, number: u64) -> Vec<u8> {
        self.with_text(number, &format!("k{number}"))
    }

    /// The names of the first documents.
    pub fn first(self, count: u64) -> impl Iterator<Item = Vec<u8>> {
        (0..count).map(move |number| self.name(number))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_differ_and_fit() {
        for seed in 0..12 {
            let names: BTreeSet<Vec<u8>> = DocumentNames::of(seed, 246).first(500).collect();
            assert_eq!(names.len(), 500);
            let long: Vec<&Vec<u8>> = names.iter().filter(|name| name.len() > SHARED_BYTES).collect();
            assert_eq!(long.len(), if seed % 2 == 1 { 250 } else { 0 });
            assert!(long.iter().all(|name| (241..=246).contains(&name.len())));
            assert!(long.iter().all(|name| name.starts_with(&long[0][..SHARED_BYTES])));
            assert!(long.iter().all(|name| std::str::from_utf8(name).is_err()));
            assert!(seed % 2 == 0 || long.iter().any(|name| name.len() == 246));
        }
    }
}
