//! Replays the fuzz bodies with fixed seeds: random bytes, and good inputs with damage.

use subdoc::fuzz;

/// xorshift64*: the same bytes on every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Bytes that occur in JSON, paths and frames more often than others.
    fn bytes(&mut self, limit: usize) -> Vec<u8> {
        const USUAL: &[u8] = b"{}[]\",:\\`.$_ae019-+ \n\x00\x01\x04tfnu";
        let len = self.below(limit + 1);
        (0..len)
            .map(|_| match self.below(8) {
                0 => self.next() as u8,
                _ => USUAL[self.below(USUAL.len())],
            })
            .collect()
    }

    fn damage(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..self.below(4) {
            let at = self.below(bytes.len().max(1));
            match self.below(3) {
                0 if at < bytes.len() => bytes[at] = self.next() as u8,
                1 if at < bytes.len() => drop(bytes.remove(at)),
                _ => bytes.insert(at.min(bytes.len()), b"{}[]\",:\\0"[self.below(9)]),
            }
        }
    }
}

fn push_part(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(bytes.len() as u8);
    out.extend_from_slice(bytes);
}

const DOCUMENTS: [&str; 7] = [
    r#"{"a":1,"b":[1,"x",null,{"c":2}],"d":{"e":{"f":-7}},"k\u0041":true}"#,
    "[1, [2, [3, []]], {\"a\" : \"b\\\"c\"} ]",
    "{}",
    "[]",
    "12",
    "\"text\"",
    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]",
];
const PATHS: [&str; 12] =
    ["a", "b[0]", "b[-1].c", "d.e.f", "d.new.x", "kA", "[1][1][1]", "[-1]", "", "`a.b`", "b[4]", "x[0].y"];
const VALUES: [&str; 8] = ["1", "\"s\"", "[1]", "{\"a\":{}}", "1,2", "1,\"x\":2", "-5", "[[[]]]"];

#[test]
fn random_bytes_never_panic() {
    let mut random = Random(0x5eed_0001);
    for _ in 0..20_000 {
        let bytes = random.bytes(96);
        fuzz::fuzz_is_json(&bytes);
        fuzz::fuzz_operations(&bytes);
        fuzz::fuzz_xattrs(&bytes);
        fuzz::fuzz_requests(&bytes);
    }
}

#[test]
fn damaged_operations_never_panic() {
    let mut random = Random(0x5eed_0002);
    for _ in 0..40_000 {
        let mut document = DOCUMENTS[random.below(DOCUMENTS.len())].as_bytes().to_vec();
        let mut path = PATHS[random.below(PATHS.len())].as_bytes().to_vec();
        let mut value = VALUES[random.below(VALUES.len())].as_bytes().to_vec();
        match random.below(4) {
            0 => random.damage(&mut document),
            1 => random.damage(&mut path),
            2 => random.damage(&mut value),
            _ => {}
        }
        let mut input = Vec::new();
        push_part(&mut input, &path);
        push_part(&mut input, &value);
        push_part(&mut input, &vec![0; random.below(2)]);
        input.extend_from_slice(&document);
        fuzz::fuzz_operations(&input);
        fuzz::fuzz_is_json(&document);
    }
}

#[test]
fn damaged_sections_never_panic() {
    let mut random = Random(0x5eed_0003);
    let good = b"\0\0\0\x1e\0\0\0\x0e_sync\0{\"a\":1}\0\0\0\0\x08user\0[]\0{\"body\":1}";
    fuzz::fuzz_xattrs(good);
    for _ in 0..20_000 {
        let mut bytes = good.to_vec();
        random.damage(&mut bytes);
        fuzz::fuzz_xattrs(&bytes);
    }
}

#[test]
fn damaged_requests_never_panic() {
    const OPCODES: [u8; 16] =
        [0xc5, 0xc6, 0xd2, 0xc7, 0xc8, 0xc9, 0xca, 0xcb, 0xcc, 0xcd, 0xce, 0xcf, 0xd3, 0x00, 0x01, 0x04];
    const KEYS: [&str; 7] = ["", "_sync", "user", "$document", "$XTOC", "$vbucket", "new"];
    const MACROS: [&str; 4] =
        ["\"${Mutation.CAS}\"", "\"${Mutation.value_crc32c}\"", "\"${$document}\"", "\"${$document.revid}\""];
    let mut random = Random(0x5eed_0004);
    let section = b"\0\0\0\x1e\0\0\0\x0e_sync\0{\"a\":1}\0\0\0\0\x08user\0[]\0";
    for _ in 0..60_000 {
        let datatype = [0u8, 1, 4, 5][random.below(4)];
        let mut document = if datatype & 4 != 0 { section.to_vec() } else { Vec::new() };
        document.extend_from_slice(DOCUMENTS[random.below(DOCUMENTS.len())].as_bytes());
        let mut frame = Vec::new();
        let is_lookup = random.below(3) == 0;
        for _ in 0..=random.below(3) {
            let key = KEYS[random.below(KEYS.len())];
            let path = PATHS[random.below(PATHS.len())];
            let dot = if key.is_empty() || path.is_empty() || path.starts_with('[') { "" } else { "." };
            let path = format!("{key}{dot}{path}");
            let flags = if key.is_empty() { 0 } else { 4 } | [0u8, 1, 0x10][random.below(3)];
            let values: &[&str] = if flags & 0x10 != 0 { &MACROS } else { &VALUES };
            let value = values[random.below(values.len())];
            frame.extend_from_slice(&[OPCODES[random.below(OPCODES.len())], flags]);
            frame.extend_from_slice(&(path.len() as u16).to_be_bytes());
            if !is_lookup {
                frame.extend_from_slice(&(value.len() as u32).to_be_bytes());
            }
            frame.extend_from_slice(path.as_bytes());
            if !is_lookup {
                frame.extend_from_slice(value.as_bytes());
            }
        }
        if random.below(8) == 0 {
            random.damage(&mut frame);
        }
        let mut input = vec![0xd1, datatype, random.below(16) as u8 & !1];
        push_part(&mut input, &document);
        push_part(&mut input, [&[][..], &[1], &[4], &[0x14], &[0x0d]][random.below(5)]);
        push_part(&mut input, &frame);
        fuzz::fuzz_requests(&input);
    }
}
