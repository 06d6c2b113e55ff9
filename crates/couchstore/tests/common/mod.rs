//! A batch of documents for tests, and what a file holds as plain values.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use couchstore::{Batch, Body, CONTENT_OPAQUE, DocUpdate, Failure, RecordSummary, RevMeta, Snapshot};

/// A document as the model knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doc {
    pub seqno: u64,
    pub deleted: bool,
    pub rev_seqno: u64,
    pub cas: u64,
    pub body: Vec<u8>,
}

pub type Docs = BTreeMap<Vec<u8>, Doc>;

/// Documents to save, by id; notes what was told about each.
#[derive(Default)]
pub struct TestBatch {
    pub docs: Vec<(Vec<u8>, Doc)>,
    pub replaced: Vec<Option<RecordSummary>>,
}

impl TestBatch {
    pub fn new(docs: &Docs) -> TestBatch {
        TestBatch { docs: docs.clone().into_iter().collect(), replaced: Vec::new() }
    }
}

impl Batch for TestBatch {
    fn len(&self) -> usize {
        self.docs.len()
    }

    fn doc(&self, i: usize) -> DocUpdate<'_> {
        let (id, doc) = &self.docs[i];
        let body = match (doc.deleted, doc.seqno % 2) {
            (true, _) => Body::None,
            (false, 0) => Body::Plain(&doc.body),
            (false, _) => Body::Compress(&doc.body),
        };
        DocUpdate {
            id,
            seqno: doc.seqno,
            rev_seqno: doc.rev_seqno,
            deleted: doc.deleted,
            content_meta: CONTENT_OPAQUE,
            body,
        }
    }

    fn rev_meta(&self, i: usize, out: &mut Vec<u8>) {
        let meta = RevMeta { cas: self.docs[i].1.cas, datatype: Some(0), ..RevMeta::default() };
        let (bytes, len) = meta.encode();
        out.extend_from_slice(&bytes[..len]);
    }

    fn saved(&mut self, i: usize, new: RecordSummary, old: Option<RecordSummary>) {
        assert_eq!(i, self.replaced.len());
        assert_eq!(new.seqno, self.docs[i].1.seqno);
        self.replaced.push(old);
    }
}

/// Everything a file holds, read through the by-seqno tree, and checked against the by-id tree and the counts.
pub fn read_all(file: &Snapshot) -> Result<Docs, Failure> {
    let mut docs = Docs::new();
    let (mut stored, mut buf) = (Vec::new(), Vec::new());
    let mut last = 0;
    file.changes_since(0, |info| {
        assert!(info.seqno > last, "seqnos grow");
        last = info.seqno;
        let body = file.body(&info, &mut stored, &mut buf)?.to_vec();
        let meta = RevMeta::decode(info.rev_meta).expect("the form that was written");
        let doc =
            Doc { seqno: info.seqno, deleted: info.deleted, rev_seqno: info.rev_seqno, cas: meta.cas, body };
        assert!(docs.insert(info.id.to_vec(), doc).is_none(), "each id once");
        Ok::<_, Failure>(ControlFlow::Continue(()))
    })?;
    couchstore::fuzz::read_in_large_pieces(file);
    let mut ids = Vec::new();
    let (mut live, mut deleted, mut body_bytes) = (0, 0, 0);
    file.scan_ids(&[], |info| {
        if info.deleted {
            deleted += 1
        } else {
            live += 1
        }
        body_bytes += u64::from(info.body_bytes);
        ids.push((info.id.to_vec(), info.seqno));
        Ok::<_, Failure>(ControlFlow::Continue(()))
    })?;
    assert!(ids.iter().map(|(id, seqno)| (id, *seqno)).eq(docs.iter().map(|(id, doc)| (id, doc.seqno))));
    let info = file.info();
    assert_eq!((live, deleted, body_bytes), (info.live_count, info.deleted_count, info.body_bytes));
    assert_eq!(info.seqno_count, docs.len() as u64);
    Ok(docs)
}
