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
    Settings "Change settings of a bucket.",
    NodeSupervisor "Look at and change what belongs to the node.",
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
    pub fn of(privileges: &[Privilege]) -> Privileges {
        Privileges(privileges.iter().fold(0, |bits, privilege| bits | (1 << *privilege as u8)))
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
    pub fn with(self, privilege: Privilege) -> Privileges {
        Privileges(self.0 | (1 << privilege as u8))
    }
}
