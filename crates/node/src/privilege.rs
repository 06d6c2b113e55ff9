//! What a user may do.

macro_rules! privileges {
    ($($variant:ident $text:literal,)*) => {
        /// One thing that a user may be allowed to do.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Privilege {
            $(#[doc = $text] $variant,)*
        }

        impl Privilege {
            /// All of them.
            pub const ALL: &'static [Privilege] = &[$(Privilege::$variant,)*];

            /// Its name, as clients write it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Privilege::$variant => stringify!($variant),)*
                }
            }
        }
    };
}

privileges! {
    Read "Read documents.",
    Insert "Make new documents.",
    Upsert "Change documents.",
    Delete "Delete documents.",
    RangeScan "Read ranges of documents.",
    MetaRead "Read the metadata of documents.",
    MetaWrite "Write documents with their metadata.",
    SystemXattrRead "Read system attributes.",
    SystemXattrWrite "Change system attributes.",
    SystemCollectionLookup "Read collections that belong to the system.",
    SystemCollectionMutation "Change collections that belong to the system.",
    SimpleStats "Read counters of a bucket.",
    Stats "Read all counters.",
    Settings "Change what belongs to a bucket: settings, checkpoints, files.",
    DcpProducer "Open a connection that streams the changes of a bucket to the client.",
    DcpConsumer "Open a connection that streams changes of the client into a bucket.",
    DcpStream "Stream the changes of a collection.",
    NodeSupervisor "Look at and change what belongs to the node and is shared by its buckets.",
    Administrator "Change what belongs to the cluster by the key-value protocol.",
    SystemSettings "Change what belongs to the cluster: nodes, buckets, settings that they share.",
    Audit "Write to the audit log.",
    IdleConnection "Keep connections that are idle.",
    Unthrottled "Send requests that no limit delays.",
    Unmetered "Send requests that are not counted against a budget.",
    Impersonate "Act for another user.",
    SelectBucket "Select any bucket.",
    CollectionManagement "Make and drop scopes and collections over HTTP.",
    SecurityRead "Look at users and groups over HTTP.",
    SecurityManagement "Change users and groups over HTTP.",
    StatsExport "Read the figures of the node for monitors over HTTP.",
}

/// How many of them, from the first, are names of the key-value protocol; the others are for HTTP.
const OF_PROTOCOL: usize = 26;

impl Privilege {
    /// The privilege of the key-value protocol with this name, if there is one.
    pub fn from_name(name: &[u8]) -> Option<Privilege> {
        Privilege::ALL[..OF_PROTOCOL].iter().copied().find(|privilege| privilege.name().as_bytes() == name)
    }
}

/// A set of privileges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Privileges(u32);

impl Privileges {
    /// None.
    pub const NONE: Privileges = Privileges(0);

    /// Exactly these.
    pub const fn of(privileges: &[Privilege]) -> Privileges {
        let (mut bits, mut at) = (0, 0);
        while at < privileges.len() {
            bits |= 1 << privileges[at] as u8;
            at += 1;
        }
        Privileges(bits)
    }

    /// Those that a role can give in a single collection: who has none of them in a collection does not see it.
    pub const OF_COLLECTIONS: Privileges = {
        use Privilege::*;
        Privileges::of(&[
            Read,
            Insert,
            Upsert,
            Delete,
            RangeScan,
            MetaRead,
            MetaWrite,
            SystemXattrRead,
            SystemXattrWrite,
            SystemCollectionLookup,
            SystemCollectionMutation,
            SimpleStats,
            Stats,
            Settings,
            DcpStream,
            CollectionManagement,
        ])
    };

    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those of both.
    pub const fn or(self, other: Privileges) -> Privileges {
        Privileges(self.0 | other.0)
    }

    /// Those that both have.
    pub const fn and(self, other: Privileges) -> Privileges {
        Privileges(self.0 & other.0)
    }

    /// Them without those of `other`.
    pub const fn less(self, other: Privileges) -> Privileges {
        Privileges(self.0 & !other.0)
    }

    /// All of them.
    pub fn all() -> Privileges {
        Privileges::of(Privilege::ALL)
    }

    /// Whether `privilege` is among them.
    pub fn has(self, privilege: Privilege) -> bool {
        self.0 & (1 << privilege as u8) != 0
    }

    /// Them without `privilege`.
    pub fn without(self, privilege: Privilege) -> Privileges {
        Privileges(self.0 & !(1 << privilege as u8))
    }

    /// Them with `privilege`.
    pub const fn with(self, privilege: Privilege) -> Privileges {
        Privileges(self.0 | (1 << privilege as u8))
    }

    /// The first of them that `granted` lacks.
    pub fn missing_in(self, granted: Privileges) -> Option<Privilege> {
        if self.less(granted).is_empty() {
            return None;
        }
        self.iter().find(|privilege| !granted.has(*privilege))
    }

    /// Each of them.
    pub fn iter(self) -> impl Iterator<Item = Privilege> {
        Privilege::ALL.iter().copied().filter(move |privilege| self.has(*privilege))
    }
}
