//! What is safe by which acknowledgements: the rules that the recordings show, and the definition.

use proptest::prelude::*;

use super::*;

const LEVELS: [DurabilityLevel; 3] = [
    DurabilityLevel::Majority,
    DurabilityLevel::MajorityAndPersistOnActive,
    DurabilityLevel::PersistToMajority,
];

fn topology(chains: &[&[&str]]) -> Topology {
    let member = |name: &&str| (!name.is_empty()).then(|| Box::from(*name));
    let chains =
        chains.iter().map(|chain| Chain::new(chain.iter().map(member).collect()).expect("it is valid"));
    Topology::of(chains.collect()).expect("it is valid")
}

/// A prepare at seqno 5 of this level, with the disk at `persisted`, after these acknowledgements.
fn is_safe(
    chains: &[&[&str]],
    level: DurabilityLevel,
    persisted: u64,
    acknowledgements: &[(&str, u64)],
) -> bool {
    let topology = topology(chains);
    let mut monitor = ActiveMonitor::new(Some(&topology), false);
    for (node, prepared) in acknowledgements {
        monitor.acknowledge(Some(&topology), node, Seqno(*prepared));
    }
    monitor.is_satisfied(Seqno(5), level, Seqno(persisted))
}

/// The rules that the recordings of the group `durability` show, a row for each.
#[test]
fn a_prepare_is_safe_when_each_chain_has_a_majority() {
    use DurabilityLevel::{Majority, MajorityAndPersistOnActive, PersistToMajority};
    for (what, chains, level, persisted, acknowledgements, safe) in [
        ("alone", &[&["n_0"][..]][..], Majority, 0, &[][..], true),
        ("alone, not on disk", &[&["n_0"]], MajorityAndPersistOnActive, 4, &[], false),
        ("alone, on disk", &[&["n_0"]], PersistToMajority, 5, &[], true),
        ("nobody yet", &[&["n_0", "n_1"]], Majority, 9, &[], false),
        ("commit", &[&["n_0", "n_1"]], Majority, 0, &[("n_1", 5)], true),
        ("one number for two prepares", &[&["n_0", "n_1"]], Majority, 0, &[("n_1", 6)], true),
        ("an earlier one", &[&["n_0", "n_1"]], Majority, 0, &[("n_1", 4)], false),
        ("ack-zero", &[&["n_0", "n_1"]], Majority, 0, &[("n_1", 0)], false),
        ("ack-repeated", &[&["n_0", "n_1"]], Majority, 0, &[("n_1", 5), ("n_1", 3), ("n_1", 5)], true),
        ("unknown node", &[&["n_0", "n_1"]], Majority, 0, &[("n_9", 5)], false),
        ("itself", &[&["n_0", "n_1"]], Majority, 0, &[("n_0", 5)], false),
        (
            "level 2 without the active's disk",
            &[&["n_0", "n_1"]],
            MajorityAndPersistOnActive,
            4,
            &[("n_1", 5)],
            false,
        ),
        ("level 3 without the active's disk", &[&["n_0", "n_1"]], PersistToMajority, 4, &[("n_1", 5)], false),
        ("level 3", &[&["n_0", "n_1"]], PersistToMajority, 5, &[("n_1", 5)], true),
        ("one of two", &[&["n_0", "n_1", "n_2"]], Majority, 0, &[("n_2", 5)], true),
        ("one of three", &[&["n_0", "n_1", "n_2", "n_3"]], Majority, 0, &[("n_2", 5)], false),
        ("two of three", &[&["n_0", "n_1", "n_2", "n_3"]], Majority, 0, &[("n_2", 5), ("n_1", 7)], true),
        ("one is not defined", &[&["n_0", "n_1", ""]], Majority, 0, &[("n_1", 5)], true),
        ("too few are defined", &[&["n_0", ""]], Majority, 0, &[("n_1", 5)], false),
        ("two-chains, one", &[&["n_0", "n_1"], &["n_2", "n_3"]], Majority, 0, &[("n_1", 5)], false),
        (
            "two-chains, two",
            &[&["n_0", "n_1"], &["n_2", "n_3"]],
            Majority,
            0,
            &[("n_1", 5), ("n_2", 5)],
            false,
        ),
        (
            "two-chains, three",
            &[&["n_0", "n_1"], &["n_2", "n_3"]],
            Majority,
            0,
            &[("n_1", 5), ("n_2", 5), ("n_3", 5)],
            true,
        ),
        (
            "active in both chains",
            &[&["n_0", "n_1"], &["n_2", "n_0"]],
            Majority,
            0,
            &[("n_1", 5), ("n_2", 5)],
            true,
        ),
    ] {
        assert_eq!(is_safe(chains, level, persisted, acknowledgements), safe, "{what}");
    }
}

#[test]
fn a_topology_that_changes_is_asked_again() {
    let (two, other, one) =
        (topology(&[&["n_0", "n_1"]]), topology(&[&["n_0", "n_9"]]), topology(&[&["n_0"]]));
    let safe = |monitor: &ActiveMonitor| monitor.is_satisfied(Seqno(5), DurabilityLevel::Majority, Seqno(0));
    let mut monitor = ActiveMonitor::new(Some(&two), false);
    // Somebody who is not asked yet.
    assert!(!monitor.acknowledge(Some(&two), "n_9", Seqno(5)));
    assert!(!safe(&monitor));
    monitor.set_topology(Some(&other));
    assert!(safe(&monitor));
    monitor.set_topology(Some(&two));
    assert!(!safe(&monitor));
    monitor.set_topology(Some(&one));
    assert!(safe(&monitor));
    monitor.set_topology(None);
    assert!(safe(&monitor));
}

#[test]
fn in_a_cluster_nothing_is_safe_before_the_topology_is_known() {
    let (one, two) = (topology(&[&["n_0"]]), topology(&[&["n_0", "n_1"]]));
    let safe = |monitor: &ActiveMonitor| monitor.is_satisfied(Seqno(5), DurabilityLevel::Majority, Seqno(9));
    let mut monitor = ActiveMonitor::new(None, true);
    assert!(!monitor.is_possible(None) && !safe(&monitor));
    assert!(!monitor.acknowledge(None, "n_1", Seqno(5)) && !safe(&monitor));
    monitor.set_topology(Some(&two));
    assert!(monitor.is_possible(Some(&two)) && safe(&monitor), "who said so before was not forgotten");
    monitor.set_topology(None);
    assert!(!safe(&monitor));
    monitor.set_topology(Some(&one));
    assert!(safe(&monitor));
}

#[test]
fn who_begins_anew_has_acknowledged_less() {
    let two = topology(&[&["n_0", "n_1"]]);
    let mut monitor = ActiveMonitor::new(Some(&two), false);
    assert!(monitor.acknowledge(Some(&two), "n_1", Seqno(7)));
    monitor.resume(Some(&two), "n_1", Seqno(4));
    assert!(!monitor.is_satisfied(Seqno(5), DurabilityLevel::Majority, Seqno(0)));
    assert!(monitor.is_satisfied(Seqno(4), DurabilityLevel::Majority, Seqno(0)));
    monitor.resume(Some(&two), "n_1", Seqno(9));
    assert!(!monitor.is_satisfied(Seqno(5), DurabilityLevel::Majority, Seqno(0)));
}

#[test]
fn strangers_take_bounded_room_and_never_that_of_members() {
    let two = topology(&[&["n_0", "n_1"]]);
    let mut monitor = ActiveMonitor::new(Some(&two), false);
    for n in 0..100 {
        monitor.acknowledge(Some(&two), &format!("stranger {n}"), Seqno(5));
    }
    assert_eq!(monitor.acknowledged().count(), MAX_NODES);
    assert!(monitor.acknowledge(Some(&two), "n_1", Seqno(5)));
    for n in 0..100 {
        monitor.acknowledge(Some(&two), &format!("other {n}"), Seqno(5));
    }
    assert!(monitor.is_satisfied(Seqno(5), DurabilityLevel::Majority, Seqno(0)));
}

proptest! {
    /// Against the definition: in each chain a majority of the members, the undefined ones counted, has the prepare.
    #[test]
    fn agrees_with_the_definition(
        chains in prop::collection::vec(prop::collection::vec(0..6usize, 0..3), 1..3),
        undefined in 0..2usize,
        acknowledgements in prop::collection::vec((0..6usize, 0..8u64), 0..12),
        level in 0..3usize,
        persisted in 0..8u64,
        prepared in 1..8u64,
    ) {
        let names = ["a", "b", "c", "d", "e", "f"];
        let mut members: Vec<Vec<&str>> = Vec::new();
        for (at, chain) in chains.iter().enumerate() {
            let mut chain: Vec<&str> = chain.iter().map(|n| names[*n]).collect();
            if at == 0 || chain.is_empty() {
                chain.insert(0, "a");
            }
            let mut seen = Vec::new();
            chain.retain(|name| !seen.contains(name) && { seen.push(*name); true });
            chain.extend(std::iter::repeat_n("", undefined));
            members.push(chain);
        }
        let slices: Vec<&[&str]> = members.iter().map(Vec::as_slice).collect();
        let topology = topology(&slices);
        let mut monitor = ActiveMonitor::new(Some(&topology), false);
        let mut most = std::collections::BTreeMap::new();
        for (node, seqno) in acknowledgements {
            monitor.acknowledge(Some(&topology), names[node], Seqno(seqno));
            let number = most.entry(names[node]).or_insert(0);
            *number = seqno.max(*number);
        }
        let has = |name: &&&str| **name == "a" || most.get(**name).is_some_and(|seqno| *seqno >= prepared);
        let is_majority =
            members.iter().all(|chain| chain.iter().filter(has).count() > chain.len() / 2);
        let level = LEVELS[level];
        let is_on_disk = level == DurabilityLevel::Majority || persisted >= prepared;
        prop_assert_eq!(
            monitor.is_satisfied(Seqno(prepared), level, Seqno(persisted)),
            is_majority && is_on_disk
        );
    }
}
