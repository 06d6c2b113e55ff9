//! Why a configuration is refused.

use std::net::SocketAddr;

use engine::SettingError;

use crate::naming::NOT_BUILT_IN;

/// Why a configuration is refused: what is wrong, and what to do about it.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    /// The file is not what it should be.
    #[error("the configuration file is not valid: {0}")]
    File(String),
    /// A bucket has a name that clients could not use.
    #[error(
        "bucket name {0:?}: use 1 to 100 letters, digits and the characters _ . % -, and no dot in front"
    )]
    BucketName(String),
    /// A bucket is named twice.
    #[error("bucket {0:?} is given twice: give each bucket once")]
    BucketTwice(String),
    /// Two buckets whose names are one over HTTP.
    #[error(
        "buckets {0:?} and {1:?}: names that differ in case alone are the same over HTTP: give one of them another name"
    )]
    BucketCase(String, String),
    /// A bucket in RocksDB, which this binary does not have.
    #[error("bucket {0:?}: {what}", what = NOT_BUILT_IN)]
    NotBuiltIn(String),
    /// A store that has no log of its own, without journal.
    #[error(
        "bucket {0:?}: a bucket of type magma or rocksdb needs the journal: leave journal = \"off\" (--journal off) out, or give the \
         bucket the type couchstore"
    )]
    NeedsJournal(String),
    /// A bucket specification cannot be read.
    #[error("bucket {0:?}: write NAME, NAME:QUOTA or NAME:QUOTA:TYPE, for example default:256MiB:couchstore")]
    BucketSpec(String),
    /// A quota cannot be read or is too small.
    #[error("quota {0:?}: give a number with KiB, MiB, GiB or TiB, at least 1MiB, for example 256MiB")]
    Quota(String),
    /// The file of the log cannot be as asked for.
    #[error("the file of the log: {0}")]
    LogFile(String),
    /// Passwords would be too little work, or too much.
    #[error("{name} = {given}: give {least} to {most}")]
    Hashing {
        /// The setting.
        name: &'static str,
        /// What was given.
        given: String,
        /// The least that may be given.
        least: &'static str,
        /// The most.
        most: &'static str,
    },
    /// An address for clients of another network cannot be read.
    #[error("alternate-address {word:?}: {what}; give HOST[,kv=PORT,mgmt=PORT,kvSSL=PORT,mgmtSSL=PORT]")]
    Alternate {
        /// What was given.
        word: String,
        /// What is wrong with it.
        what: String,
    },
    /// Other nodes and clients could not reach this host.
    #[error("advertise {0:?}: give the name or the address of this host, without a port")]
    Advertise(String),
    /// A bucket type that there is not.
    #[error(
        "bucket type {0:?}: give couchstore (also called couchbase or membase), magma or rocksdb, which keep documents on disk, or ephemeral, which does not"
    )]
    BucketType(String),
    /// A setting of a bucket is not known, or its value is not valid.
    #[error("bucket {bucket:?}: {error}")]
    Setting {
        /// The bucket.
        bucket: String,
        /// What is wrong.
        error: SettingError,
    },
    /// A setting of a bucket that has a key of its own.
    #[error(
        "bucket {bucket:?}: write {key} beside the name of the bucket instead of {setting} among its settings"
    )]
    SettingElsewhere {
        /// The bucket.
        bucket: String,
        /// What was given.
        setting: &'static str,
        /// The key to use.
        key: &'static str,
    },
    /// No buckets at all.
    #[error("buckets: the list is empty; give at least one, or leave it out for one named default")]
    NoBuckets,
    /// The number of vBuckets does not fit the clients' arithmetic.
    #[error("{0} vBuckets: give a power of two from 1 to 1024")]
    Vbuckets(u16),
    /// No worker threads, or far too many.
    #[error("{0} threads: give a number from 1 to 1024")]
    Threads(usize),
    /// A limit under which nobody could be served.
    #[error("{0} = 0: give at least 1")]
    Limit(&'static str),
    /// The process may have too few descriptors to serve anybody.
    #[error(
        "the limit of open files is {limit}, and {needed} are needed at least: raise it (ulimit -n, LimitNOFILE), or \
         lower max-open-files or max-http-connections"
    )]
    Descriptors {
        /// What the system allows.
        limit: u64,
        /// What it takes.
        needed: usize,
    },
    /// A share of a file from which on it is compacted.
    #[error("compaction-fragmentation-percent = {0}: give a number from 10 to 100")]
    Fragmentation(u8),
    /// Less memory for connections than one frame needs.
    #[error("connection-memory = {0} bytes: give at least 40MiB, so that the largest request finds room")]
    ConnectionMemory(u64),
    /// A size cannot be read.
    #[error("size {0:?}: give a number with KiB, MiB, GiB or TiB, for example 1MiB")]
    Size(String),
    /// A user that could not log in.
    #[error("user {0:?}: names have 1 to 128 bytes, no colon and no @ in front, and passwords at least 1")]
    User(String),
    /// A user is named twice.
    #[error("user {0:?} is given twice: give each user once")]
    UserTwice(String),
    /// A user for a bucket that there is not.
    #[error(
        "user {user:?}: there is no bucket {bucket:?}; name one of `buckets`, or leave the list out for all"
    )]
    UserBucket {
        /// The user.
        user: String,
        /// The bucket.
        bucket: String,
    },
    /// Buckets beside roles that name theirs.
    #[error(
        "user {0:?}: roles name their buckets themselves; write role = \"data_reader[BUCKET]\", and leave buckets out"
    )]
    UserPlaces(String),
    /// An address cannot be read.
    #[error(
        "address {0:?}: write HOST:PORT, for example 127.0.0.1:11210 (port 0 takes a free one), or several with commas between them"
    )]
    Address(String),
    /// A setting of encrypted connections, and no certificate.
    #[error("{0} is of no use without a certificate: give tls-cert and tls-key, too")]
    NoCertificate(&'static str),
    /// No port would be listened at.
    #[error(
        "{0} = \"off\" closes the port without TLS, and there is none with it: give tls-cert and tls-key, too"
    )]
    NoWayIn(&'static str),
    /// Other nodes of the cluster would connect without TLS.
    #[error(
        "{0} = \"off\" in a cluster: other nodes have to connect with TLS: give cluster-encryption = {1} on all nodes"
    )]
    OffInCluster(&'static str, &'static str),
    /// A certificate without a key, or a key without a certificate.
    #[error("tls-cert and tls-key go together: give both")]
    HalfCertificate,
    /// Other nodes cannot be known.
    #[error(
        "with cluster-encryption or tls-client-auth others are known by the CA of their certificates: give tls-ca, too"
    )]
    NoCa,
    /// Where traces go.
    #[error("trace-endpoint = {0:?}: {1}")]
    TraceEndpoint(String, String),
    /// The table about slow operations.
    #[error("[slow-operations]: {0}")]
    SlowLimit(crate::slow::limits::SlowLimitError),
    /// The table about the audit log.
    #[error("[audit]: {0}")]
    Audit(String),
    /// It would listen to the world with a password that nobody chose.
    #[error(
        "listening at {0}, beyond this machine, needs a password that you choose: give it by --password-file or STAVE_PASSWORD"
    )]
    OpenWithoutPassword(SocketAddr),
    /// It would listen to the world with a password that is soon guessed.
    #[error(
        "listening at {addr}, beyond this machine, needs better passwords: {fault} It is that of the user {user}: give \
         another one with --password-file, STAVE_PASSWORD or in the configuration file, or listen at 127.0.0.1 alone"
    )]
    OpenWithWeakPassword {
        /// Where it would listen.
        addr: SocketAddr,
        /// Whose password it is.
        user: String,
        /// What it lacks.
        fault: String,
    },
}
