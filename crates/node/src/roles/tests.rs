//! Roles and their places as text, and what they come to in a bucket.

use std::sync::Arc;

use base::{CollectionId, ScopeId};
use engine::StreamWanted;
use vbucket::Manifest;

use super::*;
use crate::privilege::{Privilege, Privileges};

#[test]
fn grants_are_read_as_they_are_written() {
    for text in [
        "admin",
        "data_reader[*]",
        "data_reader[default]",
        "data_reader[default:s]",
        "data_reader[default:s:c]",
        "scope_admin[b:s]",
        "bucket_admin[a%25b]",
        "external_stats_reader",
    ] {
        assert_eq!(Grant::parse(text).expect(text).to_string(), text);
    }
    for (text, same) in [("data_reader[b:*]", "data_reader[b]"), ("data_reader[b:s:*]", "data_reader[b:s]")] {
        assert_eq!(Grant::parse(text).map(|grant| grant.to_string()).as_deref(), Some(same));
    }
    for text in [
        "",
        "nobody",
        "data_reader",
        "admin[default]",
        "data_reader[]",
        "data_reader[b",
        "data_reader[b:]",
        "data_reader[b:s:]",
        "data_reader[b:s:c:d]",
        "data_reader[b:*:c]",
        "data_reader[*:s]",
        "bucket_admin[b:s]",
        "scope_admin[b:s:c]",
        "Data_reader[*]",
    ] {
        assert_eq!(Grant::parse(text), None, "{text}");
    }
    for text in ["admin,,ro_admin", "admin,", ",admin", ","] {
        let wrong = Grant::parse_list(text).expect_err(text);
        assert!(wrong[0].why.contains("a comma has no role"), "{text}");
    }
    assert_eq!(Grant::parse_list(" ").map(|none| none.len()), Ok(0));
    let wrong = Grant::parse_list("admin, nobody,data_reader").expect_err("two are wrong");
    let texts: Vec<&str> = wrong.iter().map(|wrong| wrong.text.as_str()).collect();
    assert_eq!(texts, ["nobody", "data_reader"]);
}

#[test]
fn what_is_wrong_with_a_grant_is_said() {
    let long = "x".repeat(MOST_BYTES + 1);
    for (text, why) in [
        ("data_raeder[*]", "there is no role `data_raeder`"),
        ("data_reader", "write `data_reader[*]`, `data_reader[BUCKET]`"),
        ("data_reader[]", "write `data_reader[*]`"),
        ("data_reader[*:s]", "write `data_reader[*]`"),
        ("bucket_admin[b:s]", "write `bucket_admin[BUCKET]`"),
        ("scope_admin[b:s:c]", "or `scope_admin[BUCKET:SCOPE]`"),
        ("admin[default]", "`admin` takes no place"),
        ("data_reader[b", "a place ends with ]"),
        (long.as_str(), "bytes"),
    ] {
        let wrong = Grant::parse_list(text).expect_err(text);
        assert!(wrong.len() == 1 && wrong[0].why.contains(why), "{text}: {wrong:?}");
    }
}

/// Scope `s` (8) with `c` (8) and `d` (9), scope `t` (9) with `e` (10).
fn manifest() -> Arc<Manifest> {
    let json =
        br#"{"uid":"1","scopes":[{"name":"_default","uid":"0","collections":[{"name":"_default","uid":"0"}]},
        {"name":"s","uid":"8","collections":[{"name":"c","uid":"8"},{"name":"d","uid":"9"}]},
        {"name":"t","uid":"9","collections":[{"name":"e","uid":"a"}]}]}"#;
    Arc::new(Manifest::parse(json).expect("a manifest"))
}

fn rights(grants: &str) -> Rights {
    let grants = Grant::parse_list(grants).expect(grants);
    Rights::of(&grants, "default", &manifest(), Privileges::NONE)
}

const READ: Privileges = Privileges::of(&[Privilege::Read]);
const C: CollectionId = CollectionId(8);
const D: CollectionId = CollectionId(9);
const E: CollectionId = CollectionId(10);

#[test]
fn roles_hold_in_their_place_alone() {
    for (grants, seen) in [
        ("data_reader[*]", [Permission::Allowed; 3]),
        ("data_reader[default]", [Permission::Allowed; 3]),
        ("data_reader[default:s]", [Permission::Allowed, Permission::Allowed, Permission::Hidden]),
        ("data_reader[default:s:d]", [Permission::Hidden, Permission::Allowed, Permission::Hidden]),
        ("data_reader[default:t:d]", [Permission::Hidden; 3]),
        (
            "data_reader[default:s:d],data_writer[default:s]",
            [Permission::Denied(Privilege::Read), Permission::Allowed, Permission::Hidden],
        ),
        // That its connections may be opened in the whole bucket shows no collection.
        ("data_dcp_reader[default:t]", [Permission::Hidden, Permission::Hidden, Permission::Allowed]),
        ("data_reader[other],data_writer[default]", [Permission::Denied(Privilege::Read); 3]),
    ] {
        let rights = rights(grants);
        assert_eq!([C, D, E].map(|id| rights.check_collection(READ, id)), seen, "{grants}");
    }
}

#[test]
fn without_a_narrow_role_one_set_of_bits_decides() {
    for grants in ["data_reader[default]", "data_reader[other:s:c],data_writer[*]", "admin"] {
        assert!(rights(grants).narrow.is_none(), "{grants}");
    }
    assert!(rights("data_reader[default:s]").narrow.is_some());
}

#[test]
fn scopes_are_seen_if_anything_in_them_is() {
    let rights = rights("data_reader[default:s:d]");
    assert!(
        rights.sees_scope(ScopeId(8)) && !rights.sees_scope(ScopeId(9)) && !rights.sees_scope(ScopeId(0))
    );
    assert_eq!(rights.check_scope(READ, ScopeId(8)), Permission::Denied(Privilege::Read));
    assert_eq!(rights.check_scope(READ, ScopeId(9)), Permission::Hidden);
}

#[test]
fn names_are_looked_up_again_in_another_manifest() {
    let mut rights = rights("data_reader[default:s:c]");
    let json = br#"{"uid":"2","scopes":[{"name":"_default","uid":"0","collections":[]},
        {"name":"s","uid":"b","collections":[{"name":"c","uid":"c"}]}]}"#;
    let next = Arc::new(Manifest::parse(json).expect("a manifest"));
    rights.follow(&next, Privileges::NONE);
    assert_eq!(rights.check_collection(READ, C), Permission::Hidden, "the dropped collection");
    assert_eq!(
        rights.check_collection(READ, CollectionId(12)),
        Permission::Allowed,
        "the new one of the same name"
    );
    rights.follow(&next, Privileges::NONE);
    rights = rights.within(Privileges::of(&[Privilege::MetaRead]));
    assert_eq!(rights.check_collection(READ, CollectionId(12)), Permission::Denied(Privilege::Read));
}

#[test]
fn streams_need_the_privilege_in_all_that_they_are_about() {
    let (both, scope) = ([C, D], ScopeId(8));
    for (grants, may) in [
        ("data_dcp_reader[default]", [true; 5]),
        ("data_dcp_reader[default:s]", [false, false, true, true, true]),
        ("data_dcp_reader[default:s:c],data_dcp_reader[default:s:d]", [false, false, false, true, true]),
        ("data_dcp_reader[default:s:c],data_reader[default]", [false, false, false, false, true]),
        ("data_dcp_reader[default:_default]", [false, true, false, false, false]),
        ("data_reader[default]", [false; 5]),
    ] {
        let rights = rights(grants);
        let wanted = [
            StreamWanted::Everything,
            StreamWanted::Default,
            StreamWanted::Scope(scope),
            StreamWanted::Collections(&both),
            StreamWanted::Collections(&[C]),
        ];
        assert_eq!(wanted.map(|wanted| rights.may_stream(wanted)), may, "{grants}");
    }
}

#[test]
fn a_role_of_a_service_that_is_not_here_gives_nothing() {
    for row in ROLES_WITHOUT_SERVICE {
        assert!(ROLES.iter().all(|other| other.name != row.name), "{} is twice", row.name);
        assert!(row.place.or(row.bucket).or(row.cluster) == Privileges::NONE, "{} gives something", row.name);
        let place = match row.takes {
            Takes::Nothing => "",
            Takes::Bucket => "[default]",
            Takes::Scope => "[default:s]",
            Takes::Collection => "[default:s:c]",
        };
        let rights = rights(&format!("{}{place}", row.name));
        for id in [CollectionId::DEFAULT, C, D, E] {
            assert!(rights.check_collection(READ, id) != Permission::Allowed, "{}", row.name);
        }
    }
}

/// No role but that of the full administrator reaches documents and users at once, or may act for others.
#[test]
fn administrators_of_parts_stay_in_them() {
    use Privilege::*;
    for row in ROLES.iter().filter(|row| row.name != "admin") {
        let all = row.place.or(row.bucket).or(row.cluster);
        for privilege in [Impersonate, NodeSupervisor, Administrator] {
            assert!(!all.has(privilege), "{} has {}", row.name, privilege.name());
        }
        let documents = [Read, Insert, Upsert, Delete, MetaWrite, DcpStream, DcpProducer, DcpConsumer];
        let manages = [SecurityManagement, SystemSettings, Settings].iter().any(|one| all.has(*one));
        assert!(!manages || documents.iter().all(|one| !all.has(*one)), "{}", row.name);
        assert_eq!(row.is_guarded, all.has(SelectBucket), "{}: administrators are guarded", row.name);
    }
}

#[test]
fn roles_that_give_a_privilege_are_named_those_that_give_least_first() {
    assert_eq!(roles_with(Privilege::DcpProducer), "data_dcp_reader, bucket_full_access, data_backup, admin");
    assert_eq!(roles_with(Privilege::Impersonate), "admin");
    assert!(roles_with(Privilege::SimpleStats).starts_with("data_monitoring, "));
    // However many would do, the one that gives everything is named.
    for privilege in Privilege::ALL {
        let roles = roles_with(*privilege);
        assert!(roles.split(", ").count() <= 4 && roles.split(", ").last() == Some("admin"), "{roles}");
    }
}

#[test]
fn roles_that_give_several_privileges_are_named_as_they_are_granted() {
    use Privilege::*;
    let of = |needed: &[Privilege], scope| grants_with(needed, "b", scope);
    assert_eq!(of(&[SimpleStats, Stats], None), "bucket_admin[b], ro_admin, cluster_admin or admin");
    assert_eq!(
        of(&[CollectionManagement], Some("s")),
        "scope_admin[b:s], bucket_admin[b], cluster_admin or admin"
    );
    assert_eq!(
        of(&[SimpleStats, MetaRead], None),
        "replication_target[b], bucket_full_access[b], data_backup[b] or admin"
    );
    assert_eq!(grants_with(&[NodeSupervisor], "*", None), "admin");
}
