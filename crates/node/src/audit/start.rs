//! How the events of a node are to be audited, as its folder and its configuration say.

use crate::node::Node;

/// Reads how the events of a node are to be audited, if it has a folder.
pub fn read_settings(node: &Node) {
    if let Some(host) = node.host() {
        node.audit.read(host.data_dir().path());
        node.audit.follow(&host.config().audit);
    }
}
