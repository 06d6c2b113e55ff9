//! Roles: what a role of a user allows, and where.
//!
//! A user has *grants*: a role with the place where it holds (record 86). Places are written by name, so that they hold
//! for a bucket, scope or collection that comes later.

mod rights;
mod table;

use std::fmt;

pub use rights::{Narrow, NarrowRights, Permission, Rights};
pub(crate) use table::roles_with;
pub use table::{ROLES, ROLES_WITHOUT_SERVICE, RoleRow, Takes, grants_with};

/// A role, and where it holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Grant {
    role: &'static str,
    bucket: Option<Box<str>>,
    scope: Option<Box<str>>,
    collection: Option<Box<str>>,
}

/// The name that stands for all buckets.
pub const ALL_BUCKETS: &str = "*";
/// The longest text of one grant, in bytes: the role, and names of a bucket, a scope and a collection.
const MOST_BYTES: usize = 64 + 100 + 2 * 251 + 4;

/// A text that is no grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoGrant {
    /// The text.
    pub text: String,
    /// What is wrong with it.
    pub why: String,
}

impl Grant {
    /// Reads `ROLE`, `ROLE[BUCKET]`, `ROLE[BUCKET:SCOPE]` or `ROLE[BUCKET:SCOPE:COLLECTION]`. A role that is for
    /// buckets needs one: `*` means all.
    pub fn parse(text: &str) -> Option<Grant> {
        Grant::read(text).ok()
    }

    /// The same; an error says what is wrong with the text.
    fn read(text: &str) -> Result<Grant, String> {
        if text.len() > MOST_BYTES {
            return Err(format!("a role with its place has at most {MOST_BYTES} bytes"));
        }
        let (name, place) = match text.split_once('[') {
            Some((name, rest)) => (name, Some(rest.strip_suffix(']').ok_or("a place ends with ]")?)),
            None => (text, None),
        };
        let unknown =
            || format!("there is no role `{name}`; `stave user roles` and /settings/rbac/roles list all");
        let row = table::find(name).ok_or_else(unknown)?;
        match place {
            None if row.takes == Takes::Nothing => Ok(Grant::everywhere(row)),
            // SDKs write the one character of bucket names that has a meaning in addresses as an escape.
            Some(place) if row.takes > Takes::Nothing => Grant::at(row, &place.replace("%25", "%")),
            _ => Err(row.asks_for()),
        }
    }

    /// A role of buckets at a place.
    fn at(row: &'static RoleRow, place: &str) -> Result<Grant, String> {
        let mut names = place.split(':');
        let bucket = names.next().filter(|name| !name.is_empty());
        let mut next = || names.next().filter(|name| *name != ALL_BUCKETS);
        let (scope, collection) = (next(), next());
        let is_whole = scope.is_none_or(|scope| !scope.is_empty() && bucket != Some(ALL_BUCKETS))
            && collection.is_none_or(|collection| !collection.is_empty() && scope.is_some())
            && names.next().is_none();
        let depth = match (scope, collection) {
            (None, _) => Takes::Bucket,
            (Some(_), None) => Takes::Scope,
            (Some(_), Some(_)) => Takes::Collection,
        };
        let bucket = bucket.filter(|_| is_whole && depth <= row.takes).ok_or_else(|| row.asks_for())?;
        Ok(Grant {
            role: row.name,
            bucket: Some(bucket.into()),
            scope: scope.map(Into::into),
            collection: collection.map(Into::into),
        })
    }

    /// Reads grants separated by commas, none if there is no text; else those that are none, each with what is wrong.
    pub fn parse_list(text: &str) -> Result<Vec<Grant>, Vec<NoGrant>> {
        let (mut grants, mut wrong) = (Vec::new(), Vec::new());
        let is_none = text.trim().is_empty();
        for one in text.split(',').map(str::trim).filter(|_| !is_none) {
            if one.is_empty() {
                let why = "a comma has no role before or behind it".to_owned();
                wrong.push(NoGrant { text: String::new(), why });
                continue;
            }
            match Grant::read(one) {
                Ok(grant) => grants.push(grant),
                Err(why) => wrong.push(NoGrant { text: one.to_owned(), why }),
            }
        }
        grants.sort();
        grants.dedup();
        if wrong.is_empty() { Ok(grants) } else { Err(wrong) }
    }

    fn everywhere(row: &'static RoleRow) -> Grant {
        Grant { role: row.name, bucket: None, scope: None, collection: None }
    }

    /// A role of the table for one bucket, `*` for all.
    pub(crate) fn of_bucket(role: &str, bucket: &str) -> Option<Grant> {
        Grant::parse(&format!("{role}[{}]", bucket.replace('%', "%25")))
    }

    /// What nodes may do at each other.
    pub(crate) fn of_node() -> Grant {
        Grant::everywhere(&table::NODE)
    }

    /// Whether it is what nodes have.
    pub(crate) fn is_of_node(&self) -> bool {
        self.role == table::NODE.name
    }

    /// The role.
    pub fn row(&self) -> &'static RoleRow {
        if self.is_of_node() {
            return &table::NODE;
        }
        table::find(self.role).expect("a grant is made of a row")
    }

    /// The bucket, `*` for all; `None` for a role that is not about buckets.
    pub fn bucket(&self) -> Option<&str> {
        self.bucket.as_deref()
    }

    /// The scope, if it holds in one alone.
    pub fn scope(&self) -> Option<&str> {
        self.scope.as_deref()
    }

    /// The collection, if it holds in one alone.
    pub fn collection(&self) -> Option<&str> {
        self.collection.as_deref()
    }

    /// Whether it says something about a bucket.
    fn is_about(&self, bucket: &str) -> bool {
        self.bucket().is_none_or(|name| name == ALL_BUCKETS || name == bucket)
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.role)?;
        let Some(bucket) = self.bucket() else { return Ok(()) };
        write!(f, "[{}", bucket.replace('%', "%25"))?;
        for name in [self.scope(), self.collection()].into_iter().flatten() {
            write!(f, ":{name}")?;
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests;
