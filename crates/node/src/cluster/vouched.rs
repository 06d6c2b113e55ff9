//! What the folder of each bucket says of the cluster: a second witness beside `cluster-membership`, so that older slots
//! of that file, put back, are not believed.
//!
//! It is written, and synced, before the node does anything with the bucket that the state makes different. What it says
//! is therefore never more than what the node has noted, and as new as the bucket's roles.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use ::cluster::state::Status;
use ::cluster::{Membership, State};
use base::encryption::is_unknown_key;
use base::env::{Disk, Env};
use base::planted::{self, Bug};
use engine::{Bucket, BucketKind};

use super::apply::{ApplyError, Asked, Failed, LocalBuckets};
use super::membership::{Seen, fault_of};
use crate::node::Node;

const FILE: &str = "membership";

/// What is wrong with the file in a bucket's folder, if there is one. Changes nothing.
pub fn fault(disk: &dyn Disk, folder: &Path) -> Option<(PathBuf, String)> {
    fault_of(disk, folder, FILE)
}

/// What a bucket's folder says of the cluster to this node; `None` if the file is damaged, or under a key that the folder does
/// not have: other files say the same. A folder that another node, or this one before it left a cluster, has written says
/// nothing.
pub fn read(env: &Env, folder: &Path, node: &str) -> io::Result<Option<Seen>> {
    match Seen::nothing(folder.to_owned(), FILE, node).read_again(env) {
        Err(error) if is_unknown_key(&error) => Ok(None),
        read => read,
    }
}

/// Notes durably in a bucket's folder what the node has noted of the cluster.
pub fn write(env: &Env, folder: &Path, node: &str, noted: &Membership) -> io::Result<()> {
    let mut file = read(env, folder, node)?.unwrap_or_else(|| Seen::nothing(folder.to_owned(), FILE, node));
    match file.get() {
        Some(before) if !noted.is_later_than(before) => Ok(()),
        _ => file.put(env, noted.clone()),
    }
}

/// If a bucket's folder has seen more than the node has noted, the note is older than the bucket: what the folder says is
/// noted instead.
pub fn put_right<'f>(
    env: &Env,
    seen: &mut Seen,
    node: &str,
    folders: impl Iterator<Item = (&'f Env, &'f Path)>,
) -> io::Result<()> {
    if planted::is(Bug::BucketsDoNotVouch) {
        return Ok(());
    }
    let mut newest: Option<Membership> = None;
    for (of_bucket, folder) in folders {
        let path = folder.join(FILE);
        match read(of_bucket, folder, node) {
            Ok(Some(found)) => {
                let found = found.get().cloned();
                let known = newest.as_ref().or(seen.get());
                if let Some(found) =
                    found.filter(|found| known.is_none_or(|known| found.is_later_than(known)))
                {
                    newest = Some(found);
                }
            }
            Ok(None) => {
                tracing::error!(
                    event = "membership_file_damaged", path = %path.display(),
                    "the file is damaged: other files say what this node has seen of its cluster"
                )
            }
            Err(error) => {
                tracing::error!(
                    event = "membership_file_unreadable", path = %path.display(), %error,
                    "the file cannot be read: other files say what this node has seen of its cluster"
                )
            }
        }
    }
    let Some(newest) = newest else { return Ok(()) };
    let (noted, revision) = (seen.get().map_or(0, |seen| seen.revision), newest.revision);
    tracing::error!(
        event = "membership_older",
        noted,
        revision,
        "cluster-membership is older than what the folders of this node's buckets have seen of the cluster: what they say counts"
    );
    seen.put(env, newest)
}

/// What the node has seen, as its own folder and those of its buckets say.
pub(super) fn seen_by(node: &Node, uuid: &str, folder: PathBuf) -> io::Result<Seen> {
    let mut seen = Seen::read(node.env(), folder)?;
    let buckets: Vec<_> =
        node.buckets().into_iter().map(|(_, bucket)| bucket).filter(|b| is_kept(b)).collect();
    let folders = buckets.iter().map(|bucket| (bucket.env(), bucket.config().dir.as_path()));
    put_right(node.env(), &mut seen, uuid, folders)?;
    Ok(seen)
}

/// An ephemeral bucket begins empty: there is nothing that an older state could harm.
fn is_kept(bucket: &Bucket) -> bool {
    bucket.config().kind == BucketKind::Persistent
}

/// What a state makes of a bucket at this node. The other buckets belong to it: one that is gone, or another one now, has
/// no folder that could tell.
#[derive(PartialEq)]
struct Part {
    node: Option<Status>,
    buckets: BTreeMap<String, String>,
    bucket: Option<::cluster::Bucket>,
}

impl Part {
    fn of(state: &State, name: &str, node: &str) -> Part {
        let buckets = state.buckets.iter().map(|(name, bucket)| (name.clone(), bucket.uuid.clone()));
        Part {
            node: state.node_of(node).map(|(_, node)| node.status),
            buckets: buckets.collect(),
            bucket: state.buckets.get(name).cloned(),
        }
    }
}

/// What was written last of each bucket in this process, with the revision up to which that is known to be so.
#[derive(Default)]
pub(super) struct Vouched(BTreeMap<String, (u64, Part)>);

impl Vouched {
    pub(super) fn forget(&mut self, name: &str) {
        self.0.remove(name);
    }
}

/// Has the folder of a bucket say what the node has noted, if the state makes something else of the bucket than before.
pub(super) fn vouch(
    buckets: &LocalBuckets,
    local: &Bucket,
    state: &State,
    asked: &mut Asked,
) -> Result<(), ApplyError> {
    let name = local.name();
    if !is_kept(local) || asked.vouched.0.get(name).is_some_and(|(known, _)| *known == state.revision) {
        return Ok(());
    }
    let part = Part::of(state, name, &buckets.uuid);
    if asked.vouched.0.get(name).is_none_or(|(_, before)| *before != part)
        && let Some(noted) = buckets.document.seen().get()
    {
        let written = write(local.env(), &local.config().dir, &buckets.uuid, noted);
        written.map_err(|error| ApplyError::Note(name.to_owned(), error))?;
    }
    asked.vouched.0.insert(name.to_owned(), (state.revision, part));
    Ok(())
}

/// The same for all buckets that the node has. Returns those for which it failed.
pub(super) fn vouch_all(buckets: &LocalBuckets, state: &State, asked: &mut Asked) -> Failed {
    let present = buckets.node.buckets().into_iter();
    let failed = present.filter_map(|(spec, local)| {
        let outcome = vouch(buckets, &local, state, asked);
        outcome.err().map(|error| (spec.name, error))
    });
    failed.collect()
}
