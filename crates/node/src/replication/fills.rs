//! Files of vBuckets that come to fill replicas of one link, each over a connection of its own (docs/adr/0208).
//!
//! # Guarantees
//!
//! - A vBucket is ordered once at a time; what came is put in place elsewhere ([`super::Rollbacks`]).
//! - The bucket is held for moments only: who deletes it does not wait for a file that comes.
//! - What is under way when the link's connection breaks goes on. Its outcome is told on the next connection, if that wants
//!   the file, too.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use base::VbId;
use dcp::Mode;
use engine::{Completer, Completion, completion};

use super::download::{Bring, Download, DownloadBucket, DownloadCharge, DownloadFailure, Downloaded};
use super::link::Link;

/// Bytes that are asked for and written at once, and after which they are made durable.
const WRITE_BYTES: u64 = 1 << 20;
const FSYNC_BYTES: u64 = 50 << 20;

/// The file of a vBucket is here, or why it is not.
pub(super) type Came = (VbId, Result<(), &'static str>);

const NO_FILE: &str = "its file did not come: see file_refused of the link";

/// The files of a link.
pub struct Fills {
    link: Weak<Link>,
    bring: Bring,
    /// Ordered, and not begun.
    waiting: VecDeque<VbId>,
    /// No more than there are vBuckets.
    coming: Vec<Coming>,
}

struct Coming {
    vb: VbId,
    download: Completion<Downloaded>,
    outcome: Option<Result<(), String>>,
    /// Whether this connection of the link waits for it.
    is_wanted: bool,
}

impl Fills {
    /// None yet, of this link, brought like this.
    pub fn new(link: &Arc<Link>, bring: Bring) -> Fills {
        Fills { link: Arc::downgrade(link), bring, waiting: VecDeque::new(), coming: Vec::new() }
    }

    /// What was ordered is of a connection that is gone.
    pub(super) fn forget(&mut self) {
        self.waiting.clear();
        self.coming.iter_mut().for_each(|coming| coming.is_wanted = false);
    }

    /// Has the file of a vBucket brought.
    pub(super) fn order(&mut self, vb: VbId) {
        match self.coming.iter_mut().find(|coming| coming.vb == vb) {
            Some(coming) => coming.is_wanted = true,
            None => self.waiting.push_back(vb),
        }
    }

    /// Begins with as many as there are places on the node for.
    pub(super) fn begin(&mut self) {
        while let Some(vb) = self.waiting.front().copied() {
            let (done, download) = completion();
            let begun = match self.link.upgrade() {
                Some(link) => begin(&link, vb, &self.bring, done),
                None => Ok(true),
            };
            let outcome = match begun {
                Ok(false) => return,
                Ok(true) => None,
                Err(why) => Some(Err(why)),
            };
            self.waiting.pop_front();
            self.coming.push(Coming { vb, download, outcome, is_wanted: true });
        }
    }

    /// One that came, or did not, if there is one already.
    pub(super) fn try_next(&mut self) -> Option<Came> {
        match self.poll_next(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(came) => Some(came),
            Poll::Pending => None,
        }
    }

    /// Ready when one that is wanted came, or did not.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Came> {
        for coming in self.coming.iter_mut().filter(|coming| coming.outcome.is_none()) {
            if let Poll::Ready(outcome) = Pin::new(&mut coming.download).poll(cx) {
                let outcome = outcome.unwrap_or(Err(DownloadFailure::Gone));
                coming.outcome = Some(outcome.map(drop).map_err(|failure| failure.to_string()));
            }
        }
        let is_over = |coming: &Coming| coming.is_wanted && coming.outcome.is_some();
        let Some(at) = self.coming.iter().position(is_over) else { return Poll::Pending };
        let Coming { vb, outcome, .. } = self.coming.swap_remove(at);
        let Some(Err(why)) = outcome else { return Poll::Ready((vb, Ok(()))) };
        // One that got another source, or is taken over, is not filled by documents of this one.
        if let Some(link) = self.link.upgrade().filter(|link| link.wants_file(vb)) {
            link.has_no_file(vb, why);
        }
        Poll::Ready((vb, Err(NO_FILE)))
    }
}

impl Link {
    /// Notes why a vBucket is filled by documents though a file was wanted.
    fn has_no_file(&self, vb: VbId, why: String) {
        if let Some(left_out) = engine::admit_log(&self.bucket, "no file to fill with") {
            let bucket = self.bucket.name();
            tracing::info!(
                event = "vbucket_filled_by_documents", bucket, source = self.node, %vb, why, left_out,
                "the source gives no file of a vBucket: it is filled by documents"
            );
        }
        self.note_refused_file(vb, &why);
    }

    /// Counts a file that did not come, or that came and cannot be used.
    pub(super) fn note_refused_file(&self, vb: VbId, why: &str) {
        let mut inner = self.inner.lock();
        inner.files_refused += 1;
        inner.file_refused = Some(format!("vBucket {vb}: {why}"));
    }

    fn wants_file(&self, vb: VbId) -> bool {
        let inner = self.inner.lock();
        !inner.is_closed && inner.wanted.get(&vb) == Some(&Mode::Replicate)
    }
}

/// Begins to copy a file; false if there is no place for another one now.
fn begin(link: &Arc<Link>, vb: VbId, bring: &Bring, done: Completer<Downloaded>) -> Result<bool, String> {
    let bucket = link.bucket();
    let Some(place) = link.downloads.take() else { return Ok(false) };
    let into = bucket.file_snapshots().incoming(vb);
    let into = into.map_err(|refusal| format!("this node does not take its file: {refusal:?}"))?;
    let memory = bucket.memory();
    let charge = DownloadCharge::of(memory.account(), WRITE_BYTES);
    if !memory.admits(memory.held_bytes()) {
        return Err("there is no room in memory for a fragment of its file".to_owned());
    }
    let login = link.login();
    let download = Download {
        env: bucket.env().clone(),
        node: link.node().to_owned(),
        bucket: bucket.name().to_owned(),
        username: login.username.into_owned(),
        password: login.password.into_owned(),
        vb,
        vbuckets: bucket.vbuckets(),
        into,
        target: Box::new(LinkTarget { link: Arc::downgrade(link), vb }),
        charge,
        place,
        write_bytes: WRITE_BYTES,
        fsync_bytes: FSYNC_BYTES,
        most_bytes_per_s: bucket.roles().file_fill_rate(),
        received: Arc::clone(&link.file_bytes),
        fails_fast: true,
        done,
    };
    let begun = bring(bucket.env(), download);
    begun.map(|_| true).map_err(|error| format!("no thread for its file: {error}"))
}

/// The bucket of a link, as long as the link follows a vBucket. It is held for moments: who deletes it waits for those who do.
struct LinkTarget {
    link: Weak<Link>,
    vb: VbId,
}

impl DownloadBucket for LinkTarget {
    fn is_there(&self) -> bool {
        self.link.upgrade().is_some_and(|link| link.wants_file(self.vb))
    }

    fn hold(&self, act: &mut dyn FnMut()) {
        // The link holds the bucket, and who deletes that has closed the link before.
        let Some(link) = self.link.upgrade() else { return };
        if link.wants_file(self.vb) {
            act();
        }
    }
}
