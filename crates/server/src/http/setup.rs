//! The calls that set a fresh Couchbase node up, as `CouchbaseContainer` of Testcontainers makes them without a login: they
//! change nothing (docs/adr/0189-setup-calls-say-what-is-so.md).
//!
//! A node is set up when it is started. Each call is answered with 200 if what it asks for is so already, and otherwise
//! refused with what is not.

use ::node::alternate::is_host;
use ::node::bucket_form::Errors;
use ::node::form;
use ::node::hosting::Host;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::access::login_refused;
use super::basic_auth::authenticate;
use super::connections;
use super::settings::refused;
use super::shared::Shared;

/// The one service that there is.
const SERVICE: &str = "kv";

/// `POST /node/controller/rename`: `hostname`, the name or address that the other nodes and clients know the node by.
pub(super) async fn rename(State(shared): State<Shared>, request: Request) -> Response {
    let told = shared.node.address().host.as_deref();
    answer(request, |fields| one_of(fields, &["hostname"], |_, host| host_is(told, host))).await
}

/// `told` is what clients are told; without a name of its own a node is called what each client connected to.
fn host_is(told: Option<&str>, host: &str) -> Result<(), String> {
    let host = host.trim_matches(['[', ']']);
    match told {
        _ if !is_host(host) => Err("give a name or an address, without a port".to_owned()),
        Some(told) if told.trim_matches(['[', ']']) != host => {
            Err(format!("the node is called {told}: --advertise says so when it is started"))
        }
        _ => Ok(()),
    }
}

/// `POST /node/controller/setupServices`: `services`, with commas between.
pub(super) async fn services(request: Request) -> Response {
    answer(request, |fields| one_of(fields, &["services"], |_, services| services_are(services))).await
}

fn services_are(services: &str) -> Result<(), String> {
    let all: Vec<&str> = services.split(',').map(str::trim).filter(|service| !service.is_empty()).collect();
    let others: Vec<&str> = all.iter().copied().filter(|service| *service != SERVICE).collect();
    match others.is_empty() {
        false => Err(format!("Stave has no service {}: ask for {SERVICE} alone", others.join(", "))),
        true if all.is_empty() => Err(format!("Stave has the service {SERVICE}: ask for it")),
        true => Ok(()),
    }
}

/// `POST /pools/default`: `memoryQuota`, in MiB, which all buckets together may have.
pub(super) async fn quotas(State(shared): State<Shared>, request: Request) -> Response {
    answer(request, |fields| one_of(fields, &["memoryQuota"], |_, quota| quota_is_there(&shared, quota)))
        .await
}

fn quota_is_there(shared: &Shared, quota: &str) -> Result<(), String> {
    let there = shared.node.host().map_or(u64::MAX, Host::memory_quota_bytes) >> 20;
    match quota.parse::<u64>() {
        Ok(mib) if mib > 0 && mib <= there => Ok(()),
        Ok(mib) if mib > 0 => {
            let what = "start it with memory-quota in its configuration, on a machine that has as much";
            Err(format!("the buckets of this node cannot have {mib} MiB together: {what}"))
        }
        _ => Err("The value must be a number of MiB, from 1 on".to_owned()),
    }
}

/// `POST /settings/web`: `username`, `password` and `port` of the administrator.
pub(super) async fn administrator(State(shared): State<Shared>, request: Request) -> Response {
    let own_port = shared.node.address().http_port.to_string();
    let (parts, fields) = match fields_of(request).await {
        Ok(read) => read,
        Err(response) => return *response,
    };
    let port = |name: &str, value: &str| match name {
        "port" if value != own_port && value != "SAME" => {
            Err(format!("HTTP is at port {own_port}: --http says so when the node is started"))
        }
        _ => Ok(()),
    };
    if let Err(errors) = one_of(&fields, &["username", "password", "port"], port) {
        return refused(errors);
    }
    let of = |name: &str| fields.iter().find(|field| field.0 == name).map_or("", |field| field.1.as_str());
    let login = format!("Basic {}", STANDARD.encode(format!("{}:{}", of("username"), of("password"))));
    let mut request = Request::from_parts(parts, axum::body::Body::empty());
    if let Ok(login) = HeaderValue::from_str(&login) {
        request.headers_mut().insert(header::AUTHORIZATION, login);
    }
    // A login like any other: guesses are counted and recorded.
    let (uri, headers, peer) = (request.uri(), request.headers(), connections::peer(&request));
    match authenticate(&shared, uri, headers, peer, None).await {
        Ok(caller) if caller.0.is_admin() => {
            let host = shared.node.address().host.as_deref().unwrap_or("127.0.0.1").to_owned();
            Json(json!({ "newBaseUri": format!("http://{host}:{own_port}/") })).into_response()
        }
        Ok(caller) => {
            let what = format!("{} is a user without the role admin", caller.0.name());
            refused(Errors::from([("username".to_owned(), what)]))
        }
        Err(response) => {
            login_refused(&shared, &request, None, connections::ends(&request), &response);
            *response
        }
    }
}

/// `POST /settings/indexes`: there are none.
pub(super) async fn indexes() -> Response {
    let what = "Stave has no indexes and no service for them: leave the service index out";
    refused(Errors::from([("storageMode".to_owned(), what.to_owned())]))
}

/// What a call is answered.
async fn answer(request: Request, look: impl FnOnce(&[(String, String)]) -> Result<(), Errors>) -> Response {
    match fields_of(request).await {
        Ok((_, fields)) => match look(&fields) {
            Ok(()) => StatusCode::OK.into_response(),
            Err(errors) => refused(errors),
        },
        Err(response) => *response,
    }
}

/// The fields of a form; access has seen to it that all of it is there, and small.
async fn fields_of(
    request: Request,
) -> Result<(axum::http::request::Parts, Vec<(String, String)>), Box<Response>> {
    let (parts, body) = request.into_parts();
    let body: Bytes = axum::body::to_bytes(body, usize::MAX)
        .await
        .map_err(|_| Box::new(StatusCode::BAD_REQUEST.into_response()))?;
    Ok((parts, form::parse(&body)))
}

/// Looks at each field; all of `names` have to be there, but for `port`, and no other. The first other one is told of alone:
/// clients that have not logged in get short answers.
fn one_of(
    fields: &[(String, String)],
    names: &[&str],
    look: impl Fn(&str, &str) -> Result<(), String>,
) -> Result<(), Errors> {
    if let Some((other, _)) = fields.iter().find(|(name, _)| !names.contains(&name.as_str())) {
        let what = format!("Stave has no such setting: give {}", names.join(", "));
        return Err(Errors::from([(other.clone(), what)]));
    }
    let mut errors = Errors::new();
    for (name, value) in fields {
        if let Err(what) = look(name, value) {
            errors.insert(name.clone(), what);
        }
    }
    for name in names.iter().filter(|name| **name != "port") {
        if fields.iter().all(|field| field.0 != *name) {
            errors.insert((*name).to_owned(), "The value must be supplied".to_owned());
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_a_name_is_called_what_it_is_asked_for() {
        assert_eq!(host_is(None, "172.17.0.2"), Ok(()));
        assert_eq!(host_is(Some("db1"), "db1"), Ok(()));
        assert_eq!(host_is(Some("::1"), "[::1]"), Ok(()));
        assert!(host_is(Some("db1"), "172.17.0.2").is_err_and(|what| what.contains("is called db1")));
        assert!(host_is(None, "a b").is_err() && host_is(None, "").is_err());
    }

    #[test]
    fn there_is_one_service() {
        assert_eq!((services_are("kv"), services_are(" kv, kv")), (Ok(()), Ok(())));
        assert!(services_are("kv,fts,cbas").is_err_and(|what| what.contains("no service fts, cbas")));
        assert!(services_are("").is_err());
    }
}
