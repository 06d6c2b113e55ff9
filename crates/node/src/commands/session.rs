//! What a client says about itself and asks of the node.

use protocol::extras::ConfigVersion;
use protocol::feature::{Feature, Features};
use protocol::{Request, Status, error_map as map};

use crate::close_reason::CloseReason;
use crate::context::{Context, Outcome, send_cluster_map};
use crate::log_levels;
use crate::node::Node;
use crate::privilege::Privilege;
use crate::reply::Answer;
use crate::version::SERVER_VERSION;

/// What is granted to those who ask: everything that is really done.
const GRANTED: Features = Features::of(&[
    Feature::TcpNoDelay,
    Feature::MutationSeqno,
    Feature::Xattr,
    Feature::Xerror,
    Feature::SelectBucket,
    Feature::Snappy,
    Feature::Json,
    Feature::Duplex,
    Feature::ClustermapChangeNotification,
    Feature::ClustermapChangeNotificationBrief,
    Feature::UnorderedExecution,
    Feature::Tracing,
    Feature::AltRequestSupport,
    Feature::SyncReplication,
    Feature::Collections,
    Feature::SnappyEverywhere,
    Feature::PreserveTtl,
    Feature::Vattr,
    Feature::SubdocCreateAsDeleted,
    Feature::SubdocDocumentMacroSupport,
    Feature::SubdocReplaceBodyWithXattr,
    Feature::SubdocReplicaRead,
    Feature::SubdocAllowsAccessOnMultipleXattrKeys,
    Feature::SubdocBinaryXattr,
    Feature::RangeScanIncludeXattr,
    Feature::GetRandomKeyIncludeXattr,
    Feature::MutateWithMeta,
    Feature::DcpSkipDeletesInInitialBackfill,
    Feature::GetClusterConfigWithKnownVersion,
    Feature::DedupeNotMyVbucketClustermap,
]);

const RANDOM_KEY_NEEDS: &str = "GetRandomKeyIncludeXattr needs XATTR, JSON and SnappyEverywhere";

/// Features that need another one.
const NEEDS: [(Feature, Feature, &str); 8] = [
    (Feature::ClustermapChangeNotification, Feature::Duplex, "Clustermap change notification needs Duplex"),
    (
        Feature::ClustermapChangeNotificationBrief,
        Feature::Duplex,
        "Clustermap change notification needs Duplex",
    ),
    (Feature::Vattr, Feature::Xattr, "VAttr needs XATTR"),
    (Feature::SubdocDocumentMacroSupport, Feature::Xattr, "SubdocDocumentMacroSupport needs XATTR"),
    (Feature::RangeScanIncludeXattr, Feature::Xattr, "RangeScanIncludeXattr needs XATTR"),
    (Feature::GetRandomKeyIncludeXattr, Feature::Xattr, RANDOM_KEY_NEEDS),
    (Feature::GetRandomKeyIncludeXattr, Feature::Json, RANDOM_KEY_NEEDS),
    (Feature::GetRandomKeyIncludeXattr, Feature::SnappyEverywhere, RANDOM_KEY_NEEDS),
];

/// Agrees on features; what was agreed on before is gone.
pub fn hello(ctx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let Some(asked) = Features::decode(request.value) else {
        return ctx.invalid("Request value must be a list of 16-bit numbers");
    };
    for (feature, needed, context) in NEEDS {
        if asked.has(feature) && !asked.has(needed) {
            return ctx.invalid(context);
        }
    }
    if asked.has(Feature::TcpNoDelay) && asked.has(Feature::TcpDelay) {
        return ctx.invalid("TcpNoDelay and TcpDelay cannot be enabled at the same time");
    }
    let mut granted = asked.and(GRANTED);
    if granted.has(Feature::ClustermapChangeNotificationBrief) {
        // Of the two ways to be told the shorter one is taken.
        granted.remove(Feature::ClustermapChangeNotification);
    }
    if ctx.session.dcp.is_some() {
        // Streams are in order.
        granted.remove(Feature::UnorderedExecution);
    }
    if !granted.has(Feature::Snappy) {
        // Not an error: it is left out (recorded: hello/dependencies).
        granted.remove(Feature::SnappyEverywhere);
    }
    let before = std::mem::replace(&mut ctx.session.features, granted);
    let object: Option<serde_json::Value> = serde_json::from_slice(request.key).ok();
    ctx.session.agent = (!request.key.is_empty()).then(|| agent(request.key, object.as_ref()));
    ctx.session.client_id = object.as_ref().and_then(client_id);
    ctx.session.asks_for = object.as_ref().and_then(|object| object["for"].as_str()?.parse().ok());
    // The time that this took was measured only if that had been agreed on before (recorded: hello/dependencies).
    ctx.reply.set_features(before.and(granted));
    let value = granted.encode();
    ctx.reply.send(&Answer { value: &value, ..Answer::default() });
    Outcome::Done
}

/// How the client calls itself: as it is, or in the field `a` of an object.
fn agent(key: &[u8], object: Option<&serde_json::Value>) -> Box<str> {
    let name = object.and_then(|object| object["a"].as_str());
    name.map_or_else(|| key.escape_ascii().to_string(), str::to_owned).into()
}

/// How the client calls the connection: the field `i` of an object, of which the field keeps so much.
fn client_id(object: &serde_json::Value) -> Option<Box<str>> {
    const MOST_CHARS: usize = 33;
    let id = object["i"].as_str()?;
    let is_plain = |c: char| c.is_ascii_graphic();
    Some(id.chars().map(|c| if is_plain(c) { c } else { '.' }).take(MOST_CHARS).collect::<String>().into())
}

/// Sends the error map.
pub fn error_map(ctx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let version = request.value.try_into().map_or(0, u16::from_be_bytes);
    match map::json(version) {
        Some(json) => ctx.reply.json(Status::Success, json.as_bytes()),
        None => ctx.reply.status(Status::KeyEnoent),
    }
    Outcome::Done
}

/// Selects a bucket; after a failure the one selected before stays.
pub fn select_bucket(ctx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    if ctx.session.dcp.is_some() {
        return ctx.error(Status::NotSupported, "The connection streams the changes of its bucket");
    }
    // The node's own place, which is no bucket, has no name.
    if request.key.is_empty() || request.key == b"@no bucket@" {
        ctx.session.select(None);
        return ctx.status(Status::Success);
    }
    let user = ctx.session.user.clone().expect("only logged-in users get here");
    let name = std::str::from_utf8(request.key).unwrap_or_default();
    if user.may_select(name)
        && let Some(why) = ctx.node.served().why_down(name)
    {
        return ctx.error(Status::Etmpfail, &format!("The bucket is down: {why}"));
    }
    if ctx.node.bucket(name).is_none() && awaits_buckets(ctx.node) {
        let why = "This node has not read the buckets of its cluster since it was started: try again";
        return ctx.error(Status::Etmpfail, why);
    }
    // "Not found" would tell SDKs that the bucket is about to come: they would wait for it.
    let may_select = || user.may_select(name) || ctx.lets_through(Privilege::SelectBucket);
    let status = match ctx.node.bucket(name).filter(|_| may_select()) {
        Some(bucket) => {
            let times = ctx.node.times.of(&bucket);
            ctx.session.select(Some((bucket, times)));
            Status::Success
        }
        None => Status::Eaccess,
    };
    ctx.status(status)
}

/// Whether this is a member of a cluster that has not read the cluster's state since its start (record 0221).
fn awaits_buckets(node: &Node) -> bool {
    let is_member = node.host().is_some_and(|host| host.config().is_member);
    is_member && node.cluster().is_none_or(|cluster| cluster.view().is_none())
}

/// Lists the buckets that the user may select.
pub fn list_buckets(ctx: &mut Context<'_>, _: &Request<'_>) -> Outcome {
    let user = ctx.session.user.clone().expect("only logged-in users get here");
    let names: Vec<String> =
        ctx.node.bucket_names().into_iter().filter(|name| user.may_select(name)).collect();
    ctx.reply.send(&Answer { value: names.join(" ").as_bytes(), ..Answer::default() });
    Outcome::Done
}

/// Sends the cluster map: of the bucket, or of the node if none is selected. Empty if the client knows it.
pub fn cluster_config(ctx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let maps = ctx.node.cluster_map();
    let known = ConfigVersion::decode(request.extras);
    if known.is_some_and(|known| known >= maps.version()) {
        ctx.session.sent_map = Some(maps.version());
        return ctx.status(Status::Success);
    }
    match ctx.session.bucket.clone() {
        Some(bucket) => send_cluster_map(&mut ctx.reply, ctx.session, ctx.node, &bucket, Status::Success),
        None => maps.global().send(&mut ctx.reply, ctx.session, Status::Success),
    }
    Outcome::Done
}

/// Does nothing.
pub fn noop(ctx: &mut Context<'_>, _: &Request<'_>) -> Outcome {
    ctx.status(Status::Success)
}

/// Sends the version.
pub fn version(ctx: &mut Context<'_>, _: &Request<'_>) -> Outcome {
    ctx.reply.send(&Answer { value: SERVER_VERSION.as_bytes(), ..Answer::default() });
    Outcome::Done
}

/// Has the log say more, or as much as the configuration says.
pub fn verbosity(ctx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    // A node that nothing hosts has no log of its own.
    let Some(host) = ctx.node.host() else { return ctx.status(Status::Success) };
    match host.config().log_levels.set(log_levels::of_verbosity(request.extras)) {
        Ok(_) => ctx.status(Status::Success),
        Err(why) => ctx.error(Status::NotSupported, &why),
    }
}

/// Answers and closes.
pub fn quit(ctx: &mut Context<'_>, _: &Request<'_>) -> Outcome {
    ctx.reply.ok();
    Outcome::Close(CloseReason::Quit)
}

/// Closes.
pub fn quit_quietly(_: &mut Context<'_>, _: &Request<'_>) -> Outcome {
    Outcome::Close(CloseReason::Quit)
}
