//! Every command of the table on a node that was suspended for longer than its lease.
//!
//! A command that is fenced reads or changes what a vBucket's owner alone may answer for: it is never answered with
//! success, neither if it comes after the suspension nor if the suspension falls between its start and its answer.
//! `suspended.txt` lists all others with what they answer, and why that may be.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::cluster::Fence;
use base::env::{Clock, SimHandles};

use super::roles::fitting;
use super::*;
use crate::command::Row;

const TABLE: &str = include_str!("suspended.txt");
const LEASE: Duration = Duration::from_secs(5);
const SUSPENDED: Duration = Duration::from_secs(60);

/// A clock that jumps by a minute after the next look at it, if that is asked for.
struct Jumping {
    clock: Arc<dyn Clock>,
    handles: SimHandles,
    jumps: AtomicBool,
}

impl Clock for Jumping {
    fn unix_ns(&self) -> u64 {
        self.clock.unix_ns()
    }

    fn monotonic_ns(&self) -> u64 {
        let now_ns = self.clock.monotonic_ns();
        if self.jumps.swap(false, Ordering::SeqCst) {
            self.handles.clock.advance(SUSPENDED);
        }
        now_ns
    }
}

struct World {
    clock: Arc<Jumping>,
    connection: Connection,
}

impl World {
    /// A member of a cluster with a lease, and an administrator that has stored a document.
    fn new() -> World {
        let (env, handles) = Env::sim(7);
        let clock = Arc::new(Jumping { clock: env.clock.clone(), handles, jumps: AtomicBool::new(false) });
        let env = Env { clock: clock.clone(), ..env };
        let users = Users::new(&[user("admin", Role::Admin, None)], &*env.random);
        let node = Arc::into_inner(node_in(env, users, false)).expect("it is held once");
        let node = Arc::new(node.fenced_by(Arc::new(Fence::closed())));
        node.fence().renewed(clock.monotonic_ns(), LEASE);
        let mut connection = connect_as(&node, "admin", FULL);
        let (answers, _) = feed(&mut connection, &set(b"k", b"1", 0));
        assert_eq!(statuses(&answers), [(0, Status::Success)]);
        World { clock, connection }
    }

    fn suspend(&self) {
        self.clock.handles.clock.advance(SUSPENDED);
    }

    /// Statuses of what a request is answered with, also once the disk has answered, and whether its connection is closed
    /// because another node may serve.
    fn ask(&mut self, parts: &RequestParts<'_>) -> (Vec<Status>, bool) {
        let (mut answers, _) = feed(&mut self.connection, &request(parts));
        let (more, _) = feed(&mut self.connection, b"");
        answers.extend(more);
        let statuses = each(&answers, |answer| answer.status().expect("a known status"));
        (statuses, self.connection.closing() == Some(CloseReason::Fenced))
    }
}

/// What is answered of copies of another role than the owner's: a fenced command that no lease is needed for.
fn is_of_replicas(row: &Row) -> bool {
    [opcode::GET_REPLICA, opcode::GET_EX_REPLICA].contains(&row.opcode)
}

#[test]
fn what_an_owner_answers_is_not_answered_after_the_lease() {
    for row in ROWS.iter().filter(|row| row.is_fenced && !is_of_replicas(row)) {
        let mut world = World::new();
        world.suspend();
        let (statuses, _) = world.ask(&fitting(row));
        assert_eq!(statuses, [Status::NotMyVbucket], "{}", row.name);
    }
}

#[test]
fn what_an_owner_began_to_answer_before_a_suspension_is_not_answered() {
    for row in ROWS.iter().filter(|row| row.is_fenced && !is_of_replicas(row)) {
        let mut world = World::new();
        world.clock.jumps.store(true, Ordering::SeqCst);
        assert_eq!(world.ask(&fitting(row)), (vec![], true), "{}", row.name);
    }
}

#[test]
fn seqnos_of_active_vbuckets_are_not_told_after_the_lease() {
    let active =
        RequestParts { opcode: opcode::GET_ALL_VB_SEQNOS, extras: &[0, 0, 0, 1], ..RequestParts::default() };
    let mut world = World::new();
    assert_eq!(world.ask(&active).0, [Status::Success]);
    world.clock.jumps.store(true, Ordering::SeqCst);
    assert_eq!(world.ask(&active).0, [Status::NotMyVbucket], "suspended meanwhile");
    assert_eq!(world.ask(&active).0, [Status::NotMyVbucket]);
}

/// The lines of the table: command, status, reason.
fn lines() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    TABLE.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let (command, rest) = line.split_once(' ').expect("a command");
        let (status, reason) = rest.split_once(": ").expect("a status and a reason");
        (command, status, reason)
    })
}

#[test]
fn all_other_commands_are_answered_as_the_table_says() {
    let mut told = String::new();
    for row in ROWS.iter().filter(|row| !row.is_fenced || is_of_replicas(row)) {
        let mut world = World::new();
        world.suspend();
        let (statuses, _) = world.ask(&fitting(row));
        let status = match statuses.last() {
            Some(status) => status.name(),
            None if world.connection.closing().is_some() => "closed",
            None => "silent",
        };
        let reason = lines().find(|(command, ..)| *command == row.name).map_or("WHY?", |(.., reason)| reason);
        told.push_str(&format!("{} {status}: {reason}\n", row.name));
    }
    let head: String =
        TABLE.lines().filter(|line| line.starts_with('#')).map(|line| format!("{line}\n")).collect();
    assert!(TABLE == head.clone() + &told, "what is right? the table now says:\n{head}{told}");
    assert!(!TABLE.contains("WHY?"), "say why each command may be answered:\n{TABLE}");
}
