//! Answers on their way out: bytes written in place, and values of documents that are sent from where they are.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use engine::{Frames, Whole};

use crate::connection_memory::{ConnectionMemory, Held, LARGE_BYTES};

/// Values from this size on are sent from the version that holds them instead of being copied.
pub const SHARED_VALUE_BYTES: usize = 16 << 10;
/// What an output keeps for the next turn.
const KEEP_BYTES: usize = 256 << 10;

/// Bytes that are sent from where they are, behind those before `at`.
struct Shared {
    at: usize,
    bytes: SharedBytes,
}

#[derive(Clone)]
enum SharedBytes {
    /// A value from this byte on: before it are xattrs that are not sent.
    Value(Whole, usize),
    /// Bytes that were made for this answer alone, from one of them on.
    Made(Arc<Vec<u8>>, usize),
    /// What was made ready elsewhere.
    Frames(Arc<Frames>, Range<usize>),
}

impl SharedBytes {
    fn as_slice(&self) -> &[u8] {
        match self {
            SharedBytes::Value(version, from) => &version.value()[*from..],
            SharedBytes::Made(bytes, from) => &bytes[*from..],
            SharedBytes::Frames(frames, part) => &frames[part.clone()],
        }
    }

    /// Bytes that nothing else holds or pays for.
    fn own_bytes(&self) -> usize {
        match self {
            SharedBytes::Made(bytes, _) => bytes.capacity(),
            SharedBytes::Value(..) | SharedBytes::Frames(..) => 0,
        }
    }

    /// The same without the first `bytes`.
    fn after(&self, bytes: usize) -> SharedBytes {
        match self {
            SharedBytes::Value(version, from) => SharedBytes::Value(version.clone(), from + bytes),
            SharedBytes::Made(made, from) => SharedBytes::Made(Arc::clone(made), from + bytes),
            SharedBytes::Frames(frames, part) => {
                SharedBytes::Frames(Arc::clone(frames), part.start + bytes..part.end)
            }
        }
    }
}

/// A place in an output.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    bytes: usize,
    shared: usize,
    shared_bytes: usize,
}

/// What one turn of a connection answers. One per worker, used by its connections one after the other.
#[derive(Default)]
pub struct Output {
    /// Everything but what is shared, in order.
    bytes: Vec<u8>,
    shared: Vec<Shared>,
    shared_bytes: usize,
    /// What limits what is made, if anything does.
    memory: Option<Arc<ConnectionMemory>>,
    /// What was reserved there for what is made, if that is necessary.
    held: Option<Held>,
    /// What was reserved for what was put together elsewhere, until a connection is charged for it.
    reserved: Vec<Held>,
}

impl Output {
    /// One in which nothing large is made while the memory of connections is short.
    pub fn within(memory: Arc<ConnectionMemory>) -> Output {
        Output { memory: Some(memory), ..Output::default() }
    }

    /// One whose bytes wait until a connection takes them: what is large is reserved before it is made.
    pub fn reserving(memory: Arc<ConnectionMemory>) -> Output {
        Output { held: Some(Held::new(memory)), ..Output::default() }
    }

    /// Where to append bytes.
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Appends the value of `version` from byte `from` on: by reference if it is large.
    pub fn value(&mut self, version: &Whole, from: usize) {
        let value = &version.value()[from..];
        if value.len() < SHARED_VALUE_BYTES {
            self.bytes.extend_from_slice(value);
        } else {
            self.shared_bytes += value.len();
            let bytes = SharedBytes::Value(version.clone(), from);
            self.shared.push(Shared { at: self.bytes.len(), bytes });
        }
    }

    /// Appends bytes that were made for this answer, from byte `from` on: without a copy if they are many.
    pub fn made(&mut self, bytes: Vec<u8>, from: usize) {
        let len = bytes.len() - from;
        if len < SHARED_VALUE_BYTES {
            self.bytes.extend_from_slice(&bytes[from..]);
        } else {
            self.shared_bytes += len;
            self.shared
                .push(Shared { at: self.bytes.len(), bytes: SharedBytes::Made(Arc::new(bytes), from) });
        }
    }

    /// Whether something of this size may be made.
    pub fn has_room(&self, bytes: usize) -> bool {
        if let Some(held) = &self.held {
            // What comes with it, such as its request, is charged whether or not there is room.
            return bytes < LARGE_BYTES || held.reserve(self.len() + bytes + LARGE_BYTES);
        }
        self.memory.as_ref().is_none_or(|memory| memory.has_room(bytes))
    }

    /// Appends a part of what was made ready elsewhere, by reference.
    pub fn frames(&mut self, frames: &Arc<Frames>, part: Range<usize>) {
        self.shared_bytes += part.len();
        let bytes = SharedBytes::Frames(Arc::clone(frames), part);
        self.shared.push(Shared { at: self.bytes.len(), bytes });
    }

    /// Appends what was put together elsewhere, and what is reserved for it.
    pub fn append(&mut self, other: Output) {
        let before = self.bytes.len();
        if before == 0 {
            self.bytes = other.bytes;
        } else {
            self.bytes.extend_from_slice(&other.bytes);
        }
        self.shared_bytes += other.shared_bytes;
        self.shared
            .extend(other.shared.into_iter().map(|shared| Shared { at: before + shared.at, ..shared }));
        self.reserved.extend(other.held);
    }

    /// What is reserved for what was put together elsewhere: the connection that sends it is charged for it from now on.
    pub fn take_reserved(&mut self) -> impl Iterator<Item = Held> {
        self.reserved.drain(..)
    }

    /// Bytes to send.
    pub fn len(&self) -> usize {
        self.bytes.len() + self.shared_bytes
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the turn should end because enough has piled up.
    pub fn is_full(&self) -> bool {
        self.len() >= 1 << 20
    }

    /// Where the next answer begins: what [`Output::cut`] goes back to.
    pub fn mark(&self) -> Mark {
        Mark { bytes: self.bytes.len(), shared: self.shared.len(), shared_bytes: self.shared_bytes }
    }

    /// Takes back what was appended since.
    pub fn cut(&mut self, mark: Mark) {
        self.bytes.truncate(mark.bytes);
        self.shared.truncate(mark.shared);
        self.shared_bytes = mark.shared_bytes;
    }

    /// Forgets everything, and gives back what an unusually large turn took.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEEP_BYTES);
        self.shared.clear();
        self.shared_bytes = 0;
        self.reserved.clear();
    }

    /// Everything as one run of bytes, if nothing is shared: the usual case.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        self.shared.is_empty().then_some(&self.bytes[..])
    }

    /// The runs of bytes in order.
    pub fn runs(&self) -> impl Iterator<Item = &[u8]> {
        let mut from = 0;
        let mixed = self.shared.iter().flat_map(move |shared| {
            let before = &self.bytes[from..shared.at];
            from = shared.at;
            [before, shared.bytes.as_slice()]
        });
        let last = self.shared.last().map_or(0, |shared| shared.at);
        mixed.chain([&self.bytes[last..]]).filter(|run| !run.is_empty())
    }

    /// Fills `slices` with what comes first; returns how many were filled.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut count = 0;
        for (slot, run) in slices.iter_mut().zip(self.runs()) {
            *slot = IoSlice::new(run);
            count += 1;
        }
        count
    }

    /// All of it in one piece.
    pub fn to_vec(&self) -> Vec<u8> {
        self.runs().collect::<Vec<_>>().concat()
    }
}

enum Chunk {
    Bytes(Vec<u8>),
    Shared(SharedBytes),
}

impl Chunk {
    fn bytes(&self) -> &[u8] {
        match self {
            Chunk::Bytes(bytes) => bytes,
            Chunk::Shared(bytes) => bytes.as_slice(),
        }
    }

    fn own_bytes(&self) -> usize {
        match self {
            Chunk::Bytes(bytes) => bytes.capacity(),
            Chunk::Shared(bytes) => bytes.own_bytes(),
        }
    }
}

/// What a connection could not send yet. Costs nothing while it is empty.
#[derive(Default)]
pub struct Pending {
    chunks: VecDeque<Chunk>,
    /// Bytes of the first chunk that are sent.
    skip: usize,
    len: usize,
    own_bytes: usize,
}

impl Pending {
    /// Takes over all of `output` but its first `sent` bytes: copies bytes, shares what is shared.
    pub fn take(&mut self, output: &Output, sent: usize) {
        let mut sent = sent;
        let mut from = 0;
        for shared in &output.shared {
            self.push_bytes(&output.bytes[from..shared.at], &mut sent);
            from = shared.at;
            let len = shared.bytes.as_slice().len();
            let skipped = sent.min(len);
            sent -= skipped;
            if skipped < len {
                let chunk = Chunk::Shared(shared.bytes.after(skipped));
                self.own_bytes += chunk.own_bytes();
                self.chunks.push_back(chunk);
                self.len += len - skipped;
            }
        }
        self.push_bytes(&output.bytes[from..], &mut sent);
    }

    fn push_bytes(&mut self, bytes: &[u8], sent: &mut usize) {
        let skipped = (*sent).min(bytes.len());
        *sent -= skipped;
        let bytes = &bytes[skipped..];
        self.len += bytes.len();
        match self.chunks.back_mut() {
            Some(Chunk::Bytes(last)) => {
                let before = last.capacity();
                last.extend_from_slice(bytes);
                self.own_bytes += last.capacity() - before;
            }
            _ if bytes.is_empty() => {}
            _ => {
                let bytes = bytes.to_vec();
                self.own_bytes += bytes.capacity();
                self.chunks.push_back(Chunk::Bytes(bytes));
            }
        }
    }

    /// Bytes to send.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes that are held for that and for nothing else.
    pub fn own_bytes(&self) -> usize {
        self.own_bytes
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Fills `slices` with what comes first; returns how many were filled.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut count = 0;
        for (slot, chunk) in slices.iter_mut().zip(&self.chunks) {
            let skip = if count == 0 { self.skip } else { 0 };
            *slot = IoSlice::new(&chunk.bytes()[skip..]);
            count += 1;
        }
        count
    }

    /// Drops the first `sent` bytes.
    pub fn advance(&mut self, mut sent: usize) {
        self.len -= sent;
        while let Some(first) = self.chunks.front() {
            let left = first.bytes().len() - self.skip;
            if sent < left {
                self.skip += sent;
                return;
            }
            sent -= left;
            self.skip = 0;
            if let Some(chunk) = self.chunks.pop_front() {
                self.own_bytes -= chunk.own_bytes();
            }
        }
        // All is sent: a connection that waits for nothing shall hold nothing.
        self.chunks = VecDeque::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{DocKey, NewVersion, VersionMeta};
    use proptest::prelude::*;

    /// Parts with how they come: 0 as bytes, 1 as the end of a value, 2 as bytes made for it, others as a part of frames.
    fn output(parts: &[(usize, u8)]) -> (Output, Vec<u8>) {
        let mut output = Output::default();
        let mut plain = Vec::new();
        for (at, (len, form)) in parts.iter().enumerate() {
            let bytes: Vec<u8> = (0..*len).map(|i| (i + at) as u8).collect();
            let from = len.min(&3);
            if *form == 2 {
                output.made(bytes.clone(), *from);
                plain.extend_from_slice(&bytes[*from..]);
            } else if *form > 2 {
                let frames = Arc::new(Frames::new(bytes.clone(), base::Heap::shared().account()));
                output.frames(&frames, *from..bytes.len());
                plain.extend_from_slice(&bytes[*from..]);
            } else if *form == 1 {
                let version = NewVersion::new(
                    base::Heap::shared(),
                    VersionMeta::default(),
                    DocKey::new(b"k"),
                    &[&bytes],
                )
                .publish();
                let version = Whole::of(version).expect("it has its value");
                output.value(&version, *from);
                plain.extend_from_slice(&bytes[*from..]);
            } else {
                output.bytes().extend_from_slice(&bytes);
                plain.extend_from_slice(&bytes);
            }
        }
        (output, plain)
    }

    proptest! {
        #[test]
        fn nothing_is_lost_or_reordered(
            parts in proptest::collection::vec((prop_oneof![0usize..20, 16_380usize..16_400], 0u8..4), 0..6),
            sent in 0usize..60_000,
            steps in proptest::collection::vec(1usize..20_000, 1..40),
        ) {
            let (output, plain) = output(&parts);
            prop_assert_eq!(output.len(), plain.len());
            prop_assert_eq!(output.to_vec(), plain.clone());
            let output_mark = output.mark();
            let (mut more, mark) = (output, output_mark);
            more.bytes().extend_from_slice(b"taken back");
            more.frames(&Arc::new(Frames::new(b"this, too".to_vec(), base::Heap::shared().account())), 0..4);
            more.cut(mark);
            prop_assert_eq!(more.len(), plain.len());
            prop_assert_eq!(more.to_vec(), plain.clone());
            let output = more;
            let sent = sent.min(plain.len());
            let mut pending = Pending::default();
            pending.take(&output, sent);
            pending.take(&output, 0);
            let expected = [&plain[sent..], &plain[..]].concat();
            let mut got = Vec::new();
            for step in steps.iter().cycle().take(10_000) {
                prop_assert_eq!(pending.len(), expected.len() - got.len());
                if pending.is_empty() {
                    break;
                }
                let mut slices = [IoSlice::new(&[]); 4];
                let count = pending.slices(&mut slices);
                let run: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).take(*step).collect();
                got.extend_from_slice(&run);
                pending.advance(run.len());
            }
            prop_assert_eq!(pending.own_bytes(), 0);
            prop_assert_eq!(got, expected);
        }
    }
}
