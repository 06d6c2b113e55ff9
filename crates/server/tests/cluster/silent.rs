//! A node that has just died, and whose lease still runs: what the others have may be the only copies.

use super::*;

#[test]
fn no_copy_is_given_up_while_it_is_not_known_whether_the_other_one_is_there() {
    let mut nodes = Nodes::start(3, 1);
    let chains = nodes.state().buckets["default"].map.clone();
    let with_it = chains.iter().filter(|chain| chain.contains(&Some(NodeId(3)))).flatten().flatten();
    let other = *with_it.filter(|id| **id != NodeId(3)).max().expect("each vBucket has two copies");
    // Its process answers no request any more; its lease goes on.
    let dead = nodes.members.remove(2);
    dead.server.kill().expect("its threads end");
    let fail_over = |form: &str| http(&nodes.members[0].server, "POST", "/controller/failOver", form);
    let (code, text) = fail_over(&format!("otpNode={other}"));
    assert_eq!((code, text.contains("n_3 does not answer")), (400, true), "{text}");
    let view = nodes.members[0].cluster.view().expect("it has read the state");
    assert!((1..=3).all(|id| view.state.is_active(NodeId(id))), "nothing was changed");
    // The one that does not answer may be failed over itself: the others have what it has.
    let (code, text) = fail_over("otpNode=n_3");
    assert_eq!(code, 200, "{text}");
    let chosen = nodes.members[0].cluster.wait_until(SOON, |view, _| !view.state.is_choosing());
    assert!(chosen, "the other copies are served");
    assert!(dead.cluster.stop(), "its threads end as they should");
    nodes.stop();
}
