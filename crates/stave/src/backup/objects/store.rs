//! A bucket of an S3-compatible store: objects are put, read and removed, with bounded retries.
//!
//! # Guarantees
//!
//! - An object is there as a whole or not at all.
//! - What failed for want of a connection, or because the store is busy, is tried again, [`MOST_TRIES`] times at the most.

use std::io::{Error, ErrorKind, Result};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base::env::Env;

use super::http::{Endpoint, HttpAnswer, HttpConnection, HttpRequest};
use super::sign::{Credentials, Signed, amz_date, authorization, digest, encoded};
use crate::client::Trust;

/// How often a request is sent at the most.
pub(super) const MOST_TRIES: u32 = 6;
/// Before the second try; it doubles from try to try.
const FIRST_PAUSE: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 200 });
/// The longest answer that is no object.
const MOST_TEXT_BYTES: usize = 16 << 20;
/// A listing with more names than these is refused.
const MOST_NAMES: usize = 1 << 20;

/// Where the bucket of a store is, and who asks.
#[derive(Clone)]
pub(super) struct StoreBucket {
    pub(super) endpoint: Endpoint,
    pub(super) name: String,
    pub(super) region: String,
    /// The path names the bucket, and not the host.
    pub(super) by_path: bool,
    pub(super) credentials: Credentials,
    pub(super) trust: Option<Trust>,
}

/// An object store, seen from one bucket.
pub(crate) struct ObjectStore {
    env: Env,
    bucket: StoreBucket,
    /// What the header `Host` says.
    host: String,
    connection: Mutex<HttpConnection>,
}

/// An object that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObjectHead {
    pub(super) len: u64,
    pub(super) etag: String,
}

/// When an object is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PutIf<'a> {
    Always,
    /// There is none of this name.
    Missing,
    /// It is still this one.
    Is(&'a str),
}

/// One request to the store.
#[derive(Default)]
struct Asked<'a> {
    method: &'static str,
    key: &'a str,
    /// In the order of names.
    query: &'a [(&'static str, &'a str)],
    headers: Vec<(&'static str, String)>,
    body: &'a [u8],
    most: usize,
}

impl ObjectStore {
    pub(super) fn new(env: &Env, bucket: StoreBucket) -> ObjectStore {
        let mut endpoint = bucket.endpoint.clone();
        if !bucket.by_path {
            endpoint.host = format!("{}.{}", bucket.name, endpoint.host);
        }
        let host = endpoint.name();
        let connection = Mutex::new(HttpConnection::new(endpoint, bucket.trust.clone()));
        ObjectStore { env: env.clone(), bucket, host, connection }
    }

    /// The same with a connection of its own, on which it waits for no other request.
    pub(super) fn another(&self) -> ObjectStore {
        ObjectStore::new(&self.env, self.bucket.clone())
    }

    /// The bucket and its address, for messages.
    pub(super) fn name(&self) -> String {
        format!("bucket `{}` at {}", self.bucket.name, self.bucket.endpoint.name())
    }

    /// Signs and sends a request.
    fn ask(&self, asked: Asked<'_>) -> Result<HttpAnswer> {
        let bucket = if self.bucket.by_path { format!("/{}", self.bucket.name) } else { String::new() };
        let path = format!("{bucket}/{}", encoded(asked.key, '/'));
        // Nothing but what is never encoded is kept.
        let pairs = asked.query.iter().map(|(name, value)| format!("{name}={}", encoded(value, '-')));
        let query = pairs.collect::<Vec<_>>().join("&");
        let mut headers = asked.headers;
        headers.push(("host", self.host.clone()));
        headers.push(("x-amz-content-sha256", digest(asked.body)));
        headers.push(("x-amz-date", amz_date(self.env.clock.unix_s().into())));
        headers.extend(self.bucket.credentials.token.clone().map(|token| ("x-amz-security-token", token)));
        headers.sort();
        let (method, region) = (asked.method, &*self.bucket.region);
        let signed = Signed { method, path: &path, query: &query, headers: &headers, region };
        let authorization = authorization(&signed, &self.bucket.credentials);
        headers.push(("authorization", authorization));
        let target = if query.is_empty() { path } else { format!("{path}?{query}") };
        let most = asked.most.max(MOST_TEXT_BYTES);
        self.request(&HttpRequest { method, target: &target, headers: &headers, body: asked.body, most })
    }

    /// The same, where an answer that is no success is an error.
    fn succeed(&self, asked: Asked<'_>) -> Result<HttpAnswer> {
        let answer = self.ask(asked)?;
        if (200..300).contains(&answer.status) { Ok(answer) } else { Err(self.refusal(&answer)) }
    }

    /// Sends a request until it is answered: not by a cut connection, nor by a store that is busy.
    fn request(&self, request: &HttpRequest<'_>) -> Result<HttpAnswer> {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut pause, mut tries) = (FIRST_PAUSE, 0);
        loop {
            // One that was kept may have been closed since, which says nothing.
            tries += u32::from(!connection.is_open());
            let answered = connection.exchange(request);
            let is_last = tries >= MOST_TRIES;
            match answered {
                Ok(answer) if !is_busy(&answer) || is_last => return Ok(answer),
                Err(error) if is_last || error.kind() == ErrorKind::InvalidData => return Err(error),
                Ok(_) => tries += u32::from(connection.is_open()),
                Err(_) => {}
            }
            std::thread::sleep(pause);
            pause *= 2;
        }
    }

    /// What the store refuses, and what to do.
    fn refusal(&self, answer: &HttpAnswer) -> Error {
        let text = String::from_utf8_lossy(&answer.body);
        let (code, said) =
            (element(&text, "Code").unwrap_or_default(), element(&text, "Message").unwrap_or_default());
        let kind = match answer.status {
            404 if code != "NoSuchBucket" => ErrorKind::NotFound,
            401 | 403 => ErrorKind::PermissionDenied,
            412 | 409 => ErrorKind::AlreadyExists,
            501 => ErrorKind::Unsupported,
            _ => ErrorKind::Other,
        };
        let advice = match (answer.status, &*code) {
            (_, "NoSuchBucket") => "; make the bucket, or look at the name behind s3://",
            (_, "SignatureDoesNotMatch" | "InvalidAccessKeyId") => {
                "; look at AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the profile of AWS_PROFILE"
            }
            (_, "RequestTimeTooSkewed") => "; set the clock of this machine",
            (301 | 307 | 400, _) => "; is --s3-region that of the bucket?",
            (401 | 403, _) => {
                "; the user needs to list, read, write and delete there, and the region has to be the bucket's"
            }
            _ => "",
        };
        let (name, status) = (self.name(), answer.status);
        Error::new(kind, format!("{name} answers with status {status} {code} {said}{advice}"))
    }

    /// An object; `None` if there is none.
    pub(super) fn head(&self, key: &str) -> Result<Option<ObjectHead>> {
        let answer = self.ask(Asked { method: "HEAD", key, ..Asked::default() })?;
        match answer.status {
            404 => Ok(None),
            200..300 => {
                let len = answer.header("content-length").and_then(|len| len.parse().ok());
                let len =
                    len.ok_or_else(|| Error::other(format!("{} tells no length of {key}", self.name())))?;
                Ok(Some(ObjectHead { len, etag: answer.header("etag").unwrap_or_default().to_owned() }))
            }
            _ => Err(self.refusal(&answer)),
        }
    }

    /// Bytes of an object, which has to be the one that was asked about before.
    pub(super) fn read(&self, key: &str, head: &ObjectHead, range: std::ops::Range<u64>) -> Result<Vec<u8>> {
        let count = (range.end - range.start) as usize;
        let mut headers = vec![("range", format!("bytes={}-{}", range.start, range.end.saturating_sub(1)))];
        if !head.etag.is_empty() {
            headers.push(("if-match", head.etag.clone()));
        }
        let answer = self.succeed(Asked { method: "GET", key, headers, most: count, ..Asked::default() })?;
        let is_whole = answer.status == 200 && head.len == count as u64;
        if answer.body.len() != count || !(answer.status == 206 || is_whole) {
            let what =
                format!("{} sent {} bytes of {key} instead of {count}", self.name(), answer.body.len());
            return Err(Error::new(ErrorKind::InvalidData, what));
        }
        Ok(answer.body)
    }

    /// Puts an object; its entity tag. `AlreadyExists` if the condition does not hold.
    pub(super) fn put(&self, key: &str, body: &[u8], condition: PutIf<'_>) -> Result<String> {
        let headers = match condition {
            PutIf::Always => Vec::new(),
            PutIf::Missing => vec![("if-none-match", "*".to_owned())],
            PutIf::Is(etag) => vec![("if-match", etag.to_owned())],
        };
        let answer = self.succeed(Asked { method: "PUT", key, headers, body, ..Asked::default() })?;
        Ok(answer.header("etag").unwrap_or_default().to_owned())
    }

    /// Removes an object; fine if there is none.
    pub(super) fn remove(&self, key: &str) -> Result<()> {
        match self.succeed(Asked { method: "DELETE", key, ..Asked::default() }) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            done => done.map(drop),
        }
    }

    /// The names behind a prefix that ends with `/`, up to the next one.
    pub(super) fn list(&self, prefix: &str) -> Result<Vec<String>> {
        let (mut names, mut next): (Vec<String>, Option<String>) = (Vec::new(), None);
        loop {
            let token = next.as_deref().map(|token| ("continuation-token", token));
            let rest = [("delimiter", "/"), ("list-type", "2"), ("prefix", prefix)];
            let query: Vec<(&str, &str)> = token.into_iter().chain(rest).collect();
            let answer = self.succeed(Asked { method: "GET", query: &query, ..Asked::default() })?;
            let text = String::from_utf8_lossy(&answer.body);
            if !text.contains("ListBucketResult") {
                return Err(Error::other(format!("what {} answers is no listing", self.name())));
            }
            let objects = elements(&text, "Contents").filter_map(|one| element(one, "Key"));
            let folders = elements(&text, "CommonPrefixes").filter_map(|one| element(one, "Prefix"));
            let behind = objects.chain(folders).filter_map(|key| {
                Some(key.strip_prefix(prefix)?.trim_end_matches('/').to_owned())
                    .filter(|name| !name.is_empty())
            });
            names.extend(behind);
            if names.len() > MOST_NAMES {
                return Err(Error::other(format!(
                    "{} has more than {MOST_NAMES} names in {prefix}",
                    self.name()
                )));
            }
            let is_truncated = element(&text, "IsTruncated").is_some_and(|is| is == "true");
            next = element(&text, "NextContinuationToken").filter(|_| is_truncated);
            match (&next, is_truncated) {
                (None, true) => return Err(Error::other(format!("a listing of {} ends early", self.name()))),
                (None, false) => return Ok(names),
                _ => {}
            }
        }
    }

    /// Begins an object of several parts; its identifier.
    pub(super) fn begin_parts(&self, key: &str) -> Result<String> {
        let answer =
            self.succeed(Asked { method: "POST", key, query: &[("uploads", "")], ..Asked::default() })?;
        let upload = element(&String::from_utf8_lossy(&answer.body), "UploadId").filter(|id| !id.is_empty());
        upload.ok_or_else(|| Error::other(format!("{} begins no upload of {key}", self.name())))
    }

    /// Puts a part, counted from 1; its entity tag.
    pub(super) fn put_part(&self, key: &str, upload: &str, number: u16, body: &[u8]) -> Result<String> {
        let number = number.to_string();
        let query = [("partNumber", &*number), ("uploadId", upload)];
        let answer = self.succeed(Asked { method: "PUT", key, query: &query, body, ..Asked::default() })?;
        let etag = answer.header("etag").filter(|etag| !etag.is_empty());
        etag.map(str::to_owned).ok_or_else(|| Error::other(format!("{} names no part of {key}", self.name())))
    }

    /// Makes an object of parts: from now on it is there.
    pub(super) fn end_parts(&self, key: &str, upload: &str, etags: &[String]) -> Result<()> {
        let parts: String = (1..)
            .zip(etags)
            .map(|(number, etag)| {
                format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>")
            })
            .collect();
        let body = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
        let (query, body) = ([("uploadId", upload)], body.as_bytes());
        let answer = self.succeed(Asked { method: "POST", key, query: &query, body, ..Asked::default() })?;
        // A store may find out that it fails when it has said that it succeeds.
        let has_failed = String::from_utf8_lossy(&answer.body).contains("<Error>");
        if has_failed { Err(self.refusal(&answer)) } else { Ok(()) }
    }

    /// Gives up an object of parts.
    pub(super) fn abort_parts(&self, key: &str, upload: &str) -> Result<()> {
        let query = [("uploadId", upload)];
        self.succeed(Asked { method: "DELETE", key, query: &query, ..Asked::default() }).map(drop)
    }

    pub(super) fn env(&self) -> &Env {
        &self.env
    }
}

/// Whether the same request may succeed a bit later.
fn is_busy(answer: &HttpAnswer) -> bool {
    matches!(answer.status, 408 | 429 | 500 | 502 | 503 | 504)
}

/// The contents of elements without attributes, one after the other.
fn elements<'t>(text: &'t str, name: &str) -> impl Iterator<Item = &'t str> {
    let (begin, end) = (format!("<{name}>"), format!("</{name}>"));
    let mut rest = text;
    std::iter::from_fn(move || {
        let (content, behind) = rest.split_once(&begin)?.1.split_once(&end)?;
        rest = behind;
        Some(content)
    })
}

/// The text of the first element of a name.
fn element(text: &str, name: &str) -> Option<String> {
    let content = elements(text, name).next()?;
    let plain =
        [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#34;", "\""), ("&apos;", "'"), ("&amp;", "&")];
    Some(plain.iter().fold(content.to_owned(), |text, (from, to)| text.replace(from, to)))
}
