//! What Prometheus is told about connections for streams, under the field's names: summed by what their names begin with,
//! which is one of a few kinds, so that no client's name becomes a label.

use std::fmt;

use super::dcp::{self, ConnectionFigures};
use super::monitored::{STREAMERS, kind_of};
use super::page::{Kind, Numbers, Page};
use crate::node::Node;

/// The sums of one kind of connections.
#[derive(Clone, Copy, Default)]
struct Sums {
    connections: u64,
    producers: u64,
    producer_streams: u64,
    consumer_streams: u64,
    items_sent: u64,
    items_remaining: u64,
    sent_bytes: u64,
    backoffs: u64,
    paused: u64,
    unpaused: u64,
    backfills: u64,
}

impl Sums {
    fn add(&mut self, of: &ConnectionFigures) {
        self.connections += 1;
        if of.is_producer {
            self.producers += 1;
            self.producer_streams += of.streams;
        } else {
            self.consumer_streams += of.streams;
        }
        self.items_sent += of.items_sent;
        self.items_remaining += of.items_remaining;
        self.sent_bytes += of.sent_bytes;
        self.backoffs += of.backoffs;
        self.paused += of.paused;
        self.unpaused += of.unpaused;
        self.backfills += of.backfills;
    }
}

/// The label of a kind: what names of its connections begin with.
fn label_of(kind: usize) -> &'static str {
    match STREAMERS[kind].1 {
        "" => "_unknown",
        prefix => prefix,
    }
}

/// The bucket's name, and the sums of each kind that has connections; links between nodes are always told.
type OfBucket<'a> = (&'a str, Vec<(&'static str, Sums)>);

fn of_bucket<'a>(node: &Node, numbers: &'a Numbers) -> OfBucket<'a> {
    let mut sums = [Sums::default(); STREAMERS.len()];
    for figures in dcp::figures(node, &numbers.bucket) {
        sums[kind_of(&figures.name)].add(&figures);
    }
    let all = sums.into_iter().enumerate();
    let told = all.filter(|(kind, sums)| *kind == 0 || sums.connections > 0);
    (numbers.bucket.name(), told.map(|(kind, sums)| (label_of(kind), sums)).collect())
}

type StreamFamily = (&'static str, Kind, &'static str, fn(&Sums) -> u64);

/// What was counted leaves with its connection: none is a counter for Prometheus.
const FAMILIES: [StreamFamily; 7] = [
    ("kv_dcp_connection_count", Kind::Gauge, "Connections for streams.", |of| of.connections),
    ("kv_dcp_items_sent", Kind::Gauge, "Changes that were sent on connections that are there.", |of| {
        of.items_sent
    }),
    ("kv_dcp_items_remaining", Kind::Gauge, "Seqnos that streams have not sent.", |of| of.items_remaining),
    ("kv_dcp_total_data_size_bytes", Kind::Gauge, "Bytes sent on connections that are there.", |of| {
        of.sent_bytes
    }),
    ("kv_dcp_backoff", Kind::Gauge, "Times that memory was too short for what came.", |of| of.backoffs),
    ("kv_dcp_paused_count", Kind::Gauge, "Times that a connection had nothing to send, or no room.", |of| {
        of.paused
    }),
    ("kv_dcp_unpaused_count", Kind::Gauge, "Times that a connection went on after that.", |of| of.unpaused),
];

/// All of them. Each vBucket is locked once more for a bucket that sends changes.
pub(super) fn put(node: &Node, buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    let all: Vec<OfBucket<'_>> = buckets.iter().map(|numbers| of_bucket(node, numbers)).collect();
    for (name, kind, help, value) in FAMILIES {
        page.head(name, kind, help)?;
        for (bucket, kinds) in &all {
            for (label, sums) in kinds {
                page.sample(name, &[("bucket", *bucket), ("connection_type", *label)], value(sums))?;
            }
        }
    }
    let name = "kv_dcp_count";
    page.head(name, Kind::Gauge, "Connections for streams, by the side that this node is.")?;
    put_sides(&all, (name, "type"), page, |of| (of.producers, of.connections - of.producers))?;
    let name = "kv_dcp_stream_count";
    page.head(name, Kind::Gauge, "Streams, by the side that this node is.")?;
    put_sides(&all, (name, "for"), page, |of| (of.producer_streams, of.consumer_streams))?;
    let name = "kv_dcp_num_running_backfills";
    page.head(name, Kind::Gauge, "Streams that read from disk.")?;
    all.iter().try_for_each(|(bucket, kinds)| {
        let running: u64 = kinds.iter().map(|(_, sums)| sums.backfills).sum();
        page.sample(name, &[("bucket", *bucket)], running)
    })
}

/// Two samples of each kind: of producers and of consumers.
fn put_sides(
    all: &[OfBucket<'_>],
    (name, label): (&str, &str),
    page: &mut Page<'_>,
    value: impl Fn(&Sums) -> (u64, u64),
) -> fmt::Result {
    for (bucket, kinds) in all {
        for (kind, sums) in kinds {
            let (producers, consumers) = value(sums);
            for (side, count) in [("producer", producers), ("consumer", consumers)] {
                let labels = [("bucket", *bucket), ("connection_type", *kind), (label, side)];
                page.sample(name, &labels, count)?;
            }
        }
    }
    Ok(())
}
