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
    MetaRead "Read the metadata of documents.",
    MetaWrite "Write documents with their metadata.",
    SystemXattrRead "Read system attributes.",
    SystemXattrWrite "Change system attributes.",
    SimpleStats "Read counters of a bucket.",
    Stats "Read all counters.",
    Settings "Change what belongs to a bucket: settings, collections, checkpoints, files.",
    NodeSupervisor "Look at and change what belongs to the node and is shared by its buckets.",
    Administrator "Change what belongs to the cluster.",
    Impersonate "Act for another user.",
    DcpProducer "Stream changes.",
    SelectBucket "Select any bucket.",
}

impl Privilege {
    /// The privilege with this name, if there is one.
    pub fn from_name(name: &[u8]) -> Option<Privilege> {
        Privilege::ALL.iter().copied().find(|privilege| privilege.name().as_bytes() == name)
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
        self.iter().find(|privilege| !granted.has(*privilege))
    }

    /// Each of them.
    pub fn iter(self) -> impl Iterator<Item = Privilege> {
        Privilege::ALL.iter().copied().filter(move |privilege| self.has(*privilege))
    }
}
