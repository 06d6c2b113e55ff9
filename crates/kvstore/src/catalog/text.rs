//! A catalog as text, and back: docs/catalog_format.md.

use std::collections::BTreeMap;
use std::fmt::Write;

use base::VbId;
use base::planted::{self, Bug};

use super::{Believe, Contents, Listed, StoreId};
use crate::compaction::FileAt;

const FIRST_LINE: &str = "stave catalog 1";
const FIRST_WORDS: &str = "stave catalog ";
const UNKNOWN: &str = "unknown";

impl Contents {
    pub(super) fn to_text(&self) -> String {
        let mut text = format!("{FIRST_LINE}\nstore {}\nsequence {}\n", self.store, self.sequence);
        let _ = match self.believe {
            Believe::Files => writeln!(text, "believe files"),
            Believe::Headers => writeln!(text, "believe headers"),
            Believe::Journal { generation, salt } => {
                writeln!(text, "believe journal {generation} {salt:016x}")
            }
        };
        let _ = writeln!(text, "generations {}", self.generations);
        for (vb, listed) in &self.files {
            let known = listed.at.header_offset != FileAt::LAST;
            let header = if known { listed.at.header_offset.to_string() } else { UNKNOWN.into() };
            let checksum = listed.at.checksum.map_or(UNKNOWN.into(), |checksum| format!("{checksum:08x}"));
            let seqno = listed.high_seqno.map_or(UNKNOWN.into(), |seqno| seqno.to_string());
            let tail = if listed.is_tail_void { "void" } else { "none" };
            let revision = listed.at.revision;
            let _ = writeln!(
                text,
                "vbucket {vb} revision {revision} header {header} checksum {checksum} seqno {seqno} tail {tail}"
            );
        }
        let crc = crc32c::crc32c(text.as_bytes());
        let _ = writeln!(text, "crc32c {crc:08x}");
        text
    }

    pub(super) fn from_text(bytes: &[u8]) -> Result<Contents, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "it is no text".to_owned())?;
        let first = text.lines().next().unwrap_or_default();
        if first != FIRST_LINE && first.starts_with(FIRST_WORDS) {
            return Err(format!("'{first}' is a version that this program does not know"));
        }
        let body = text
            .strip_suffix('\n')
            .and_then(|text| text.rsplit_once('\n'))
            .and_then(|(body, last)| Some((body, last.strip_prefix("crc32c ")?)))
            .ok_or("its end is missing")?;
        let covered = &text[..body.0.len() + 1];
        let is_sound = body.1 == format!("{:08x}", crc32c::crc32c(covered.as_bytes()));
        if !is_sound && !planted::is(Bug::CatalogChecksumIgnored) {
            return Err("its checksum does not fit".to_owned());
        }
        let mut lines = body.0.lines();
        parsed(&mut lines).ok_or_else(|| "its lines are not understood".to_owned())
    }
}

fn parsed<'t>(lines: &mut impl Iterator<Item = &'t str>) -> Option<Contents> {
    (lines.next()? == FIRST_LINE).then_some(())?;
    let store = StoreId(u128::from_str_radix(lines.next()?.strip_prefix("store ")?, 16).ok()?);
    let sequence = lines.next()?.strip_prefix("sequence ")?.parse().ok()?;
    let believe = believe(lines.next()?.strip_prefix("believe ")?)?;
    let generations = lines.next()?.strip_prefix("generations ")?.parse().ok()?;
    let mut files = BTreeMap::new();
    for line in lines {
        let (vb, listed) = listed(line)?;
        files.insert(vb, listed).is_none().then_some(())?;
    }
    Some(Contents { store, sequence, believe, generations, files })
}

fn believe(words: &str) -> Option<Believe> {
    let mut words = words.split(' ');
    let believe = match words.next()? {
        "files" => Believe::Files,
        "headers" => Believe::Headers,
        "journal" => Believe::Journal {
            generation: words.next()?.parse().ok()?,
            salt: u64::from_str_radix(words.next()?, 16).ok()?,
        },
        _ => return None,
    };
    words.next().is_none().then_some(believe)
}

fn listed(line: &str) -> Option<(VbId, Listed)> {
    let words: Vec<&str> = line.split(' ').collect();
    let [
        "vbucket",
        vb,
        "revision",
        revision,
        "header",
        header,
        "checksum",
        checksum,
        "seqno",
        seqno,
        "tail",
        tail,
    ] = words[..]
    else {
        return None;
    };
    let header_offset = if header == UNKNOWN { FileAt::LAST } else { header.parse().ok()? };
    let checksum = match checksum {
        UNKNOWN => None,
        checksum => Some(u32::from_str_radix(checksum, 16).ok()?),
    };
    let at = FileAt { revision: revision.parse().ok()?, header_offset, checksum };
    let high_seqno = match seqno {
        UNKNOWN => None,
        seqno => Some(seqno.parse().ok()?),
    };
    let is_tail_void = match tail {
        "void" => true,
        "none" => false,
        _ => return None,
    };
    Some((VbId(vb.parse().ok()?), Listed { at, high_seqno, is_tail_void }))
}
