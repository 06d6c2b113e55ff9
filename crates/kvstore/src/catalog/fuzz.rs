//! Bodies for fuzzers: what must hold for any bytes.

use super::{Believe, Contents, StoreId};

/// Any bytes as a catalog, as they are and with a checksum that fits: what is read is read again when it is written.
pub fn fuzz_catalog(bytes: &[u8]) {
    let _ = Contents::from_text(bytes);
    let mut sealed = bytes.to_vec();
    if sealed.last() != Some(&b'\n') {
        sealed.push(b'\n');
    }
    let crc = crc32c::crc32c(&sealed);
    sealed.extend_from_slice(format!("crc32c {crc:08x}\n").as_bytes());
    if let Ok(contents) = Contents::from_text(&sealed) {
        assert_eq!(Contents::from_text(contents.to_text().as_bytes()), Ok(contents));
    }
}

/// Seeds of [`fuzz_catalog`].
pub fn catalog_seeds() -> Vec<Vec<u8>> {
    let of = |believe| {
        let contents =
            Contents { store: StoreId(7), sequence: 3, believe, generations: 2, files: Default::default() };
        let text = contents.to_text();
        text.as_bytes()[..text.len() - "crc32c 00000000\n".len()].to_vec()
    };
    let vbucket = b"vbucket 3 revision 2 header 4096 checksum 0123abcd seqno 17 tail void\n\
        vbucket 4 revision 1 header unknown checksum unknown seqno unknown tail none\n";
    let files = of(Believe::Files);
    let journal = of(Believe::Journal { generation: 5, salt: 9 });
    vec![[&files[..], vbucket].concat(), files, of(Believe::Headers), journal]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_catalogs_never_panic() {
        base::fuzz::replay(1, 20_000, &catalog_seeds(), fuzz_catalog);
    }
}
