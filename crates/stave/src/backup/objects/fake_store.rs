//! A small object store in the test's own process, which cuts connections and is busy when it is told to.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};

use base::env::Env;

use super::ObjectStore;
use super::http::Endpoint;
use super::sign::Credentials;
use super::store::StoreBucket;

/// What goes wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The connection ends when half of the request was read.
    CutRequest,
    /// It is done, and the connection ends in the middle of the answer.
    CutAnswer,
    /// The store says that it is busy.
    Busy,
    /// It never answers.
    Silent,
}

/// What the store has, and what will go wrong.
#[derive(Default)]
pub(crate) struct Kept {
    pub(crate) objects: BTreeMap<String, Vec<u8>>,
    pub(crate) uploads: BTreeMap<String, BTreeMap<u16, Vec<u8>>>,
    /// By number of the request, from 0 on.
    pub(crate) troubles: BTreeMap<u64, Trouble>,
    pub(crate) requests: u64,
    /// Every request from this one on is answered with this.
    pub(crate) refuses: Option<(u64, u16, &'static str)>,
    /// Names on one page of a listing.
    pub(crate) page: usize,
    /// By number of the request before which it happens: another process makes a segment of these pieces whole, and has
    /// removed so many of them.
    pub(crate) joined: BTreeMap<u64, (&'static str, usize)>,
}

impl Kept {
    fn join(&mut self, key: &str, removed: usize) {
        let pieces = |objects: &BTreeMap<String, Vec<u8>>| -> Vec<String> {
            objects.keys().filter(|name| name.starts_with(&format!("{key}."))).cloned().collect()
        };
        if !self.objects.contains_key(key) {
            let whole = pieces(&self.objects).iter().flat_map(|name| self.objects[name].clone()).collect();
            self.objects.insert(key.to_owned(), whole);
        }
        for name in pieces(&self.objects).iter().take(removed) {
            self.objects.remove(name);
        }
    }
}

/// A store that serves until the test's process ends.
pub(crate) struct FakeStore {
    addr: std::net::SocketAddr,
    kept: Arc<Mutex<Kept>>,
}

struct FakeRequest {
    method: String,
    key: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl FakeStore {
    pub(crate) fn start() -> FakeStore {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("an address");
        let kept = Arc::new(Mutex::new(Kept { page: 1000, ..Kept::default() }));
        let shared = kept.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let kept = shared.clone();
                std::thread::spawn(move || serve(stream, &kept));
            }
        });
        FakeStore { addr, kept }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.addr)
    }

    pub(crate) fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().expect("sound")
    }

    pub(crate) fn store(&self, env: &Env) -> ObjectStore {
        let endpoint = Endpoint::parse(&self.endpoint()).expect("an address");
        let credentials = Credentials { key: "key".to_owned(), secret: "secret".to_owned(), token: None };
        let (name, region) = ("b".to_owned(), "us-east-1".to_owned());
        ObjectStore::new(env, StoreBucket { endpoint, name, region, by_path: true, credentials, trust: None })
    }
}

/// Text without percent-encoding.
fn plain(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.bytes());
    while let Some(byte) = rest.next() {
        let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16)).expect("a digit");
        bytes.push(if byte == b'%' { (digit() * 16 + digit()) as u8 } else { byte });
    }
    String::from_utf8(bytes).expect("text")
}

/// A request; `None` at the end of the connection or where it is cut.
fn read(reader: &mut BufReader<TcpStream>, kept: &Mutex<Kept>) -> Option<(FakeRequest, Option<Trouble>)> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
    let trouble = {
        let mut kept = kept.lock().expect("sound");
        let number = kept.requests;
        kept.requests += 1;
        if let Some((key, removed)) = kept.joined.remove(&number) {
            kept.join(key, removed);
        }
        kept.troubles.remove(&number)
    };
    let mut words = line.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let key = plain(path.strip_prefix("/b").expect("the bucket").trim_start_matches('/'));
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let query: BTreeMap<_, _> = pairs.map(|(name, value)| (name.to_owned(), plain(value))).collect();
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    assert!(headers["authorization"].contains("Signature="), "it is signed");
    let len: usize = headers.get("content-length").and_then(|len| len.parse().ok()).unwrap_or(0);
    let mut body = vec![0; if trouble == Some(Trouble::CutRequest) { len / 2 } else { len }];
    reader.read_exact(&mut body).ok()?;
    Some((FakeRequest { method, key, query, headers, body }, trouble))
        .filter(|_| trouble != Some(Trouble::CutRequest))
}

fn serve(stream: TcpStream, kept: &Mutex<Kept>) {
    let Ok(mut writer) = stream.try_clone() else { return };
    let mut reader = BufReader::new(stream);
    while let Some((asked, trouble)) = read(&mut reader, kept) {
        let (status, headers, body) = match trouble {
            Some(Trouble::Silent) => loop {
                std::thread::park();
            },
            Some(Trouble::Busy) => (503, Vec::new(), b"<Error><Code>SlowDown</Code></Error>".to_vec()),
            _ => answer(&asked, &mut kept.lock().expect("sound")),
        };
        let mut bytes = format!("HTTP/1.1 {status} X\r\n").into_bytes();
        for (name, value) in &headers {
            bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        let is_head = asked.method == "HEAD" && status == 200;
        if !is_head {
            bytes.extend_from_slice(format!("Content-Length: {}\r\n", body.len()).as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        if asked.method != "HEAD" {
            bytes.extend_from_slice(&body);
        }
        if trouble == Some(Trouble::CutAnswer) {
            bytes.truncate(bytes.len() / 2);
        }
        if writer.write_all(&bytes).is_err() || trouble == Some(Trouble::CutAnswer) {
            let _ = writer.shutdown(std::net::Shutdown::Both);
            return;
        }
    }
}

type FakeAnswer = (u16, Vec<(&'static str, String)>, Vec<u8>);

fn refused(status: u16, code: &str) -> FakeAnswer {
    (status, Vec::new(), format!("<Error><Code>{code}</Code><Message>no</Message></Error>").into_bytes())
}

fn etag_of(bytes: &[u8]) -> String {
    format!("\"{:08x}-{}\"", crc32c::crc32c(bytes), bytes.len())
}

fn answer(asked: &FakeRequest, kept: &mut Kept) -> FakeAnswer {
    if let Some((_, status, code)) = kept.refuses.filter(|(from, ..)| kept.requests > *from) {
        return refused(status, code);
    }
    let (is_upload, id) = (asked.query.contains_key("uploads"), asked.query.get("uploadId"));
    match (&*asked.method, id) {
        ("GET", None) if asked.key.is_empty() => list(asked, kept),
        ("GET" | "HEAD", None) => match kept.objects.get(&asked.key) {
            None => refused(404, "NoSuchKey"),
            Some(object) => get(asked, object),
        },
        ("POST", None) if is_upload => {
            let id = format!("upload-{}", kept.requests);
            kept.uploads.insert(id.clone(), BTreeMap::new());
            let xmlns = "http://s3.amazonaws.com/doc/2006-03-01/";
            let said = format!(
                "<InitiateMultipartUploadResult xmlns=\"{xmlns}\"><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
            );
            (200, Vec::new(), said.into_bytes())
        }
        ("PUT", Some(id)) => {
            let Some(parts) = kept.uploads.get_mut(id) else { return refused(404, "NoSuchUpload") };
            let number = asked.query["partNumber"].parse().expect("a number");
            parts.insert(number, asked.body.clone());
            (200, vec![("ETag", etag_of(&asked.body))], Vec::new())
        }
        ("POST", Some(id)) => {
            let Some(parts) = kept.uploads.remove(id) else { return refused(404, "NoSuchUpload") };
            let text = String::from_utf8_lossy(&asked.body).into_owned();
            assert!(parts.values().all(|part| text.contains(etag_of(part).trim_matches('"'))), "{text}");
            kept.objects.insert(asked.key.clone(), parts.into_values().collect::<Vec<_>>().concat());
            let said = "<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>";
            (200, Vec::new(), said.as_bytes().to_vec())
        }
        ("DELETE", Some(id)) => {
            kept.uploads.remove(id);
            (204, Vec::new(), Vec::new())
        }
        ("PUT", None) => {
            let there = kept.objects.get(&asked.key).map(|object| etag_of(object));
            let is_refused = asked.headers.get("if-none-match").is_some_and(|_| there.is_some())
                || asked.headers.get("if-match").is_some_and(|etag| there.as_ref() != Some(etag));
            if is_refused {
                return refused(412, "PreconditionFailed");
            }
            kept.objects.insert(asked.key.clone(), asked.body.clone());
            (200, vec![("ETag", etag_of(&asked.body))], Vec::new())
        }
        ("DELETE", None) => {
            kept.objects.remove(&asked.key);
            (204, Vec::new(), Vec::new())
        }
        _ => refused(501, "NotImplemented"),
    }
}

fn get(asked: &FakeRequest, object: &[u8]) -> FakeAnswer {
    let etag = etag_of(object);
    if asked.headers.get("if-match").is_some_and(|wanted| *wanted != etag) {
        return refused(412, "PreconditionFailed");
    }
    let mut headers = vec![("ETag", etag)];
    if asked.method == "HEAD" {
        headers.push(("Content-Length", object.len().to_string()));
        return (200, headers, Vec::new());
    }
    let range = asked.headers.get("range").and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    match range {
        None => (200, headers, object.to_vec()),
        Some((from, to)) => {
            let (from, to): (usize, usize) = (from.parse().expect("a number"), to.parse().expect("a number"));
            (206, headers, object[from..=to.min(object.len() - 1)].to_vec())
        }
    }
}

fn list(asked: &FakeRequest, kept: &Kept) -> FakeAnswer {
    let prefix = asked.query.get("prefix").cloned().unwrap_or_default();
    let mut names: Vec<(String, bool)> = Vec::new();
    for key in kept.objects.keys().filter(|key| key.starts_with(&prefix)) {
        let rest = &key[prefix.len()..];
        let name = match rest.find('/') {
            Some(at) => (format!("{prefix}{}", &rest[..=at]), true),
            None => (key.clone(), false),
        };
        if names.last() != Some(&name) {
            names.push(name);
        }
    }
    let from: usize = asked.query.get("continuation-token").and_then(|token| token.parse().ok()).unwrap_or(0);
    let mut text = "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">".to_owned();
    for (name, is_folder) in names.iter().skip(from).take(kept.page) {
        text.push_str(&match is_folder {
            true => format!("<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>"),
            false => format!("<Contents><Key>{name}</Key><Size>1</Size></Contents>"),
        });
    }
    let next = from + kept.page;
    let is_truncated = next < names.len();
    text.push_str(&format!("<IsTruncated>{is_truncated}</IsTruncated>"));
    if is_truncated {
        text.push_str(&format!("<NextContinuationToken>{next}</NextContinuationToken>"));
    }
    text.push_str("<EncodingType>url</EncodingType></ListBucketResult>");
    (200, Vec::new(), text.into_bytes())
}
