//! What a connection has agreed on with its client.

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::{Arc, Weak};

use base::planted::{self, Bug};
use engine::{Bucket, SnapshotReader, StreamWanted};
use protocol::extras::ConfigVersion;
use protocol::feature::{Feature, Features};

use crate::audit::record::Ends;
use crate::close_reason::CloseReason;
use crate::dcp::DcpConnection;
use crate::node::Node;
use crate::output::Output;
use crate::privilege::{Privilege, Privileges};
use crate::roles::Rights;
use crate::sasl::scram::Exchange;
use crate::stats::timings::BucketTimes;
use crate::user::User;

/// A bucket that a client selected, counted per worker: a request can hold it without touching a shared counter.
pub type SelectedBucket = Rc<Arc<Bucket>>;

/// A login by certificate that this node has put off.
pub struct PutOff {
    /// Of the user.
    pub name: Box<str>,
    /// What the client is told.
    pub why: &'static str,
}

/// The state of one client's session.
#[derive(Default)]
pub struct Session {
    /// What HELLO agreed on.
    pub features: Features,
    /// Where the client is, if it is somewhere.
    pub peer: Option<IpAddr>,
    /// Both ends of its connection, as far as they are known.
    pub ends: Ends,
    /// Whether nobody else reads what is sent: by TLS.
    pub is_encrypted: bool,
    /// Who logged in.
    pub user: Option<Arc<User>>,
    /// What the user may do, less what the client gave up.
    pub rights: Rights,
    /// What the client gave up.
    dropped: Privileges,
    /// What the request under way lacks and is let through without (record 223).
    pub let_through: Cell<Privileges>,
    /// The edition of the node's users that the rights are from.
    users_edition: u64,
    /// The selected bucket.
    pub bucket: Option<SelectedBucket>,
    /// How long requests of the selected bucket take.
    times: Option<Arc<BucketTimes>>,
    /// One that was selected until the user lost the last right in it; it is selected again with the first right.
    pub lost_bucket: Option<Weak<Bucket>>,
    /// The user that the client's certificate names, if there is no such user.
    pub unknown_certified: Option<Box<str>>,
    /// The user that it names, if there is one and this node did not let it in when the client connected (records 106 and
    /// 178): it is let in with a later request.
    pub put_off: Option<Box<PutOff>>,
    /// A login under way.
    pub exchange: Option<Box<Exchange>>,
    /// Whose keys the exchange has; `None` if they are made up.
    pub exchanges_with: Option<Arc<User>>,
    /// Whether it began before this member had read the users of its cluster.
    pub exchange_is_early: bool,
    /// How the client calls itself.
    pub agent: Option<Box<str>>,
    /// How the client calls the connection.
    pub client_id: Option<Box<str>>,
    /// Where the client is for whom another node asks, as that one says: of others it means nothing.
    pub asks_for: Option<SocketAddr>,
    /// How often the client has asked for the main group of stats.
    pub main_group_asked: u32,
    /// Whose snapshots of files it keeps from being ended.
    pub reader: SnapshotReader,
    /// What makes it a connection for streams.
    pub dcp: Option<Box<DcpConnection>>,
    /// The newest cluster map that was sent to the client.
    pub sent_map: Option<ConfigVersion>,
    /// The newest cluster map that the client was told of without being sent it.
    pub told_map: Option<ConfigVersion>,
}

/// What of a session requests that are handled elsewhere see.
pub struct SharedSession {
    features: Features,
    peer: Option<IpAddr>,
    ends: Ends,
    user: Option<Arc<User>>,
    rights: Rights,
    dropped: Privileges,
    bucket: Option<Arc<Bucket>>,
    times: Option<Arc<BucketTimes>>,
    sent_map: Option<ConfigVersion>,
    main_group_asked: u32,
    reader: SnapshotReader,
    asks_for: Option<SocketAddr>,
}

impl SharedSession {
    /// A session like the one that was shared, for one request.
    pub fn into_session(self) -> Session {
        Session {
            features: self.features,
            peer: self.peer,
            ends: self.ends,
            user: self.user,
            rights: self.rights,
            dropped: self.dropped,
            bucket: self.bucket.map(Rc::new),
            times: self.times,
            sent_map: self.sent_map,
            main_group_asked: self.main_group_asked,
            reader: self.reader,
            asks_for: self.asks_for,
            ..Session::default()
        }
    }
}

impl Session {
    /// What of it another thread may see.
    pub fn share(&self) -> SharedSession {
        SharedSession {
            features: self.features,
            peer: self.peer,
            ends: self.ends,
            user: self.user.clone(),
            rights: self.rights.clone(),
            dropped: self.dropped,
            bucket: self.bucket.as_ref().map(|bucket| Arc::clone(bucket)),
            times: self.times.clone(),
            sent_map: self.sent_map,
            main_group_asked: self.main_group_asked,
            reader: self.reader.clone(),
            asks_for: self.asks_for,
        }
    }

    /// Where the client is for whom another node asks on this connection.
    pub(crate) fn asked_for(&self) -> Option<SocketAddr> {
        self.asks_for.filter(|_| self.user.as_ref().is_some_and(|user| user.is_node()))
    }

    /// How long requests of the selected bucket take, or those without one.
    pub(crate) fn times<'a>(&'a self, node: &'a Node) -> &'a BucketTimes {
        self.times.as_deref().unwrap_or_else(|| node.times.none())
    }

    /// Whether `feature` was agreed on.
    pub fn has(&self, feature: Feature) -> bool {
        self.features.has(feature)
    }

    /// Bytes that a client without a login makes it hold, beside its fixed size.
    pub fn held_bytes(&self) -> usize {
        let texts = [&self.agent, &self.client_id, &self.unknown_certified].into_iter().flatten();
        let texts: usize =
            texts.chain(self.put_off.as_ref().map(|put_off| &put_off.name)).map(|text| text.len()).sum();
        texts + self.exchange.as_ref().map_or(0, |exchange| exchange.held_bytes())
    }

    /// Whether a user has logged in.
    pub fn is_authenticated(&self) -> bool {
        self.user.is_some()
    }

    /// Whether the client gave a privilege up.
    pub(crate) fn has_given_up(&self, privilege: Privilege) -> bool {
        self.dropped.has(privilege)
    }

    /// Whether the client may do something in the whole of its bucket.
    pub fn may(&self, privilege: Privilege) -> bool {
        self.rights.whole.has(privilege)
    }

    /// Logs a user in.
    pub fn log_in(&mut self, user: Arc<User>) {
        self.user = Some(user);
        self.dropped = Privileges::NONE;
        self.rights = self.rights_of_user();
    }

    /// Takes the node's users as they are now: costs one look if they have not changed. What a lost right allowed ends:
    /// streams one by one, and the bucket is not selected any more if the user may not select it. Refused if the user is
    /// gone or has another password.
    pub fn follow_users(&mut self, node: &Node, out: &mut Output) -> Result<(), CloseReason> {
        let edition = node.accounts().edition();
        if self.users_edition == edition || planted::is(Bug::RolesNotFollowed) {
            return Ok(());
        }
        self.users_edition = edition;
        let Some(user) = &self.user else { return Ok(()) };
        let users = node.accounts().users();
        let now = users.now(user).ok_or(CloseReason::UserChanged)?;
        if Arc::ptr_eq(now, user) {
            return Ok(());
        }
        let now = Arc::clone(now);
        match &self.bucket {
            Some(bucket) if !now.may_select(bucket.name()) => {
                let lost = Arc::downgrade(bucket);
                self.select(None);
                self.lost_bucket = Some(lost);
            }
            Some(_) => {}
            // It is the same one as long as it is there: see `Connection::hear`.
            None => {
                let back = self.lost_bucket.as_ref().and_then(Weak::upgrade);
                if let Some(bucket) = back.filter(|bucket| now.may_select(bucket.name())) {
                    let times = node.times.of(&bucket);
                    self.select(Some((bucket, times)));
                }
            }
        }
        self.user = Some(now);
        self.rights = self.rights_of_user();
        if let Some(mut dcp) = self.dcp.take() {
            if let Some(producer) = dcp.producer() {
                if producer.serves_a_node() && !self.may(Privilege::NodeSupervisor) {
                    return Err(CloseReason::UserChanged);
                }
                producer.end_forbidden(|wanted| self.may_stream(wanted), out);
            } else if !self.may(Privilege::DcpConsumer) {
                // A message that is left out would be a gap in what it feeds.
                return Err(CloseReason::UserChanged);
            }
            self.dcp = Some(dcp);
        }
        Ok(())
    }

    /// Whether the selected bucket is still served, or the one that would be selected if the user had a right in it.
    pub fn is_bucket_served(&self, node: &Node) -> bool {
        match (&self.bucket, &self.lost_bucket) {
            (Some(bucket), _) => node.served().serves(bucket) || planted::is(Bug::DeletedBucketStays),
            (None, Some(lost)) => lost.upgrade().is_some_and(|bucket| node.served().serves(&bucket)),
            (None, None) => true,
        }
    }

    /// Whether the client may be sent all that a stream is about.
    fn may_stream(&self, wanted: StreamWanted<'_>) -> bool {
        self.bucket.is_some() && self.may(Privilege::DcpProducer) && self.rights.may_stream(wanted)
    }

    /// Gives up a privilege for good.
    pub fn drop_privilege(&mut self, privilege: Privilege) {
        self.dropped = self.dropped.with(privilege);
        self.rights = self.rights_of_user();
    }

    /// What the user may do in the selected bucket, without what was given up.
    fn rights_of_user(&self) -> Rights {
        self.user.as_ref().map_or_else(Rights::default, |user| self.rights_as(user))
    }

    /// What some user may do in the selected bucket, without what was given up.
    pub fn rights_as(&self, user: &User) -> Rights {
        match &self.bucket {
            Some(bucket) => {
                Rights::of(user.grants(), bucket.name(), &bucket.collections().manifest(), self.dropped)
            }
            None => {
                let all = Rights::without_bucket(user.grants()).whole.less(self.dropped);
                Rights { whole: all, node: all, narrow: None }
            }
        }
    }

    /// Goes by the manifest of the selected bucket as it is now. Costs one look if no role names a scope.
    pub fn follow_manifest(&mut self) {
        if self.rights.narrow.is_some()
            && let Some(bucket) = &self.bucket
        {
            self.rights.follow(&bucket.collections().manifest(), self.dropped);
        }
    }

    /// Forgets who logged in, and what only that user could have chosen.
    pub fn log_out(&mut self) {
        self.user = None;
        self.dropped = Privileges::NONE;
        self.exchange = None;
        self.select(None);
    }

    /// Selects a bucket with its times, or none.
    pub fn select(&mut self, selected: Option<(Arc<Bucket>, Arc<BucketTimes>)>) {
        let (bucket, times) = selected.unzip();
        self.lost_bucket = None;
        self.bucket = bucket.map(Rc::new);
        self.times = times;
        self.sent_map = None;
        self.told_map = None;
        self.rights = self.rights_of_user();
    }

    /// The datatype bits a client may see.
    pub fn visible_datatype(&self, datatype: base::Datatype) -> base::Datatype {
        let mut visible = datatype;
        for (feature, bit) in [
            (Feature::Json, base::Datatype::JSON),
            (Feature::Snappy, base::Datatype::SNAPPY),
            (Feature::Xattr, base::Datatype::XATTR),
        ] {
            if !self.has(feature) {
                visible = visible.without(bit);
            }
        }
        visible
    }
}
