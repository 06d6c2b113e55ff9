//! How far a reader has come in every vBucket, as text that it keeps for us and need not understand.

use base::leb128::{put_leb128, take_leb128};
use base::{Seqno, VbId, VbUuid};
use base64::Engine;
pub use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;

/// The first byte of a token: how the rest is to be read.
const VERSION: u8 = 1;

/// How far a reader has come in a vBucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The history that it follows.
    pub uuid: VbUuid,
    /// The last change that it has.
    pub seqno: Seqno,
    /// Where the snapshot begins that this change is in.
    pub snapshot_start: Seqno,
    /// Where that snapshot ends.
    pub snapshot_end: Seqno,
}

impl Place {
    /// Behind a change with which a snapshot ends; before everything if there is none.
    pub fn at(uuid: VbUuid, seqno: Seqno) -> Place {
        if seqno == Seqno(0) {
            return Place::default();
        }
        Place { uuid, seqno, snapshot_start: seqno, snapshot_end: seqno }
    }
}

/// The name of a position that the server keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnchorId(pub [u8; 20]);

impl AnchorId {
    /// When it was made, microseconds since 1970.
    pub fn made_us(&self) -> u64 {
        self.0[..8].iter().fold(0, |n, byte| n << 8 | u64::from(*byte))
    }

    /// The number of the reader that it was made for.
    pub fn reader(&self) -> u32 {
        self.0[8..12].iter().fold(0, |n, byte| n << 8 | u32::from(*byte))
    }

    /// The name of its file: moment, reader, content.
    pub fn name(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reads the beginning of a file's name.
    pub fn of_name(name: &str) -> Option<AnchorId> {
        let mut id = [0; 20];
        for (at, byte) in id.iter_mut().enumerate() {
            *byte = u8::from_str_radix(name.get(2 * at..2 * at + 2)?, 16).ok()?;
        }
        Some(AnchorId(id))
    }
}

/// A place in each vBucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token(pub Vec<Place>);

impl Token {
    /// Before everything.
    pub fn start(vbuckets: u16) -> Token {
        Token(vec![Place::default(); vbuckets.into()])
    }

    /// The token as text. vBuckets of which nothing was seen take no room.
    pub fn encode(&self) -> String {
        let mut out = vec![VERSION];
        put_leb128(&mut out, self.0.len() as u64);
        let mut last = 0;
        for (vb, place) in self.0.iter().enumerate().filter(|(_, place)| place.seqno > Seqno(0)) {
            put_leb128(&mut out, (vb - last) as u64);
            last = vb;
            out.extend_from_slice(&place.uuid.0.to_be_bytes());
            put_leb128(&mut out, place.seqno.0);
            put_leb128(&mut out, place.seqno.0.saturating_sub(place.snapshot_start.0));
            put_leb128(&mut out, place.snapshot_end.0.saturating_sub(place.seqno.0));
        }
        BASE64.encode(out)
    }

    /// Reads one for a bucket of so many vBuckets; nothing if it is none.
    pub fn decode(text: &str, vbuckets: u16) -> Option<Token> {
        let bytes = BASE64.decode(text.trim()).ok()?;
        let (&version, mut rest) = bytes.split_first()?;
        if version != VERSION || take_leb128(&mut rest)? != u64::from(vbuckets) {
            return None;
        }
        let mut token = Token::start(vbuckets);
        let mut vb = 0_u64;
        while !rest.is_empty() {
            vb = vb.checked_add(take_leb128(&mut rest)?)?;
            let (uuid, behind) = rest.split_first_chunk::<8>()?;
            rest = behind;
            let seqno = take_leb128(&mut rest)?;
            let start = seqno.checked_sub(take_leb128(&mut rest)?)?;
            let end = seqno.checked_add(take_leb128(&mut rest)?)?;
            *token.0.get_mut(usize::try_from(vb).ok()?)? = Place {
                uuid: VbUuid(u64::from_be_bytes(*uuid)),
                seqno: Seqno(seqno),
                snapshot_start: Seqno(start),
                snapshot_end: Seqno(end),
            };
        }
        Some(token)
    }

    /// The place in a vBucket.
    pub fn place(&mut self, vb: VbId) -> Option<&mut Place> {
        self.0.get_mut(usize::from(vb.0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(places in proptest::collection::vec((any::<u64>(), any::<u64>(), 0..9u64, 0..9u64), 1..40)) {
            let place = |(uuid, seqno, before, behind): (u64, u64, u64, u64)| if seqno == 0 {
                Place::default()
            } else {
                Place {
                    uuid: VbUuid(uuid),
                    seqno: Seqno(seqno),
                    snapshot_start: Seqno(seqno.saturating_sub(before)),
                    snapshot_end: Seqno(seqno.saturating_add(behind)),
                }
            };
            let token = Token(places.into_iter().map(place).collect());
            let text = token.encode();
            let count = token.0.len() as u16;
            prop_assert_eq!(Token::decode(&text, count + 1), None);
            prop_assert_eq!(Token::decode(&text, count), Some(token));
        }

        #[test]
        fn any_text_is_a_token_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let text = BASE64.encode([&[VERSION, 4][..], &bytes].concat());
            if let Some(token) = Token::decode(&text, 4) {
                prop_assert_eq!(token.0.len(), 4);
            }
        }
    }

    #[test]
    fn a_token_of_a_large_bucket_fits_into_an_address() {
        let place = Place::at(VbUuid(u64::MAX), Seqno(1 << 40));
        assert!(Token(vec![place; 1024]).encode().len() < 24 << 10);
        assert!(Token::start(1024).encode().len() < 10);
    }
}
