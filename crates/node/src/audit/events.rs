//! THE table of audit events: number, name, what happened, whether it is recorded without being asked for, whether it can
//! be switched off.
//!
//! Numbers, names and both properties are those of the public descriptors of kv_engine and ns_server. The module `stave`
//! has numbers of its own, above all of theirs (record 106).

/// An event of the table.
pub struct AuditRow {
    /// Its number.
    pub id: u32,
    /// The part of the original that records it.
    pub module: &'static str,
    /// Its name.
    pub name: &'static str,
    /// What happened.
    pub description: &'static str,
    /// Whether it is recorded unless that is switched off.
    pub is_on: bool,
    /// Whether it can be switched on and off, and left out for some users.
    pub is_filterable: bool,
}

/// Whether events are recorded without being asked for.
const ON: bool = true;
const OFF: bool = false;
/// Whether events can be switched on and off.
const FILTERABLE: bool = true;
const ALWAYS: bool = false;

macro_rules! events {
    ($($event:ident $id:literal $module:literal $name:literal $description:literal $on:ident $filterable:ident,)*) => {
        /// What is recorded.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum AuditEvent {
            $(#[doc = $description] $event,)*
        }

        /// All events, in the order of [`AuditEvent`].
        pub static AUDIT_EVENTS: &[AuditRow] = &[
            $(AuditRow {
                id: $id,
                module: $module,
                name: $name,
                description: $description,
                is_on: $on,
                is_filterable: $filterable,
            },)*
        ];

        impl AuditEvent {
            /// All of them.
            pub const ALL: &'static [AuditEvent] = &[$(AuditEvent::$event,)*];
        }
    };
}

events! {
    AuditStarted 4096 "auditd" "configured audit daemon" "The audit log goes by these settings from now on" ON ALWAYS,
    AuditStopped 4097 "auditd" "shutting down audit daemon" "The node stops, and with it the audit log" ON ALWAYS,
    UserDeleted 8194 "ns_server" "delete user" "A user was deleted" ON ALWAYS,
    PasswordChanged 8195 "ns_server" "user credentials change" "A user got another password" ON ALWAYS,
    NodeAdded 8196 "ns_server" "add node" "A node was asked into the cluster" ON ALWAYS,
    NodeRemoved 8197 "ns_server" "remove node" "A node was removed from the cluster" ON ALWAYS,
    FailedOver 8198 "ns_server" "failover nodes" "A failover of nodes was asked for" ON ALWAYS,
    RecoveryChosen 8199 "ns_server" "enter node recovery" "A node that was failed over is to come back" ON ALWAYS,
    RebalanceStarted 8200 "ns_server" "rebalance initiated" "A rebalance was asked for" ON ALWAYS,
    BucketCreated 8201 "ns_server" "create bucket" "A bucket was made" ON ALWAYS,
    BucketModified 8202 "ns_server" "modify bucket" "Properties or settings of a bucket were changed" ON ALWAYS,
    BucketDeleted 8203 "ns_server" "delete bucket" "A bucket was deleted" ON ALWAYS,
    BucketFlushed 8204 "ns_server" "flush bucket" "All documents of a bucket were removed" ON ALWAYS,
    AutoFailoverEnabled 8220 "ns_server" "enable auto failover" "Automatic failover was switched on" ON ALWAYS,
    AutoFailoverDisabled 8221 "ns_server" "disable auto failover" "Automatic failover was switched off" ON ALWAYS,
    UserSet 8232 "ns_server" "set user" "A user was made or changed" ON ALWAYS,
    PolicyChanged 8235 "ns_server" "password policy" "What new passwords must have was changed" ON ALWAYS,
    CertificatesConfigured 8236 "ns_server" "client cert auth" "Whether and how clients log in by certificates was changed" ON ALWAYS,
    SecurityConfigured 8237 "ns_server" "security settings" "Settings of security were changed" ON ALWAYS,
    AuditConfigured 8240 "ns_server" "configured audit daemon" "The settings of the audit log were changed" ON ALWAYS,
    GroupSet 8244 "ns_server" "set user group" "A group of users was made or changed" ON ALWAYS,
    GroupDeleted 8245 "ns_server" "delete user group" "A group of users was deleted" ON ALWAYS,
    ScopeCreated 8259 "ns_server" "create scope" "A scope was made" ON ALWAYS,
    ScopeDropped 8260 "ns_server" "drop scope" "A scope was dropped" ON ALWAYS,
    CollectionCreated 8261 "ns_server" "create collection" "A collection was made" ON ALWAYS,
    CollectionDropped 8262 "ns_server" "drop collection" "A collection was dropped" ON ALWAYS,
    ManifestSet 8263 "ns_server" "set manifest" "All scopes and collections of a bucket were replaced" ON ALWAYS,
    WebLoginFailed 8264 "ns_server" "authentication failure" "User or password of an HTTP request is wrong" ON ALWAYS,
    CollectionModified 8270 "ns_server" "modify collection" "A collection was changed" ON ALWAYS,
    WebForbidden 8275 "ns_server" "access forbidden" "An HTTP request lacks a privilege" ON ALWAYS,
    DcpOpened 20480 "memcached" "opened DCP connection" "A connection for streams was opened" ON FILTERABLE,
    LoginFailed 20481 "memcached" "authentication failed" "A client could not log in" ON ALWAYS,
    InvalidPacket 20483 "memcached" "invalid packet" "A request is malformed" ON FILTERABLE,
    CommandForbidden 20484 "memcached" "command access failure" "A command lacks a privilege" ON ALWAYS,
    LoginSucceeded 20485 "memcached" "authentication succeeded" "A client logged in" OFF FILTERABLE,
    PrivilegeDebugConfigured 20486 "memcached" "privilege debug configured" "The node lets requests through that lack a privilege" ON ALWAYS,
    PrivilegeDebug 20487 "memcached" "privilege debug" "A command that lacks a privilege was let through" ON ALWAYS,
    DocumentRead 20488 "memcached" "document read" "A document was read" OFF FILTERABLE,
    DocumentLocked 20489 "memcached" "document locked" "A document was read and locked" OFF FILTERABLE,
    DocumentModified 20490 "memcached" "document modify" "A document was written" OFF FILTERABLE,
    DocumentDeleted 20491 "memcached" "document delete" "A document was deleted" OFF FILTERABLE,
    BucketSelected 20492 "memcached" "select bucket" "A client selected a bucket" ON FILTERABLE,
    SessionEnded 20493 "memcached" "session terminated" "The connection of a user was closed" OFF FILTERABLE,
    RebalanceStopped 61440 "stave" "stop rebalance" "A rebalance was told to stop" ON ALWAYS,
    StateAdopted 61441 "stave" "adopt state" "An older state of the cluster was accepted" ON ALWAYS,
    DamageGivenUp 61442 "stave" "give up damaged copies" "Damaged copies were given up" ON ALWAYS,
    ReplicationDeclared 61443 "stave" "declare replication" "What vBuckets of a bucket follow was changed" ON ALWAYS,
    VbucketChanged 61444 "stave" "change vbucket" "State, existence or file of a vBucket was changed by a client" ON ALWAYS,
    ConfigurationReloaded 61445 "stave" "reload configuration" "The configuration file was read again" ON ALWAYS,
    TrafficSwitched 61446 "stave" "switch traffic" "Clients were kept from a bucket's documents, or let in again" ON ALWAYS,
    KeysRead 61447 "stave" "read keys" "Keys or documents were read without naming them: a scan, keys in order, a random one" OFF FILTERABLE,
    LogLevelsChanged 61448 "stave" "change log levels" "How much a node logs was changed" ON ALWAYS,
    EncryptionKeysRotated 61449 "stave" "rotate encryption keys" "New files are encrypted with new keys" ON ALWAYS,
    NodeSecretRotated 61450 "stave" "rotate node secret" "The nodes of the cluster log in with a new secret" ON ALWAYS,
    CertificatesRead 61451 "stave" "read certificates" "Certificate and key were read again because it was asked for" ON ALWAYS,
    UsersBackedUp 61452 "stave" "read users" "Users and groups were read with what checks their passwords" ON ALWAYS,
    PersistenceSwitched 61453 "stave" "switch persistence" "Changes of a bucket were kept from its files, or written to them again" ON ALWAYS,
    SnapshotUsed 61454 "stave" "snapshot" "Changes of a bucket were held, or a snapshot was taken or ended" ON FILTERABLE,
    FiguresReset 61455 "stave" "reset figures" "Figures of a bucket count from 0 again" ON ALWAYS,
    AlternateSet 61456 "stave" "set alternate address" "Clients of another network are told to connect to another address" ON ALWAYS,
    AlternateRemoved 61457 "stave" "remove alternate address" "Clients of another network are told no address of their own" ON ALWAYS,
    SlowLimitsChanged 61458 "stave" "change slow operations" "From which time on commands are logged as slow operations was changed" ON ALWAYS,
}

impl AuditEvent {
    /// Its row.
    pub fn row(self) -> &'static AuditRow {
        &AUDIT_EVENTS[self as usize]
    }

    /// Its bit in a set of events.
    pub(crate) fn bit(self) -> u64 {
        1 << self as u32
    }
}

/// The event with this number that can be switched on and off.
pub(crate) fn filterable(id: u32) -> Option<&'static AuditRow> {
    AUDIT_EVENTS.iter().find(|row| row.id == id && row.is_filterable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_each_there_once_within_their_module_and_fit_a_set() {
        assert!(AUDIT_EVENTS.len() <= u64::BITS as usize);
        for pair in AUDIT_EVENTS.windows(2) {
            assert!(pair[0].id < pair[1].id, "{}", pair[1].id);
        }
        for row in AUDIT_EVENTS {
            let first = match row.module {
                "auditd" => 0x1000,
                "ns_server" => 0x2000,
                "memcached" => 0x5000,
                _ => 0xf000,
            };
            assert!((first..first + 0x1000).contains(&row.id), "{}", row.id);
            assert!(row.is_on || row.is_filterable, "{} could never be recorded", row.id);
        }
    }
}
