//! Requests that came together: the next ones are decoded before the present one is handled, so that the memory that
//! they need is on its way meanwhile.

use base::DocKey;
use engine::{Coming, Step};
use protocol::feature::Feature;
use protocol::{Limits, Parsed, Request, parse};

use crate::session::Session;

/// Requests that are decoded ahead. The first thing that is asked for is then the vBucket.
const MOST: usize = 4;
/// What is asked for as its turn comes nearer, and how many requests before.
const STEPS: [(usize, Step); 3] = [(3, Step::Way), (2, Step::Place), (1, Step::Version)];

/// A request that was decoded, and is not handled yet.
#[derive(Clone, Copy)]
struct Decoded<'a> {
    request: Request<'a>,
    total_len: usize,
    coming: Option<Coming>,
}

/// What came in one turn, of which the next requests are decoded ahead.
pub struct Ahead<'a> {
    bytes: &'a [u8],
    /// Bytes from the front that are done with.
    passed: usize,
    /// Where the first frame begins that is not decoded.
    at: usize,
    /// A ring.
    decoded: [Option<Decoded<'a>>; MOST],
    first: usize,
    len: usize,
    /// Whether what begins at `at` is no whole request.
    is_over: bool,
}

impl<'a> Ahead<'a> {
    /// Nothing of what came is decoded yet.
    pub fn new(bytes: &'a [u8]) -> Ahead<'a> {
        Ahead { bytes, passed: 0, at: 0, decoded: [None; MOST], first: 0, len: 0, is_over: false }
    }

    /// What comes next, and its bytes. It comes back again until it is [passed over](Ahead::pass).
    pub fn next(&mut self, limits: Limits) -> (Parsed<'a>, &'a [u8]) {
        if self.len > 0 && limits != Limits::AUTHENTICATED {
            // The client is not logged in any more.
            *self = Ahead { passed: self.passed, at: self.passed, ..Ahead::new(self.bytes) };
        }
        let rest = &self.bytes[self.passed..];
        match self.decoded[self.first] {
            Some(Decoded { request, total_len, .. }) => (Parsed::Request { request, total_len }, rest),
            None => (parse(rest, limits), rest),
        }
    }

    /// Passes over what [`Ahead::next`] gave, and the bytes that it took.
    pub fn pass(&mut self, total_len: usize) {
        self.passed += total_len;
        match self.decoded[self.first].take() {
            Some(_) => {
                self.first = (self.first + 1) % MOST;
                self.len -= 1;
            }
            None => self.at = self.passed,
        }
    }

    /// Bytes from the front that are done with.
    pub fn passed(&self) -> usize {
        self.passed
    }

    /// Decodes what comes next, and asks for the memory of what comes soon, if the session has a bucket. What requests
    /// before it change of the session makes what was asked for useless, and nothing else.
    pub fn look(&mut self, session: &Session) {
        if self.len == 0 && self.at == self.bytes.len() {
            return;
        }
        let Some(bucket) = session.bucket.as_deref() else { return };
        while self.len < MOST && !self.is_over && self.at < self.bytes.len() {
            let Parsed::Request { request, total_len } = parse(&self.bytes[self.at..], Limits::AUTHENTICATED)
            else {
                self.is_over = true;
                break;
            };
            let key = match session.has(Feature::Collections) {
                true => DocKey::parse(request.key),
                false => Some(DocKey::new(request.key)),
            };
            let key = key.filter(|key| !key.key.is_empty());
            let coming = key.map(|key| Coming::new(bucket, request.vbucket, key));
            self.decoded[(self.first + self.len) % MOST] = Some(Decoded { request, total_len, coming });
            self.len += 1;
            self.at += total_len;
        }
        for (ahead, step) in STEPS {
            if let Some(coming) = self.coming(ahead) {
                coming.ask(bucket, step);
            }
        }
    }

    fn coming(&self, ahead: usize) -> Option<Coming> {
        self.decoded[(self.first + ahead - 1) % MOST]?.coming
    }
}
