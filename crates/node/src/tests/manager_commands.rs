//! Commands that a cluster manager sends: traffic of a bucket that is disabled and enabled, and what is refused.

use super::*;
use crate::command::{ROWS, Row};

fn switch(admin: &mut Connection, opcode: u8) {
    let (answers, _) = feed(admin, &simple(opcode, 7));
    assert_eq!(statuses(&answers), [(7, Status::Success)]);
}

/// What commands of the table are answered.
fn answers(node: &Arc<Node>, is_asked: impl Fn(&Row) -> bool) -> Vec<(&'static str, Status)> {
    let mut told = Vec::new();
    for row in ROWS.iter().filter(|row| is_asked(row)) {
        let mut client = connect_as(node, "admin", FULL);
        let (answers, _) = feed(&mut client, &request(&roles::fitting(row)));
        told.extend(statuses(&answers).first().map(|(_, status)| (row.name, *status)));
    }
    told
}

#[test]
fn while_traffic_is_disabled_requests_for_documents_fail_and_others_do_not() {
    let node = node();
    let mut admin = connect_as(&node, "admin", FULL);
    let mut other = connect_as(&node, "guest", FULL);
    let (key, stat) = (b"k", || stats(&node));
    assert_eq!(statuses(&feed(&mut admin, &set(key, b"1", 1)).0), [(1, Status::Success)]);
    assert_eq!(stat(), ["true", "false"]);
    switch(&mut admin, opcode::DISABLE_TRAFFIC);
    switch(&mut admin, opcode::DISABLE_TRAFFIC);
    assert_eq!(stat(), ["false", "true"]);
    let of_documents = answers(&node, |row| row.is_fenced);
    let fenced: Vec<_> =
        ROWS.iter().filter(|row| row.is_fenced).map(|row| (row.name, Status::Etmpfail)).collect();
    assert_eq!(of_documents, fenced, "quiet ones are answered, too");
    assert!(fenced.len() > 50);
    let names = ["Stat", "DcpOpen", "GetFailoverLog", "GetAllVbSeqnos", "GetCollectionsManifest", "Noop"];
    for told in answers(&node, |row| names.contains(&row.name)) {
        assert_eq!(told, (told.0, Status::Success));
    }
    // Whoever may not do something is told that.
    let mut reader = connect_as(&node, "data_reader", FULL);
    assert_eq!(statuses(&feed(&mut reader, &set(key, b"2", 1)).0), [(1, Status::Eaccess)]);
    // Another bucket goes on.
    assert_eq!(statuses(&feed(&mut other, &get(key, 1)).0), [(1, Status::KeyEnoent)]);
    switch(&mut admin, opcode::ENABLE_TRAFFIC);
    switch(&mut admin, opcode::ENABLE_TRAFFIC);
    assert_eq!(statuses(&feed(&mut admin, &get(key, 2)).0), [(2, Status::Success)]);
    assert_eq!(stat(), ["true", "false"]);
}

/// What stats say of traffic.
fn stats(node: &Arc<Node>) -> Vec<String> {
    let mut client = connect_as(node, "admin", FULL);
    let (answers, _) = feed(&mut client, &simple(opcode::STAT, 1));
    let told = each(&answers, |it| (it.key.to_vec(), String::from_utf8_lossy(it.value).into_owned()));
    let value = |name: &[u8]| told.iter().find(|(key, _)| key == name).expect("told").1.clone();
    vec![value(b"ep_data_traffic_enabled"), value(b"ep_degraded_mode")]
}

#[test]
fn what_is_refused_says_why_and_only_to_those_who_might_use_it() {
    let node = node();
    let (mut admin, mut reader) = (connect_as(&node, "admin", FULL), connect_as(&node, "data_reader", FULL));
    let refused: Vec<_> = ROWS.iter().filter_map(|row| Some((row, row.refused?))).collect();
    let named = |opcode: u8| refused.iter().any(|(row, _)| row.opcode == opcode);
    assert!(named(opcode::SET_CLUSTER_CONFIG) && named(opcode::UPDATE_EXTERNAL_USER_PERMISSIONS));
    for (row, why) in refused {
        let bytes = request(&roles::fitting(row));
        let (answers, _) = feed(&mut admin, &bytes);
        let told = each(&answers, |it| (it.status(), String::from_utf8_lossy(it.value).into_owned()));
        assert_eq!(told.len(), 1, "{}", row.name);
        assert_eq!(told[0].0, Some(Status::NotSupported), "{}", row.name);
        assert!(told[0].1.contains(why), "{}: {}", row.name, told[0].1);
        if row.opcode != opcode::FLUSH && row.opcode != opcode::FLUSHQ {
            let (answers, _) = feed(&mut reader, &bytes);
            assert_eq!(statuses(&answers)[0].1, Status::Eaccess, "{}", row.name);
        }
    }
}
