//! Short tokens: a position that the server keeps, and what has changed since.

use base::leb128::{put_leb128, take_leb128};
use base::{Seqno, VbUuid};
use base64::Engine;

use super::anchor::Anchor;
use super::token::{AnchorId, BASE64, Place, Token};

/// The first byte of a short token.
const VERSION: u8 = 2;
/// The most bytes of a token that fits into every address, header and proxy.
pub const MOST_TOKEN_BYTES: usize = 200;
/// What a change of a place brings beside its seqno, in the lowest bits.
const HAS_HISTORY: u64 = 1;
const HAS_SNAPSHOT: u64 = 2;

/// A token that names a kept position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Short {
    /// The kept position.
    pub id: AnchorId,
    changes: Vec<u8>,
}

/// The shortest text of a position: as it is, or by a kept one; `None` if neither is short.
pub fn encode(token: &Token, anchor: Option<&Anchor>) -> Option<String> {
    let is_short = |text: &String| text.len() <= MOST_TOKEN_BYTES;
    // A place takes eleven bytes at least: that many places are not short.
    let is_small = token.0.iter().filter(|place| place.seqno > Seqno(0)).count() < MOST_TOKEN_BYTES / 11;
    let whole = is_small.then(|| token.encode()).filter(is_short);
    whole.or_else(|| encode_from(token, anchor?)).filter(is_short)
}

fn encode_from(token: &Token, anchor: &Anchor) -> Option<String> {
    let mut out = vec![VERSION];
    out.extend_from_slice(&anchor.id.0);
    let mut last = 0;
    // Before everything no history is named, though the stream has told one.
    let named = |place: &Place| if place.seqno == Seqno(0) { Place::default() } else { *place };
    let places = token.0.iter().map(named).zip(anchor.token.0.iter().map(named)).enumerate();
    for (vb, (place, before)) in places.filter(|(_, (place, before))| place != before) {
        if out.len() > MOST_TOKEN_BYTES {
            return None;
        }
        put_leb128(&mut out, (vb - last) as u64);
        last = vb;
        let whole = Place::at(place.uuid, place.seqno);
        let mut flags = 0;
        flags |= if place.uuid == before.uuid { 0 } else { HAS_HISTORY };
        flags |= if place == whole { 0 } else { HAS_SNAPSHOT };
        out.push(flags as u8);
        // Mostly it has grown; after a rollback it has not, and the difference is negative.
        let grown = place.seqno.0.wrapping_sub(before.seqno.0) as i64;
        put_leb128(&mut out, ((grown << 1) ^ (grown >> 63)) as u64);
        if flags & HAS_HISTORY != 0 {
            out.extend_from_slice(&place.uuid.0.to_be_bytes());
        }
        if flags & HAS_SNAPSHOT != 0 {
            put_leb128(&mut out, place.seqno.0.saturating_sub(place.snapshot_start.0));
            put_leb128(&mut out, place.snapshot_end.0.saturating_sub(place.seqno.0));
        }
    }
    Some(BASE64.encode(out))
}

impl Short {
    /// Reads a short token; `None` if the text is none.
    pub fn decode(text: &str) -> Option<Short> {
        let bytes = BASE64.decode(text.trim()).ok()?;
        let (&version, rest) = bytes.split_first()?;
        let (id, changes) = rest.split_first_chunk()?;
        (version == VERSION).then(|| Short { id: AnchorId(*id), changes: changes.to_vec() })
    }

    /// The position, when the kept one is `token`; `None` if the text makes no sense.
    pub fn resolve(&self, mut token: Token) -> Option<Token> {
        let mut rest = &self.changes[..];
        let mut vb = 0_u64;
        while !rest.is_empty() {
            vb = vb.checked_add(take_leb128(&mut rest)?)?;
            let place = token.0.get_mut(usize::try_from(vb).ok()?)?;
            let (&flags, behind) = rest.split_first()?;
            rest = behind;
            let flags = u64::from(flags);
            let zigzag = take_leb128(&mut rest)?;
            let grown = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
            let seqno = place.seqno.0.wrapping_add(grown as u64);
            if flags & HAS_HISTORY != 0 {
                let (uuid, behind) = rest.split_first_chunk::<8>()?;
                rest = behind;
                place.uuid = VbUuid(u64::from_be_bytes(*uuid));
            }
            *place = if flags & HAS_SNAPSHOT == 0 {
                Place::at(place.uuid, Seqno(seqno))
            } else {
                let start = seqno.checked_sub(take_leb128(&mut rest)?)?;
                let end = seqno.checked_add(take_leb128(&mut rest)?)?;
                Place {
                    uuid: place.uuid,
                    seqno: Seqno(seqno),
                    snapshot_start: Seqno(start),
                    snapshot_end: Seqno(end),
                }
            };
        }
        Some(token)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn token(places: &[(u64, u64, u64)]) -> Token {
        let place = |(uuid, seqno, behind): &(u64, u64, u64)| match *seqno {
            0 => Place::default(),
            seqno => Place {
                uuid: VbUuid(*uuid),
                seqno: Seqno(seqno),
                snapshot_start: Seqno(seqno - (seqno.min(*behind))),
                snapshot_end: Seqno(seqno.saturating_add(*behind)),
            },
        };
        Token(places.iter().map(place).collect())
    }

    fn anchor(token: Token) -> Anchor {
        Anchor { id: AnchorId([7; 20]), token }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            before in proptest::collection::vec((any::<u64>(), any::<u64>(), 0..3u64), 8),
            now in proptest::collection::vec((any::<u64>(), any::<u64>(), 0..3u64), 8),
            changed in proptest::collection::vec(any::<bool>(), 8),
        ) {
            let places = before.iter().zip(&now).zip(&changed);
            let now: Vec<_> = places.map(|((before, now), changed)| if *changed { *now } else { *before }).collect();
            let (anchor, now) = (anchor(token(&before)), token(&now));
            let text = encode_from(&now, &anchor).expect("few vBuckets");
            let short = Short::decode(&text).expect("a token");
            prop_assert_eq!(&short.id, &anchor.id);
            prop_assert_eq!(short.resolve(anchor.token), Some(now));
        }

        #[test]
        fn any_text_is_a_token_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let text = BASE64.encode([&[VERSION; 21][..], &bytes].concat());
            let short = Short::decode(&text).expect("it begins like one");
            if let Some(resolved) = short.resolve(Token::start(4)) {
                prop_assert_eq!(resolved.0.len(), 4);
            }
        }
    }

    #[test]
    fn a_large_bucket_at_rest_has_a_short_token() {
        let mut places = vec![(u64::MAX, 1 << 40, 0); 1024];
        let anchor = anchor(token(&places));
        let at_rest = encode(&token(&places), Some(&anchor)).expect("short");
        assert!(at_rest.len() <= 28, "{at_rest}");
        places[1000].1 += 5;
        places[17] = (3, 9, 0);
        let text = encode(&token(&places), Some(&anchor)).expect("short");
        let short = Short::decode(&text).expect("a token");
        assert_eq!((text.len() < 60, short.resolve(anchor.token.clone())), (true, Some(token(&places))));
        // Too much has changed: another position has to be kept.
        places.iter_mut().for_each(|place| place.1 += 1);
        assert_eq!((encode(&token(&places), Some(&anchor)), encode(&token(&places), None)), (None, None));
        // A small one needs none.
        assert!(encode(&token(&[(1, 7, 0), (2, 8, 0)]), None).is_some());
    }
}
