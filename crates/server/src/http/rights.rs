//! What handlers ask of users, beside what the address asks.

use ::node::privilege::{Privilege, Privileges};
use ::node::roles::{Rights, grants_with};
use ::node::user::User;
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use base::planted::{self, Bug};
use engine::Bucket;
use serde_json::json;

/// What of an answer's user is missing, for the audit log: the `permissions` of the answer.
#[derive(Clone)]
pub(super) struct Lacking(pub(super) Vec<&'static str>);

/// What a user may do in a bucket, its scopes and collections as they are now.
pub(super) fn rights_in(user: &User, bucket: &Bucket) -> Rights {
    Rights::of(user.grants(), bucket.name(), &bucket.collections().manifest(), Privileges::NONE)
}

/// Refuses users who may not change what all buckets share.
pub(super) fn require_cluster_admin(user: &User) -> Result<(), Box<Response>> {
    let is_admin = user.privileges().has(Privilege::SystemSettings);
    let rules = || user.privileges_in("default").has(Privilege::Settings);
    if is_admin || (planted::is(Bug::BucketAdminRulesCluster) && rules()) {
        return Ok(());
    }
    Err(lacks(&[Privilege::SystemSettings], "*", None))
}

/// What a user is answered who lacks one of these privileges in a bucket, or in a scope of it: roles that give them all.
pub(super) fn lacks(needed: &[Privilege], bucket: &str, scope: Option<&str>) -> Box<Response> {
    lacks_roles(&grants_with(needed, bucket, scope), needed)
}

/// The same with roles that are known already.
pub(super) fn lacks_roles(grants: &str, needed: &[Privilege]) -> Box<Response> {
    let one = if grants.contains(" or ") { "one of the roles" } else { "the role" };
    let permissions: Vec<&'static str> = needed.iter().map(|privilege| privilege.name()).collect();
    let message = format!("Forbidden. User needs {one} {grants}");
    let told = json!({ "message": message, "permissions": permissions });
    let mut answer = (StatusCode::FORBIDDEN, Json(told)).into_response();
    answer.extensions_mut().insert(Lacking(permissions));
    Box::new(answer)
}
