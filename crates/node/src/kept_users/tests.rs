//! Users that are made while the node runs: what is kept, what is refused, who may give what.

use base::env::OpenMode;

use super::*;
use crate::config::{Role, UserSpec};
use crate::user::Users;

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
        password: (!password.is_empty()).then(|| NewPassword::new(password.to_owned())),
        title: None,
        roles: Grant::parse_list(roles).expect(roles),
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
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
    kept.set_password("ann", &NewPassword::new("secret-2".to_owned()), &env).expect("changed");
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
