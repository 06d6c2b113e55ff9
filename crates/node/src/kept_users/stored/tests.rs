//! Users as entries of a store: what a change writes, what cannot be read, which of two states is older.

use std::sync::Arc;

use ::cluster::MemoryStore;
use ::cluster::store::{Commit, Entry, Store, Swap, Swapped};

use super::*;
use crate::config::{Role, UserSpec};
use crate::kept_users::{NewPassword, UserForm, UsersRefusal};
use crate::roles::Grant;
use crate::sasl::hash::Hashing;
use crate::user::{User, Users};

fn root(env: &Env) -> Arc<User> {
    let spec = UserSpec { name: "root".into(), password: "p".into(), role: Role::Admin, buckets: None };
    Arc::clone(Users::new(&[spec], &*env.random).get(b"root").expect("there"))
}

fn form(password: &NewPassword, groups: &[&str]) -> UserForm {
    UserForm {
        password: Some(password.clone()),
        title: None,
        roles: Grant::parse_list("data_reader[*]").expect("roles"),
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        hash: None,
    }
}

struct World {
    env: Env,
    store: MemoryStore,
    root: Arc<User>,
    /// That of all users: it is derived once.
    password: NewPassword,
}

impl World {
    fn new() -> World {
        let (env, _) = Env::sim(1);
        let (store, root) = (MemoryStore::new(env.clock.clone()), root(&env));
        let password = NewPassword::new("secret-1".to_owned(), Hashing::CHEAP);
        password.secrets(&env);
        World { env, store, root, password }
    }

    fn read(&self) -> StoredUsers {
        StoredUsers::read(&self.store.read().expect("it answers")).expect("sound")
    }

    fn commit(&self, mut change: Box<Change>) -> Option<StoredUsers> {
        loop {
            let (version, puts) = change.part();
            assert!(puts.len() <= MAX_PUTS);
            match self.store.commit(Commit { guard: Some((GUARD, version)), puts: &puts, lease: None }) {
                Ok(Swapped::Done(version)) => match change.written(version) {
                    Ok(stored) => return Some(stored),
                    Err(rest) => change = rest,
                },
                _ => return None,
            }
        }
    }

    /// Changes what is `known`; `None` if the store has something else.
    fn change(&self, known: &StoredUsers, change: impl Fn(&mut KeptUsers)) -> Option<StoredUsers> {
        let mut next = known.kept().clone();
        change(&mut next);
        self.commit(Change::of(known, next, &self.env))
    }

    fn put(&self, kept: &mut KeptUsers, name: &str, groups: &[&str]) {
        kept.put_user(&self.root, name, &form(&self.password, groups), &self.env).expect("taken");
    }

    fn group(&self, kept: &mut KeptUsers, name: &str) {
        let roles = Grant::parse_list("admin").expect("a role");
        kept.put_group(&self.root, name, ("", ""), &roles).expect("taken");
    }

    fn write(&self, key: &str, value: &str) {
        let swap = Swap { key, expected: None, value: Some(value.as_bytes()), lease: None };
        self.store.swap(swap).expect("it answers");
    }
}

#[test]
fn what_is_written_is_read_again_without_passwords() {
    let world = World::new();
    let first = world.read();
    assert!(first.is_new() && first.revision() == 0);
    let known = world.change(&first, |kept| {
        world.group(kept, "admins");
        world.put(kept, "ann", &["admins"]);
    });
    let (known, read) = (known.expect("nobody was first"), world.read());
    assert_eq!(known.compare(&read), Compared::Same);
    assert_eq!((read.revision(), read.kept().users()["ann"].groups()), (1, &["admins".to_owned()][..]));
    assert!(read.kept().users() == known.kept().users());
    let text = world.store.read().expect("it answers").entries;
    assert!(text.values().all(|entry| !String::from_utf8_lossy(&entry.value).contains("secret-1")));
    // Only what differs is written.
    let mut next = known.kept().clone();
    world.put(&mut next, "bob", &[]);
    let (_, puts) = Change::of(&known, next, &world.env).part();
    assert_eq!(puts.iter().map(|put| put.key.as_str()).collect::<Vec<_>>(), ["user/bob", GUARD]);
}

/// Two nodes decide by the same state: the second one has to look again.
#[test]
fn of_two_changes_at_once_one_is_refused() {
    let world = World::new();
    let known = world.read();
    assert!(world.change(&known, |kept| world.put(kept, "ann", &[])).is_some());
    assert!(world.change(&known, |kept| world.put(kept, "bob", &[])).is_none());
    assert!(world.change(&world.read(), |kept| world.put(kept, "bob", &[])).is_some());
    assert_eq!(world.read().kept().users().keys().collect::<Vec<_>>(), ["ann", "bob"]);
}

/// A group that is removed leaves its members' entries as they are, and gives no roles under its old name.
#[test]
fn a_group_that_is_made_again_has_no_members() {
    let world = World::new();
    let known = world.change(&world.read(), |kept| {
        world.group(kept, "admins");
        (0..200).for_each(|n| world.put(kept, &format!("user{n}"), &["admins"]));
    });
    let known = known.expect("written, in parts");
    let mut next = known.kept().clone();
    next.remove_group(&world.root, "admins").expect("it is there");
    let (_, puts) = Change::of(&known, next.clone(), &world.env).part();
    assert_eq!(puts.iter().map(|put| put.key.as_str()).collect::<Vec<_>>(), ["group/admins", GUARD]);
    let known = world.commit(Change::of(&known, next, &world.env)).expect("written");
    let known = world.change(&known, |kept| world.group(kept, "admins")).expect("written");
    let read = world.read();
    for stored in [&known, &read] {
        assert_eq!(stored.kept().users().len(), 200);
        assert!(stored.kept().users().values().all(|user| user.groups().is_empty()));
    }
}

#[test]
fn an_entry_that_cannot_be_read_keeps_one_user_out() {
    let world = World::new();
    let known = world.change(&world.read(), |kept| {
        world.put(kept, "ann", &[]);
        world.put(kept, "bob", &[]);
    });
    assert!(known.is_some());
    let bob = world.store.read().expect("it answers").entries["user/bob"].value.clone();
    let bob = String::from_utf8(bob).expect("JSON");
    for (entry, why) in [
        (bob.replace("\"format\":1", "\"format\":2"), "it has format 2, and this version reads 1"),
        (bob.replace("data_reader", "data_dancer"), "role \"data_dancer[*]\" is none of this version"),
        (bob[..bob.len() / 2].to_owned(), "it is damaged"),
        (bob.replace("\"iterations\":1,", "\"iterations\":0,"), "its secrets cannot be read"),
    ] {
        world.write("user/bob", &entry);
        let read = world.read();
        assert!(read.kept().users().contains_key("ann") && !read.kept().users().contains_key("bob"));
        let refused: Vec<_> = read.refused().collect();
        assert!(matches!(refused[..], [(EntryKind::User, "bob", told)] if told.contains(why)), "{refused:?}");
        // Others are changed, and it is not written over.
        let next = world.change(&read, |kept| world.put(kept, "carl", &[])).expect("written");
        assert_eq!(next.refused().count(), 1);
        let mut kept = next.kept().clone();
        let put = kept.put_user(&world.root, "bob", &form(&world.password, &[]), &world.env);
        assert!(matches!(put, Err(UsersRefusal::Damaged(told)) if told.contains("delete bob")));
        // Until that is asked for.
        let gone = world.change(&next, |kept| kept.remove_user(&world.root, "bob").expect("it goes"));
        assert_eq!(gone.expect("written").refused().count(), 0);
        assert!(!world.store.read().expect("it answers").entries.contains_key("user/bob"));
    }
    world.write(GUARD, "{\"format\":7}");
    assert!(StoredUsers::read(&world.store.read().expect("it answers")).is_err());
}

#[test]
fn a_store_that_went_back_is_told_from_one_that_went_on() {
    let world = World::new();
    let one = world.change(&world.read(), |kept| world.put(kept, "ann", &[])).expect("written");
    let old = world.store.read().expect("it answers").entries;
    let two =
        world.change(&one, |kept| kept.remove_user(&world.root, "ann").expect("there")).expect("written");
    assert_eq!((one.compare(&two), two.compare(&one)), (Compared::Other, Compared::Behind));
    let restore = |old: &BTreeMap<String, Entry>| {
        old.iter().for_each(|(key, entry)| {
            world.write(key, std::str::from_utf8(&entry.value).expect("JSON"));
        });
    };
    restore(&old);
    let older = world.read();
    assert_eq!(two.compare(&older), Compared::Older);
    let back = world.commit(Change::back(&older, &two, &world.env)).expect("written");
    assert!(back.kept().users().is_empty() && world.read().kept().users().is_empty());
    assert!(back.revision() > two.revision());
    // A node that had read the state before it was put back takes it.
    assert_eq!((two.compare(&world.read()), one.compare(&world.read())), (Compared::Other, Compared::Other));
    // What others wrote after the store went back is no older state.
    restore(&old);
    world.change(&world.read(), |kept| world.put(kept, "bob", &[])).expect("written");
    assert_eq!(back.compare(&world.read()), Compared::Other);
    // Nothing at all is older than anything.
    let empty = StoredUsers::default();
    assert_eq!((back.compare(&empty), empty.compare(&back)), (Compared::Behind, Compared::Other));
    assert!(back.has_seen(&empty) && back.has_seen(&two) && !one.has_seen(&two));
}

#[test]
fn users_of_a_node_are_moved_in_parts_and_on_after_a_crash() {
    let world = World::new();
    let mut own = KeptUsers::default();
    world.group(&mut own, "admins");
    (0..300).for_each(|n| world.put(&mut own, &format!("user{n}"), &["admins"]));
    let mut change = Change::moving(&world.read(), own.clone(), "node-1", &world.env);
    let (version, puts) = change.part();
    let commit = Commit { guard: Some((GUARD, version)), puts: &puts, lease: None };
    assert!(matches!(world.store.commit(commit), Ok(Swapped::Done(_))));
    let part = world.read();
    assert!(part.is_moved_by("node-1") && !part.is_moved_by("node-2") && part.kept().users().len() < 300);
    let whole = world.commit(Change::moving(&part, own, "node-1", &world.env)).expect("written");
    assert!(!whole.is_moved_by("node-1"));
    let read = world.read();
    assert_eq!(read.kept().users().len(), 300);
    assert!(read.kept().users().values().all(|user| user.groups() == ["admins"]));
}

#[test]
fn settings_of_security_are_an_entry_that_must_be_understood() {
    let world = World::new();
    let set = |kept: &mut KeptUsers, hides| {
        kept.set_security(SecuritySettings { hides_console_over_http: hides, ..SecuritySettings::default() });
    };
    let known = world.change(&world.read(), |kept| set(kept, true)).expect("written");
    let read = world.read();
    assert!(read.kept().security().hides_console_over_http && known.compare(&read) == Compared::Same);
    let entry = world.store.read().expect("it answers").entries[SECURITY].value.clone();
    let entry = String::from_utf8(entry).expect("JSON");
    let other = world.change(&read, |kept| set(kept, false)).expect("written");
    assert_eq!(read.compare(&other), Compared::Other);
    for (entry, why) in [
        (entry.replace("\"format\":1", "\"format\":2"), "entry security: it has format 2"),
        (entry.replace("hides_console_over_https", "hides_all"), "entry security: it is damaged"),
    ] {
        world.write(SECURITY, &entry);
        let read = StoredUsers::read(&world.store.read().expect("it answers"));
        assert!(read.as_ref().is_err_and(|told| told.contains(why)), "{why}: {:?}", read.err());
    }
}

/// The founder's own settings are the cluster's, also if its move was interrupted before they were written.
#[test]
fn settings_of_security_are_moved_with_the_users() {
    let world = World::new();
    let mut own = KeptUsers::default();
    (0..300).for_each(|n| world.put(&mut own, &format!("user{n}"), &[]));
    own.set_security(SecuritySettings { honors_order: Some(true), ..SecuritySettings::default() });
    let decoys = own.decoy_key();
    let mut change = Change::moving(&world.read(), own.clone(), "node-1", &world.env);
    let (version, puts) = change.part();
    let commit = Commit { guard: Some((GUARD, version)), puts: &puts, lease: None };
    assert!(matches!(world.store.commit(commit), Ok(Swapped::Done(_))));
    let part = world.read();
    assert!(part.kept().security().is_unset());
    let whole = world.commit(Change::moving(&part, own, "node-1", &world.env)).expect("written");
    assert!(whole.kept().security().honors_order == Some(true) && world.read().kept() == whole.kept());
    assert!(decoys.is_some() && whole.kept().decoy_key() == decoys, "salts of decoys are as before");
}
