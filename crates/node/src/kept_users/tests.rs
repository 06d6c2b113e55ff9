//! Users that are made while the node runs: what is kept, what is refused, who may give what.

use base::env::OpenMode;

use super::*;
use crate::config::{Role, UserSpec};
use crate::privilege::Privileges;
use crate::roles::Rights;
use crate::user::{PasswordCheck, Users};

const FOLDER: &str = "/data";

fn env() -> Env {
    let (env, _) = Env::sim(1);
    env.disk.create_dir_all(Path::new(FOLDER)).expect("a folder");
    env
}

fn users(env: &Env) -> Users {
    let spec = |name: &str, roles: &str| UserSpec {
        name: name.to_owned(),
        password: "of the file".to_owned(),
        role: Role::try_from(roles.to_owned()).expect(roles),
        buckets: None,
    };
    Users::new(&[spec("root", "admin"), spec("guard", "security_admin")], &*env.random)
}

fn form(password: &str, roles: &str, groups: &[&str]) -> UserForm {
    UserForm {
        password: (!password.is_empty()).then(|| NewPassword::new(password.to_owned(), Hashing::CHEAP)),
        title: None,
        roles: Grant::parse_list(roles).expect(roles),
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        hash: None,
    }
}

#[test]
fn users_are_read_again_without_their_passwords() {
    let env = env();
    let users = users(&env);
    let root = users.get(b"root").expect("there");
    let mut kept = KeptUsers::default();
    kept.put_group(root, "readers", ("who reads", ""), &Grant::parse_list("data_reader[*]").expect("one"))
        .expect("new");
    kept.put_user(root, "ann", &form("canary-1", "data_writer[a]", &["readers"]), &env).expect("new");
    kept.write(Path::new(FOLDER), &env).expect("written");
    let file = env.disk.open(&Path::new(FOLDER).join(FILE), OpenMode::Read).expect("a file");
    let mut bytes = vec![0; file.len().expect("a length") as usize];
    file.read_at(&mut bytes, 0).expect("read");
    assert!(!String::from_utf8_lossy(&bytes).contains("canary"));

    let kept = KeptUsers::read(Path::new(FOLDER), &env).expect("sound");
    let users = users.with_kept(&kept);
    let ann = users.authenticate(b"ann", b"canary-1").expect("the password is right");
    assert_eq!(
        ann.grants().iter().map(Grant::to_string).collect::<Vec<_>>(),
        ["data_reader[*]", "data_writer[a]"]
    );
    assert!(users.authenticate(b"ann", b"canary-1").is_some(), "again, by what is remembered");
    for (name, password) in [("ann", "canary-2"), ("ann", ""), ("bob", "canary-1")] {
        assert!(users.authenticate(name.as_bytes(), password.as_bytes()).is_none(), "{name} {password}");
    }
}

/// A user of an earlier version has no hash, and gains one with the right password; sessions go on.
#[test]
fn users_of_an_earlier_version_gain_a_hash() {
    let env = env();
    let users = users(&env);
    let root = users.get(b"root").expect("there");
    let mut kept = KeptUsers::default();
    kept.put_user(root, "ann", &form("secret-1", "data_reader[a]", &[]), &env).expect("new");
    kept.users.get_mut("ann").expect("there").hash = None;
    let text = serde_json::to_string(&kept).expect("JSON");
    assert!(!text.contains("hash"), "as an earlier version writes it: {text}");
    let mut kept = parse(text.as_bytes(), 1).expect("sound");
    let before = users.with_kept(&kept);
    let derived = |users: &Users, password: &str| match users.check(b"ann", password.as_bytes(), &*env.random)
    {
        PasswordCheck::Derive(derivation) => derivation.run(),
        _ => panic!("nothing is remembered"),
    };
    let wrong = derived(&before, "secret-2");
    assert!(wrong.user.is_none() && wrong.gained.is_none());
    let right = derived(&before, "secret-1");
    let (ann, hash) = (right.user.expect("right"), right.gained.expect("a hash"));
    kept.gain_hash("ann", ann.keys(), &hash).expect("ann has none");
    let text = serde_json::to_string(&kept).expect("JSON");
    assert!(text.contains("\"algorithm\":\"argon2id\""), "{text}");
    let kept = parse(text.as_bytes(), 1).expect("sound");
    let now = before.with_kept(&kept);
    assert!(now.now(&ann).is_some_and(|now| now.keys().hash.is_some()), "the same login");
    assert!(matches!(now.check(b"ann", b"secret-1", &*env.random), PasswordCheck::Right(_)), "remembered");
    // After a restart the hash alone is asked.
    let again = Users::new(&[], &*env.random).with_kept(&kept);
    let right = derived(&again, "secret-1");
    assert!(right.user.is_some() && right.gained.is_none());
    assert!(derived(&users.with_kept(&kept), "secret-2").user.is_none());
    // Another password came meanwhile.
    let mut changed = kept.clone();
    changed
        .set_password("ann", &NewPassword::new("secret-3".to_owned(), Hashing::CHEAP), &env)
        .expect("changed");
    changed.users.get_mut("ann").expect("there").hash = None;
    assert!(changed.gain_hash("ann", ann.keys(), &hash).is_err());
}

/// How long a wrong password takes tells neither that there is a user nor of which kind.
#[test]
fn a_wrong_password_is_the_same_work_for_every_name() {
    let env = env();
    let users = users(&env);
    let root = users.get(b"root").expect("there");
    let mut kept = KeptUsers::default();
    kept.put_user(root, "ann", &form("secret-1", "data_reader[a]", &[]), &env).expect("new");
    let users = users.with_hashing(Hashing::CHEAP);
    let work = |users: &Users, name: &str| match users.check(name.as_bytes(), b"wrong", &*env.random) {
        PasswordCheck::Derive(derivation) => derivation.work(),
        _ => panic!("{name}: it is known at once"),
    };
    let hash_alone = (Hashing::CHEAP.memory_bytes(), None);
    let all = users.with_kept(&kept);
    assert_eq!(["root", "ann", "stranger"].map(|name| work(&all, name)), [hash_alone; 3]);
    // Of an earlier version: two of other ones.
    let hashing = Hashing { scram_iterations: 7, ..Hashing::CHEAP };
    let password = Some(NewPassword::new("secret-1".to_owned(), hashing));
    kept.put_user(root, "bob", &UserForm { password, ..form("", "", &[]) }, &env).expect("new");
    kept.users.get_mut("bob").expect("there").hash = None;
    let all = all.with_kept(&kept);
    let both = (Hashing::CHEAP.memory_bytes(), Some(7));
    assert_eq!(["root", "ann", "stranger", "bob"].map(|name| work(&all, name)), [both; 4]);
}

#[test]
fn passwords_keep_the_iterations_that_they_were_set_with() {
    let env = env();
    let users = users(&env);
    let root = users.get(b"root").expect("there");
    let mut kept = KeptUsers::default();
    for (name, scram_iterations) in [("ann", 1), ("bob", 7)] {
        let hashing = Hashing { scram_iterations, ..Hashing::CHEAP };
        let password = Some(NewPassword::new("secret-1".to_owned(), hashing));
        kept.put_user(root, name, &UserForm { password, ..form("", "", &[]) }, &env).expect("new");
    }
    let text = serde_json::to_string(&kept).expect("JSON");
    let count = |n: &str| text.matches(&format!("\"iterations\":{n},")).count();
    assert_eq!((count("1"), count("7")), (3, 3), "{text}");
}

/// A session goes on with other roles, and not after another password.
#[test]
fn a_change_of_roles_keeps_the_login() {
    let env = env();
    let users = users(&env);
    let root = users.get(b"root").expect("there");
    let mut kept = KeptUsers::default();
    kept.put_user(root, "ann", &form("secret-1", "data_reader[a]", &[]), &env).expect("new");
    let before = users.with_kept(&kept);
    let ann = before.authenticate(b"ann", b"secret-1").expect("right");
    kept.put_user(root, "ann", &form("", "data_reader[b]", &[]), &env).expect("changed");
    let changed = before.with_kept(&kept);
    let now = changed.now(&ann).expect("the same login");
    assert!(now.may_select("b") && !now.may_select("a"));
    kept.set_password("ann", &NewPassword::new("secret-2".to_owned(), Hashing::CHEAP), &env)
        .expect("changed");
    let changed = changed.with_kept(&kept);
    assert!(changed.now(&ann).is_none() && changed.authenticate(b"ann", b"secret-1").is_none());
    kept.remove_user(root, "ann").expect("removed");
    assert!(changed.with_kept(&kept).authenticate(b"ann", b"secret-2").is_none());
}

#[test]
fn an_administrator_of_users_makes_no_administrators() {
    let env = env();
    let users = users(&env);
    let (root, guard) = (users.get(b"root").expect("there"), users.get(b"guard").expect("there"));
    let grants = |text| Grant::parse_list(text).expect(text);
    let mut kept = KeptUsers::default();
    kept.put_user(guard, "app", &form("secret-1", "data_reader[*],bucket_admin[a]", &[]), &env)
        .expect("no administrator");
    kept.put_user(root, "chief", &form("secret-1", "admin", &[]), &env).expect("by the administrator");
    kept.put_group(root, "chiefs", ("", ""), &grants("cluster_admin")).expect("by the administrator");
    let is_refused = |refused: Result<(), UsersRefusal>| matches!(refused, Err(UsersRefusal::Forbidden(_)));
    for role in ["admin", "security_admin", "ro_admin", "cluster_admin"] {
        assert!(is_refused(kept.put_user(guard, "app", &form("", role, &[]), &env)), "{role}");
        assert!(is_refused(kept.put_group(guard, "mine", ("", ""), &grants(role))), "{role}");
    }
    assert!(is_refused(kept.put_user(guard, "app", &form("", "", &["chiefs"]), &env)), "by a group");
    assert!(is_refused(kept.put_user(guard, "chief", &form("secret-2", "", &[]), &env)), "another password");
    assert!(is_refused(kept.remove_user(guard, "chief")));
    assert!(
        is_refused(kept.put_group(guard, "chiefs", ("", ""), &[]))
            && is_refused(kept.remove_group(guard, "chiefs"))
    );
    assert!(kept.remove_user(guard, "app").is_ok());
    // Nor by a group that has no such role, if a member has.
    kept.put_group(guard, "ops", ("", ""), &grants("data_reader[a]")).expect("no administrator");
    kept.put_user(root, "chief", &form("", "admin", &["ops"]), &env).expect("by the administrator");
    assert!(is_refused(kept.put_group(guard, "ops", ("", ""), &grants("data_backup[*]"))));
    assert!(is_refused(kept.remove_group(guard, "ops")));
}

#[test]
fn what_is_not_valid_changes_nothing() {
    let env = env();
    let users = users(&env);
    let root = users.get(b"root").expect("there");
    let mut kept = KeptUsers::default();
    let long = "x".repeat(129);
    for name in ["", "@x", "a/b", "a:b", "a\nb", &long] {
        let refused = kept.put_user(root, name, &form("secret-1", "", &[]), &env);
        assert!(matches!(refused, Err(UsersRefusal::Field("name", _))), "{name}");
    }
    for (form, field) in [
        (form("", "", &[]), "password"),
        (form("short", "", &[]), "password"),
        (form("secret-1", "", &["none"]), "groups"),
    ] {
        let refused = kept.put_user(root, "ann", &form, &env);
        assert!(matches!(refused, Err(UsersRefusal::Field(named, _)) if named == field), "{field}");
    }
    let policy = PasswordPolicy { enforce_digits: true, ..PasswordPolicy::default() };
    kept.set_policy(policy).expect("valid");
    assert!(kept.put_user(root, "ann", &form("no digits", "", &[]), &env).is_err());
    assert!(kept.users().is_empty());
    assert!(matches!(kept.remove_user(root, "ann"), Err(UsersRefusal::NotFound(_))));
    assert!(
        parse(br#"{"users":{},"groups":{"g":{"description":"","ldap_group_ref":"","roles":["chef"]}}}"#, 0)
            .is_err()
    );
}

/// Time beyond the hash: the hash of a password is remembered from the first login on, as it is on a node.
#[test]
fn a_login_among_a_thousand_users_with_fifty_roles_takes_less_than_a_millisecond() {
    let env = env();
    let users = users(&env);
    let root = users.get(b"root").expect("there");
    let mut kept = KeptUsers::default();
    let roles: Vec<String> = (0..50).map(|n| format!("data_reader[b:s:c{n}]")).collect();
    kept.put_user(root, "user-0", &form("password", &roles.join(","), &[]), &env).expect("new");
    let one = kept.users["user-0"].clone();
    kept.users.extend((1..1_000).map(|n| (format!("user-{n}"), one.clone())));
    let users = users.with_kept(&kept);
    assert!(users.authenticate(b"user-700", b"password").is_some(), "the hash is remembered");
    let clock = Env::real().clock;
    let collections: Vec<String> =
        (0..50).map(|n| format!(r#"{{"name":"c{n}","uid":"{:x}"}}"#, n + 8)).collect();
    let json = format!(
        r#"{{"uid":"1","scopes":[{{"name":"_default","uid":"0","collections":[]}},
        {{"name":"s","uid":"8","collections":[{}]}}]}}"#,
        collections.join(",")
    );
    let manifest = std::sync::Arc::new(vbucket::Manifest::parse(json.as_bytes()).expect("a manifest"));
    let login = || {
        let begun = clock.monotonic();
        let checked = users.check(b"user-700", b"password", &*env.random);
        let PasswordCheck::Right(user) = checked else { panic!("it was right before") };
        let rights = user.privileges_in("b");
        let whole = Rights::of(user.grants(), "b", &manifest, Privileges::NONE);
        std::hint::black_box((rights, whole, user.may_select("b")));
        clock.monotonic() - begun
    };
    let fastest = (0..20).map(|_| login()).min().expect("there were some");
    assert!(fastest < std::time::Duration::from_millis(1), "{fastest:?}");
}

/// Salts of decoys stay as they are when a version that keeps their key takes users of one that did not.
#[test]
fn the_key_of_decoys_is_kept_as_it_was() {
    let env = env();
    let users = users(&env);
    let root = users.get(b"root").expect("there");
    let mut kept = KeptUsers::default();
    assert!(kept.decoy_key().is_none());
    kept.put_user(root, "ann", &form("secret-1", "data_reader[a]", &[]), &env).expect("new");
    let before = kept.decoy_key().expect("made of the users");
    kept.keep_decoy_key(&env);
    assert!(kept.decoy_key() == Some(before));
    kept.put_user(root, "bob", &form("secret-2", "data_reader[a]", &[]), &env).expect("new");
    let bytes = serde_json::to_vec(&kept).expect("JSON");
    assert!(parse(&bytes, 1).is_ok_and(|read| read.decoy_key() == Some(before)));
}
