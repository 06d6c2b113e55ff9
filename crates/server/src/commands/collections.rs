//! Scopes and collections: for now each bucket has its default collection and no other.

use protocol::{Request, Status};

use crate::context::{Context, Outcome};
use crate::reply::Answer;

const DEFAULT: &[u8] = b"_default";
const MANIFEST_UID: u64 = 0;
/// The manifest of a bucket in which nobody made a collection.
pub const DEFAULT_MANIFEST: &str =
    r#"{"uid":"0","scopes":[{"name":"_default","uid":"0","collections":[{"name":"_default","uid":"0"}]}]}"#;
/// Longest name of a scope or collection.
const MAX_NAME_BYTES: usize = 251;

/// Sends the manifest.
pub fn manifest(ctx: &mut Context<'_>, _: &Request<'_>) -> Outcome {
    ctx.reply.json(Status::Success, DEFAULT_MANIFEST.as_bytes());
    Outcome::Done
}

/// Collections cannot be made yet.
pub fn set_manifest(ctx: &mut Context<'_>, _: &Request<'_>) -> Outcome {
    ctx.status(Status::NotSupported)
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
    if !is_default(scope) {
        return unknown(ctx, Status::UnknownScope);
    }
    if !is_default(collection) {
        return unknown(ctx, Status::UnknownCollection);
    }
    found(ctx)
}

/// Finds the number of a scope; an empty name means the default one. What follows a dot is ignored.
pub fn scope_id(ctx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let mut names = path(request).split(|byte| *byte == b'.');
    let scope = names.next().unwrap_or_default();
    let rest = names.next().unwrap_or_default();
    if names.next().is_some() || !is_name(scope) || !is_name(rest) {
        return ctx.status(Status::Einval);
    }
    if is_default(scope) { found(ctx) } else { unknown(ctx, Status::UnknownScope) }
}

/// The path is the value; older clients send it as the key.
fn path<'a>(request: &Request<'a>) -> &'a [u8] {
    if request.value.is_empty() { request.key } else { request.value }
}

fn is_default(name: &[u8]) -> bool {
    name.is_empty() || name == DEFAULT
}

/// Whether it could be a name at all (Collections.md): letters, digits, `_ - %`, not starting with `_` or `%` unless
/// made by the system, which look-ups allow.
fn is_name(name: &[u8]) -> bool {
    let valid = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-%".contains(byte);
    name.len() <= MAX_NAME_BYTES && name.iter().all(valid)
}

/// Answers that a collection does not exist.
pub fn unknown_collection(ctx: &mut Context<'_>) -> Outcome {
    unknown(ctx, Status::UnknownCollection)
}

fn unknown(ctx: &mut Context<'_>, status: Status) -> Outcome {
    ctx.reply.unknown_collection(status, MANIFEST_UID);
    Outcome::Done
}

/// Manifest and number, both 0.
fn found(ctx: &mut Context<'_>) -> Outcome {
    ctx.reply.send(&Answer { extras: &[0; 12], ..Answer::default() });
    Outcome::Done
}
