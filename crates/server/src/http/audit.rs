//! What of HTTP is audited, by address and method, and the settings of the audit log.
//!
//! A request is recorded when it has succeeded, with the fields that its row names: nothing else of it is recorded, so that
//! no password is.

use ::node::audit::events::AuditEvent;
use ::node::audit::record::{AuditRecord, Ends, text};
use ::node::form;
use ::node::roles::Grant;
use axum::Json;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::basic_auth::Caller;
use super::rights::Lacking;
use super::shared::Shared;

/// Where a field of a record comes from.
#[derive(Clone, Copy)]
pub(super) enum Field {
    /// A parameter of the path, and the field's name.
    Param(&'static str, &'static str),
    /// A field of the form, and the field's name.
    Form(&'static str, &'static str),
    /// A field of the form with names between commas.
    List(&'static str, &'static str),
    /// Roles of the form: all of them, those of administrators first.
    Roles,
    /// The user that the path names.
    Identity,
    /// The user who asks.
    Self_,
    /// Properties of a bucket, from a form or a JSON object.
    Props,
    /// Fields of the form that are settings of security.
    Settings,
    /// Whether the form has this field with something in it, and the field's name: of what must not be recorded itself.
    Has(&'static str, &'static str),
    /// All fields of the form, which are names of commands with numbers, and the field's name.
    Limits(&'static str),
    /// A field of a JSON object as it is, and the field's name.
    Json(&'static str, &'static str),
    /// Which nodes a bucket's vBuckets are to follow, without passwords.
    Sources,
    /// The bucket's manifest as it is then.
    ManifestUid,
    /// A text that is always the same.
    Is(&'static str, &'static str),
}

/// An address with a method whose use is recorded.
pub(super) struct AuditedRoute {
    method: &'static str,
    path: &'static str,
    event: AuditEvent,
    fields: &'static [Field],
}

/// Takes a JSON object.
const SETTINGS: &str = "/v1/buckets/{bucket}/settings";
const BUCKET: Field = Field::Param("bucket", "bucket_name");
const SCOPE: Field = Field::Param("scope", "scope_name");

const fn audited(
    method: &'static str,
    path: &'static str,
    event: AuditEvent,
    fields: &'static [Field],
) -> AuditedRoute {
    AuditedRoute { method, path, event, fields }
}

/// All of them.
static AUDITED: &[AuditedRoute] = {
    use AuditEvent as E;
    use Field::{
        Form, Has, Identity, Is, Json, Limits, List, ManifestUid, Param, Props, Roles, Self_, Settings,
        Sources,
    };
    const SCOPES: &str = "/pools/default/buckets/{bucket}/scopes";
    const ONE_SCOPE: &str = "/pools/default/buckets/{bucket}/scopes/{scope}";
    const COLLECTIONS: &str = "/pools/default/buckets/{bucket}/scopes/{scope}/collections";
    const COLLECTION: &str = "/pools/default/buckets/{bucket}/scopes/{scope}/collections/{collection}";
    const USER: &str = "/settings/rbac/users/{domain}/{user}";
    const GROUP: &str = "/settings/rbac/groups/{group}";
    const FULL: &[Field] = &[BUCKET, SCOPE, Param("collection", "collection_name"), ManifestUid];
    &[
        audited("POST", "/pools/default/buckets", E::BucketCreated, &[Form("name", "bucket_name"), Props]),
        audited("POST", "/pools/default/buckets/{bucket}", E::BucketModified, &[BUCKET, Props]),
        audited("DELETE", "/pools/default/buckets/{bucket}", E::BucketDeleted, &[BUCKET]),
        audited("POST", "/pools/default/buckets/{bucket}/controller/doFlush", E::BucketFlushed, &[BUCKET]),
        audited("POST", SETTINGS, E::BucketModified, &[BUCKET, Props]),
        audited("POST", super::migration::PATH, E::BucketModified, &[BUCKET, Props]),
        audited("DELETE", super::migration::PATH, E::BucketModified, &[BUCKET, Is("migration", "cancelled")]),
        audited("PATCH", SETTINGS, E::BucketModified, &[BUCKET, Props]),
        audited("POST", SCOPES, E::ScopeCreated, &[BUCKET, Form("name", "scope_name"), ManifestUid]),
        audited("PUT", SCOPES, E::ManifestSet, &[BUCKET, ManifestUid]),
        audited("DELETE", ONE_SCOPE, E::ScopeDropped, &[BUCKET, SCOPE, ManifestUid]),
        audited(
            "POST",
            COLLECTIONS,
            E::CollectionCreated,
            &[BUCKET, SCOPE, Form("name", "collection_name"), ManifestUid],
        ),
        audited("DELETE", COLLECTION, E::CollectionDropped, FULL),
        audited("PATCH", COLLECTION, E::CollectionModified, FULL),
        audited(
            "PUT",
            USER,
            E::UserSet,
            &[
                Identity,
                Roles,
                List("groups", "groups"),
                Form("name", "full_name"),
                Has("password", "password_set"),
            ],
        ),
        audited("DELETE", USER, E::UserDeleted, &[Identity]),
        audited("GET", "/settings/rbac/backup", E::UsersBackedUp, &[]),
        audited(
            "PUT",
            GROUP,
            E::GroupSet,
            &[
                Param("group", "group_name"),
                Roles,
                Form("description", "group_description"),
                Form("ldap_group_ref", "ldap_group_ref"),
            ],
        ),
        audited("DELETE", GROUP, E::GroupDeleted, &[Param("group", "group_name")]),
        audited("POST", "/controller/changePassword", E::PasswordChanged, &[Self_]),
        audited(
            "POST",
            "/settings/passwordPolicy",
            E::PolicyChanged,
            &[
                Form("minLength", "min_length"),
                Form("enforceUppercase", "uppercase"),
                Form("enforceLowercase", "lowercase"),
                Form("enforceDigits", "digits"),
                Form("enforceSpecialChars", "special"),
            ],
        ),
        audited(
            "POST",
            "/settings/clientCertAuth",
            E::CertificatesConfigured,
            &[Self_, Form("state", "state"), Json("prefixes", "prefixes")],
        ),
        audited("DELETE", "/settings/clientCertAuth", E::CertificatesConfigured, &[Is("state", "unset")]),
        audited("POST", super::encryption_keys::PATH, E::EncryptionKeysRotated, &[]),
        audited("POST", super::node_secret::PATH, E::NodeSecretRotated, &[]),
        audited("POST", super::certificates::PATH, E::CertificatesRead, &[]),
        audited("POST", super::log_levels::PATH, E::LogLevelsChanged, &[Form("level", "log_levels")]),
        audited("POST", super::slow_limits::PATH, E::SlowLimitsChanged, &[Limits("limits")]),
        audited("POST", "/settings/security", E::SecurityConfigured, &[Settings]),
        audited(
            "POST",
            "/settings/security/{service}",
            E::SecurityConfigured,
            &[Param("service", "service"), Settings],
        ),
        audited(
            "DELETE",
            "/settings/security/{service}",
            E::SecurityConfigured,
            &[Param("service", "unset")],
        ),
        audited(
            "DELETE",
            "/settings/security/{service}/{field}",
            E::SecurityConfigured,
            &[Param("service", "service"), Param("field", "unset")],
        ),
        audited(
            "POST",
            "/settings/autoFailover",
            E::AutoFailoverEnabled,
            &[Form("timeout", "timeout"), Form("maxCount", "max_nodes")],
        ),
        audited(
            "POST",
            "/controller/failOver",
            E::FailedOver,
            &[List("otpNode", "nodes"), Is("type", "hard"), Form("allowUnsafe", "allow_unsafe")],
        ),
        audited(
            "POST",
            "/controller/startGracefulFailover",
            E::FailedOver,
            &[List("otpNode", "nodes"), Is("type", "graceful")],
        ),
        audited("POST", "/controller/giveUpDamaged", E::DamageGivenUp, &[Form("bucket", "bucket_name")]),
        audited(
            "POST",
            "/controller/rebalance",
            E::RebalanceStarted,
            &[List("knownNodes", "known_nodes"), List("ejectedNodes", "ejected_nodes")],
        ),
        audited("POST", "/controller/stopRebalance", E::RebalanceStopped, &[]),
        audited(
            "POST",
            "/controller/setRecoveryType",
            E::RecoveryChosen,
            &[Form("otpNode", "node"), Form("recoveryType", "type")],
        ),
        audited(
            "POST",
            "/controller/reAddNode",
            E::RecoveryChosen,
            &[Form("otpNode", "node"), Is("type", "full")],
        ),
        audited("POST", "/controller/ejectNode", E::NodeRemoved, &[Form("otpNode", "node")]),
        audited("POST", "/controller/adoptState", E::StateAdopted, &[]),
        audited("POST", "/controller/addNode", E::NodeAdded, &[Form("hostname", "hostname")]),
        audited("PUT", "/v1/buckets/{bucket}/replication", E::ReplicationDeclared, &[BUCKET, Sources]),
        audited(
            "PUT",
            super::alternate::PATH,
            E::AlternateSet,
            &[
                Form("hostname", "hostname"),
                Form("kv", "kv"),
                Form("kvSSL", "kvSSL"),
                Form("mgmt", "mgmt"),
                Form("mgmtSSL", "mgmtSSL"),
            ],
        ),
        audited("DELETE", super::alternate::PATH, E::AlternateRemoved, &[]),
        audited(
            "GET",
            "/v1/buckets/{bucket}/changes",
            E::DcpOpened,
            &[Param("bucket", "bucket"), Is("stream_name", "http")],
        ),
    ]
};

/// Methods of addresses that change something and are not recorded, and why.
#[cfg(test)]
const NOT_AUDITED: [(&str, &str, &str); 17] = [
    ("POST", "/node/controller/rename", "changes nothing"),
    ("POST", "/node/controller/setupServices", "changes nothing"),
    ("POST", "/pools/default", "changes nothing"),
    ("POST", "/settings/web", "changes nothing; a wrong password is recorded as a login that failed"),
    ("POST", "/settings/indexes", "changes nothing"),
    ("POST", "/settings/audit", "records itself"),
    ("POST", "/v1/promise", "between nodes"),
    ("POST", "/pools/default/buckets/{bucket}/scopes/@ensureManifest/{uid}", "waits, and changes nothing"),
    ("POST", "/pools/default/stats/range", "reads figures"),
    ("POST", "/pools/default/buckets/{bucket}/controller/compactBucket", "the field has no event for it"),
    (
        "POST",
        "/pools/default/buckets/{bucket}/controller/cancelBucketCompaction",
        "the field has no event for it",
    ),
    ("POST", super::compaction::PATH, "between nodes"),
    ("PUT", "/v1/buckets/{bucket}/cursors/{name}", "the position of a reader"),
    ("POST", "/v1/buckets/{bucket}/cursors/{name}", "the position of a reader"),
    ("DELETE", "/v1/buckets/{bucket}/cursors/{name}", "the position of a reader"),
    ("PUT", "/v1/buckets/{bucket}/document", "the node that stores it records it as a KV request"),
    ("DELETE", "/v1/buckets/{bucket}/document", "the node that deletes it records it as a KV request"),
];

/// Settings of security that are recorded.
const SECURITY: [&str; 6] = [
    "tlsMinVersion",
    "cipherSuites",
    "honorCipherOrder",
    "clusterEncryptionLevel",
    "disableUIOverHttp",
    "disableUIOverHttps",
];

/// Properties of buckets that are recorded, beside their settings.
const PROPS: [&str; 20] = [
    "bucketType",
    "ramQuota",
    "ramQuotaMB",
    "replicaNumber",
    "replicaIndex",
    "flushEnabled",
    "evictionPolicy",
    "maxTTL",
    "compressionMode",
    "conflictResolutionType",
    "durabilityMinLevel",
    "threadsNumber",
    "rank",
    "storageBackend",
    "purgeInterval",
    "autoCompactionDefined",
    "encryptionAtRest",
    "historyRetentionSeconds",
    "historyRetentionBytes",
    "historyRetentionCollectionDefault",
];

/// The row of an address with a method, if there is one.
pub(super) fn row_of(method: &Method, path: &str) -> Option<&'static AuditedRoute> {
    AUDITED.iter().find(|row| row.method == method.as_str() && row.path == path)
}

/// Names and values of a JSON object. The address decides whether a body is one or a form, as its handler does: it can be
/// both.
fn members_of(body: &[u8]) -> Vec<(String, String)> {
    let object: Map<String, Value> = serde_json::from_slice(body).unwrap_or_default();
    let told = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    object.into_iter().map(|(name, value)| (name, told(value))).collect()
}

/// What a record is made of once the request has succeeded.
pub(super) struct Recording {
    record: AuditRecord,
    fields: &'static [Field],
    bucket: Option<String>,
}

impl AuditedRoute {
    /// What happens when a request succeeds.
    pub(super) fn event(&self) -> AuditEvent {
        self.event
    }

    /// Puts a record together of what is known before the handler runs.
    pub(super) fn begin(
        &self,
        Caller(user): &Caller,
        ends: Ends,
        params: &[(&str, &str)],
        body: &[u8],
    ) -> Recording {
        let param = |wanted: &str| params.iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value);
        let is_json = |field: &Field| matches!(field, Field::Json(..) | Field::Sources);
        let takes_json = self.path == SETTINGS || self.fields.iter().any(is_json);
        let sent = if takes_json { members_of(body) } else { form::parse(body) };
        let form = |name: &str| sent.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str());
        let short = |value: &str| text(value.as_bytes());
        let is_off = self.event == AuditEvent::AutoFailoverEnabled && form("enabled") == Some("false");
        let event = if is_off { AuditEvent::AutoFailoverDisabled } else { self.event };
        let mut record = AuditRecord::new(event).by(user.name().as_bytes()).between(ends);
        for field in self.fields {
            record = match *field {
                Field::Param(from, to) => record.with(to, short(param(from).unwrap_or_default())),
                Field::Form(from, to) => match form(from) {
                    Some(value) => record.with(to, short(value)),
                    None => record,
                },
                Field::List(from, to) => {
                    let names = form(from).unwrap_or_default().split(',').filter(|name| !name.is_empty());
                    record.with(to, names.map(short).collect::<Vec<_>>())
                }
                Field::Roles => record.with("roles", roles(form("roles").unwrap_or_default())),
                Field::Identity => {
                    let of = |name| short(param(name).unwrap_or_default());
                    record.with("identity", json!({ "domain": of("domain"), "user": of("user") }))
                }
                Field::Self_ => record.with("identity", json!({ "domain": "local", "user": user.name() })),
                Field::Props => record.with("props", props(&sent)),
                Field::Settings => {
                    let known = sent.iter().filter(|(name, _)| SECURITY.contains(&name.as_str()));
                    let known = known.map(|(name, value)| (name.clone(), Value::from(short(value))));
                    record.with("settings", known.collect::<Value>())
                }
                Field::Has(from, to) => record.with(to, form(from).is_some_and(|value| !value.is_empty())),
                // What is no command, or no number, is refused, so that these are as many as there are commands.
                Field::Limits(to) => {
                    let limits = sent.iter().map(|(name, value)| (name.clone(), Value::from(short(value))));
                    record.with(to, limits.collect::<Value>())
                }
                Field::Json(from, to) => {
                    match form(from).and_then(|value| serde_json::from_str::<Value>(value).ok()) {
                        Some(value) => record.with(to, value),
                        None => record,
                    }
                }
                Field::Sources => record.with("sources", sources(form("sources").unwrap_or_default())),
                Field::Is(name, value) => record.with(name, value),
                Field::ManifestUid => record,
            };
        }
        Recording { record, fields: self.fields, bucket: param("bucket").map(str::to_owned) }
    }
}

/// What can be kept of roles is recorded, however many they are.
fn roles(text: &str) -> Vec<String> {
    let mut grants = Grant::parse_list(text).unwrap_or_default();
    grants.sort_by_key(|grant| !grant.row().is_guarded);
    grants.iter().map(Grant::to_string).collect()
}

/// The most sources of a declaration that a record names.
const MOST_SOURCES: usize = 64;

/// What a declaration says of each of its first sources, but for the password.
fn sources(sent: &str) -> Vec<Value> {
    let all: Vec<Map<String, Value>> = serde_json::from_str(sent).unwrap_or_default();
    let kept = |(name, value): &(String, Value)| {
        ["node", "username", "vbuckets", "mode"].contains(&name.as_str()) && value.is_string()
    };
    let short = |(name, value): (String, Value)| {
        let told = text(value.as_str().unwrap_or_default().as_bytes());
        (name, Value::from(told))
    };
    all.into_iter()
        .take(MOST_SOURCES)
        .map(|source| source.into_iter().filter(kept).map(short).collect())
        .collect()
}

fn props(sent: &[(String, String)]) -> Value {
    let is_known =
        |name: &str| PROPS.contains(&name) || engine::settings::SETTINGS.iter().any(|one| one.name == name);
    let known = sent.iter().filter(|(name, _)| is_known(name));
    known.map(|(name, value)| (name.clone(), Value::from(text(value.as_bytes())))).collect()
}

impl Recording {
    /// The request has succeeded.
    pub(super) fn done(self, shared: &Shared) {
        let Recording { mut record, fields, bucket } = self;
        if fields.iter().any(|field| matches!(field, Field::ManifestUid)) {
            let uid =
                bucket.and_then(|name| Some(shared.node.bucket(&name)?.collections().manifest().uid().0));
            record = record.with("new_manifest_uid", format!("{:x}", uid.unwrap_or_default()));
        }
        shared.node.audit.record(record);
    }
}

/// The user that a client's certificate stands for is not let in: there is none, or not now. `why` says which.
pub(super) fn certificate_refused(
    shared: &Shared,
    user: &str,
    ends: Ends,
    uri: &Uri,
    (status, why): (StatusCode, &'static str),
) {
    let peer = ends.remote.map(|remote| remote.ip());
    if shared.node.audit.admits_stranger(AuditEvent::WebLoginFailed, why, peer) {
        let record = AuditRecord::new(AuditEvent::WebLoginFailed).by(user.as_bytes()).between(ends);
        let record = record.with("raw_url", text(uri.path().as_bytes())).with("status", status.as_u16());
        shared.node.audit.record(record.with("reason", why));
    }
}

/// User or password of a request is wrong, or not looked at now: `status` says which.
pub(super) fn login_refused(shared: &Shared, user: &str, ends: Ends, uri: &Uri, status: StatusCode) {
    let event = AuditEvent::WebLoginFailed;
    if shared.node.audit.wants(event) {
        shared.node.audit.record(refused(event, user, ends, uri, status));
    }
}

/// The user of a request lacks a privilege: the answer says which, unless it does not tell that what is asked for is there.
pub(super) fn forbidden(
    shared: &Shared,
    user: &str,
    ends: Ends,
    (method, uri): (&Method, &Uri),
    answer: &Response,
) {
    let event = AuditEvent::WebForbidden;
    if shared.node.audit.wants(event) {
        let record = refused(event, user, ends, uri, answer.status()).with("method", method.as_str());
        shared.node.audit.record(match answer.extensions().get::<Lacking>() {
            Some(Lacking(permissions)) => record.with("permissions", json!(permissions)),
            None => record,
        });
    }
}

fn refused(event: AuditEvent, user: &str, ends: Ends, uri: &Uri, status: StatusCode) -> AuditRecord {
    // Without what stands behind the question mark, which may be secret.
    let path = text(uri.path().as_bytes());
    let record = AuditRecord::new(event).by(user.as_bytes()).between(ends);
    record.with("raw_url", path).with("status", status.as_u16())
}

/// The answer if what must be recorded cannot be.
pub(super) fn cannot_be_recorded(why: &str) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "errors": { "_": why } }))).into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::http::routes;

    #[test]
    fn each_method_that_changes_something_is_audited_or_is_not_for_a_reason() {
        let routes = routes::all();
        let listed: BTreeSet<(String, &str)> =
            routes.iter().map(|route| (route.method.to_string(), route.path)).collect();
        for (method, path) in &listed {
            let is_audited = AUDITED.iter().any(|row| row.method == method && row.path == *path);
            let is_not = NOT_AUDITED.iter().any(|row| row.0 == method && row.1 == *path);
            assert!(method == "GET" || is_audited != is_not, "{method} {path}");
        }
        let rows = AUDITED.iter().map(|row| (row.method, row.path));
        for (method, path) in rows.chain(NOT_AUDITED.iter().map(|row| (row.0, row.1))) {
            assert!(listed.contains(&(method.to_owned(), path)), "{method} {path} is no address");
        }
    }

    #[test]
    fn roles_are_recorded_whole_and_those_of_administrators_first() {
        let many: Vec<String> = (0..100).map(|at| format!("data_reader[bucket-{at:03}]")).collect();
        let told = roles(&format!("{},admin", many.join(",")));
        assert_eq!((told.len(), &*told[0]), (101, "admin"));
    }

    #[test]
    fn properties_are_recorded_by_name_alone() {
        let sent = form::parse(b"name=x&saslPassword=secret&ramQuota=100&nonsense=1");
        assert_eq!(props(&sent), json!({ "ramQuota": "100" }));
        let sent = members_of(br#"{"max_size": 5, "password": "secret"}"#);
        assert_eq!(props(&sent), json!({ "max_size": "5" }));
    }
}
