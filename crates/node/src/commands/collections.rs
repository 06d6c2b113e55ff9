//! Scopes and collections: the manifest of the selected bucket, and numbers for names.

use base::{CollectionId, ScopeId};
use engine::{Bucket, ManifestRefusal};
use protocol::{Request, Status};
use serde_json::Value;
use vbucket::collections::manifest::{MAX_NAME_BYTES, SuccessorRefusal};
use vbucket::{Collection, Manifest, Scope};

use crate::context::{Context, Outcome, unknown};
use crate::reply::Answer;
use crate::roles::Rights;

const DEFAULT: &[u8] = b"_default";

/// Sends the manifest.
pub fn manifest(ctx: &mut Context<'_>, _: &Request<'_>) -> Outcome {
    let json = visible(&ctx.bucket().collections().manifest(), &ctx.session.rights);
    ctx.reply.json(Status::Success, json.as_bytes());
    Outcome::Done
}

/// A manifest as JSON, without the scopes and collections that are not there for the user.
fn visible(manifest: &Manifest, rights: &Rights) -> String {
    let text = manifest.to_text();
    if rights.narrow.is_none() {
        return text;
    }
    let Ok(mut json) = serde_json::from_str::<Value>(&text) else { return text };
    let number =
        |one: &Value| u32::from_str_radix(one["uid"].as_str().unwrap_or_default(), 16).unwrap_or(u32::MAX);
    if let Some(scopes) = json["scopes"].as_array_mut() {
        scopes.retain(|scope| rights.sees_scope(ScopeId(number(scope))));
        for scope in scopes {
            if let Some(collections) = scope["collections"].as_array_mut() {
                collections.retain(|one| rights.sees_collection(CollectionId(number(one))));
            }
        }
    }
    json.to_string()
}

/// What an answer quotes of a value that cannot be read.
const MOST_QUOTED_BYTES: usize = 1024;

/// Puts another manifest in the place of the present one. Waits for the disk, as whatever an administrator does.
pub fn set_manifest(ctx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let Ok(new) = Manifest::parse(request.value) else {
        let text = String::from_utf8_lossy(request.value.get(..MOST_QUOTED_BYTES).unwrap_or(request.value));
        let context = format!("Collections::Manager::update manifest json invalid:{text}: invalid arguments");
        return ctx.invalid(&context);
    };
    let bucket = ctx.bucket();
    let collections = bucket.collections();
    let set = collections.change_manifest(|present, _| {
        collections.check_quota(present, &new)?;
        Ok::<_, ManifestRefusal>(new)
    });
    match set {
        Ok(_) => {
            ctx.node.map().show_manifests();
            ctx.reply.ok();
            Outcome::Done
        }
        Err(ManifestRefusal::Successor(SuccessorRefusal::UidOutOfRange)) => ctx.error(
            Status::Erange,
            "The manifest is older than the present one, or differs under the same uid",
        ),
        Err(ManifestRefusal::Successor(SuccessorRefusal::IdReused)) => {
            ctx.invalid("An id of the present manifest stands for another scope or collection")
        }
        Err(refusal @ ManifestRefusal::TooManyForQuota { .. }) => {
            ctx.error(Status::Enomem, &refusal.to_string())
        }
        Err(ManifestRefusal::Full) => ctx.status(Status::Etmpfail),
        Err(ManifestRefusal::Failure(failure)) => {
            let bucket = ctx.bucket();
            if let Some(left_out) = engine::admit_log(&bucket, "manifest not saved") {
                tracing::error!(
                    event = "manifest_not_changed", bucket = bucket.name(), %failure, left_out,
                    "the manifest stays as it is"
                );
            }
            ctx.status(Status::Etmpfail)
        }
    }
}

/// Finds the number of `scope.collection`; an empty name means the default one.
pub fn collection_id(ctx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let mut names = path(request).split(|byte| *byte == b'.');
    let (Some(scope), Some(collection), None) = (names.next(), names.next(), names.next()) else {
        return ctx.status(Status::Einval);
    };
    if !is_name(scope) || !is_name(collection) {
        return ctx.status(Status::Einval);
    }
    let manifest = ctx.bucket().collections().manifest();
    match find(&manifest, scope, collection) {
        Ok(found) if !ctx.session.rights.sees_collection(found.id) => {
            let scope = ctx.session.rights.sees_scope(found.scope);
            unknown(ctx, if scope { Status::UnknownCollection } else { Status::UnknownScope })
        }
        Ok(found) => number(ctx, &manifest, found.id.0),
        Err(status) => unknown(ctx, status),
    }
}

/// Finds the number of a scope; an empty name means the default one. What follows a dot is ignored.
pub fn scope_id(ctx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let mut names = path(request).split(|byte| *byte == b'.');
    let scope = names.next().unwrap_or_default();
    let rest = names.next().unwrap_or_default();
    if names.next().is_some() || !is_name(scope) || !is_name(rest) {
        return ctx.status(Status::Einval);
    }
    let manifest = ctx.bucket().collections().manifest();
    match find_scope(&manifest, scope) {
        Some(found) if ctx.session.rights.sees_scope(found.id) => number(ctx, &manifest, found.id.0),
        _ => unknown(ctx, Status::UnknownScope),
    }
}

/// The path is the value; older clients send it as the key.
fn path<'a>(request: &Request<'a>) -> &'a [u8] {
    if request.value.is_empty() { request.key } else { request.value }
}

/// A name as text; an empty one means the default.
fn text(name: &[u8]) -> Option<&str> {
    std::str::from_utf8(if name.is_empty() { DEFAULT } else { name }).ok()
}

/// The scope with a name.
pub fn find_scope<'m>(manifest: &'m Manifest, scope: &[u8]) -> Option<&'m Scope> {
    manifest.scope_named(text(scope)?)
}

/// The collection with a name in the scope with a name; else which of the two there is not.
pub fn find<'m>(manifest: &'m Manifest, scope: &[u8], collection: &[u8]) -> Result<&'m Collection, Status> {
    let scope = find_scope(manifest, scope).ok_or(Status::UnknownScope)?;
    let found = text(collection).and_then(|name| manifest.collection_named(scope.id, name));
    found.ok_or(Status::UnknownCollection)
}

/// Whether it could be a name at all (Collections.md): letters, digits, `_ - %`, not starting with `_` or `%` unless
/// made by the system, which look-ups allow.
fn is_name(name: &[u8]) -> bool {
    let valid = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-%".contains(byte);
    name.len() <= MAX_NAME_BYTES && name.iter().all(valid)
}

/// The collection of a request that is about one, not about a document; refused if there is none.
pub fn check(bucket: &Bucket, id: u32) -> Option<CollectionId> {
    let id = CollectionId(id);
    bucket.collections().manifest().collection(id).map(|_| id)
}

/// Answers that a collection does not exist.
pub fn unknown_collection(ctx: &mut Context<'_>) -> Outcome {
    unknown(ctx, Status::UnknownCollection)
}

/// Manifest and number.
fn number(ctx: &mut Context<'_>, manifest: &Manifest, id: u32) -> Outcome {
    let mut extras = [0; 12];
    extras[..8].copy_from_slice(&manifest.uid().0.to_be_bytes());
    extras[8..].copy_from_slice(&id.to_be_bytes());
    ctx.reply.send(&Answer { extras: &extras, ..Answer::default() });
    Outcome::Done
}
