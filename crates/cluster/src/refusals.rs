//! What was refused to some vBuckets of a bucket while the others became what the document says.

use std::fmt::{Debug, Display, Formatter};

/// How many refusals a message names; it counts the rest.
const NAMED: usize = 4;

/// At least one refusal.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusals<E> {
    /// The first.
    pub first: E,
    /// Those after it.
    pub others: Vec<E>,
}

impl<E> Refusals<E> {
    /// What was refused; `Ok` if nothing was.
    pub fn of(refusals: impl IntoIterator<Item = E>) -> Result<(), Refusals<E>> {
        let mut refusals = refusals.into_iter();
        match refusals.next() {
            None => Ok(()),
            Some(first) => Err(Refusals { first, others: refusals.collect() }),
        }
    }
}

impl<E> IntoIterator for Refusals<E> {
    type Item = E;
    type IntoIter = std::iter::Chain<std::iter::Once<E>, std::vec::IntoIter<E>>;

    fn into_iter(self) -> Self::IntoIter {
        std::iter::once(self.first).chain(self.others)
    }
}

impl<E: Display> Display for Refusals<E> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.first)?;
        self.others.iter().take(NAMED - 1).try_for_each(|refusal| write!(f, "; {refusal}"))?;
        match self.others.len().saturating_sub(NAMED - 1) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

impl<E: Debug + Display> std::error::Error for Refusals<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_some_and_counts_the_rest() {
        assert_eq!(Refusals::<u8>::of([]), Ok(()));
        let shown = |most: u8| Refusals::of(0..most).expect_err("some were refused").to_string();
        assert_eq!(shown(1), "0");
        assert_eq!(shown(4), "0; 1; 2; 3");
        assert_eq!(shown(6), "0; 1; 2; 3; and 2 more");
    }
}
