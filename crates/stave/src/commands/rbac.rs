//! What `stave user`, `group`, `bucket` and others over HTTP have in common: requests, roles as text, tables.

use std::collections::BTreeSet;

use anyhow::bail;
use serde_json::{Value, json};

use super::http_flags::HttpFlags;
use crate::client::HttpTarget;
use node::form::escaped;
use node::roles::ROLES_WITHOUT_SERVICE;

/// The address of a user, or of all.
pub fn users(name: &str) -> String {
    format!("/settings/rbac/users/local/{}", escaped(name))
}

/// The address of a group.
pub fn groups(name: &str) -> String {
    format!("/settings/rbac/groups/{}", escaped(name))
}

/// The text of a role as `roles` takes it: `data_reader[default:app]`.
pub fn role(role: &Value) -> String {
    let field = |name: &str| role[name].as_str().filter(|text| !text.is_empty());
    let places = [field("bucket_name"), field("scope_name"), field("collection_name")];
    let mut places: Vec<&str> = places.into_iter().flatten().collect();
    // `*` behind a name is what the name alone means.
    while places.len() > 1 && places.last() == Some(&"*") {
        places.pop();
    }
    let name = role["role"].as_str().unwrap_or_default();
    if places.is_empty() { name.to_owned() } else { format!("{name}[{}]", places.join(":")) }
}

/// Roles of a user or group that are its own, or all.
pub fn roles(of: &Value, only_own: bool) -> Vec<String> {
    let is_own = |role: &&Value| match role["origins"].as_array() {
        Some(origins) if only_own => origins.iter().any(|origin| origin["type"] == "user"),
        _ => true,
    };
    of["roles"].as_array().into_iter().flatten().filter(is_own).map(role).collect()
}

/// Texts of a field that is a list.
pub fn texts(of: &Value, field: &str) -> Vec<String> {
    of[field].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Columns that begin under each other.
pub fn table(lines: &[Vec<String>]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |line: &Vec<String>| {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    lines.iter().map(line).collect()
}

/// A heading and lines below it.
pub fn titled(heads: &[&str], lines: Vec<Vec<String>>) -> String {
    let head = heads.iter().map(|head| (*head).to_owned()).collect();
    table(&std::iter::once(head).chain(lines).collect::<Vec<_>>())
}

/// Several texts in one cell.
pub fn cell(texts: &[String]) -> String {
    if texts.is_empty() { "-".to_owned() } else { texts.join(",") }
}

/// What was done, as it is printed.
pub fn done(to: &HttpFlags, what: &str) -> String {
    if to.json { format!("{}\n", json!({ "done": what })) } else { format!("{what}\n") }
}

/// What a node has at an address: nothing if there is no such user or group.
pub fn find(to: &HttpFlags, path: &str) -> anyhow::Result<Option<Value>> {
    find_at(&to.target()?, path)
}

/// The same of a node that was named before.
pub fn find_at(target: &HttpTarget, path: &str) -> anyhow::Result<Option<Value>> {
    let (status, body) = target.exchange("GET", path, String::new())?;
    if status == 404 {
        return Ok(None);
    }
    target.answer(status, &body).map(Some)
}

/// Deletes users or groups: all, or none if one of them is not there.
pub fn delete(
    to: &HttpFlags,
    (one, several): (&str, &str),
    names: &[String],
    address: fn(&str) -> String,
) -> anyhow::Result<String> {
    let target = to.target()?;
    for name in names {
        if find_at(&target, &address(name))?.is_none() {
            let kept = if one == "user" { " (those of the configuration file are not meant)" } else { "" };
            bail!("there is no {one} {name}{kept}; nothing was deleted; `stave {one} list` shows all");
        }
    }
    names.iter().try_for_each(|name| target.send("DELETE", &address(name), &[]).map(drop))?;
    let (word, was) = if names.len() == 1 { (one, "was") } else { (several, "were") };
    Ok(done(to, &format!("{word} {} {was} deleted", names.join(", "))))
}

/// What is said of roles of services that are not here: they are kept, and give nothing.
pub fn idle_roles(given: Option<&str>) -> String {
    let name = |role: &&str| role.split('[').next().unwrap_or_default().trim().to_owned();
    let names = given.unwrap_or_default().split(',').map(|role| name(&role));
    let is_idle = |name: &String| ROLES_WITHOUT_SERVICE.iter().any(|row| row.name == name.as_str());
    let idle: BTreeSet<String> = names.filter(is_idle).collect();
    match idle.len() {
        0 => String::new(),
        1 => format!(
            "; {} gives nothing here: it is of a service that Stave does not have",
            cell(&Vec::from_iter(idle))
        ),
        _ => format!(
            "; {} give nothing here: they are of services that Stave does not have",
            cell(&Vec::from_iter(idle))
        ),
    }
}

/// What a node has at an address, where something must be.
pub fn show(to: &HttpFlags, path: &str, what: &str) -> anyhow::Result<Value> {
    show_at(&to.target()?, path, what)
}

/// The same of a node that was named before.
pub fn show_at(target: &HttpTarget, path: &str, what: &str) -> anyhow::Result<Value> {
    match find_at(target, path)? {
        Some(found) => Ok(found),
        None => {
            let kind = what.split(' ').next().unwrap_or_default();
            bail!("there is no {what}; `stave {kind} list` shows all")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_told_as_they_are_given() {
        for (told, text) in [
            (json!({ "role": "admin" }), "admin"),
            (
                json!({ "role": "data_reader", "bucket_name": "*", "scope_name": "*", "collection_name": "*" }),
                "data_reader[*]",
            ),
            (json!({ "role": "data_reader", "bucket_name": "b", "scope_name": "s" }), "data_reader[b:s]"),
            (
                json!({ "role": "data_reader", "bucket_name": "b", "scope_name": "s", "collection_name": "c" }),
                "data_reader[b:s:c]",
            ),
        ] {
            assert_eq!(role(&told), text);
        }
    }

    #[test]
    fn what_comes_from_groups_is_not_the_users_own() {
        let own = json!({ "role": "admin", "origins": [{ "type": "user" }] });
        let given = json!({ "role": "ro_admin", "origins": [{ "type": "group", "name": "g" }] });
        let user = json!({ "roles": [own, given] });
        assert_eq!((roles(&user, true), roles(&user, false).len()), (vec!["admin".to_owned()], 2));
    }

    #[test]
    fn roles_that_give_nothing_here_are_named() {
        assert_eq!(idle_roles(Some("data_reader[*],admin")), "");
        let told = idle_roles(Some("query_select[*],data_reader[a], query_select[b]"));
        assert!(told.starts_with("; query_select gives nothing here"), "{told}");
        assert!(
            idle_roles(Some("fts_admin[*],query_select[b]")).starts_with("; fts_admin,query_select give")
        );
    }

    #[test]
    fn columns_begin_under_each_other() {
        let lines = vec![vec!["ann".to_owned(), "-".to_owned()], vec!["b".to_owned(), "admin".to_owned()]];
        assert_eq!(titled(&["USER", "ROLES"], lines), "USER  ROLES\nann   -\nb     admin\n");
    }
}
