//! Blocks: runs of versions of one vBucket in the order of their seqnos, compressed together, under one checksum.

use std::ops::Range;

use base::encryption::Sealer;
use base::{Datatype, DocKey, VbId};
use serde::{Deserialize, Serialize};

use crate::with_meta::Record;

/// What a block begins with.
const MAGIC: u32 = u32::from_be_bytes(*b"SBK1");
/// The version that stands at the end of that.
pub(crate) const FORMAT: base::FormatVersions = base::FormatVersions::since(1, 1);
/// Bytes before a block's body.
pub(super) const HEADER_BYTES: usize = 48;
/// A block holds one version at least, which has a document of 20 MiB, its attributes and its key at most.
pub(in crate::backup) const MAX_RAW_BYTES: u32 = 64 << 20;
/// Bytes of a version before key and value.
const FIXED_BYTES: usize = 40;
const RAW: u8 = 0;
const SNAPPY: u8 = 1;
/// Added to the form of a body that is encrypted after it was compressed.
pub(in crate::backup) const SEALED: u8 = 2;
/// What is encrypted as the body of a block is bound to this, and to the block's header.
const BLOCK_LABEL: &[u8] = b"stave backup block";

/// A document or tombstone as it was after one change.
pub(crate) struct Version<'a> {
    /// Its place in its vBucket.
    pub(crate) seqno: u64,
    /// What it is.
    pub(crate) record: Record<'a>,
}

impl Version<'_> {
    /// Its key with the prefix of its collection.
    pub(crate) fn stored_key(&self) -> Box<[u8]> {
        let key = self.record.key;
        let (prefix, len) = key.prefix();
        [&prefix[..len], key.key].concat().into()
    }
}

/// Where a block is: file, offset, bytes, versions, first and last seqno.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BlockPlace(pub u32, pub u64, pub u32, pub u32, pub u64, pub u64);

impl BlockPlace {
    /// Bytes with the header.
    pub(super) fn len(&self) -> usize {
        self.2 as usize
    }

    /// Which bytes of its file it is.
    pub(super) fn range(&self) -> Range<u64> {
        self.1..self.1 + u64::from(self.2)
    }
}

/// Versions that will be a block.
#[derive(Default)]
pub(super) struct BlockBuilder {
    raw: Vec<u8>,
    count: u32,
    first: u64,
    last: u64,
}

impl BlockBuilder {
    /// Appends a version, whose seqno is behind all that are there.
    pub(super) fn push(&mut self, version: &Version<'_>) {
        write_version(&mut self.raw, version);
        if self.count == 0 {
            self.first = version.seqno;
        }
        self.last = version.seqno;
        self.count += 1;
    }

    /// Bytes before compression.
    pub(super) fn len(&self) -> usize {
        self.raw.len()
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// First and last seqno.
    pub(super) fn seqnos(&self) -> (u64, u64) {
        (self.first, self.last)
    }

    /// Appends the block to `out`, encrypted if there is a sealer, and is empty afterwards. `backup` is the number of the
    /// backup that it belongs to.
    pub(super) fn seal(
        &mut self,
        backup: u64,
        vb: VbId,
        sealer: Option<&Sealer>,
        encoder: &mut snap::raw::Encoder,
        out: &mut Vec<u8>,
    ) {
        let begin = out.len();
        out.resize(begin + HEADER_BYTES + snap::raw::max_compress_len(self.raw.len()), 0);
        let compressed = encoder.compress(&self.raw, &mut out[begin + HEADER_BYTES..]);
        let form = match compressed {
            Ok(len) if len < self.raw.len() => {
                out.truncate(begin + HEADER_BYTES + len);
                SNAPPY
            }
            _ => {
                out.truncate(begin + HEADER_BYTES);
                out.extend_from_slice(&self.raw);
                RAW
            }
        };
        let mut header = Header {
            backup,
            vb,
            form,
            count: self.count,
            first: self.first,
            last: self.last,
            raw: self.raw.len() as u32,
            stored: 0,
        };
        if let Some(sealer) = sealer {
            header.form |= SEALED;
            let body = out.split_off(begin + HEADER_BYTES);
            sealer.seal(&header.bound(), &body, out);
        }
        header.stored = (out.len() - begin - HEADER_BYTES) as u32;
        header.write(&mut out[begin..]);
        self.raw.clear();
        self.count = 0;
    }
}

struct Header {
    backup: u64,
    vb: VbId,
    form: u8,
    count: u32,
    first: u64,
    last: u64,
    raw: u32,
    stored: u32,
}

impl Header {
    /// Fills the header in front of a body: everything but the checksum, which then covers it and the body.
    fn write(&self, block: &mut [u8]) {
        block[0..4].copy_from_slice(&MAGIC.to_be_bytes());
        block[4..12].copy_from_slice(&self.backup.to_be_bytes());
        block[12..14].copy_from_slice(&self.vb.0.to_be_bytes());
        block[14] = self.form;
        block[15] = 0;
        block[16..20].copy_from_slice(&self.count.to_be_bytes());
        block[20..28].copy_from_slice(&self.first.to_be_bytes());
        block[28..36].copy_from_slice(&self.last.to_be_bytes());
        block[36..40].copy_from_slice(&self.raw.to_be_bytes());
        block[40..44].copy_from_slice(&self.stored.to_be_bytes());
        let checksum = checksum(block);
        block[44..48].copy_from_slice(&checksum.to_be_bytes());
    }

    /// What the encrypted body is bound to: all that is not of its stored form.
    fn bound(&self) -> Vec<u8> {
        let mut head = [0; HEADER_BYTES];
        Header { stored: 0, ..*self }.write(&mut head);
        [BLOCK_LABEL, &head[..HEADER_BYTES - 4]].concat()
    }

    fn read(block: &[u8]) -> Option<Header> {
        let mut reader = protocol::reader::Reader(block);
        if reader.u32()? != MAGIC {
            return None;
        }
        let (backup, vb) = (reader.u64()?, VbId(reader.u16()?));
        let [form, _] = reader.u16()?.to_be_bytes();
        Some(Header {
            backup,
            vb,
            form,
            count: reader.u32()?,
            first: reader.u64()?,
            last: reader.u64()?,
            raw: reader.u32()?,
            stored: reader.u32()?,
        })
    }
}

/// CRC-32C over all of a block but the checksum itself.
fn checksum(block: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&block[..HEADER_BYTES - 4]), &block[HEADER_BYTES..])
}

/// A block's versions.
#[derive(Default)]
pub(super) struct OpenBlock {
    raw: Vec<u8>,
    /// Where each version begins.
    begins: Vec<u32>,
}

impl OpenBlock {
    /// Reads a block, which must be the one that is expected. The error says what is wrong.
    pub(super) fn open(
        &mut self,
        block: &[u8],
        backup: u64,
        vb: VbId,
        place: &BlockPlace,
        sealer: Option<&Sealer>,
    ) -> Result<(), String> {
        let header = Header::read(block).ok_or("it does not begin like a block")?;
        if block.len() != HEADER_BYTES + header.stored as usize {
            return Err("a block has another length".to_owned());
        }
        if checksum(block).to_be_bytes() != block[HEADER_BYTES - 4..HEADER_BYTES] {
            return Err("the checksum of a block is wrong".to_owned());
        }
        let BlockPlace(_, _, _, count, first, last) = *place;
        if (header.backup, header.vb) != (backup, vb)
            || (header.count, header.first, header.last) != (count, first, last)
        {
            return Err(format!("a block of vBucket {vb} is another one"));
        }
        if header.raw > MAX_RAW_BYTES {
            return Err(format!("a block of {} bytes is longer than any", header.raw));
        }
        let opened = match sealer {
            None if header.form & SEALED == 0 => None,
            // Who has no key could have put it there.
            Some(_) if header.form & SEALED == 0 => {
                return Err("a block of an encrypted backup is not encrypted".to_owned());
            }
            None => return Err("a block is encrypted, and its folder has no encryption-keys".to_owned()),
            Some(sealer) => {
                let opened = sealer.open(&header.bound(), &block[HEADER_BYTES..]);
                Some(opened.map_err(|fault| format!("a block cannot be decrypted: {fault}"))?)
            }
        };
        let body = opened.as_deref().unwrap_or(&block[HEADER_BYTES..]);
        self.raw.clear();
        match header.form & !SEALED {
            RAW => self.raw.extend_from_slice(body),
            SNAPPY => {
                self.raw.resize(header.raw as usize, 0);
                let inflated = snap::raw::Decoder::new().decompress(body, &mut self.raw);
                let len = inflated.map_err(|error| format!("a block cannot be inflated: {error}"))?;
                self.raw.truncate(len);
            }
            _ => {
                let form = header.form;
                return Err(format!("a block has the form {form}, which a newer version may know"));
            }
        }
        if self.raw.len() != header.raw as usize {
            return Err("a block has another length when it is inflated".to_owned());
        }
        self.find(&header)
    }

    /// Finds where versions begin, and that each is what the header says.
    fn find(&mut self, header: &Header) -> Result<(), String> {
        self.begins.clear();
        let (mut at, mut before) = (0, None);
        while at < self.raw.len() {
            let (version, len) = read_version(&self.raw[at..]).ok_or("a version cannot be read")?;
            if before.is_some_and(|before| before >= version.seqno) {
                return Err("versions are not in order".to_owned());
            }
            before = Some(version.seqno);
            self.begins.push(at as u32);
            at += len;
        }
        let first = self.get(0).map(|version| version.seqno);
        let is_whole = self.begins.len() == header.count as usize && first == Some(header.first);
        if is_whole && before == Some(header.last) {
            Ok(())
        } else {
            Err("a block holds other versions than it says".to_owned())
        }
    }

    /// How many versions there are.
    pub(super) fn len(&self) -> usize {
        self.begins.len()
    }

    /// One of them, counted from the first seqno on.
    pub(super) fn get(&self, at: usize) -> Option<Version<'_>> {
        let begin = *self.begins.get(at)? as usize;
        read_version(self.raw.get(begin..)?).map(|(version, _)| version)
    }
}

/// For fuzzers: any bytes as a block whose header fits them, so that its versions are read.
pub fn fuzz_block(bytes: &[u8]) {
    /// More than a body of a fuzzer makes sense of.
    const MOST_RAW_BYTES: u32 = 1 << 16;
    let mut block = bytes.to_vec();
    block.resize(bytes.len().max(HEADER_BYTES), 0);
    block[..4].copy_from_slice(&MAGIC.to_be_bytes());
    let header = Header::read(&block).expect("it begins like a block");
    let stored = (block.len() - HEADER_BYTES) as u32;
    let raw = if header.form == RAW { stored } else { header.raw % MOST_RAW_BYTES };
    let header = Header { raw, stored, ..header };
    header.write(&mut block);
    let place = BlockPlace(0, 0, block.len() as u32, header.count, header.first, header.last);
    let mut open = OpenBlock::default();
    if open.open(&block, header.backup, header.vb, &place, None).is_ok() {
        for at in 0..open.len() {
            let version = open.get(at).expect("all of them were found");
            let mut written = Vec::new();
            write_version(&mut written, &version);
            let (again, len) = read_version(&written).expect("what was written is read");
            assert_eq!((again.seqno, len), (version.seqno, written.len()));
        }
    }
}

/// Seeds of [`fuzz_block`].
pub fn block_seeds() -> Vec<Vec<u8>> {
    let mut raw = vec![0; HEADER_BYTES];
    // One version with the seqno 1, the key "k" of the default collection, and the value "{}".
    (raw[19], raw[27], raw[35]) = (1, 1, 1);
    raw.extend_from_slice(&[0, 1, 0, 0, 0, 0, 0, 0, 0, 1]);
    raw.extend_from_slice(&[0; 24]);
    raw.extend_from_slice(&[0, 2, 0, 0, 0, 2]);
    raw.extend_from_slice(b"\0k{}");
    vec![raw]
}

/// Appends a version.
pub(in crate::backup) fn write_version(raw: &mut Vec<u8>, version: &Version<'_>) {
    let Version { seqno, record } = version;
    let (prefix, prefix_len) = record.key.prefix();
    let kind = u8::from(record.deleted) + u8::from(record.deleted && record.expired);
    raw.extend_from_slice(&[kind, record.datatype.0]);
    for number in [*seqno, record.cas, record.rev_seqno] {
        raw.extend_from_slice(&number.to_be_bytes());
    }
    for number in [record.flags, record.expiry] {
        raw.extend_from_slice(&number.to_be_bytes());
    }
    let key_len = u16::try_from(prefix_len + record.key.key.len()).expect("keys are short");
    raw.extend_from_slice(&key_len.to_be_bytes());
    raw.extend_from_slice(&(record.value.len() as u32).to_be_bytes());
    raw.extend_from_slice(&prefix[..prefix_len]);
    raw.extend_from_slice(record.key.key);
    raw.extend_from_slice(record.value);
}

/// A version and the bytes that it takes.
pub(in crate::backup) fn read_version(bytes: &[u8]) -> Option<(Version<'_>, usize)> {
    let mut reader = protocol::reader::Reader(bytes);
    let [kind, datatype] = reader.u16()?.to_be_bytes();
    let (seqno, cas, rev_seqno) = (reader.u64()?, reader.u64()?, reader.u64()?);
    let (flags, expiry) = (reader.u32()?, reader.u32()?);
    let (key_len, value_len) = (usize::from(reader.u16()?), reader.u32()? as usize);
    let (key, rest) = bytes.get(FIXED_BYTES..)?.split_at_checked(key_len)?;
    let value = rest.get(..value_len)?;
    let record = Record {
        key: DocKey::parse(key)?,
        deleted: kind > 0,
        expired: kind > 1,
        cas,
        rev_seqno,
        expiry,
        flags,
        datatype: Datatype::from_wire(datatype).filter(|_| kind <= 2)?,
        value,
    };
    Some((Version { seqno, record }, FIXED_BYTES + key_len + value_len))
}
