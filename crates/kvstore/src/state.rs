//! The state of a vBucket as the JSON local document `_local/vbstate`, as the original writes it.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Seqno, VbState};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// Name of the local document.
pub(crate) const STATE_ID: &[u8] = b"_local/vbstate";

/// State of a vBucket. Fields are in the order in which they are written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VbStateDoc {
    /// What kind of snapshot the last save belongs to.
    pub checkpoint_type: CheckpointType,
    /// Highest seqno of a prepare that was committed or aborted.
    #[serde(with = "decimal")]
    pub completed_seqno: u64,
    /// Histories of the vBucket, newest first.
    pub failover_table: Vec<FailoverEntry>,
    /// Highest seqno of a prepare on disk, all before it being on disk too.
    #[serde(with = "decimal")]
    pub high_prepared_seqno: u64,
    /// From here on no save lacks a version that a later one replaced, if the store keeps a history of changes. Not among
    /// the original's fields, and absent while it is 0: then any may be missing.
    #[serde(with = "decimal", skip_serializing_if = "is_zero")]
    pub history_from: u64,
    /// First seqno whose CAS is a hybrid logical clock's.
    #[serde(with = "decimal")]
    pub hlc_epoch: i64,
    /// Highest CAS given out.
    #[serde(with = "decimal")]
    pub max_cas: u64,
    /// Highest revision seqno of a deleted document: revisions of re-created documents start above it.
    #[serde(with = "decimal")]
    pub max_deleted_seqno: u64,
    /// Highest seqno of something a client may see: no prepare, no abort.
    #[serde(with = "decimal")]
    pub max_visible_seqno: u64,
    /// Whether a document with xattrs was ever stored.
    pub might_contain_xattrs: bool,
    /// Whether keys have collection prefixes.
    pub namespaces_supported: bool,
    /// Bytes of prepares on disk.
    #[serde(with = "decimal")]
    pub on_disk_prepare_bytes: u64,
    /// Prepares on disk.
    #[serde(with = "decimal")]
    pub on_disk_prepares: u64,
    /// Highest seqno of a prepare.
    #[serde(with = "decimal")]
    pub prepared_seqno: u64,
    /// Tombstones up to here may be missing although this file was not compacted: a replica was not sent them. Not
    /// among the original's fields, and absent while it is 0.
    #[serde(with = "decimal", skip_serializing_if = "is_zero")]
    pub purge_seqno: u64,
    /// Replication chains, as the cluster set them.
    #[serde(with = "shared", skip_serializing_if = "Option::is_none")]
    pub replication_topology: Option<Arc<Value>>,
    /// End of the snapshot that the last save belongs to.
    #[serde(with = "decimal")]
    pub snap_end: u64,
    /// Start of the snapshot that the last save belongs to.
    #[serde(with = "decimal")]
    pub snap_start: u64,
    /// What the node does for the vBucket.
    #[serde(serialize_with = "state_to_name", deserialize_with = "state_from_name")]
    pub state: VbState,
    /// Version of this document.
    pub version: u32,
    /// Fields that are not known here, kept as they are.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// What kind of snapshot was received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckpointType {
    /// Written by clients, or received as a memory snapshot.
    #[default]
    Memory,
    /// Received as a disk snapshot.
    Disk,
    /// Received as the first disk snapshot, into an empty vBucket.
    InitialDisk,
}

/// One history of a vBucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailoverEntry {
    /// The history's UUID.
    pub id: u64,
    /// Seqno at which it began.
    pub seq: u64,
}

impl Default for VbStateDoc {
    fn default() -> Self {
        VbStateDoc {
            checkpoint_type: CheckpointType::Memory,
            completed_seqno: 0,
            failover_table: Vec::new(),
            high_prepared_seqno: 0,
            history_from: 0,
            hlc_epoch: 0,
            max_cas: 0,
            max_deleted_seqno: 0,
            max_visible_seqno: 0,
            might_contain_xattrs: false,
            namespaces_supported: true,
            on_disk_prepare_bytes: 0,
            on_disk_prepares: 0,
            prepared_seqno: 0,
            purge_seqno: 0,
            replication_topology: None,
            snap_end: 0,
            snap_start: 0,
            state: VbState::Dead,
            version: 4,
            other: BTreeMap::new(),
        }
    }
}

impl VbStateDoc {
    pub(crate) fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers, names and values always have a JSON form")
    }

    pub(crate) fn from_json(json: &[u8]) -> Result<VbStateDoc, serde_json::Error> {
        serde_json::from_slice(json)
    }
}

impl VbStateDoc {
    /// Where the snapshot begins in whose middle a replica with this high seqno was saved; nothing if it had all of it.
    pub fn unfinished_at(&self, high: Seqno) -> Option<Seqno> {
        let is_inside = self.state != VbState::Active && self.snap_start < high.0 && high.0 < self.snap_end;
        is_inside.then_some(Seqno(self.snap_start))
    }

    /// Whether at most numbers differ: those that `StateNumbers` carries.
    pub fn same_structure(&self, other: &VbStateDoc) -> bool {
        self.state == other.state
            && self.version == other.version
            && self.namespaces_supported == other.namespaces_supported
            && self.failover_table == other.failover_table
            && self.history_from == other.history_from
            && self.purge_seqno == other.purge_seqno
            && self.replication_topology == other.replication_topology
            && self.other == other.other
    }
}

/// What changes in a state document with nearly every save; the rest is its structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateNumbers {
    checkpoint_type: CheckpointType,
    might_contain_xattrs: bool,
    /// In the order of [`VbStateDoc`]; the signed one as its bits.
    numbers: [u64; 11],
}

/// The numbers of a document in the order in which they are journaled: a list to read, or to assign to.
macro_rules! numbers_of {
    ($doc:expr, $hlc_epoch:expr) => {
        [
            $doc.completed_seqno,
            $doc.high_prepared_seqno,
            $hlc_epoch,
            $doc.max_cas,
            $doc.max_deleted_seqno,
            $doc.max_visible_seqno,
            $doc.on_disk_prepare_bytes,
            $doc.on_disk_prepares,
            $doc.prepared_seqno,
            $doc.snap_end,
            $doc.snap_start,
        ]
    };
}

impl StateNumbers {
    /// Bytes of the encoded form.
    pub(crate) const BYTES: usize = 2 + 11 * 8;

    /// The numbers of a document.
    pub fn of(doc: &VbStateDoc) -> StateNumbers {
        StateNumbers {
            checkpoint_type: doc.checkpoint_type,
            might_contain_xattrs: doc.might_contain_xattrs,
            numbers: numbers_of!(doc, doc.hlc_epoch.cast_unsigned()),
        }
    }

    /// Makes the document's numbers these.
    pub fn apply(&self, doc: &mut VbStateDoc) {
        doc.checkpoint_type = self.checkpoint_type;
        doc.might_contain_xattrs = self.might_contain_xattrs;
        let hlc_epoch;
        numbers_of!(doc, hlc_epoch) = self.numbers;
        doc.hlc_epoch = u64::cast_signed(hlc_epoch);
    }

    /// The two bytes before the numbers.
    fn head(&self) -> [u8; 2] {
        let checkpoint_type = match self.checkpoint_type {
            CheckpointType::Memory => 0,
            CheckpointType::Disk => 1,
            CheckpointType::InitialDisk => 2,
        };
        [checkpoint_type, self.might_contain_xattrs.into()]
    }

    /// Nothing if the bytes are not what [`StateNumbers::head`] makes.
    fn parse_head(head: [u8; 2]) -> Option<(CheckpointType, bool)> {
        let checkpoint_type = match head[0] {
            0 => CheckpointType::Memory,
            1 => CheckpointType::Disk,
            2 => CheckpointType::InitialDisk,
            _ => return None,
        };
        (head[1] <= 1).then_some((checkpoint_type, head[1] == 1))
    }

    /// Bytes of [`StateNumbers::encode_sparse`] if all numbers are 0.
    pub(crate) const LEAST_SPARSE_BYTES: usize = 2 + 2;

    /// Appends two bytes, a bit for each number that is not 0, lowest bit first, and these numbers, little-endian.
    pub(crate) fn encode_sparse(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.head());
        let bits = self.numbers.iter().enumerate().map(|(i, number)| u16::from(*number != 0) << i);
        out.extend_from_slice(&bits.sum::<u16>().to_le_bytes());
        self.numbers.iter().filter(|number| **number != 0).for_each(|number| {
            out.extend_from_slice(&number.to_le_bytes());
        });
    }

    /// The numbers at the front of some bytes, and what follows them; `None` if they are not what
    /// [`StateNumbers::encode_sparse`] writes.
    pub(crate) fn decode_sparse(bytes: &[u8]) -> Option<(StateNumbers, &[u8])> {
        let (head, rest) = bytes.split_first_chunk::<2>()?;
        let (bits, mut rest) = rest.split_first_chunk::<2>()?;
        let bits = u16::from_le_bytes(*bits);
        let (checkpoint_type, might_contain_xattrs) = Self::parse_head(*head)?;
        let mut numbers = [0; 11];
        if bits >> numbers.len() != 0 {
            return None;
        }
        for (_, number) in numbers.iter_mut().enumerate().filter(|(i, _)| bits >> i & 1 == 1) {
            let (bytes, behind) = rest.split_first_chunk::<8>()?;
            *number = u64::from_le_bytes(*bytes);
            rest = behind;
        }
        Some((StateNumbers { checkpoint_type, might_contain_xattrs, numbers }, rest))
    }

    /// Two bytes, then the numbers, little-endian.
    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..2].copy_from_slice(&self.head());
        for (place, number) in out[2..].chunks_exact_mut(8).zip(self.numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        out
    }

    /// Nothing if the bytes are not what [`StateNumbers::encode`] writes.
    pub(crate) fn decode(bytes: &[u8]) -> Option<StateNumbers> {
        let (head, rest) = bytes.split_first_chunk::<2>()?;
        let (places, left) = rest.as_chunks::<8>();
        let (checkpoint_type, might_contain_xattrs) = Self::parse_head(*head)?;
        if places.len() != 11 || !left.is_empty() {
            return None;
        }
        let mut numbers = [0; 11];
        for (number, place) in numbers.iter_mut().zip(places) {
            *number = u64::from_le_bytes(*place);
        }
        Some(StateNumbers { checkpoint_type, might_contain_xattrs, numbers })
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn state_to_name<S: Serializer>(state: &VbState, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(state.name())
}

fn state_from_name<'de, D: Deserializer<'de>>(d: D) -> Result<VbState, D::Error> {
    let name = String::deserialize(d)?;
    VbState::from_name(&name).ok_or_else(|| serde::de::Error::custom("unknown vBucket state"))
}

/// What many documents share is written as if each had its own.
mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use serde_json::Value;

    pub(super) fn serialize<S: Serializer>(value: &Option<Arc<Value>>, s: S) -> Result<S::Ok, S::Error> {
        value.as_deref().serialize(s)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Arc<Value>>, D::Error> {
        Ok(Option::<Value>::deserialize(d)?.map(Arc::new))
    }
}

/// 64-bit numbers are strings of digits in this document.
mod decimal {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<T: Display, S: Serializer>(n: &T, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(n)
    }

    pub(super) fn deserialize<'de, T: FromStr, D: Deserializer<'de>>(d: D) -> Result<T, D::Error> {
        let digits = String::deserialize(d)?;
        digits.parse().map_err(|_| serde::de::Error::custom("a number in quotes was expected"))
    }
}
