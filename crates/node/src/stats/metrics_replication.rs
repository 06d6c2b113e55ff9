//! The numbers about what follows other nodes, for Prometheus: one sample a link.

use std::fmt::{self, Display};

use super::page::{Kind, Page};
use crate::node::Node;
use crate::replication::{LinkState, LinkStatus};

/// Everything about links; nothing if there are none.
pub(super) fn put(node: &Node, page: &mut Page<'_>) -> fmt::Result {
    let links = node.replication().status(None);
    if links.is_empty() { Ok(()) } else { put_links(&links, page) }
}

/// The families, with a sample for each of these links.
pub(super) fn put_links(links: &[LinkStatus], page: &mut Page<'_>) -> fmt::Result {
    use Kind::{Counter, Gauge};
    let page = &mut Links { links, page };
    let help = "Whether the link to another node is connected.";
    page.each("stave_replication_connected", Gauge, help, |link| {
        u8::from(link.state == LinkState::Connected)
    })?;
    let help = "vBuckets that follow another node.";
    page.each("stave_replication_vbuckets", Gauge, help, |link| link.vbuckets.len())?;
    let help = "vBuckets whose changes come just now.";
    page.each("stave_replication_streams", Gauge, help, LinkStatus::streaming)?;
    let help = "Changes that the source had when it was asked last, and this node has not.";
    page.each("stave_replication_lag_seqnos", Gauge, help, |link| link.lag().unwrap_or(0))?;
    let help = "Bytes that came and are not acknowledged.";
    page.each("stave_replication_unacknowledged_bytes", Gauge, help, |link| link.unacknowledged_bytes)?;
    let help = "Bytes of messages received.";
    page.each("stave_replication_received_bytes_total", Counter, help, |link| link.counts.bytes)?;
    let help = "Changes applied.";
    page.each("stave_replication_changes_total", Counter, help, |link| link.counts.changes)?;
    let help = "Rollbacks to where histories part.";
    page.each("stave_replication_rollbacks_total", Counter, help, |link| link.counts.rollbacks)?;
    let help = "Streams ended by a message that this node cannot take.";
    page.each("stave_replication_unsupported_total", Counter, help, |link| link.counts.unsupported)?;
    let help = "Connections given up because the source broke the protocol.";
    page.each("stave_replication_violations_total", Counter, help, |link| link.violations)?;
    let help = "Connections made.";
    page.each("stave_replication_connections_total", Counter, help, |link| link.connections)?;
    let help = "vBuckets taken over from another node.";
    page.each("stave_replication_taken_over_total", Counter, help, |link| link.taken_over.done)?;
    let help = "vBuckets without changes filled with the file of another node.";
    page.each("stave_replication_filled_by_file_total", Counter, help, |link| link.counts.filled_by_file)?;
    let help = "vBuckets without changes filled by documents from another node's disk.";
    let by_documents = |link: &LinkStatus| link.counts.filled_by_documents;
    page.each("stave_replication_filled_by_documents_total", Counter, help, by_documents)?;
    let help = "vBuckets filled by documents because no file could be had or used.";
    page.each("stave_replication_files_refused_total", Counter, help, |link| link.files_refused)?;
    let help = "Bytes of files received to fill vBuckets.";
    page.each("stave_replication_file_bytes_total", Counter, help, |link| link.file_bytes)
}

struct Links<'a, 'b> {
    links: &'a [LinkStatus],
    page: &'a mut Page<'b>,
}

impl Links<'_, '_> {
    fn each<T: Display>(
        &mut self,
        name: &str,
        kind: Kind,
        help: &str,
        value: impl Fn(&LinkStatus) -> T,
    ) -> fmt::Result {
        self.page.head(name, kind, help)?;
        self.links.iter().try_for_each(|link| {
            self.page.sample(name, &[("bucket", &link.bucket), ("source", &link.node)], value(link))
        })
    }
}
