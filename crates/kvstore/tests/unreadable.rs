//! A value that is no Snappy block although its datatype says so is a failure for its reader, and for no other client.

use std::ops::ControlFlow;
use std::path::PathBuf;

use base::env::Env;
use base::{Datatype, DocKey, Seqno, VbId};
use kvstore::{ChangesWanted, Couch, CouchConfig, Failure, KvStore, Reading, SaveBatch, Values, VbStateDoc};
use store_suite::{tuned, version};

const VB: VbId = VbId(1);

#[test]
fn a_value_that_is_no_block_is_not_handed_out() {
    let (env, _) = Env::sim(1);
    let store = Couch::open(env, &PathBuf::from("/data"), CouchConfig::default()).expect("the disk works");
    for block in [&b"no block"[..], b"", &[9, 0, b'a']] {
        let bad = tuned(0, "b", 2, block, |meta| meta.datatype = Datatype::SNAPPY);
        let items = [version(0, "a", 1, b"x"), bad, version(0, "c", 3, b"z")];
        store.delete_vbucket(VB).expect("the disk works");
        store.save(VB, SaveBatch { items: &items, state: &VbStateDoc::default() }).expect("saved");

        let got = store.get(VB, DocKey::new(b"b"));
        assert!(matches!(got, Err(Failure::Record { seqno: Seqno(2), .. })), "{got:?}");
        assert!(store.get(VB, DocKey::new(b"c")).is_ok_and(|found| found.is_some()));

        let mut scanned = 0;
        let scan = store.scan(VB, Seqno(1), Values::Read, &mut |_| {
            scanned += 1;
            ControlFlow::Continue(())
        });
        assert!(matches!(scan, Err(Failure::Record { seqno: Seqno(2), .. })) && scanned == 1, "{scan:?}");

        let snapshot = store.snapshot(VB).expect("readable").expect("there");
        let wanted = ChangesWanted {
            from: Seqno(1),
            values: Values::Read,
            prepares: false,
            past: false,
            max_bytes: 1 << 20,
        };
        let mut shown = 0;
        let changes = snapshot.changes(&wanted, &mut Reading::default(), &mut |_| {
            shown += 1;
            ControlFlow::Continue(())
        });
        assert!(matches!(changes, Err(Failure::Record { seqno: Seqno(2), .. })) && shown == 1, "{changes:?}");
    }
}
