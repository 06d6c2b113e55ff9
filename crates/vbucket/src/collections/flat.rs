//! The little of FlatBuffers that collections need: a table of numbers and one string, and a list of such tables.
//!
//! Layout after the FlatBuffers internals document: a root offset, a vtable, the table, the string. What is written is
//! aligned from its beginning.

/// A field that is written.
pub enum Field<'a> {
    /// A byte that is 0 or 1.
    Bool(bool),
    /// A number of 32 bits.
    U32(u32),
    /// A number of 64 bits.
    U64(u64),
    /// UTF-8 text; of one table only one field may be text.
    Text(&'a str),
}

impl Field<'_> {
    fn bytes(&self) -> usize {
        match self {
            Field::Bool(_) => 1,
            Field::U32(_) | Field::Text(_) => 4,
            Field::U64(_) => 8,
        }
    }
}

/// Writes a table with these fields in its first slots, each aligned to its size.
pub fn encode(fields: &[Field<'_>]) -> Vec<u8> {
    let vtable_bytes = 4 + 2 * fields.len();
    // The table begins at 4 modulo 8, so that a 64-bit number may follow its offset to the vtable.
    let table = (4 + vtable_bytes).next_multiple_of(8) + 4;
    let mut at = 4;
    let mut offsets = vec![0u16; fields.len()];
    // Large ones first: then all are aligned without gaps.
    for size in [8, 4, 1] {
        for (field, offset) in fields.iter().zip(&mut offsets).filter(|(field, _)| field.bytes() == size) {
            *offset = at as u16;
            at += field.bytes();
        }
    }
    let mut out = vec![0; (table + at).next_multiple_of(4)];
    let vtable = table - vtable_bytes;
    put(&mut out, 0, &(table as u32).to_le_bytes());
    put(&mut out, vtable, &(vtable_bytes as u16).to_le_bytes());
    put(&mut out, vtable + 2, &(at as u16).to_le_bytes());
    put(&mut out, table, &(vtable_bytes as i32).to_le_bytes());
    for (i, (field, offset)) in fields.iter().zip(offsets).enumerate() {
        put(&mut out, vtable + 4 + 2 * i, &offset.to_le_bytes());
        let at = table + usize::from(offset);
        match field {
            Field::Bool(b) => put(&mut out, at, &[u8::from(*b)]),
            Field::U32(n) => put(&mut out, at, &n.to_le_bytes()),
            Field::U64(n) => put(&mut out, at, &n.to_le_bytes()),
            Field::Text(text) => {
                let distance = (out.len() - at) as u32;
                put(&mut out, at, &distance.to_le_bytes());
                out.extend_from_slice(&(text.len() as u32).to_le_bytes());
                out.extend_from_slice(text.as_bytes());
                // A string ends with a zero, and the whole is a multiple of its largest alignment.
                let end = (out.len() + 1).next_multiple_of(8);
                out.resize(end, 0);
            }
        }
    }
    out
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Bytes before the first entry's offset in [`encode_list`]: offset of the root, its vtable, the table with the offset of
/// the list, the number of entries.
const LIST_HEAD: usize = 24;

/// Writes a table whose first slot is a list of tables with these fields.
pub fn encode_list<'a>(entries: impl IntoIterator<Item = &'a [Field<'a>]>) -> Vec<u8> {
    let entries: Vec<Vec<u8>> = entries.into_iter().map(encode).collect();
    let mut out = vec![0; (LIST_HEAD + 4 * entries.len()).next_multiple_of(8)];
    put(&mut out, 0, &12u32.to_le_bytes());
    // The vtable: its size, that of the table, where the list's offset is.
    for (at, n) in [(6, 6u16), (8, 8), (10, 4)] {
        put(&mut out, at, &n.to_le_bytes());
    }
    put(&mut out, 12, &6i32.to_le_bytes());
    put(&mut out, 16, &4u32.to_le_bytes());
    put(&mut out, 20, &(entries.len() as u32).to_le_bytes());
    for (i, entry) in entries.into_iter().enumerate() {
        // Offsets inside of an entry are relative, so that it may stand anywhere; the one of its root is not needed.
        let table = out.len() + u32_at(&entry, 0).map_or(0, |at| at as usize);
        let at = LIST_HEAD + 4 * i;
        put(&mut out, at, &((table - at) as u32).to_le_bytes());
        out.extend(entry);
        out.resize(out.len().next_multiple_of(8), 0);
    }
    out
}

/// The root table of bytes that anybody may have written: every offset is checked.
pub struct Table<'a> {
    bytes: &'a [u8],
    at: usize,
    vtable: &'a [u8],
}

impl<'a> Table<'a> {
    /// The root; nothing if there is none.
    pub fn root(bytes: &'a [u8]) -> Option<Table<'a>> {
        Table::at(bytes, u32_at(bytes, 0)? as usize)
    }

    fn at(bytes: &'a [u8], at: usize) -> Option<Table<'a>> {
        let distance = i64::from(u32_at(bytes, at)? as i32);
        let vtable = usize::try_from(i64::try_from(at).ok()? - distance).ok()?;
        let len = usize::from(u16_at(bytes, vtable)?);
        Some(Table { bytes, at, vtable: bytes.get(vtable..vtable.checked_add(len)?)? })
    }

    /// Where a field is; nothing if it is absent and so has its default.
    fn field(&self, slot: usize) -> Option<usize> {
        match u16_at(self.vtable, 4 + 2 * slot)? {
            0 => None,
            offset => self.at.checked_add(usize::from(offset)),
        }
    }

    /// Whether a field is there.
    pub fn has(&self, slot: usize) -> bool {
        self.field(slot).is_some()
    }

    /// A number: 0 if it is absent, nothing if it lies outside.
    pub fn u64(&self, slot: usize) -> Option<u64> {
        let Some(at) = self.field(slot) else { return Some(0) };
        let bytes = self.bytes.get(at..at.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    /// As [`Table::u64`].
    pub fn u32(&self, slot: usize) -> Option<u32> {
        match self.field(slot) {
            None => Some(0),
            Some(at) => u32_at(self.bytes, at),
        }
    }

    /// As [`Table::u64`].
    pub fn bool(&self, slot: usize) -> Option<bool> {
        match self.field(slot) {
            None => Some(false),
            Some(at) => self.bytes.get(at).map(|byte| *byte != 0),
        }
    }

    /// The tables of a list; none if it is absent, nothing if one lies outside.
    pub fn list(&self, slot: usize) -> Option<Vec<Table<'a>>> {
        let Some(at) = self.field(slot) else { return Some(Vec::new()) };
        let at = at.checked_add(u32_at(self.bytes, at)? as usize)?;
        let entries = u32_at(self.bytes, at)? as usize;
        let first = at.checked_add(4)?;
        let offsets = self.bytes.get(first..first.checked_add(entries.checked_mul(4)?)?)?;
        let entry = |i: usize| {
            let at = first + 4 * i;
            Table::at(self.bytes, at.checked_add(u32_at(offsets, 4 * i)? as usize)?)
        };
        (0..entries).map(entry).collect()
    }

    /// A string, which must be there and be UTF-8.
    pub fn text(&self, slot: usize) -> Option<&'a str> {
        let at = self.field(slot)?;
        let at = at.checked_add(u32_at(self.bytes, at)? as usize)?;
        let len = u32_at(self.bytes, at)? as usize;
        let begin = at.checked_add(4)?;
        std::str::from_utf8(self.bytes.get(begin..begin.checked_add(len)?)?).ok()
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}
