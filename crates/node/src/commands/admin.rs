//! What administrators, and tests of clients, do to a session or a node.

use base::Cas;
use engine::settings::{self, Key};
use protocol::{Request, Status, extras};

use crate::context::{Context, Outcome};
use crate::management::BucketError;
use crate::node_buckets;
use crate::privilege::Privilege;
use crate::reply::Answer;
use crate::slow::limits;

/// Gives up a privilege for the rest of the session.
pub fn drop_privilege(ctx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let Some(privilege) = Privilege::from_name(request.key) else { return ctx.status(Status::KeyEnoent) };
    ctx.session.drop_privilege(privilege);
    ctx.status(Status::Success)
}

/// What parameters a Set Param is about (kv_engine's `cbepctl`: flush, replication, checkpoint, DCP, vBucket, config).
/// All but those of a vBucket look in one table, whose names are unique.
const PARAMETERS_OF_BUCKET: std::ops::RangeInclusive<u32> = 1..=4;
const PARAMETERS_OF_VBUCKET: u32 = 5;
const PARAMETERS_OF_CONFIG: u32 = 6;

/// Before the name of a command: how long it may take until it is a slow operation.
const SLOW_LIMIT: &str = "slow_operation_threshold:";

/// Changes a setting of the bucket: the key is its name, the value its new value as text.
pub fn set_param(ctx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    match extras::decode_u32(request.extras) {
        Some(kind) if PARAMETERS_OF_BUCKET.contains(&kind) || kind == PARAMETERS_OF_CONFIG => {}
        // A vBucket's clock has the limits of its bucket.
        Some(PARAMETERS_OF_VBUCKET) if request.key.starts_with(b"hlc_") => {}
        Some(PARAMETERS_OF_VBUCKET) => {
            return ctx.invalid("Of a vBucket's parameters only those of its clock (hlc_...) can be changed");
        }
        _ => return ctx.invalid("There is no such kind of parameters"),
    }
    let text = |bytes| std::str::from_utf8(bytes).ok();
    let (Some(name), Some(value)) = (text(request.key), text(request.value)) else {
        return ctx.invalid("Name and value of a setting are text");
    };
    // Of all buckets of the node: how long a command may take.
    if let Some(command) = name.strip_prefix(SLOW_LIMIT) {
        return ctx.require(Privilege::NodeSupervisor).err().unwrap_or_else(|| {
            match limits::parse(command, value.trim()) {
                Ok(limit) => {
                    ctx.node.events().slow.limits.change(limit);
                    ctx.status(Status::Success)
                }
                Err(error) => ctx.invalid(&error.to_string()),
            }
        });
    }
    // The quota is taken from what all buckets share.
    if settings::find(name).is_ok_and(|setting| setting.key == Key::MaxSize)
        && let Err(denied) = ctx.require(Privilege::NodeSupervisor)
    {
        return denied;
    }
    match node_buckets::set_params(ctx.node, &ctx.bucket(), &[(name, value.trim())]) {
        Ok(_) => ctx.status(Status::Success),
        Err(error @ BucketError::NotNow(_)) => ctx.error(Status::Etmpfail, &error.to_string()),
        Err(error) => ctx.invalid(&error.to_string()),
    }
}

/// Lets the flusher rest: nothing is written until [`start_persistence`].
pub fn stop_persistence(ctx: &mut Context<'_>, _: &Request<'_>) -> Outcome {
    ctx.bucket().flushing().hold_flusher(true);
    ctx.status(Status::Success)
}

/// Lets the flusher work again.
pub fn start_persistence(ctx: &mut Context<'_>, _: &Request<'_>) -> Outcome {
    ctx.bucket().flushing().hold_flusher(false);
    ctx.status(Status::Success)
}

/// Lets clients read and write the bucket's documents again.
pub fn enable_traffic(ctx: &mut Context<'_>, _: &Request<'_>) -> Outcome {
    set_traffic(ctx, true)
}

/// Has requests for the bucket's documents answered with a temporary failure until [`enable_traffic`], or the next start.
/// Streams, stats and whatever else the bucket is asked go on.
pub fn disable_traffic(ctx: &mut Context<'_>, _: &Request<'_>) -> Outcome {
    set_traffic(ctx, false)
}

fn set_traffic(ctx: &mut Context<'_>, is_enabled: bool) -> Outcome {
    let bucket = ctx.bucket();
    if bucket.traffic.is_enabled() != is_enabled
        && let Some(left_out) = engine::admit_log(&bucket, "traffic")
    {
        tracing::warn!(
            event = "traffic_switched",
            bucket = bucket.name(),
            is_enabled,
            left_out,
            "an administrator has switched a bucket's traffic"
        );
    }
    bucket.traffic.enable(is_enabled);
    ctx.status(Status::Success)
}

/// Shows the token that guards changes by the cluster, as the CAS.
pub fn control_token(ctx: &mut Context<'_>, _: &Request<'_>) -> Outcome {
    let token = Cas(ctx.node.control_token.get());
    ctx.reply.send(&Answer { cas: token, ..Answer::default() });
    Outcome::Done
}

/// Replaces the token, if the CAS is the old one.
pub fn set_control_token(ctx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let Some(token) = extras::decode_u64(request.extras).filter(|token| *token != 0) else {
        return ctx.invalid("The new token must not be 0");
    };
    let old = if request.cas == Cas::ANY { None } else { Some(request.cas.0) };
    let (status, now) = match ctx.node.control_token.replace(old, token) {
        Ok(()) => (Status::Success, token),
        Err(present) => (Status::KeyEexists, present),
    };
    ctx.reply.send(&Answer { status, cas: Cas(now), ..Answer::default() });
    Outcome::Done
}
