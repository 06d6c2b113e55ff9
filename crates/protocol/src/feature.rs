//! What client and server agree on in HELLO (BinaryProtocol.md, Hello).

macro_rules! features {
    ($($code:literal $variant:ident $text:literal,)*) => {
        /// Something that a client may ask for in HELLO.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Feature {
            $(#[doc = $text] $variant = $code,)*
        }

        impl Feature {
            /// Every feature there is, by number.
            pub const ALL: &'static [Feature] = &[$(Feature::$variant,)*];

            /// The feature with this wire number, if there is one.
            pub const fn from_code(code: u16) -> Option<Feature> {
                match code {
                    $($code => Some(Feature::$variant),)*
                    _ => None,
                }
            }

            /// Its name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Feature::$variant => stringify!($variant),)*
                }
            }
        }
    };
}

features! {
    0x0001 Datatype "The invalid first attempt at datatypes; never granted.",
    0x0002 Tls "Ignored; never granted.",
    0x0003 TcpNoDelay "Send small packets at once.",
    0x0004 MutationSeqno "Answers to changes carry vBucket uuid and seqno.",
    0x0005 TcpDelay "The opposite of `TcpNoDelay`.",
    0x0006 Xattr "Extended attributes.",
    0x0007 Xerror "Any status may be returned.",
    0x0008 SelectBucket "The client will select a bucket.",
    0x000a Snappy "Values may be compressed.",
    0x000b Json "Values may be marked as JSON.",
    0x000c Duplex "The server may send requests.",
    0x000d ClustermapChangeNotification "The server sends each new cluster map.",
    0x000e UnorderedExecution "Answers may come in another order than the requests.",
    0x000f Tracing "Answers carry the time the server took.",
    0x0010 AltRequestSupport "Framing extras in requests.",
    0x0011 SyncReplication "Durability requirements.",
    0x0012 Collections "Keys carry a collection.",
    0x0013 SnappyEverywhere "Any answer may be compressed.",
    0x0014 PreserveTtl "The framing extra that keeps the expiry time.",
    0x0015 Vattr "Virtual attributes.",
    0x0016 PointInTimeRecovery "Retired.",
    0x0017 SubdocCreateAsDeleted "Documents may be created as tombstones.",
    0x0018 SubdocDocumentMacroSupport "Macros of `$document`.",
    0x0019 SubdocReplaceBodyWithXattr "The sub-document command of that name.",
    0x001a ReportUnitUsage "Answers carry read and write units.",
    0x001b NonBlockingThrottlingMode "Throttled requests are refused instead of delayed.",
    0x001c SubdocReplicaRead "Sub-document look-ups on replicas.",
    0x001d GetClusterConfigWithKnownVersion "The cluster map is sent only if it is newer.",
    0x001e DedupeNotMyVbucketClustermap "A cluster map is not sent twice.",
    0x001f ClustermapChangeNotificationBrief "The server sends the number of each new cluster map.",
    0x0020 SubdocAllowsAccessOnMultipleXattrKeys "Several user attributes in one request.",
    0x0021 SubdocBinaryXattr "Attributes with binary values.",
    0x0022 RangeScanIncludeXattr "Range scans with attributes.",
    0x0024 GetRandomKeyIncludeXattr "A document chosen by chance with attributes.",
    0x0025 MutateWithMeta "The command of that name.",
    0x0026 DcpSkipDeletesInInitialBackfill "Streams that begin with what is on disk, without deletions.",
}

impl Feature {
    /// Its number on the wire.
    pub const fn code(self) -> u16 {
        self as u16
    }
}

/// A set of features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(u64);

impl Features {
    /// No feature.
    pub const NONE: Features = Features(0);

    /// Exactly these features.
    #[allow(clippy::indexing_slicing, reason = "below the length; a constant function has no other loop")]
    pub const fn of(features: &[Feature]) -> Features {
        let mut bits = 0;
        let mut at = 0;
        while at < features.len() {
            bits |= 1 << features[at] as u16;
            at += 1;
        }
        Features(bits)
    }

    /// Whether `feature` is among them.
    pub const fn has(self, feature: Feature) -> bool {
        self.0 & (1 << feature as u16) != 0
    }

    /// Adds one.
    pub fn insert(&mut self, feature: Feature) {
        self.0 |= 1 << feature as u16;
    }

    /// Takes one away.
    pub fn remove(&mut self, feature: Feature) {
        self.0 &= !(1 << feature as u16);
    }

    /// Those that are in both.
    pub const fn and(self, other: Features) -> Features {
        Features(self.0 & other.0)
    }

    /// Them, by ascending number.
    pub fn iter(self) -> impl Iterator<Item = Feature> {
        Feature::ALL.iter().copied().filter(move |feature| self.has(*feature))
    }

    /// The value of a HELLO request or answer.
    pub fn encode(self) -> Vec<u8> {
        self.iter().flat_map(|feature| feature.code().to_be_bytes()).collect()
    }

    /// Decodes the value of a HELLO; unknown numbers are left out. Nothing if its length is odd.
    pub fn decode(value: &[u8]) -> Option<Features> {
        let (codes, rest) = value.as_chunks::<2>();
        if !rest.is_empty() {
            return None;
        }
        let mut features = Features::NONE;
        for feature in codes.iter().filter_map(|code| Feature::from_code(u16::from_be_bytes(*code))) {
            features.insert(feature);
        }
        Some(features)
    }
}
