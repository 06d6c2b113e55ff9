//! A client that looks again and again whether all is written: `cbepctl drain`.

use base::env::Env;
use protocol::opcode;

use super::{connect_as, each, feed, node_in, set, simple, users};

/// Stops the flusher.
struct Ends<'b>(&'b engine::Bucket);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.flushing().stop_flusher();
    }
}

#[test]
fn changes_do_not_gather_while_a_client_waits_until_all_is_written() {
    // Its clock does not go on, so that what gathers does so for good.
    let (env, _handles) = Env::sim(7);
    let users = users(&env);
    let node = node_in(env, users, false);
    let mut connection = connect_as(&node, "admin", super::FULL);
    let bucket = node.bucket("default").expect("it is served");
    let mut queue_size = || {
        let (answers, _) = feed(&mut connection, &simple(opcode::STAT, 1));
        let is_it = |name: &[u8]| name == b"ep_queue_size";
        let told = each(&answers, |answer| is_it(answer.key).then(|| answer.value.to_vec()));
        told.into_iter().flatten().next().expect("it is told")
    };
    let (answers, _) = feed(&mut connect_as(&node, "admin", super::FULL), &set(b"k", b"v", 1));
    assert!(!answers.is_empty());
    std::thread::scope(|scope| {
        scope.spawn(|| bucket.flushing().run_flusher());
        // Also if the test fails.
        let _ends = Ends(&bucket);
        assert_eq!(queue_size(), b"1", "who asks once moves nothing");
        assert!((0..1_000_000).any(|_| queue_size() == b"0"), "it is never written");
    });
}
