//! A package for Fedora, Red Hat and what comes from them: a lead, a signature that holds digests, a header and an archive
//! of cpio (format of RPM 4: <https://rpm-software-management.github.io/rpm/manual/format_v4.html>).

use anyhow::{Context, Result};
use harness::tree;

use super::archive::{self, Entry};
use super::shell::ShellFiles;
use super::{Release, deb, sha256};

/// Kinds of values.
const INT16: u32 = 3;
const INT32: u32 = 4;
const STRING: u32 = 6;
const BYTES: u32 = 7;
const STRINGS: u32 = 8;
const TEXTS: u32 = 9;

/// What begins the lead, and each header.
const LEAD: [u8; 6] = [0xed, 0xab, 0xee, 0xdb, 3, 0];
const HEADER: [u8; 8] = [0x8e, 0xad, 0xe8, 1, 0, 0, 0, 0];
/// Regions: what a header must not lose. Their tags come first, their ends last.
const SIGNATURE_REGION: u32 = 62;
const HEADER_REGION: u32 = 63;
/// Bytes of an entry of a header's index.
const ENTRY_BYTES: usize = 16;

/// Flags of files: configuration that an upgrade leaves as the operator changed it, and documents.
const KEPT_CONFIGURATION: u32 = 1 | 16;
const DOCUMENT: u32 = 2;
/// Flags of what is needed: at least or at most this version; a part of RPM itself; what runs scripts.
const EQUAL: u32 = 8;
const PART_OF_RPM: u32 = 0x0100_0000 | 2 | EQUAL;
const RUNS_SCRIPTS: u32 = 0x0100 | 0x0400 | 0x0800 | 0x1000;

const SHELL: &str = "/bin/sh";

/// One header: tags with their values.
#[derive(Default)]
struct Header {
    /// Tag, kind, count, bytes.
    values: Vec<(u32, u32, usize, Vec<u8>)>,
}

impl Header {
    fn put(&mut self, tag: u32, kind: u32, count: usize, bytes: Vec<u8>) {
        self.values.push((tag, kind, count, bytes));
    }

    fn number(&mut self, tag: u32, number: u32) {
        self.numbers(tag, &[number]);
    }

    fn numbers(&mut self, tag: u32, numbers: &[u32]) {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_be_bytes()).collect();
        self.put(tag, INT32, numbers.len(), bytes);
    }

    fn shorts(&mut self, tag: u32, numbers: &[u16]) {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_be_bytes()).collect();
        self.put(tag, INT16, numbers.len(), bytes);
    }

    fn string(&mut self, tag: u32, text: &str) {
        self.put(tag, STRING, 1, terminated(&[text]));
    }

    fn text(&mut self, tag: u32, text: &str) {
        self.put(tag, TEXTS, 1, terminated(&[text]));
    }

    fn strings(&mut self, tag: u32, texts: &[impl AsRef<str>]) {
        self.put(tag, STRINGS, texts.len(), terminated(texts));
    }

    /// The header with its region around all that was put there. Values are in the order of their tags.
    fn encode(mut self, region: u32) -> Vec<u8> {
        self.values.sort_by_key(|(tag, ..)| *tag);
        let (mut index, mut store) = (Vec::new(), Vec::new());
        for (tag, kind, count, bytes) in self.values {
            let width = match kind {
                INT16 => 2,
                INT32 => 4,
                _ => 1,
            };
            store.resize(store.len().next_multiple_of(width), 0);
            index.push([tag, kind, store.len() as u32, count as u32]);
            store.extend(bytes);
        }
        let all = index.len() + 1;
        let trailer = store.len() as u32;
        let back = -i32::try_from(all * ENTRY_BYTES).unwrap_or(i32::MAX);
        let words = |words: [u32; 4]| words.into_iter().flat_map(u32::to_be_bytes);
        store.extend(words([region, BYTES, back as u32, ENTRY_BYTES as u32]));
        let mut bytes = HEADER.to_vec();
        bytes.extend((all as u32).to_be_bytes());
        bytes.extend((store.len() as u32).to_be_bytes());
        bytes.extend(words([region, BYTES, trailer, ENTRY_BYTES as u32]));
        index.into_iter().for_each(|entry| bytes.extend(words(entry)));
        bytes.extend(store);
        bytes
    }
}

fn terminated(texts: &[impl AsRef<str>]) -> Vec<u8> {
    texts.iter().flat_map(|text| text.as_ref().bytes().chain([0])).collect()
}

/// The package. It installs what Debian's does, completions of zsh where Fedora looks.
pub fn make(release: &Release, program: &[u8], shell: &ShellFiles) -> Result<Vec<u8>> {
    let mut files = deb::data_entries(release, program, shell)?;
    for file in &mut files {
        file.path = file.path.replace("zsh/vendor-completions/", "zsh/site-functions/");
    }
    files.retain(|file| !file.path.ends_with("changelog.gz"));
    files.sort_by(|a, b| a.path.cmp(&b.path));
    let cpio = cpio(&files, release.time);
    let payload = archive::gzip(&cpio)?;
    let mut header = Header::default();
    describe(&mut header, release, &files)?;
    scripts(&mut header)?;
    list(&mut header, &files, release.time)?;
    needs(&mut header, release, program);
    header.strings(5092, &[sha256(&payload)]);
    header.number(5093, 8);
    let header = header.encode(HEADER_REGION);
    let mut signature = Header::default();
    signature.string(273, &sha256(&header));
    signature.number(1000, u32::try_from(header.len() + payload.len())?);
    signature.number(1007, u32::try_from(cpio.len())?);
    let mut package = lead(release)?;
    package.extend(signature.encode(SIGNATURE_REGION));
    package.resize(package.len().next_multiple_of(8), 0);
    package.extend(header);
    package.extend(payload);
    Ok(package)
}

/// What old programs read of a package: its kind, name and processor.
fn lead(release: &Release) -> Result<Vec<u8>> {
    let processor: u16 = if release.machine == "x86_64" { 1 } else { 19 };
    let mut lead = LEAD.to_vec();
    lead.extend(0_u16.to_be_bytes());
    lead.extend(processor.to_be_bytes());
    let mut name = format!("stave-{}-1", release.version).into_bytes();
    name.resize(66, 0);
    lead.extend(name);
    lead.extend(1_u16.to_be_bytes());
    lead.extend(5_u16.to_be_bytes());
    lead.extend([0; 16]);
    anyhow::ensure!(lead.len() == 96, "the version is too long for a package of RPM");
    Ok(lead)
}

fn describe(header: &mut Header, release: &Release, files: &[Entry]) -> Result<()> {
    let size: usize = files.iter().map(|file| file.bytes.len()).sum();
    let time = u32::try_from(release.time)?;
    header.strings(100, &["C"]);
    header.string(1000, "stave");
    header.string(1001, &release.version);
    header.string(1002, "1");
    header.text(1004, "memory-first key-value store for Couchbase clients");
    header.text(
        1005,
        "Stave speaks the protocol of Couchbase's data service: its SDKs connect to it\n\
         unmodified, store documents, and find them again after a crash.",
    );
    header.number(1006, time);
    header.string(1007, "localhost");
    header.number(1009, u32::try_from(size)?);
    header.string(1014, "Apache-2.0");
    header.string(1015, &release.maintainer);
    header.text(1016, "Unspecified");
    header.string(1021, "linux");
    header.string(1022, release.machine);
    header.string(1044, &format!("stave-{}-1.src.rpm", release.version));
    header.string(1064, "4.14.0");
    header.string(1124, "cpio");
    header.string(1125, "gzip");
    header.string(1126, "9");
    Ok(())
}

/// Scripts of `deploy/rpm`, with the tags of their text and of what runs them.
fn scripts(header: &mut Header) -> Result<()> {
    for (name, text, runs) in [("post", 1024, 1086), ("preun", 1025, 1087), ("postun", 1026, 1088)] {
        let path = tree::root().join("deploy/rpm").join(name);
        let script = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        header.string(text, &script);
        header.string(runs, SHELL);
    }
    Ok(())
}

/// What the package installs.
fn list(header: &mut Header, files: &[Entry], time: u64) -> Result<()> {
    let split = |file: &Entry| {
        let (folder, name) = file.path.trim_start_matches('.').rsplit_once('/')?;
        Some((format!("{folder}/"), name.to_owned()))
    };
    let paths: Vec<(String, String)> =
        files.iter().map(|file| split(file).context("a path has a folder")).collect::<Result<_>>()?;
    let mut folders: Vec<&str> = paths.iter().map(|(folder, _)| folder.as_str()).collect();
    folders.sort_unstable();
    folders.dedup();
    let places: Vec<u32> = paths
        .iter()
        .map(|(folder, _)| folders.iter().position(|other| other == folder).unwrap_or_default() as u32)
        .collect();
    let names: Vec<&str> = paths.iter().map(|(_, name)| name.as_str()).collect();
    let flags = |file: &Entry| match file.path.trim_start_matches('.') {
        deb::CONFIGURATION => KEPT_CONFIGURATION,
        path if path.starts_with("/usr/share/doc/") || path.starts_with("/usr/share/man/") => DOCUMENT,
        _ => 0,
    };
    let (count, time) = (files.len(), u32::try_from(time)?);
    let sizes: Vec<u32> = files.iter().map(|file| file.bytes.len() as u32).collect();
    let modes: Vec<u16> = files.iter().map(|file| 0o100_000 | file.mode as u16).collect();
    let digests: Vec<String> = files.iter().map(|file| sha256(&file.bytes)).collect();
    header.numbers(1028, &sizes);
    header.shorts(1030, &modes);
    header.shorts(1033, &vec![0; count]);
    header.numbers(1034, &vec![time; count]);
    header.strings(1035, &digests);
    header.strings(1036, &vec![""; count]);
    header.numbers(1037, &files.iter().map(flags).collect::<Vec<_>>());
    header.strings(1039, &vec!["root"; count]);
    header.strings(1040, &vec!["root"; count]);
    header.numbers(1045, &vec![u32::MAX; count]);
    header.numbers(1095, &vec![1; count]);
    header.numbers(1096, &(1..=count as u32).collect::<Vec<_>>());
    header.strings(1097, &vec![""; count]);
    header.numbers(1116, &places);
    header.strings(1117, &names);
    header.strings(1118, &folders);
    header.number(5011, 8);
    Ok(())
}

/// What it provides, and what must be there before it.
fn needs(header: &mut Header, release: &Release, program: &[u8]) {
    header.strings(1047, &["stave"]);
    header.numbers(1112, &[EQUAL]);
    header.strings(1113, &[format!("{}-1", release.version)]);
    let mut needs = vec![
        (RUNS_SCRIPTS, SHELL.to_owned(), ""),
        (0x0200, "shadow-utils".to_owned(), ""),
        (PART_OF_RPM, "rpmlib(CompressedFileNames)".to_owned(), "3.0.4-1"),
        (PART_OF_RPM, "rpmlib(FileDigests)".to_owned(), "4.6.0-1"),
        (PART_OF_RPM, "rpmlib(PayloadFilesHavePrefix)".to_owned(), "4.0-1"),
    ];
    if let Some((major, minor)) = deb::glibc(program) {
        needs.push((0, format!("libc.so.6(GLIBC_{major}.{minor})(64bit)"), ""));
        needs.push((0, "libgcc_s.so.1()(64bit)".to_owned(), ""));
    }
    header.numbers(1048, &needs.iter().map(|(flags, ..)| *flags).collect::<Vec<_>>());
    header.strings(1049, &needs.iter().map(|(_, name, _)| name).collect::<Vec<_>>());
    header.strings(1050, &needs.iter().map(|(.., version)| *version).collect::<Vec<_>>());
}

/// An archive of cpio in its newer form, each number as eight hexadecimal digits.
fn cpio(files: &[Entry], time: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut put = |inode: usize, mode: u32, path: &str, content: &[u8]| {
        let (time, name) = (if content.is_empty() && inode == 0 { 0 } else { time }, path.len() + 1);
        bytes.extend(b"070701");
        let numbers =
            [inode as u64, u64::from(mode), 0, 0, 1, time, content.len() as u64, 0, 1, 0, 0, name as u64, 0];
        numbers.iter().for_each(|number| bytes.extend(format!("{number:08x}").bytes()));
        bytes.extend(path.bytes().chain([0]));
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend(content);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    };
    for (at, file) in (1..).zip(files) {
        put(at, 0o100_000 | file.mode, &file.path, &file.bytes);
    }
    put(0, 0, "TRAILER!!!", &[]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_its_region_around_all() {
        let mut header = Header::default();
        header.string(1000, "ab");
        header.number(1009, 7);
        let bytes = header.encode(HEADER_REGION);
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        // Three entries; "ab", an end, a byte that aligns the number, the number, the region's end.
        assert_eq!((word(8), word(12)), (3, 3 + 1 + 4 + 16));
        assert_eq!([word(16), word(20), word(24), word(28)], [63, BYTES, 8, 16]);
        assert_eq!([word(48), word(52), word(56), word(60)], [1009, INT32, 4, 1]);
        let store = 16 + 3 * ENTRY_BYTES;
        assert_eq!(word(store + 4), 7);
        assert_eq!([word(store + 8), word(store + 16)], [63, (-48_i32) as u32]);
    }

    #[test]
    fn files_of_cpio_begin_at_multiples_of_four() {
        let bytes = cpio(&[Entry::new("./a", b"xy".to_vec(), 0o644)], 5);
        assert!(bytes.starts_with(b"070701000000010000"));
        // 110 bytes of numbers and "./a" with its end make 114; two more align what the file holds.
        assert_eq!(&bytes[114..118], b"\0\0xy");
        assert_eq!(&bytes[120..126], b"070701");
        assert_eq!(bytes.len() % 4, 0);
    }
}
