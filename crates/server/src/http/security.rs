//! How connections to this node are protected, in the forms of the original: over the configuration counts what was set here
//! (record 170).

use std::sync::Arc;

use ::node::config::{ClientAuth, ClientNameRule, ClusterEncryption, TlsConfig};
use ::node::form;
use ::node::kept_users::UsersRefusal;
use ::node::kept_users::security::{CertificateState, ClientCertificates, SecuritySettings, TlsService};
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::connections::By;
use super::shared::Shared;
use super::users::{self, Answered, UsersAnswer};
use crate::tls::{TlsError, cipher_suite_names};

/// Settings that only a node with TLS has any use of.
const OF_TLS: [&str; 3] = ["tlsMinVersion", "cipherSuites", "honorCipherOrder"];
/// Settings that can be taken back.
const OF_ALL: [&str; 5] =
    ["tlsMinVersion", "cipherSuites", "honorCipherOrder", "disableUIOverHttp", "disableUIOverHttps"];
const NO_TLS: &str = "this node does not speak TLS: start it with --tls-cert and --tls-key";

/// What TLS is spoken with; `None` if the node does not speak it.
fn tls_of(shared: &Shared) -> Option<TlsConfig> {
    shared.peer_tls.own().map(|tls| tls.config())
}

/// What was set over HTTP, on whichever node that was.
async fn kept(shared: &Shared) -> Arc<SecuritySettings> {
    // If the coordination store cannot be asked, what this node goes by is told.
    let _ = users::kept(shared).await;
    shared.node.accounts().security()
}

/// All that is wrong, in the form of the original.
fn wrong(what: &[String]) -> UsersAnswer {
    (StatusCode::BAD_REQUEST, Json(json!({ "errors": what }))).into_response().into()
}

/// Why settings cannot be gone by, and whose fault that is.
fn of_tls(error: &TlsError) -> String {
    match error {
        TlsError::Suites(error) => format!("cipherSuites - {error}"),
        TlsError::NoCa | TlsError::RefusedByNodes { .. } => format!("state - {error}"),
        _ => format!("_ - {error}"),
    }
}

/// Changes what is kept to what `change` makes of it, if this node can go by that.
async fn set(
    shared: &Shared,
    change: impl Fn(&SecuritySettings) -> Result<SecuritySettings, Vec<String>> + Send + 'static,
) -> Answered {
    let own = shared.peer_tls.own().cloned();
    let next = move |present: &SecuritySettings| {
        let next = change(present)?;
        match own.as_ref().map(|tls| tls.check(&next)) {
            Some(Err(error)) => Err(vec![of_tls(&error)]),
            _ => Ok(next),
        }
    };
    // Once before, so that all that is wrong is told in the original's form.
    next(kept(shared).await.as_ref()).map_err(|errors| wrong(&errors))?;
    users::change(shared, move |kept| {
        let refused = |errors: Vec<String>| UsersRefusal::Field("_", errors.join(" "));
        let next = next(kept.security()).map_err(refused)?;
        kept.set_security(next);
        Ok(())
    })
    .await?;
    Ok(Json(json!([])).into_response())
}

/// `GET /settings/security`: the least version of TLS, cipher suites (none: all good ones), and which connections to other
/// nodes are encrypted.
pub(super) async fn show(State(shared): State<Shared>) -> Json<Value> {
    let kept = kept(&shared).await;
    let tls = tls_of(&shared);
    let tls = tls.as_ref();
    let level = tls.map_or(ClusterEncryption::Off, |tls| tls.cluster_encryption);
    let min_version = tls.map(|tls| tls.min_version).or(kept.min_version).unwrap_or_default();
    let suites = tls.map(|tls| &tls.cipher_suites).or(kept.cipher_suites.as_ref());
    let honors_order = tls.map(|tls| tls.honors_order).or(kept.honors_order).unwrap_or_default();
    Json(json!({
        "tlsMinVersion": min_version.name(),
        "cipherSuites": suites.map(Vec::as_slice).unwrap_or_default(),
        "honorCipherOrder": honors_order,
        "clusterEncryptionLevel": level.name(),
        "disableUIOverHttp": kept.hides_console_over_http,
        "disableUIOverHttps": kept.hides_console_over_https,
        "disableWWWAuthenticate": false,
        "data": of_service(&kept, TlsService::Data),
        "clusterManager": of_service(&kept, TlsService::ClusterManager),
    }))
}

/// What was set for a service, and what it could speak.
fn of_service(kept: &SecuritySettings, service: TlsService) -> Value {
    let mut told = kept.of_service(service).told();
    told.insert("supportedCipherSuites".to_owned(), json!(cipher_suite_names()));
    told.into()
}

/// The service that an address names, or the answer to who names another one.
fn service(name: &str) -> Result<TlsService, UsersAnswer> {
    TlsService::of(name).ok_or_else(|| {
        let services = TlsService::ALL.map(TlsService::name).join(" and ");
        let told =
            format!("there is no service {name:?} here: settings of security can be set for {services}\n");
        (StatusCode::NOT_FOUND, told).into_response().into()
    })
}

/// Refuses fields that a node without TLS has no use of.
fn need_tls(shared: &Shared, fields: &[(String, String)]) -> Result<(), UsersAnswer> {
    let has_tls = shared.peer_tls.own().is_some();
    let of_tls = fields.iter().filter(|(name, _)| !has_tls && OF_TLS.contains(&name.as_str()));
    let errors: Vec<String> = of_tls.map(|(name, _)| format!("{name} - {NO_TLS}")).collect();
    if errors.is_empty() { Ok(()) } else { Err(wrong(&errors)) }
}

/// `GET /settings/security/SERVICE`: what was set for it, and which cipher suites there are.
pub(super) async fn show_service(State(shared): State<Shared>, Path(name): Path<String>) -> Answered {
    let service = service(&name)?;
    Ok(Json(of_service(kept(&shared).await.as_ref(), service)).into_response())
}

/// `POST /settings/security/SERVICE`: what the form does not name stays.
pub(super) async fn change_service(
    State(shared): State<Shared>,
    Path(name): Path<String>,
    body: Bytes,
) -> Answered {
    let (service, fields) = (service(&name)?, form::parse(&body));
    need_tls(&shared, &fields)?;
    set(&shared, move |present| present.service_changed(service, &fields)).await
}

/// `DELETE /settings/security/SERVICE/FIELD`: what counts for all services counts for this one again.
pub(super) async fn unset_service(
    State(shared): State<Shared>,
    Path((name, field)): Path<(String, String)>,
) -> Answered {
    let service = service(&name)?;
    if SecuritySettings::default().service_unset(service, &field).is_none() {
        let fields = OF_TLS.join(", ");
        let told = format!("a service has no setting {field:?} of its own: there are {fields}\n");
        return Err((StatusCode::NOT_FOUND, told).into_response().into());
    }
    set(&shared, move |present| Ok(present.service_unset(service, &field).unwrap_or_else(|| present.clone())))
        .await
}

/// `DELETE /settings/security/FIELD`: what flags and configuration say counts again.
pub(super) async fn unset(State(shared): State<Shared>, Path(field): Path<String>) -> Answered {
    if SecuritySettings::default().unset(&field).is_none() {
        let fields = OF_ALL.join(", ");
        let told = format!("there is no setting {field:?} to take back: there are {fields}\n");
        return Err((StatusCode::NOT_FOUND, told).into_response().into());
    }
    set(&shared, move |present| Ok(present.unset(&field).unwrap_or_else(|| present.clone()))).await
}

/// `POST /settings/security`: what the form does not name stays.
pub(super) async fn change(State(shared): State<Shared>, body: Bytes) -> Answered {
    let fields = form::parse(&body);
    need_tls(&shared, &fields)?;
    let level = shared.peer_tls.level();
    set(&shared, move |present| present.changed(&fields, level)).await
}

/// `GET /settings/clientCertAuth`: whether clients show a certificate, and which user one stands for.
pub(super) async fn client_certificates(State(shared): State<Shared>) -> Json<Value> {
    if let Some(clients) = &kept(&shared).await.client_certificates {
        return Json(clients.told());
    }
    Json(of_configuration(tls_of(&shared).as_ref()))
}

/// The same as a configuration says it.
fn of_configuration(tls: Option<&TlsConfig>) -> Value {
    let state = tls.map_or(ClientAuth::Off, |tls| tls.client_auth);
    let rule = |rule: &ClientNameRule| json!({ "path": rule.field.name(), "prefix": rule.prefix(), "delimiter": rule.delimiters() });
    let rules =
        tls.iter().filter(|_| state != ClientAuth::Off).flat_map(|tls| tls.client_names.iter().map(rule));
    json!({ "state": state.state(), "prefixes": rules.collect::<Vec<Value>>() })
}

/// `POST /settings/clientCertAuth`: all of it is replaced.
///
/// A user who decides which user a certificate names can be any of them, so that this is for full administrators
/// (record 86).
pub(super) async fn change_client_certificates(
    State(shared): State<Shared>,
    Extension(by): Extension<By>,
    body: Bytes,
) -> Answered {
    let clients = ClientCertificates::parse(&body).map_err(|errors| wrong(&errors))?;
    let Json(present) = client_certificates(State(shared.clone())).await;
    if let Some(why) = cannot_be(&shared, &by, (&present, &clients)) {
        return Err(wrong(&[format!("state - {why}")]));
    }
    set(&shared, move |present| {
        Ok(SecuritySettings { client_certificates: Some(clients.clone()), ..present.clone() })
    })
    .await
}

/// `DELETE /settings/clientCertAuth`: what flags and configuration say counts again. As with the change it is for full
/// administrators, and refused to those whom the configuration would not let in any more.
pub(super) async fn unset_client_certificates(
    State(shared): State<Shared>,
    Extension(by): Extension<By>,
) -> Answered {
    let own = of_configuration(shared.peer_tls.own().map(|tls| tls.own_config()).as_ref());
    let clients = ClientCertificates::parse(own.to_string().as_bytes()).map_err(|errors| wrong(&errors))?;
    let Json(present) = client_certificates(State(shared.clone())).await;
    if let Some(why) = cannot_be(&shared, &by, (&present, &clients)) {
        return Err(wrong(&[format!("state - the configuration says {}: {why}", own["state"])]));
    }
    set(&shared, |present| Ok(SecuritySettings { client_certificates: None, ..present.clone() })).await
}

/// Why a state cannot be what clients' certificates are now; `present` is what is set.
fn cannot_be(shared: &Shared, by: &By, (present, clients): (&Value, &ClientCertificates)) -> Option<String> {
    let state = clients.state;
    if state == CertificateState::Disable {
        return None;
    }
    if shared.peer_tls.own().is_none() {
        return Some(NO_TLS.to_owned());
    }
    if state == CertificateState::Hybrid && !shared.peer_tls.level().covers_documents() {
        return Some(
            "hybrid is for nodes that encrypt all that they say to each other: start each node with \
             --cluster-encryption all or strict"
                .to_owned(),
        );
    }
    // Otherwise the caller would be the first one who is not let in.
    let has_plain_port = shared.node.host().is_some_and(|host| !host.config().plain_http().is_empty());
    if state != CertificateState::Mandatory || has_plain_port {
        return None;
    }
    // An empty one is of a certificate in which no rule finds a name.
    let Some(name) = by.certified.as_deref().filter(|name| !name.is_empty()) else {
        return Some(
            "HTTP without TLS is off (--http off), and you have shown no certificate that stands for a user, without which \
             no user is let in any more: set enable first, and ask for mandatory with such a certificate"
                .to_owned(),
        );
    };
    if shared.node.accounts().users().get(name.as_bytes()).is_none() {
        return Some(format!(
            "HTTP without TLS is off (--http off), and your certificate stands for {name:?}, which is no user: no client would \
             be let in by it any more; ask for mandatory with a certificate that stands for a user"
        ));
    }
    // The name was found by the rules of before.
    (present["prefixes"] != clients.told()["prefixes"]).then(|| {
        "HTTP without TLS is off (--http off), and by other prefixes your certificate may stand for no user: set enable with \
         these prefixes first, connect again, and ask for mandatory with them then"
            .to_owned()
    })
}

/// The answer to who asks for the console, if it is not served on that way.
pub(super) fn hidden_console(shared: &Shared, by: &By) -> Option<Response> {
    let security = shared.node.accounts().security();
    let (is_hidden, field) = match by.is_encrypted {
        true => (security.hides_console_over_https, "disableUIOverHttps"),
        false => (security.hides_console_over_http, "disableUIOverHttp"),
    };
    let what = format!("the console is not served here: {field} of /settings/security is true\n");
    is_hidden.then(|| (StatusCode::NOT_FOUND, what).into_response())
}
