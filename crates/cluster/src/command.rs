//! What administrators and nodes may ask of the cluster: each is a change of the document, which anybody may write.

mod buckets;
mod damage;
mod failover;
mod kept;
mod limits;
mod rebalance;

use serde_json::Value;

use crate::state::{Address, AutoFailover, Invalid, NextIds, Node, NodeId, State, Status};
use crate::view::View;

pub(crate) use failover::{fail_over, losses};
pub(crate) use rebalance::{give_up_moves, repair};

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// A node wants to belong to the cluster. The first one is active at once, others with the next rebalance.
    Join {
        /// Its identity.
        uuid: String,
        /// Where it is reached.
        address: Address,
        /// The life that asks.
        incarnation: u64,
    },
    /// A node that was failed over shall come back with the next rebalance. It keeps its copies until that begins.
    Recover {
        /// Which.
        node: NodeId,
        /// With the copies that it has; without them only if no vBucket needs them.
        delta: bool,
    },
    /// A node loses everything that it is active for, now.
    FailOver {
        /// Which.
        node: NodeId,
        /// Even if documents are lost by that.
        force: bool,
    },
    /// A node that was failed over has stopped for certain, as an administrator says: no choice waits for it. It holds
    /// until the node is taken back.
    HasStopped {
        /// Which.
        node: NodeId,
    },
    /// A node hands over everything that it is active for, and is failed over then.
    FailOverGracefully {
        /// Which.
        node: NodeId,
    },
    /// The vBuckets are spread over all nodes but these, which leave then. Those that were failed over leave with every
    /// rebalance: whoever names some that leave must name them, too.
    Rebalance {
        /// Who leaves; nobody for those alone that were failed over.
        eject: Vec<NodeId>,
    },
    /// What is being moved is finished or given up, and nothing new begun.
    CancelRebalance,
    /// A node without a share leaves, unless it may have kept the last copies of vBuckets.
    Eject {
        /// Which.
        node: NodeId,
    },
    /// A bucket is made.
    CreateBucket {
        /// Its name.
        name: String,
        /// Its identity: 32 hexadecimal digits.
        uuid: String,
        /// What it is asked to be.
        settings: Value,
        /// Replicas of each vBucket.
        replicas: u8,
        /// vBuckets: a power of two.
        vbuckets: u16,
        /// Its collections.
        manifest: Value,
    },
    /// A bucket is asked to be something else. More or fewer replicas come with the next rebalance.
    ChangeBucket {
        /// Which.
        name: String,
        /// What it is asked to be; nothing if that stays.
        settings: Option<Value>,
        /// Replicas of each vBucket; nothing if that stays.
        replicas: Option<u8>,
    },
    /// A bucket has other collections.
    ChangeManifest {
        /// Which bucket.
        name: String,
        /// Its collections.
        manifest: Value,
        /// Ids that none of them has, and none before had.
        next_ids: NextIds,
    },
    /// A bucket goes to another store on all nodes, while they serve it.
    MoveBucket {
        /// Which.
        name: String,
        /// The store, as settings name it.
        to: String,
    },
    /// A bucket that goes to another store goes back to the one in which it was.
    CancelMove {
        /// Which.
        name: String,
    },
    /// All documents of a bucket are removed. Clients are told to try again until all nodes have done so.
    FlushBucket {
        /// Which.
        name: String,
    },
    /// A bucket is deleted with its documents.
    DropBucket {
        /// Which.
        name: String,
    },
    /// What the damaged copies of a bucket held is given up where no other copy surely has all of it: the best other copy
    /// becomes active, or none if there is none. Durable writes may be lost.
    GiveUpDamaged {
        /// Which bucket.
        name: String,
    },
    /// When nodes are failed over without anybody asking; how many there were stays.
    SetAutoFailover(AutoFailover),
}

/// Why something is not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is no such node.
    #[error("there is no such node")]
    NoSuchNode,
    /// There is no such bucket.
    #[error("there is no such bucket")]
    NoSuchBucket,
    /// There is one already.
    #[error("there is a bucket with this name already")]
    BucketExists,
    /// A number of vBuckets or replicas that cannot be.
    #[error("a bucket has a power of two up to 1,024 of vBuckets and at most 3 replicas")]
    WrongBucket,
    /// vBuckets are being moved.
    #[error("a rebalance is running")]
    Rebalancing,
    /// Nothing is being moved.
    #[error("no rebalance is running")]
    NotRebalancing,
    /// A failover is not over yet.
    #[error("a failover is under way")]
    FailingOver,
    /// All documents of a bucket are being removed.
    #[error("bucket {0} is being flushed")]
    Flushing(String),
    /// The node's status does not allow it.
    #[error("{0} is {1}")]
    WrongStatus(NodeId, Status),
    /// A node that is needed does not answer.
    #[error("{0} is down")]
    NodeDown(NodeId),
    /// A node that should hand over does not answer.
    #[error(
        "{0} is down, and can hand nothing over: fail it over without --graceful (stave cluster failover {0})"
    )]
    CannotHandOver(NodeId),
    /// A node that would get its share does not answer.
    #[error("{0} is down, and has no share yet: start it, or let it leave (stave cluster remove {0})")]
    NewNodeDown(NodeId),
    /// A node was failed over, and whoever lets others leave has not named it.
    #[error(
        "{0} is failed over, too, and would leave: name it, too (stave cluster remove takes several nodes), or recover it first (stave cluster add {0})"
    )]
    WouldLeave(NodeId),
    /// vBuckets would begin empty, and nodes that were failed over may have their documents.
    #[error(
        "no node that is there has {vbuckets} vBuckets, and {list} may have kept them: start each of them and take it back (stave cluster add {first}) before the rebalance, or give up their documents by naming all of them (stave cluster rebalance{ejects})",
        list = names(nodes, ", "), first = names(&nodes[..nodes.len().min(1)], ""), ejects = names_with(nodes, " --eject ")
    )]
    WouldBeEmpty {
        /// How many.
        vbuckets: usize,
        /// The nodes that may have them, at least one.
        nodes: Vec<NodeId>,
    },
    /// Nobody would be left.
    #[error("no node would be left")]
    LastNode,
    /// The last copy of vBuckets would be lost.
    #[error("the only copy of {0} vBuckets would be lost")]
    LastCopy(usize),
    /// Writes that were acknowledged could be lost: those at a durable level, and after a move others, too.
    #[error(
        "writes of {0} vBuckets could be lost: too many of their nodes are down, or had not caught up since they \
         were started or began to follow this one when it was seen last"
    )]
    Unsafe(usize),
    /// The copies that would become active had no connection to this node when it was seen last.
    #[error(
        "writes of {vbuckets} vBuckets would be lost: their copies on {} miss what changed on {node}, to which there had \
         been no connection for long when it was seen last",
        names(followers, ", ")
    )]
    NotFollowed {
        /// The node that would be failed over.
        node: NodeId,
        /// How many.
        vbuckets: usize,
        /// Who has the copies, at least one.
        followers: Vec<NodeId>,
    },
    /// The quotas of all buckets would be more than a node may use.
    #[error(
        "the buckets would need {} MiB of memory on {node}, which has {} MiB: give a smaller quota",
        .needed.div_ceil(1 << 20), .has >> 20
    )]
    Quota {
        /// Which node.
        node: NodeId,
        /// What the quotas of all buckets would come to.
        needed: u64,
        /// What they may come to on that node.
        has: u64,
    },
    /// A node makes buckets with another number of vBuckets.
    #[error("{node} makes buckets of {has} vBuckets, not {wanted}: all nodes need the same setting vbuckets")]
    OtherVbuckets {
        /// Which node.
        node: NodeId,
        /// The bucket's number.
        wanted: u16,
        /// The node's number.
        has: u16,
    },
    /// No vBucket of the bucket waits for damaged copies.
    #[error("no vBucket of bucket {0} waits for a damaged copy")]
    NothingToGiveUp(String),
    /// The bucket goes to another store, or back.
    #[error(
        "bucket {name} {}",
        if *is_cancelled {
            "goes back to the store in which it was: wait for the end of that"
        } else {
            "is being moved to another store already: wait for its end, or cancel it"
        }
    )]
    StoreMoves {
        /// Which.
        name: String,
        /// Whether it goes back.
        is_cancelled: bool,
    },
    /// The bucket goes to no other store.
    #[error("bucket {0} is not being moved to another store")]
    StoreStays(String),
    /// The bucket is in the store that was asked for.
    #[error("bucket {0} is kept in that store already")]
    StoreIsThat(String),
    /// A node would not move what it has.
    #[error(
        "{0} ({1}) runs a version of stave that does not move the buckets of a cluster: run this version on all nodes first"
    )]
    MovesNoStores(NodeId, String),
    /// The document would not be sound.
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

/// The document after a command; the same revision if there is nothing to do.
pub fn apply(view: &View, command: &Command) -> Result<State, Refused> {
    let state = match command {
        Command::Join { uuid, address, incarnation } => join(&view.state, uuid, address, *incarnation),
        Command::Recover { node, delta } => recover(view, *node, *delta)?,
        Command::FailOver { node, force } => {
            failover::check(view, *node, *force)?;
            fail_over(&view.state, *node, *force)
        }
        Command::HasStopped { node } => failover::has_stopped(&view.state, *node)?,
        Command::FailOverGracefully { node } => rebalance::graceful(view, *node)?,
        Command::Rebalance { eject } => rebalance::begin(view, eject)?,
        Command::CancelRebalance => rebalance::cancel(&view.state)?,
        Command::Eject { node } => eject(view, *node)?,
        Command::MoveBucket { name, to } => buckets::begin_move(view, name, to)?,
        Command::CancelMove { name } => buckets::cancel_move(&view.state, name)?,
        Command::GiveUpDamaged { name } => damage::give_up(view, name)?,
        Command::SetAutoFailover(settings) => {
            let mut state = view.state.next();
            state.auto_failover = AutoFailover { count: state.auto_failover.count, ..*settings };
            state
        }
        _ => buckets::apply(view, command)?,
    };
    state.check()?;
    Ok(state)
}

fn names(nodes: &[NodeId], between: &str) -> String {
    nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(between)
}

fn names_with(nodes: &[NodeId], before: &str) -> String {
    nodes.iter().map(|node| format!("{before}{node}")).collect()
}

/// The document of a cluster whose first node this is.
pub fn found(uuid: &str, address: &Address, incarnation: u64) -> State {
    join(&State::empty(), uuid, address, incarnation)
}

fn join(state: &State, uuid: &str, address: &Address, incarnation: u64) -> State {
    if state.node_of(uuid).is_some() {
        return state.clone();
    }
    let is_first = state.nodes.is_empty() && state.cluster.is_empty();
    let mut state = state.next();
    if is_first {
        state.cluster = format!("{uuid}-{incarnation:x}");
    }
    let id = NodeId(state.next_node);
    state.next_node += 1;
    let status = if state.nodes.is_empty() { Status::Active } else { Status::New };
    let (uuid, address) = (uuid.to_owned(), address.clone());
    state.nodes.insert(id, Node { uuid, address, status, incarnation, limits: None, stopped: false });
    state
}

fn node_of(state: &State, id: NodeId) -> Result<&Node, Refused> {
    state.nodes.get(&id).ok_or(Refused::NoSuchNode)
}

fn recover(view: &View, id: NodeId, delta: bool) -> Result<State, Refused> {
    let state = &view.state;
    match node_of(state, id)?.status {
        Status::FailedOver | Status::DeltaRecovery | Status::FullRecovery => {}
        status => return Err(Refused::WrongStatus(id, status)),
    }
    if state.rebalance.is_some() {
        return Err(Refused::Rebalancing);
    }
    // Its copies may be all that is left of what others have forgotten.
    if !delta && state.is_choosing() {
        return Err(Refused::FailingOver);
    }
    if !delta {
        kept::check_one(view, id)?;
    }
    let mut state = state.next();
    if let Some(node) = state.nodes.get_mut(&id) {
        node.status = if delta { Status::DeltaRecovery } else { Status::FullRecovery };
        node.stopped = false;
    }
    Ok(state)
}

fn eject(view: &View, id: NodeId) -> Result<State, Refused> {
    let state = &view.state;
    let status = node_of(state, id)?.status;
    if status == Status::Active || state.is_choosing() {
        return Err(Refused::WrongStatus(id, status));
    }
    let mut state = state.next();
    if state
        .buckets
        .values()
        .any(|bucket| bucket.map.iter().chain(&bucket.target).flatten().any(|at| *at == Some(id)))
    {
        return Err(Refused::WrongStatus(id, status));
    }
    kept::check_one(view, id)?;
    state.nodes.remove(&id);
    Ok(state)
}
