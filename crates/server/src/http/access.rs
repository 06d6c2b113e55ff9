//! Who may use an address: the one place that decides, for every address and method, before its handler runs.

use std::sync::atomic::Ordering::Relaxed;

use ::node::MetricsLogin;
use ::node::audit::events::AuditEvent;
use ::node::audit::record::{Ends, why_uncertified};
use ::node::node::FailedLogin;
use ::node::privilege::Privilege;
use ::node::roles::ALL_BUCKETS;
use ::node::stats::grants_for;
use ::node::user::User;
use axum::body::Body;
use axum::extract::{FromRequestParts, RawPathParams, Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::answers::{bucket_down, no_such_bucket};
use super::audit::{self, AuditedRoute, cannot_be_recorded, certificate_refused, forbidden};
use super::basic_auth::{Caller, NotJudged, authenticate, claimed_name, is_way_out, names_no_user};
use super::connections;
use super::node_key::{NodeRequest, Proof};
use super::rights::{lacks, lacks_roles, require_cluster_admin};
use super::shared::{Shared, view_of};

/// Who may use an address with a method. `{bucket}` in its path is the bucket that is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// Nobody has to log in.
    Nothing,
    /// Any client; one that says who it is has to be that.
    Anyone,
    /// A user who may export figures, or any client if the configuration says so.
    Export,
    /// Any user.
    User,
    /// A user who may select the bucket.
    Bucket,
    /// A user who may see the counters of the bucket.
    Figures,
    /// A user who may stream changes of the bucket: the handler asks for the right in the collections that are meant.
    SomeChanges,
    /// A user who may stream all changes of the bucket.
    Changes,
    /// An administrator of the bucket: it changes, but takes nothing from others.
    BucketAdmin,
    /// A user who may make and drop scopes of the bucket, or, if the path names a scope, collections in it.
    Collections,
    /// A user who may look at everything of the node: the log names users and documents.
    Log,
    /// A user who may look at users and groups.
    ReadUsers,
    /// A user who may change users and groups.
    ManageUsers,
    /// A full administrator.
    FullAdmin,
    /// Another node of the cluster, or a user who manages the cluster.
    Node,
    /// A user who manages the cluster: it is about the node, the cluster, or what buckets share.
    ClusterAdmin,
}

/// Lets a request through to its handler if its user may do that.
pub(super) async fn check(
    State((shared, needs, audited)): State<(Shared, Needs, Option<&'static AuditedRoute>)>,
    request: Request,
    next: Next,
) -> Response {
    if needs_no_user(needs, &shared, &request) {
        return handled_without_user(request, next).await;
    }
    let peer = connections::peer(&request);
    let (by, ends) = (connections::by(&request), connections::ends(&request));
    let log = &shared.node.audit;
    let event = audited.map_or(AuditEvent::WebLoginFailed, AuditedRoute::event);
    if !is_way_out(request.uri())
        && let Err(why) = log.admit(AuditEvent::WebLoginFailed).and_then(|()| log.admit(event))
    {
        return cannot_be_recorded(&why.to_string());
    }
    let (uri, headers) = (request.uri(), request.headers());
    let caller = match authenticate(&shared, uri, headers, peer, by.certified.as_deref()).await {
        Ok(caller) => caller,
        Err(response) => {
            login_refused(&shared, &request, by.certified.as_deref(), ends, &response);
            return *response;
        }
    };
    connections::let_in(&request);
    let user = &caller.0;
    let (mut parts, body) = request.into_parts();
    let params = RawPathParams::from_request_parts(&mut parts, &()).await;
    let params: Vec<(&str, &str)> = params.as_ref().map(|params| params.iter().collect()).unwrap_or_default();
    let param = |wanted| params.iter().find(|(name, _)| *name == wanted).map(|(_, name)| *name);
    let bucket = param("bucket");
    let place = PathNames { bucket, scope: param("scope"), group: param("group") };
    if let Err(refused) = admit(user, needs, place) {
        forbidden(&shared, user.name(), ends, (&parts.method, &parts.uri), &refused);
        return *refused;
    }
    // One that is down can be deleted, and nothing else.
    if let Some(name) = bucket
        && parts.method != Method::DELETE
        && let Some(why) = shared.node.served().why_down(name)
    {
        return bucket_down(&format!("bucket {name} is down: {why}"));
    }
    parts.extensions.insert(caller.clone());
    parts.extensions.insert(ends);
    parts.extensions.insert(by);
    let (method, uri) = (parts.method.clone(), parts.uri.clone());
    // No client sends a body before its user is known.
    let request = match connections::body(Request::from_parts(parts, body)).await {
        Ok(request) => request,
        Err(refused) => return *refused,
    };
    let response = match audited.filter(|_| log.is_on()) {
        Some(row) => recorded(&shared, row, &caller, ends, &params, request, next).await,
        None => next.run(request).await,
    };
    if response.status() == StatusCode::FORBIDDEN {
        // The handler has asked for more than the address does.
        forbidden(&shared, user.name(), ends, (&method, &uri), &response);
    }
    response
}

fn needs_no_user(needs: Needs, shared: &Shared, request: &Request) -> bool {
    match needs {
        Needs::Nothing => true,
        Needs::Anyone => is_nameless(request),
        Needs::Export => is_metrics_open(shared),
        Needs::Node => is_node(shared, request),
        _ => false,
    }
}

/// Has a request handled that needs no user: what its handler takes is small, whatever the address and the client.
async fn handled_without_user(request: Request, next: Next) -> Response {
    match connections::body(request).await {
        Ok(request) => next.run(request).await,
        Err(refused) => *refused,
    }
}

/// Logs and records that the user of a request could not log in, also one who has to try again because too many logins
/// failed. `certified`: the user that the client's certificate names, where it was asked.
pub(super) fn login_refused(
    shared: &Shared,
    request: &Request,
    certified: Option<&str>,
    ends: Ends,
    refused: &Response,
) {
    if refused.extensions().get::<NotJudged>().is_some() {
        return;
    }
    let status = refused.status();
    if let Some(name) = certified.filter(|_| names_no_user(request.headers())) {
        let why = match status {
            StatusCode::UNAUTHORIZED => why_uncertified(name),
            _ => "the user that the client's certificate names is not let in now",
        };
        // The log has it: see `Events::unknown_certified`.
        return certificate_refused(shared, name, ends, request.uri(), (status, why));
    }
    let Some(name) = claimed_name(request.headers()) else { return };
    let (user, status_code) = (name.as_bytes(), status.as_str());
    let (reference, reason, mechanism) = (None, None, None);
    let login =
        FailedLogin { user, ends, protocol: "http", status: status_code, reference, reason, mechanism };
    let events = shared.node.events();
    // Others may be right, and are put off.
    if status == StatusCode::UNAUTHORIZED {
        events.http_logins_failed.fetch_add(1, Relaxed);
    }
    events.login_failed(&login, shared.node.env().clock.monotonic());
    let event = AuditEvent::WebLoginFailed;
    let reason = status.canonical_reason().unwrap_or("refused");
    if shared.node.audit.admits_stranger(event, reason, ends.remote.map(|remote| remote.ip())) {
        audit::login_refused(shared, &name, ends, request.uri(), status);
    }
}

/// Has a request handled that is recorded if it is done.
async fn recorded(
    shared: &Shared,
    row: &'static AuditedRoute,
    caller: &Caller,
    ends: Ends,
    params: &[(&str, &str)],
    request: Request,
    next: Next,
) -> Response {
    let (parts, body) = request.into_parts();
    // It is all there: see `connections::body`.
    let Ok(body) = axum::body::to_bytes(body, usize::MAX).await else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let recording = row.begin(caller, ends, params, &body);
    let request = Request::from_parts(parts, Body::from(body));
    let shared = shared.clone();
    // A client that goes away meanwhile does not keep what it asked for from being done, nor from being recorded.
    let recorded = tokio::spawn(async move {
        let response = next.run(request).await;
        if response.status().is_success() {
            recording.done(&shared);
        }
        response
    });
    recorded.await.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

/// Whether a client says nothing of who it is.
fn is_nameless(request: &Request) -> bool {
    let certified = connections::by(request).certified;
    !request.headers().contains_key(header::AUTHORIZATION) && certified.is_none_or(|name| name.is_empty())
}

/// Whether the operator lets any client read `/metrics`.
fn is_metrics_open(shared: &Shared) -> bool {
    shared.node.host().is_some_and(|host| host.config().metrics_login == MetricsLogin::None)
}

/// Whether a request comes from another node of the cluster, and is meant for this one.
fn is_node(shared: &Shared, request: &Request) -> bool {
    let Some((cluster, view)) = view_of(shared) else { return false };
    let this = view.state.node_of(cluster.uuid()).map(|(_, node)| node.address.http());
    let Some(this) = this else { return false };
    let method = request.method();
    let asked = NodeRequest { method, path: request.uri().path(), node: &this };
    let now_s = u64::from(shared.node.env().clock.unix_s());
    let keys = shared.node_keys().into_iter();
    let mut shown = keys.map(|key| key.proof(request.headers(), asked, now_s));
    match shown.find(|proof| *proof != Proof::None) {
        None | Some(Proof::None) => false,
        // It may be shown by a listener.
        Some(Proof::Timeless) => *method == Method::GET && cluster.secrets().takes_timeless_proofs(),
        Some(Proof::Late { off_by_s }) => {
            tell_late(shared, off_by_s);
            false
        }
        Some(Proof::Timely { id, until_s }) => {
            *method == Method::GET || shared.seen_proofs.is_first(id, until_s, now_s)
        }
    }
}

/// A clock is wrong, or a listener shows what it has heard.
fn tell_late(shared: &Shared, off_by_s: u64) {
    let env = shared.node.env();
    if let Some(left_out) = shared.seen_proofs.told_late.admit(env.clock.monotonic()) {
        tracing::warn!(
            event = "node_proof_late",
            off_by_s,
            left_out,
            "a request was refused that shows a proof of a node of this cluster, which was made at another time: compare the \
             clocks of the nodes; if they agree, somebody who listens between nodes has shown it again"
        );
    }
}

/// What the path of a request names.
#[derive(Clone, Copy, Default)]
struct PathNames<'a> {
    bucket: Option<&'a str>,
    scope: Option<&'a str>,
    /// A group of stats, with its arguments.
    group: Option<&'a str>,
}

/// A bucket that a user may not select is answered like one that does not exist.
fn admit(user: &User, needs: Needs, place: PathNames<'_>) -> Result<(), Box<Response>> {
    use Privilege as P;
    let PathNames { bucket, scope, group } = place;
    if bucket.is_some_and(|bucket| !user.may_select(bucket)) {
        return Err(Box::new(no_such_bucket()));
    }
    let privileges = match (bucket, scope) {
        (Some(bucket), Some(scope)) => user.privileges_in_scope(bucket, scope),
        (Some(bucket), None) => user.privileges_in(bucket),
        (None, _) => user.privileges(),
    };
    let needed: &[Privilege] = match needs {
        Needs::Nothing | Needs::Anyone | Needs::User | Needs::Bucket => &[],
        Needs::Export => &[P::StatsExport],
        Needs::Figures => &[P::SimpleStats],
        Needs::SomeChanges => &[P::DcpProducer],
        Needs::Changes => &[P::DcpProducer, P::DcpStream],
        Needs::BucketAdmin => &[P::Settings],
        Needs::Collections => &[P::CollectionManagement],
        Needs::Log if privileges.has(P::SecurityRead) => &[],
        Needs::Log => &[P::SystemSettings],
        Needs::ReadUsers => &[P::SecurityRead],
        Needs::ManageUsers => &[P::SecurityManagement],
        Needs::FullAdmin if user.is_admin() => &[],
        Needs::FullAdmin => return Err(lacks_roles("admin", &[P::Administrator])),
        Needs::Node | Needs::ClusterAdmin => return require_cluster_admin(user),
    };
    if needed.iter().all(|privilege| privileges.has(*privilege)) {
        return Ok(());
    }
    Err(match needs {
        Needs::Log => lacks_roles("ro_admin, security_admin, cluster_admin or admin", needed),
        // What is behind the address may need more: a role is named that has that, too.
        Needs::SomeChanges => lacks(&[P::DcpProducer, P::DcpStream], bucket.unwrap_or(ALL_BUCKETS), None),
        Needs::Figures if group.is_some() => {
            lacks_roles(&grants_for(group.unwrap_or_default().as_bytes(), bucket), needed)
        }
        _ => lacks(needed, bucket.unwrap_or(ALL_BUCKETS), scope),
    })
}

#[cfg(all(test, debug_assertions))]
#[path = "../../../simulation/src/known.rs"]
mod known;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ::node::config::{Role, UserSpec};
    use ::node::user::Users;
    use base::env::Env;

    #[cfg(debug_assertions)]
    use super::super::origin;
    use super::*;

    /// A user with these roles.
    fn user(roles: &str) -> Arc<User> {
        let role = Role::try_from(roles.to_owned()).expect("roles");
        let spec = UserSpec { name: "u".to_owned(), password: "password".to_owned(), role, buckets: None };
        let users = Users::new(&[spec], &*Env::sim(1).0.random);
        Arc::clone(users.get(b"u").expect("it was made"))
    }

    #[test]
    fn what_is_the_clusters_is_not_for_the_administrator_of_a_bucket() {
        let may = |roles, needs, bucket| {
            admit(&user(roles), needs, PathNames { bucket, ..PathNames::default() }).is_ok()
        };
        for needs in [Needs::ClusterAdmin, Needs::Node] {
            assert!(may("admin", needs, None) && may("cluster_admin", needs, None), "{needs:?}");
            for bucket in [None, Some("default")] {
                assert!(!may("bucket_admin[default]", needs, bucket), "{needs:?}");
                assert!(!may("bucket_admin[*]", needs, bucket), "{needs:?}");
                assert!(!may("data_writer[*]", needs, bucket), "{needs:?}");
            }
        }
        assert!(may("bucket_admin[default]", Needs::BucketAdmin, Some("default")));
        assert!(!may("bucket_admin[default]", Needs::BucketAdmin, Some("other")));
    }

    /// Mistakes in the product that tests of this crate show (`base::planted`).
    #[test]
    #[cfg(debug_assertions)]
    fn mistakes_in_the_product_are_found() {
        known::must_find(known::Simulator::Http, |seed| {
            // Nothing in them depends on it.
            if seed == 0 {
                what_is_the_clusters_is_not_for_the_administrator_of_a_bucket();
                origin::tests::pages_of_others_are_not();
            }
            Ok(())
        });
    }
}
