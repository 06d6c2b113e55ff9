//! Requests that come together are answered like those that come one by one, wherever what came was cut.

use std::sync::LazyLock;

use protocol::feature::{Feature, Features};
use protocol::{RequestParts, opcode};

use super::*;

/// What a client may send between others: each changes how what follows is answered, or is refused.
fn kinds() -> impl Strategy<Value = Vec<u8>> {
    let key = prop::sample::select(vec!["a", "b", "c", "\0a", "\u{8}b", ""]);
    let of_key = (key, 0u16..6, 0u8..5).prop_map(|(key, vbucket, what)| {
        let (opcode, extras, value): (u8, &[u8], &[u8]) = match what {
            0 | 1 => (opcode::GET, &[], &[]),
            2 => (opcode::SET, &[0; 8], b"{}"),
            3 => (opcode::INCREMENT, &[0; 20], &[]),
            _ => (opcode::DELETE, &[], &[]),
        };
        let parts = RequestParts { opcode, key: key.as_bytes(), extras, value, ..RequestParts::default() };
        request(&RequestParts { vbucket: VbId(vbucket), ..parts })
    });
    let hello = prop::bool::ANY.prop_map(|has_collections| {
        let more: &[Feature] = if has_collections { &[Feature::Collections] } else { &[] };
        let features = Features::of(&[FULL, more].concat()).encode();
        request(&RequestParts { opcode: opcode::HELLO, value: &features, ..RequestParts::default() })
    });
    let bucket = prop::sample::select(vec!["default", "other", "none"]).prop_map(|name| {
        let key = name.as_bytes();
        request(&RequestParts { opcode: opcode::SELECT_BUCKET, key, ..RequestParts::default() })
    });
    let password = prop::sample::select(vec!["\0admin\0password", "\0admin\0wrong", "\0guest\0password"]);
    let login = password.prop_map(|text| {
        let (key, value) = (&b"PLAIN"[..], text.as_bytes());
        request(&RequestParts { opcode: opcode::SASL_AUTH, key, value, ..RequestParts::default() })
    });
    // What only those who have logged in may send at all.
    let large = Just(set(b"a", &vec![b'1'; 2 << 20], 1));
    let other = prop::sample::select(vec![simple(opcode::NOOP, 1), simple(0xee, 2)]);
    prop_oneof![12 => of_key, 1 => hello, 1 => bucket, 1 => login, 1 => large, 2 => other]
}

/// Deriving their keys takes longer than all else here.
static USERS: LazyLock<Users> = LazyLock::new(|| users(&Env::sim(7).0));

fn answers(requests: &[Vec<u8>], cuts: &[usize]) -> (Vec<u8>, Option<CloseReason>) {
    let node = node_in(Env::sim(7).0, USERS.clone(), false);
    let mut connection = connect_as(&node, "admin", FULL);
    let all = requests.concat();
    let (mut answers, mut from) = (Vec::new(), 0);
    for to in cuts.iter().copied().filter(|to| *to <= all.len()).chain([all.len()]) {
        let mut out = Output::default();
        loop {
            let received = connection.receive(&all[from..to], &mut out);
            answers.extend(out.to_vec());
            out.clear();
            from += received.consumed;
            match received.next {
                Next::Turn => {}
                Next::Bytes(_) => break,
                Next::Close(reason) => return (answers, Some(reason)),
                Next::Later => {
                    let mut context = Context::from_waker(Waker::noop());
                    assert!(connection.poll_later(&mut context, &mut out), "nothing here waits");
                }
            }
        }
    }
    (answers, None)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn requests_that_come_together_are_answered_like_one_by_one(
        requests in prop::collection::vec(kinds(), 1..40),
        is_cut_short in prop::bool::ANY,
        anywhere in prop::collection::btree_set(0usize..3_000, 0..4),
    ) {
        let mut requests = requests;
        if is_cut_short {
            requests.push(b"no frame begins with this".to_vec());
        }
        let ends = requests.iter().scan(0, |at, request| {
            *at += request.len();
            Some(*at)
        });
        let one_by_one = answers(&requests, &ends.collect::<Vec<_>>());
        let cuts: Vec<usize> = anywhere.into_iter().collect();
        prop_assert_eq!(answers(&requests, &cuts), one_by_one.clone());
        prop_assert_eq!(answers(&requests, &[]), one_by_one);
    }
}
