//! What handlers ask of users, beside what the address asks.

use ::node::privilege::{Privilege, Privileges};
use ::node::roles::Rights;
use ::node::user::User;
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use base::planted::{self, Bug};
use engine::Bucket;
use serde_json::json;

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
    Err(forbidden("the role admin or cluster_admin", "SystemSettings"))
}

pub(super) fn forbidden(what: &str, privilege: &str) -> Box<Response> {
    let message = json!({ "message": format!("Forbidden. User needs {what}"), "permissions": [privilege] });
    Box::new((StatusCode::FORBIDDEN, Json(message)).into_response())
}
