//! Clients of another network are told by all nodes where one is.

use super::*;

#[test]
fn all_nodes_tell_where_clients_of_another_network_reach_one() {
    let nodes = Nodes::start(2, 0);
    let path = "/node/controller/setupAlternateAddresses/external";
    let told = |at: usize, host: Option<&str>| {
        let member = &nodes.members[at];
        let is_so = |state: &State| {
            let mut all = state.nodes.values().filter_map(|node| node.address.alternate.as_ref());
            all.next().map(|one| one.host.as_str()) == host && all.next().is_none()
        };
        let revision = |view: &cluster::View| is_so(&view.state).then_some(view.state.revision);
        let seen =
            member.cluster.wait_until(SOON, |view, applied| revision(view).is_some_and(|is| applied >= is));
        assert!(seen, "{host:?} at node {at}");
        let (_, map) = nodes.http(at, "GET", "/pools/default/b/default", "");
        let hosts = map["nodesExt"].as_array().expect("a list").iter();
        let hosts: Vec<&Value> =
            hosts.filter_map(|node| node.pointer("/alternateAddresses/external/hostname")).collect();
        assert_eq!(hosts, host.iter().collect::<Vec<_>>(), "{map}");
    };
    let before = nodes.state();
    assert_eq!(nodes.http(1, "PUT", path, "hostname=second.example.org&kv=7").0, 200);
    (0..2).for_each(|at| told(at, Some("second.example.org")));
    assert_eq!(nodes.http(1, "DELETE", path, "").0, 200);
    (0..2).for_each(|at| told(at, None));
    let lives = |state: &State| state.nodes.values().map(|node| node.incarnation).collect::<Vec<_>>();
    assert_eq!(lives(&nodes.state()), lives(&before), "no node has begun another life for it");
    nodes.stop();
}
