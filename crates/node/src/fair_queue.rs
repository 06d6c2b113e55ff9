//! A bounded queue that takes from each of those who wait in turn, however much one of them has put into it.
//!
//! If it is full, the one with most of it gives way to others.

use std::collections::{BTreeMap, VecDeque};

/// What waits, by who it is of.
pub(crate) struct FairQueue<K, T> {
    most: usize,
    len: usize,
    lines: BTreeMap<K, VecDeque<T>>,
    /// Those who have a line, next first.
    turns: VecDeque<K>,
}

impl<K: Copy + Ord, T> FairQueue<K, T> {
    /// An empty queue that holds this number at most.
    pub(crate) fn new(most: usize) -> FairQueue<K, T> {
        FairQueue { most, len: 0, lines: BTreeMap::new(), turns: VecDeque::new() }
    }

    /// How much waits.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Lets one more wait, and returns what has to give way for it: the newest of the longest line.
    ///
    /// # Errors
    ///
    /// The item itself, if its own line is the longest of a full queue.
    pub(crate) fn push(&mut self, key: K, item: T) -> Result<Option<T>, T> {
        let mut displaced = None;
        if self.len >= self.most {
            let longest = self.lines.iter().max_by_key(|(_, line)| line.len());
            let Some((longest, others)) = longest.map(|(key, line)| (*key, line.len())) else {
                return Err(item);
            };
            if self.lines.get(&key).map_or(0, VecDeque::len) + 1 >= others {
                return Err(item);
            }
            // The line is longer than one, so it stays.
            displaced = self.lines.get_mut(&longest).and_then(VecDeque::pop_back);
            self.len -= 1;
        }
        let line = self.lines.entry(key).or_default();
        if line.is_empty() {
            self.turns.push_back(key);
        }
        line.push_back(item);
        self.len += 1;
        Ok(displaced)
    }

    /// The next one: the oldest of the line whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let key = self.turns.pop_front()?;
        let line = self.lines.get_mut(&key)?;
        let item = line.pop_front();
        if line.is_empty() {
            self.lines.remove(&key);
        } else {
            self.turns.push_back(key);
        }
        self.len -= 1;
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_turn() {
        let mut queue = FairQueue::new(10);
        (0..5).for_each(|n| assert_eq!(queue.push('a', n), Ok(None)));
        for (key, item) in [('b', 10), ('c', 20), ('b', 11)] {
            assert_eq!(queue.push(key, item), Ok(None));
        }
        let all: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(all, [0, 10, 20, 1, 11, 2, 3, 4]);
        assert_eq!((queue.len(), queue.lines.len(), queue.turns.len()), (0, 0, 0));
    }

    #[test]
    fn the_longest_line_gives_way() {
        let mut queue = FairQueue::new(4);
        (0..4).for_each(|n| assert_eq!(queue.push('a', n), Ok(None)));
        assert_eq!(queue.push('a', 4), Err(4), "its own line is the longest");
        assert_eq!(queue.push('b', 10), Ok(Some(3)));
        assert_eq!(queue.push('b', 11), Ok(Some(2)));
        assert_eq!(queue.push('b', 12), Err(12), "no other one has more");
        assert_eq!(queue.push('c', 20), Ok(Some(11)));
        assert_eq!(queue.push('d', 30), Ok(Some(1)));
        assert_eq!(queue.push('e', 40), Err(40), "each has one");
        let all: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(all, [0, 10, 20, 30]);
    }

    #[test]
    fn a_queue_without_room_takes_none() {
        let mut queue = FairQueue::new(0);
        assert_eq!((queue.push('a', 1), queue.pop()), (Err(1), None));
    }
}
