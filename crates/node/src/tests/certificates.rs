//! Clients that log in by a certificate: at a member that is cut off, and when it is not any more (record 178).

use std::path::Path;
use std::time::Duration;

use base::env::sim::{Call, Effect, Fault, On};
use base::env::{Env, OpenMode, SimHandles};
use protocol::{RequestParts, Status, opcode};

use super::{connect, feed, node_in, request, statuses, users_with_ann};
use crate::audit::events::AuditEvent;
use crate::audit::record::AuditRecord;
use crate::connection::Connection;
use crate::kept_users::stored::StoredUsers;
use crate::node::Node;

pub(super) const DATA: &str = "/data";

/// A member that is cut off, and knows `ann` from the coordination store. What happens is recorded.
fn cut_off() -> (std::sync::Arc<Node>, SimHandles) {
    let (env, sim) = Env::sim(7);
    let users = users_with_ann(&env);
    let node = node_in(env, users, false);
    node.env().disk.create_dir_all(Path::new(DATA)).expect("a folder");
    node.audit.read(Path::new(DATA));
    audit(&node, &[("auditdEnabled", "true"), ("disabled", "")]);
    node.fence().close();
    node.accounts().note_followed(1);
    sim.clock.advance(Duration::from_secs(60));
    (node, sim)
}

pub(super) fn audit(node: &Node, fields: &[(&str, &str)]) {
    let fields: Vec<_> =
        fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let record = AuditRecord::new(AuditEvent::AuditConfigured).by(b"admin");
    let not_kept = node.audit.change(&fields, |_| true, record).expect("valid settings");
    assert!(not_kept.is_none(), "{not_kept:?}");
}

/// From now on nothing can be recorded, and the audit log knows it.
fn fill_disk(node: &Node, sim: &SimHandles) {
    node.audit.write_step();
    sim.disk.plan(Fault::for_ever(On::Kind(Call::Write), 1, Effect::Short { bytes: 9, errno: 28 }));
    node.audit.record(AuditRecord::new(AuditEvent::LoginFailed));
    node.audit.write_step();
}

fn select(connection: &mut Connection) -> Status {
    let key = b"default";
    let parts = RequestParts { opcode: opcode::SELECT_BUCKET, key, ..RequestParts::default() };
    let (answers, _) = feed(connection, &request(&parts));
    statuses(&answers)[0].1
}

/// How often the audit log has this text.
pub(super) fn recorded(node: &Node, text: &str) -> usize {
    node.audit.write_step();
    let path = Path::new(DATA).join("audit").join("audit.log");
    let file = node.env().disk.open(&path, OpenMode::Read).expect("the file is there");
    let mut bytes = vec![0; file.len().expect("a length") as usize];
    file.read_at(&mut bytes, 0).expect("a read");
    String::from_utf8(bytes).expect("text").matches(text).count()
}

#[test]
fn a_certificate_that_a_cut_off_member_puts_off_logs_in_once_it_reads_the_store() {
    let (node, _sim) = cut_off();
    let mut connection = connect(&node);
    connection.certified("ann");
    for _ in 0..3 {
        assert_eq!(select(&mut connection), Status::Etmpfail);
    }
    assert!(!connection.session().is_authenticated());
    assert_eq!((recorded(&node, "put_off"), recorded(&node, "\"id\":20485")), (1, 0), "once");
    // Users of the configuration are let in at once, and unknown ones never.
    for (name, is_in) in [("admin", Status::Success), ("stranger", Status::Eaccess)] {
        let mut other = connect(&node);
        other.certified(name);
        assert_eq!(select(&mut other), is_in, "{name}");
    }
    node.accounts().note_followed(node.env().clock.monotonic_ns());
    assert_eq!(select(&mut connection), Status::Success);
    assert!(connection.session().user.as_ref().is_some_and(|user| user.name() == "ann"));
    assert_eq!((recorded(&node, "put_off"), recorded(&node, "\"id\":20485")), (1, 2));
}

#[test]
fn a_user_who_was_removed_meanwhile_is_not_let_in() {
    let (node, _sim) = cut_off();
    let mut connection = connect(&node);
    connection.certified("ann");
    assert_eq!(select(&mut connection), Status::Etmpfail);
    let _ = node.accounts().take(&node, StoredUsers::default(), None);
    node.accounts().note_followed(node.env().clock.monotonic_ns());
    assert_eq!(select(&mut connection), Status::Eaccess);
    assert!(!connection.session().is_authenticated());
}

/// With `failurePolicy=refuse` a certificate logs in when that can be recorded again.
#[test]
fn a_certificate_does_not_log_in_while_no_login_can_be_recorded() {
    let (node, sim) = cut_off();
    // What a session does is not recorded: its login is what is refused.
    audit(&node, &[("failurePolicy", "refuse"), ("disabled", "20480,20483,20485,20492,20493")]);
    fill_disk(&node, &sim);
    let mut connection = connect(&node);
    connection.certified("admin");
    assert!(!connection.session().is_authenticated());
    assert_eq!(select(&mut connection), Status::Etmpfail);
    sim.disk.heal();
    node.audit.write_step();
    assert_eq!(select(&mut connection), Status::Success);
    assert!(connection.session().is_authenticated());
}

/// The way out of `failurePolicy=refuse` needs no room on the disk.
#[test]
fn a_policy_that_keeps_users_out_is_taken_back_on_a_full_disk() {
    let (node, sim) = cut_off();
    audit(&node, &[("failurePolicy", "refuse")]);
    fill_disk(&node, &sim);
    let mut connection = connect(&node);
    connection.certified("admin");
    assert_eq!(select(&mut connection), Status::Etmpfail);
    let fields = [("failurePolicy".to_owned(), "count".to_owned())];
    let record = AuditRecord::new(AuditEvent::AuditConfigured).by(b"admin");
    let not_kept = node.audit.change(&fields, |_| true, record).expect("valid settings");
    assert!(not_kept.is_some(), "the disk is full");
    assert_eq!(select(&mut connection), Status::Success);
}

/// Certificates of users that the member has not read yet wait as well.
#[test]
fn a_certificate_waits_until_the_users_of_the_cluster_are_read() {
    let (node, _sim) = cut_off();
    node.accounts().note_unread("it is away");
    let mut connection = connect(&node);
    connection.certified("bob");
    assert_eq!(select(&mut connection), Status::Etmpfail);
    assert_eq!((recorded(&node, "bob"), recorded(&node, "\"id\":20481")), (0, 0), "nothing is known of it");
    let _ = node.accounts().take(&node, StoredUsers::default(), None);
    assert_eq!(select(&mut connection), Status::Eaccess, "there is no such user");
}
