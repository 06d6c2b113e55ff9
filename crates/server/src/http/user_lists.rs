//! Lists of users and groups over HTTP: all of them, or users a page at a time.
//!
//! *Guarantee:* a list is made while its client takes it, one user after the other. A user who is made, changed or removed
//! meanwhile is told as before or as after that. No list keeps earlier users in memory.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Bound;
use std::sync::{Arc, Weak};

use ::node::form::escaped;
use ::node::kept_users::{EntryKind, KeptUser, KeptUsers, UsersRefusal};
use axum::Json;
use axum::extract::{Path, State};
use axum::response::IntoResponse;
use serde_json::{Map, Value, json};

use super::pieces::{PIECE_BYTES, Source, json_of};
use super::query::Query;
use super::shared::Shared;
use super::users::{Answered, EXTERNAL, LOCAL, UsersAnswer, check_domain, group, kept, kept_here, user};

/// Where users are listed.
const PATH: &str = "/settings/rbac/users";
/// How many users a page may have.
const PAGE_SIZES: std::ops::RangeInclusive<usize> = 2..=100;
/// Domains of the field. This node has users of the first one alone.
const DOMAINS: [&str; 2] = [LOCAL, EXTERNAL];

/// The parameters behind the `?`.
type Parameters = BTreeMap<String, String>;

/// What users are ordered by.
#[derive(Clone, Copy)]
enum SortKey {
    Id,
    Domain,
    Name,
    PasswordChange,
}

const SORT_KEYS: [(&str, SortKey); 4] = [
    ("id", SortKey::Id),
    ("name", SortKey::Name),
    ("domain", SortKey::Domain),
    ("password_change_timestamp", SortKey::PasswordChange),
];
/// Whether the last one comes first.
const DIRECTIONS: [(&str, bool); 2] = [("asc", false), ("desc", true)];

/// What a user is ordered by; the id last.
type Rank<'a> = (&'a str, u64, &'a str);

/// Which page is meant.
struct PageWanted {
    size: usize,
    start: Option<String>,
    order: (&'static str, SortKey),
    direction: (&'static str, bool),
    /// A part of the id or name that all users of all pages have.
    part: Option<String>,
    /// The page's own path.
    path: String,
    /// The links name the domain of the user that they begin with.
    names_domain: bool,
}

fn wrong(field: &'static str, what: &str) -> UsersRefusal {
    UsersRefusal::Field(field, what.to_owned())
}

fn one_of<T: Copy>(
    parameters: &Parameters,
    field: &'static str,
    all: &[(&'static str, T)],
) -> Result<(&'static str, T), UsersRefusal> {
    let Some(text) = parameters.get(field) else { return Ok(all[0]) };
    let found = all.iter().find(|(name, _)| name == text).copied();
    found.ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
        wrong(field, &format!("The value must be one of the following: [{}]", names.join(",")))
    })
}

impl PageWanted {
    /// The page that parameters mean; `None` if they mean all users.
    fn read(parameters: &Parameters, domain: Option<&str>) -> Result<Option<PageWanted>, UsersRefusal> {
        let Some(size) = parameters.get("pageSize") else { return Ok(None) };
        let size: i64 = size.parse().map_err(|_| wrong("pageSize", "The value must be an integer"))?;
        let size = usize::try_from(size).ok().filter(|size| PAGE_SIZES.contains(size)).ok_or_else(|| {
            let (least, most) = (PAGE_SIZES.start(), PAGE_SIZES.end());
            wrong("pageSize", &format!("The value must be in range from {least} to {most}"))
        })?;
        let start = parameters.get("startFrom").cloned();
        if start.is_some() {
            match (domain, parameters.get("startFromDomain")) {
                (None, None) => return Err(wrong("startFromDomain", "The value must be supplied")),
                (None, Some(_)) => {
                    one_of(parameters, "startFromDomain", &DOMAINS.map(|domain| (domain, ())))?;
                }
                (Some(_), Some(_)) => return Err(wrong("startFromDomain", "The path names the domain")),
                (Some(_), None) => {}
            }
        }
        Ok(Some(PageWanted {
            size,
            start,
            order: one_of(parameters, "sortBy", &SORT_KEYS)?,
            direction: one_of(parameters, "order", &DIRECTIONS)?,
            part: parameters.get("substr").cloned(),
            path: domain.map_or_else(|| PATH.to_owned(), |domain| format!("{PATH}/{domain}")),
            names_domain: domain.is_none(),
        }))
    }

    fn rank<'a>(&self, name: &'a str, user: Option<&'a KeptUser>) -> Rank<'a> {
        match self.order.1 {
            SortKey::Id | SortKey::Domain => ("", 0, name),
            SortKey::Name => (user.map_or("", KeptUser::title), 0, name),
            SortKey::PasswordChange => ("", user.map_or(0, KeptUser::password_changed_s), name),
        }
    }

    fn link(&self, start: Option<&str>) -> Value {
        let size = self.size.to_string();
        let (order, direction) = (Some(self.order.0), Some(self.direction.0));
        let domain = start.filter(|_| self.names_domain).map(|_| LOCAL);
        let parameters = [
            ("substr", self.part.as_deref()),
            ("pageSize", Some(size.as_str())),
            ("sortBy", order),
            ("order", direction),
            ("startFromDomain", domain),
            ("startFrom", start),
        ];
        let told =
            parameters.iter().filter_map(|(name, value)| Some(format!("{name}={}", escaped((*value)?))));
        format!("{}?{}", self.path, told.collect::<Vec<_>>().join("&")).into()
    }

    /// The page: what is told in front of its users, and their names.
    fn of(&self, kept: &KeptUsers) -> (String, VecDeque<String>) {
        let part = self.part.as_deref().unwrap_or_default().to_lowercase();
        let is_meant = |(name, user): &(&String, &KeptUser)| {
            name.to_lowercase().contains(&part) || user.title().to_lowercase().contains(&part)
        };
        let meant = kept.users().iter().filter(is_meant);
        let mut all: Vec<Rank<'_>> = meant.map(|(name, user)| self.rank(name, Some(user))).collect();
        let is_descending = self.direction.1;
        all.sort_unstable();
        if is_descending {
            all.reverse();
        }
        let skipped = self.start.as_deref().map_or(0, |start| {
            let start = self.rank(start, kept.users().get(start));
            all.partition_point(|one| if is_descending { *one > start } else { *one < start })
        });
        let end = all.len().min(skipped + self.size);
        let name_at = |at: usize| all.get(at).map(|(_, _, name)| *name);
        let mut links = Map::new();
        if skipped > 0 {
            links.insert("first".to_owned(), self.link(None));
            links.insert("prev".to_owned(), self.link(name_at(skipped.saturating_sub(self.size))));
        }
        if end < all.len() {
            // The last page is a full one, also if it begins within this one.
            let last = all.len() - self.size;
            links.insert("next".to_owned(), self.link(name_at(last.min(end))));
            links.insert("last".to_owned(), self.link(name_at(last)));
        }
        let front = json!({ "total": all.len(), "links": links, "skipped": skipped }).to_string();
        let front = format!("{},\"users\":[", front.trim_end_matches('}'));
        (front, all[skipped..end].iter().map(|(_, _, name)| (*name).to_owned()).collect())
    }
}

/// Which ones are still to be told.
enum Left {
    /// All behind this name.
    Behind(Option<String>),
    /// These.
    Named(VecDeque<String>),
}

/// A list that is made piece by piece.
struct Listing {
    shared: Shared,
    /// The users that were looked at last, while they are the present ones or others look at them.
    seen: Weak<KeptUsers>,
    of: EntryKind,
    left: Left,
    /// What is in front of the first one, until that is told.
    front: Option<String>,
    /// What is behind the last one.
    back: &'static str,
}

impl Listing {
    fn next_name(&mut self, kept: &KeptUsers) -> Option<String> {
        match &mut self.left {
            Left::Named(names) => names.pop_front(),
            Left::Behind(last) => {
                let behind = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
                let range = (behind, Bound::Unbounded);
                let next = match self.of {
                    EntryKind::User => {
                        kept.users().range::<str, _>(range).next().map(|(name, _)| name.clone())
                    }
                    EntryKind::Group => {
                        kept.groups().range::<str, _>(range).next().map(|(name, _)| name.clone())
                    }
                }?;
                *last = Some(next.clone());
                Some(next)
            }
        }
    }

    async fn kept(&mut self) -> io::Result<Arc<KeptUsers>> {
        if let Some(kept) = self.seen.upgrade() {
            return Ok(kept);
        }
        let gone = |_: UsersAnswer| io::Error::other("the users cannot be read any more: ask again");
        let kept = kept_here(&self.shared).await.map_err(gone)?;
        self.seen = Arc::downgrade(&kept);
        Ok(kept)
    }
}

impl Source for Listing {
    /// Other requests go on between two users: one may have the roles of all groups.
    async fn fill(&mut self, piece: &mut Vec<u8>) -> io::Result<bool> {
        let kept = self.kept().await?;
        while piece.len() < PIECE_BYTES {
            let Some(name) = self.next_name(&kept) else {
                piece.extend_from_slice(self.front.take().unwrap_or_default().as_bytes());
                piece.extend_from_slice(self.back.as_bytes());
                return Ok(true);
            };
            let told = match self.of {
                EntryKind::User => kept.users().get(&name).map(|one| user(&kept, &name, one)),
                EntryKind::Group => group(&kept, &name),
            };
            // One of a page may have been removed meanwhile.
            let Some(told) = told else { continue };
            let front = self.front.take();
            piece.extend_from_slice(front.as_deref().unwrap_or(",").as_bytes());
            serde_json::to_writer(&mut *piece, &told)?;
            tokio::task::yield_now().await;
        }
        Ok(false)
    }
}

async fn users(shared: Shared, domain: Option<&str>, parameters: &Parameters) -> Answered {
    let wanted = PageWanted::read(parameters, domain)?;
    let kept = kept(&shared).await?;
    let (front, left, back) = match wanted {
        None => ("[".to_owned(), Left::Behind(None), "]"),
        Some(wanted) => {
            let (front, names) = wanted.of(&kept);
            (front, Left::Named(names), "]}")
        }
    };
    let (seen, of) = (Arc::downgrade(&kept), EntryKind::User);
    drop(kept);
    Ok(json_of(Listing { shared, seen, of, left, front: Some(front), back }).await)
}

/// `GET /settings/rbac/users`: with `pageSize` a page of them.
pub(super) async fn list(State(shared): State<Shared>, Query(parameters): Query<Parameters>) -> Answered {
    users(shared, None, &parameters).await
}

/// `GET /settings/rbac/users/DOMAIN`
pub(super) async fn list_domain(
    State(shared): State<Shared>,
    Path(domain): Path<String>,
    Query(parameters): Query<Parameters>,
) -> Answered {
    if domain == EXTERNAL {
        let is_page = PageWanted::read(&parameters, Some(&domain)).map_err(UsersAnswer::from)?.is_some();
        let page = json!({ "total": 0, "links": {}, "skipped": 0, "users": [] });
        return Ok(Json(if is_page { page } else { json!([]) }).into_response());
    }
    check_domain(&domain)?;
    users(shared, Some(&domain), &parameters).await
}

/// `GET /settings/rbac/groups`
pub(super) async fn list_groups(State(shared): State<Shared>) -> Answered {
    let seen = Arc::downgrade(&kept(&shared).await?);
    let (of, left, front) = (EntryKind::Group, Left::Behind(None), Some("[".to_owned()));
    Ok(json_of(Listing { shared, seen, of, left, front, back: "]" }).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The users a to f; their names, in capitals, have the opposite order. None of them can log in.
    fn kept() -> KeptUsers {
        let user = |at: usize, id: char| {
            let title = char::from(b'F' - at as u8);
            let of = json!({
                "title": title, "roles": [], "groups": [], "password_changed_s": 5 - at, "secrets": [], "hash": null,
            });
            (id.to_string(), of)
        };
        let users: Map<String, Value> = ('a'..='f').enumerate().map(|(at, id)| user(at, id)).collect();
        serde_json::from_value(json!({ "users": users, "groups": {} })).expect("users")
    }

    fn parameters(query: &str) -> Parameters {
        ::node::form::parse(query.as_bytes()).into_iter().collect()
    }

    /// Front and names of a page; the field of a wrong parameter.
    fn page(query: &str, domain: Option<&str>) -> Result<(Value, String), &'static str> {
        match PageWanted::read(&parameters(query), domain) {
            Ok(wanted) => {
                let (front, names) = wanted.expect("a page").of(&kept());
                let front = serde_json::from_str(&format!("{front}]}}")).expect("JSON");
                Ok((front, names.into_iter().collect()))
            }
            Err(UsersRefusal::Field(field, _)) => Err(field),
            Err(_) => panic!("another refusal"),
        }
    }

    #[test]
    fn pages_and_their_links_are_those_of_the_original() {
        let link = |start: &str| format!("{PATH}?pageSize=4&sortBy=id&order=asc{start}");
        let at = |id: char| link(&format!("&startFromDomain=local&startFrom={id}"));
        let (front, names) = page("pageSize=4", None).expect("a page");
        let links = json!({ "next": at('c'), "last": at('c') });
        assert_eq!(
            (front, &*names),
            (json!({ "total": 6, "skipped": 0, "users": [], "links": links }), "abcd")
        );
        let (front, names) = page("pageSize=4&startFrom=c&startFromDomain=local", None).expect("a page");
        let links = json!({ "first": link(""), "prev": at('a') });
        assert_eq!(
            (front, &*names),
            (json!({ "total": 6, "skipped": 2, "users": [], "links": links }), "cdef")
        );
        let (front, names) = page("pageSize=2&startFrom=bb", Some("local")).expect("a page");
        let of = |id: char| format!("{PATH}/local?pageSize=2&sortBy=id&order=asc&startFrom={id}");
        let first = format!("{PATH}/local?pageSize=2&sortBy=id&order=asc");
        let links = json!({ "first": first, "prev": of('a'), "next": of('e'), "last": of('e') });
        assert_eq!(
            (front, &*names),
            (json!({ "total": 6, "skipped": 2, "users": [], "links": links }), "cd")
        );
    }

    #[test]
    fn users_are_ordered_and_chosen_as_parameters_say() {
        for (query, names) in [
            ("order=desc", "fed"),
            ("order=desc&startFrom=d&startFromDomain=local", "dcb"),
            ("sortBy=name", "fed"),
            ("sortBy=name&order=desc", "abc"),
            ("sortBy=password_change_timestamp&startFrom=b&startFromDomain=local", "ba"),
            ("sortBy=domain", "abc"),
            ("substr=A", "af"),
            ("startFrom=z&startFromDomain=local", ""),
        ] {
            assert_eq!(
                page(&format!("pageSize=3&{query}"), None).map(|(_, names)| names),
                Ok(names.to_owned())
            );
        }
    }

    #[test]
    fn wrong_parameters_are_named() {
        for (query, domain, field) in [
            ("pageSize=1", None, "pageSize"),
            ("pageSize=101", None, "pageSize"),
            ("pageSize=-2", None, "pageSize"),
            ("pageSize=many", None, "pageSize"),
            ("pageSize=2&startFrom=a", None, "startFromDomain"),
            ("pageSize=2&startFrom=a&startFromDomain=else", None, "startFromDomain"),
            ("pageSize=2&startFrom=a&startFromDomain=local", Some("local"), "startFromDomain"),
            ("pageSize=2&sortBy=age", None, "sortBy"),
            ("pageSize=2&order=up", None, "order"),
        ] {
            assert_eq!(page(query, domain), Err(field), "{query}");
        }
        assert!(PageWanted::read(&parameters("startFrom=a"), None).is_ok_and(|page| page.is_none()));
    }
}
