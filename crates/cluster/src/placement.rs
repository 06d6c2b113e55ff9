//! Where copies of vBuckets shall be: evenly spread, no two of a vBucket on one node, few moved.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::state::{Chain, NodeId, present};

/// How many copies each node has.
type Counts = BTreeMap<NodeId, usize>;

/// A map for `nodes` with `replicas` of each vBucket, as near to what there is as can be.
///
/// `now` is who has which vBucket, `kept` who has copies beside that, by vBucket; nodes that are not among `nodes`
/// lose theirs. Active vBuckets of any two nodes differ by at most one, and so do all copies together; a chain has
/// `replicas + 1` places, of which the last stay empty where there are too few nodes.
pub fn target(
    now: &[Chain],
    kept: &BTreeMap<u16, Vec<NodeId>>,
    nodes: &BTreeSet<NodeId>,
    replicas: usize,
) -> Vec<Chain> {
    if nodes.is_empty() {
        return now.iter().map(|_| vec![None; replicas + 1]).collect();
    }
    let has: Vec<Vec<NodeId>> = (0_u16..)
        .zip(now)
        .map(|(vb, chain)| {
            let copies = present(chain).chain(kept.get(&vb).into_iter().flatten().copied());
            copies.filter(|id| nodes.contains(id)).collect()
        })
        .collect();
    let actives = choose_actives(now, &has, nodes);
    let followers = replicas.min(nodes.len() - 1);
    let copies = choose_replicas(&actives, &has, nodes, followers);
    actives
        .iter()
        .zip(copies)
        .map(|(active, replicas_of)| {
            let mut chain: Chain = std::iter::once(*active).chain(replicas_of).map(Some).collect();
            chain.resize(replicas + 1, None);
            chain
        })
        .collect()
}

/// A map of a new bucket.
pub fn first(vbuckets: u16, nodes: &BTreeSet<NodeId>, replicas: usize) -> Vec<Chain> {
    let nothing = vec![vec![None; replicas + 1]; usize::from(vbuckets)];
    target(&nothing, &BTreeMap::new(), nodes, replicas)
}

/// How many each node shall have of `total`: those that have most already get what does not divide.
fn shares(total: usize, nodes: &BTreeSet<NodeId>, counts: &Counts) -> Counts {
    let mut order: Vec<NodeId> = nodes.iter().copied().collect();
    order.sort_by_key(|id| (std::cmp::Reverse(counts.get(id).copied().unwrap_or(0)), *id));
    let (each, rest) = (total / nodes.len(), total % nodes.len());
    order.into_iter().enumerate().map(|(at, id)| (id, each + usize::from(at < rest))).collect()
}

/// Takes one of a node's share, if there is something left of it.
fn take(left: &mut Counts, id: NodeId) -> bool {
    match left.get_mut(&id) {
        Some(left) if *left > 0 => {
            *left -= 1;
            true
        }
        _ => false,
    }
}

fn most_left(left: &Counts, but_not: &[NodeId]) -> Option<NodeId> {
    let open = left.iter().filter(|(id, left)| **left > 0 && !but_not.contains(id));
    open.max_by_key(|(id, left)| (**left, std::cmp::Reverse(**id))).map(|(id, _)| *id)
}

fn choose_actives(now: &[Chain], has: &[Vec<NodeId>], nodes: &BTreeSet<NodeId>) -> Vec<NodeId> {
    let mut counts = Counts::new();
    let active = |chain: &Chain| chain.first().copied().flatten().filter(|id| nodes.contains(id));
    for id in now.iter().filter_map(active) {
        *counts.entry(id).or_default() += 1;
    }
    let mut left = shares(now.len(), nodes, &counts);
    // Where some must go, those stay that nobody else has a copy of who needs more.
    let needs_more = |id: &NodeId| counts.get(id).copied().unwrap_or(0) < left.get(id).copied().unwrap_or(0);
    let mut order: Vec<usize> = (0..now.len()).collect();
    order.sort_by_key(|vb| has[*vb].iter().any(needs_more));
    let mut stays = vec![None; now.len()];
    for vb in order {
        stays[vb] = active(&now[vb]).filter(|id| take(&mut left, *id));
    }
    // Whoever has a copy already is asked first: it needs no data to become active.
    let promoted: Vec<Option<NodeId>> = stays
        .into_iter()
        .zip(has)
        .map(|(stays, has)| {
            stays.or_else(|| {
                let best = has.iter().copied().max_by_key(|id| left.get(id).copied().unwrap_or(0))?;
                take(&mut left, best).then_some(best)
            })
        })
        .collect();
    let mut chosen = Vec::with_capacity(promoted.len());
    for active in promoted {
        let id = active.unwrap_or_else(|| {
            let id = most_left(&left, &[]).expect("the shares add up to all vBuckets");
            take(&mut left, id);
            id
        });
        chosen.push(id);
    }
    chosen
}

/// The replicas of each vBucket, `followers` of each.
fn choose_replicas(
    actives: &[NodeId],
    has: &[Vec<NodeId>],
    nodes: &BTreeSet<NodeId>,
    followers: usize,
) -> Vec<Vec<NodeId>> {
    let mut counts = Counts::new();
    for (active, has) in actives.iter().zip(has) {
        for id in has.iter().filter(|id| *id != active) {
            *counts.entry(*id).or_default() += 1;
        }
    }
    let mut left = shares(actives.len() * followers, nodes, &counts);
    let mut rows: Vec<Vec<NodeId>> = Vec::with_capacity(actives.len());
    for (active, has) in actives.iter().zip(has) {
        let mut row: Vec<NodeId> = Vec::with_capacity(followers);
        // Of more copies than are needed those are kept whose nodes are furthest from their share.
        let mut order = has.clone();
        order.sort_by_key(|id| std::cmp::Reverse(left.get(id).copied().unwrap_or(0)));
        for id in order {
            if row.len() < followers && id != *active && !row.contains(&id) && take(&mut left, id) {
                row.push(id);
            }
        }
        row.sort_by_key(|id| has.iter().position(|has| has == id));
        rows.push(row);
    }
    for (active, row) in actives.iter().zip(&mut rows) {
        while row.len() < followers {
            let taken: Vec<NodeId> = row.iter().copied().chain([*active]).collect();
            // With nothing left of anybody else's share somebody gets too much; that is evened out below.
            let id = most_left(&left, &taken)
                .or_else(|| nodes.iter().copied().find(|id| !taken.contains(id)))
                .expect("there are more nodes than copies of a vBucket");
            take(&mut left, id);
            row.push(id);
        }
    }
    even_out(actives, &mut rows, nodes);
    rows
}

/// Moves replicas, one along a path of nodes at a time, until none has two more than another.
fn even_out(actives: &[NodeId], rows: &mut [Vec<NodeId>], nodes: &BTreeSet<NodeId>) {
    loop {
        let mut counts: Counts = nodes.iter().map(|id| (*id, 0)).collect();
        for id in rows.iter().flatten() {
            *counts.entry(*id).or_default() += 1;
        }
        let least = counts.values().copied().min().unwrap_or(0);
        let mut from_most: Vec<(usize, NodeId)> = counts.iter().map(|(id, count)| (*count, *id)).collect();
        from_most.sort_by_key(|(count, id)| (std::cmp::Reverse(*count), *id));
        let path = from_most
            .into_iter()
            .take_while(|(count, _)| *count >= least + 2)
            .find_map(|(count, id)| path(actives, rows, id, |other| counts[&other] + 2 <= count));
        let Some(path) = path else { return };
        for (vb, from, to) in path {
            for place in rows[vb].iter_mut().filter(|place| **place == from) {
                *place = to;
            }
        }
    }
}

/// A way for one replica of `from` to go, over other nodes, to one that is `wanted`: vBucket, from, to.
fn path(
    actives: &[NodeId],
    rows: &[Vec<NodeId>],
    from: NodeId,
    wanted: impl Fn(NodeId) -> bool,
) -> Option<Vec<(usize, NodeId, NodeId)>> {
    let everybody: BTreeSet<NodeId> = actives.iter().chain(rows.iter().flatten()).copied().collect();
    let mut came: BTreeMap<NodeId, (usize, NodeId)> = BTreeMap::new();
    let mut queue = VecDeque::from([from]);
    while let Some(at) = queue.pop_front() {
        if at != from && wanted(at) {
            let mut path = Vec::new();
            let mut to = at;
            while to != from {
                let (vb, before) = came[&to];
                path.push((vb, before, to));
                to = before;
            }
            return Some(path);
        }
        for (vb, row) in rows.iter().enumerate().filter(|(_, row)| row.contains(&at)) {
            for next in &everybody {
                let free = *next != actives[vb] && !row.contains(next);
                if free && *next != from && !came.contains_key(next) {
                    came.insert(*next, (vb, at));
                    queue.push_back(*next);
                }
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn nodes(ids: impl IntoIterator<Item = u32>) -> BTreeSet<NodeId> {
        ids.into_iter().map(NodeId).collect()
    }

    fn spread(counts: &Counts) -> usize {
        counts.values().max().unwrap_or(&0) - counts.values().min().unwrap_or(&0)
    }

    fn count(map: &[Chain], nodes: &BTreeSet<NodeId>, places: std::ops::Range<usize>) -> Counts {
        let mut counts: Counts = nodes.iter().map(|id| (*id, 0)).collect();
        for id in map.iter().flat_map(|chain| present(&chain[places.start..places.end.min(chain.len())])) {
            *counts.get_mut(&id).expect("only these nodes") += 1;
        }
        counts
    }

    fn check(map: &[Chain], nodes: &BTreeSet<NodeId>, replicas: usize) {
        for chain in map {
            assert_eq!(chain.len(), replicas + 1);
            let there: Vec<NodeId> = present(chain).collect();
            assert_eq!(there.len(), (replicas + 1).min(nodes.len()));
            assert_eq!(there.iter().collect::<BTreeSet<_>>().len(), there.len());
        }
        assert!(spread(&count(map, nodes, 0..1)) <= 1, "{:?}", count(map, nodes, 0..1));
        let replicas_of = count(map, nodes, 1..4);
        assert!(spread(&replicas_of) <= 1, "{replicas_of:?}");
    }

    fn moved_actives(from: &[Chain], to: &[Chain]) -> usize {
        from.iter().zip(to).filter(|(from, to)| from[0] != to[0]).count()
    }

    #[test]
    fn a_new_bucket_is_spread_evenly() {
        for replicas in 0..=3 {
            for n in 1..=7 {
                let nodes = nodes(1..=n);
                check(&first(1024, &nodes, replicas), &nodes, replicas);
            }
        }
    }

    #[test]
    fn what_is_even_stays() {
        let nodes = nodes(1..=5);
        let map = first(1024, &nodes, 2);
        assert!(target(&map, &BTreeMap::new(), &nodes, 2) == map);
    }

    #[test]
    fn copies_that_were_kept_are_used_again() {
        let (all, two) = (nodes(1..=3), nodes(1..=2));
        let before = first(64, &all, 1);
        let without = target(&before, &BTreeMap::new(), &two, 1);
        let kept = (0_u16..)
            .zip(&before)
            .filter(|(_, chain)| chain.contains(&Some(NodeId(3))))
            .map(|(vb, _)| (vb, vec![NodeId(3)]))
            .collect();
        let back = target(&without, &kept, &all, 1);
        check(&back, &all, 1);
        let new = |(vb, chain): (u16, &Chain)| {
            chain.contains(&Some(NodeId(3))) && !before[usize::from(vb)].contains(&Some(NodeId(3)))
        };
        let fetched = (0_u16..).zip(&back).filter(|row| new(*row)).count();
        assert!(fetched <= 8, "{fetched} vBuckets of about 43 are new on the node");
    }

    proptest! {
        #[test]
        fn even_and_near(
            log in 0_u32..8, replicas in 0_usize..=3, before in 1_u32..8,
            after in proptest::collection::btree_set(1_u32..12, 1..8),
        ) {
            let (old, new) = (nodes(1..=before), nodes(after));
            let map = first(1 << log, &old, replicas);
            let next = target(&map, &BTreeMap::new(), &new, replicas);
            check(&next, &new, replicas);
            prop_assert_eq!(&target(&next, &BTreeMap::new(), &new, replicas), &next);
            // No more active vBuckets move than must: those of nodes that leave, and what is above the shares.
            let counts = count(&map, &old.union(&new).copied().collect(), 0..1);
            let share = shares(map.len(), &new, &counts);
            let must: usize = counts.iter().map(|(id, has)| has - (*has).min(share.get(id).copied().unwrap_or(0))).sum();
            prop_assert_eq!(moved_actives(&map, &next), must);
        }
    }
}
