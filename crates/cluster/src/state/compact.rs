//! Chains and lists of vBuckets in few bytes of text.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::bucket::MAX_REPLICAS;
use super::{Chain, NodeId};

/// The chains of all vBuckets: the nodes that are in them, and for each vBucket the number of places, one digit, and
/// for each place two hexadecimal digits: 0 for nobody, or the node's place in the list, from 1.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Rows {
    nodes: Vec<NodeId>,
    rows: String,
}

impl Rows {
    pub(super) fn of(chains: &[Chain]) -> Rows {
        let mut places: BTreeMap<NodeId, usize> =
            chains.iter().flatten().flatten().map(|id| (*id, 0)).collect();
        places.values_mut().enumerate().for_each(|(at, place)| *place = at + 1);
        let mut rows = String::with_capacity(chains.len() * 7);
        for chain in chains {
            // Writing to a string does not fail.
            let _ = write!(rows, "{}", chain.len());
            for place in chain {
                let place = place.and_then(|id| places.get(&id)).copied().unwrap_or(0);
                let _ = write!(rows, "{place:02x}");
            }
        }
        Rows { nodes: places.into_keys().collect(), rows }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// `None` if they cannot be read.
    pub(super) fn chains(&self) -> Option<Vec<Chain>> {
        let mut chains = Vec::new();
        let mut rest = self.rows.as_bytes();
        while let Some((len, after)) = rest.split_first() {
            let len = usize::from(len.checked_sub(b'0').filter(|len| usize::from(*len) <= MAX_REPLICAS + 1)?);
            let (places, after) = after.split_at_checked(len * 2)?;
            let place = |digits: &[u8]| {
                let at = usize::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
                if at == 0 { Some(None) } else { self.nodes.get(at - 1).map(|id| Some(*id)) }
            };
            chains.push(places.chunks(2).map(place).collect::<Option<Chain>>()?);
            rest = after;
        }
        Some(chains)
    }
}

/// Rising numbers as ranges: `0-5,7`.
pub(super) fn ranges(numbers: &[u16]) -> String {
    let mut text = String::new();
    let mut rest = numbers;
    while let Some(first) = rest.first() {
        let run =
            rest.iter().zip(u32::from(*first)..).take_while(|(is, shall)| u32::from(**is) == *shall).count();
        let comma = if text.is_empty() { "" } else { "," };
        // Writing to a string does not fail.
        let _ = match run {
            1 => write!(text, "{comma}{first}"),
            run => write!(text, "{comma}{first}-{}", rest[run - 1]),
        };
        rest = &rest[run..];
    }
    text
}

/// The numbers of ranges; `None` if they cannot be read, or are more than any bucket has vBuckets.
pub(super) fn numbers(text: &str) -> Option<Vec<u16>> {
    let mut numbers = Vec::new();
    for range in text.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        if last >= 1024 {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_vbuckets_are_short() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(numbers("0-2,5,7-8"), Some(vec![0, 1, 2, 5, 7, 8]));
        let all: Vec<u16> = (0..1024).collect();
        assert_eq!((ranges(&all).as_str(), numbers("0-1023").as_ref()), ("0-1023", Some(&all)));
        for wrong in ["", "a", "1-", "5-70000", "0-1024", "1,,2"] {
            assert_eq!(numbers(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn chains_are_short() {
        let chains = vec![
            vec![Some(NodeId(7)), None, Some(NodeId(300))],
            vec![None],
            vec![Some(NodeId(300)), Some(NodeId(7)), None, None],
        ];
        let rows = Rows::of(&chains);
        assert_eq!(
            (rows.rows.as_str(), rows.nodes.as_slice()),
            ("3010002100402010000", &[NodeId(7), NodeId(300)][..])
        );
        assert_eq!(rows.chains(), Some(chains));
        assert_eq!(Rows::of(&[]).chains(), Some(Vec::new()));
        for wrong in ["3", "30100", "1zz", "103", "x", "9010101010101010101"] {
            let rows = Rows { rows: wrong.to_owned(), ..rows.clone() };
            assert_eq!(rows.chains(), None, "{wrong}");
        }
    }
}
