//! What a stored value is made of (BinaryProtocol.md, Data Types).

/// Bits that describe a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Datatype(pub u8);

impl Datatype {
    /// No bit set: opaque bytes.
    pub const RAW: Datatype = Datatype(0);
    /// The body is valid JSON.
    pub const JSON: Datatype = Datatype(1);
    /// The whole value is one raw Snappy block.
    pub const SNAPPY: Datatype = Datatype(2);
    /// The value starts with an xattr section.
    pub const XATTR: Datatype = Datatype(4);
    const ALL: u8 = 7;

    /// The datatype with these wire bits, or nothing if an unknown bit is set.
    pub fn from_wire(bits: u8) -> Option<Datatype> {
        (bits & !Self::ALL == 0).then_some(Datatype(bits))
    }

    /// Whether every bit of `other` is set.
    pub fn contains(self, other: Datatype) -> bool {
        self.0 & other.0 == other.0
    }

    /// This with the bits of `other` set.
    pub fn with(self, other: Datatype) -> Datatype {
        Datatype(self.0 | other.0)
    }

    /// This with the bits of `other` cleared.
    pub fn without(self, other: Datatype) -> Datatype {
        Datatype(self.0 & !other.0)
    }

    /// Whether the body is JSON.
    pub fn is_json(self) -> bool {
        self.contains(Self::JSON)
    }

    /// Whether the value is compressed.
    pub fn is_snappy(self) -> bool {
        self.contains(Self::SNAPPY)
    }

    /// Whether the value starts with xattrs.
    pub fn is_xattr(self) -> bool {
        self.contains(Self::XATTR)
    }
}
