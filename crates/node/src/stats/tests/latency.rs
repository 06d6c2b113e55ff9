//! Percentiles of latency over time: each row has those since the row before.

use std::time::Duration;

use protocol::opcode;

use super::*;
use crate::stats::history::{History, Series};

const NAME: &str = "stave_latency_seconds";

impl World {
    fn took(&self, opcode: u8, us: u64, count: usize) {
        let times = self.node.times.of(&self.bucket);
        (0..count).for_each(|_| times.of_worker(0).record(opcode, us * 1_000));
    }
}

/// The values of one percentile, in microseconds.
fn values(told: &[Series], op: &str, quantile: &str) -> Vec<f64> {
    let is_it = |series: &&Series| {
        let label = |name: &str| series.labels.get(name).map(String::as_str);
        (label("op"), label("quantile"), label("bucket")) == (Some(op), Some(quantile), Some("travel"))
    };
    let series = told.iter().find(is_it).expect("it is kept");
    series.values.iter().map(|(_, seconds)| (seconds * 1e6).round()).collect()
}

#[test]
fn each_row_has_the_latency_since_the_row_before() {
    let (world, history) = (World::new(), History::default());
    assert!(history.has(NAME));
    let next = || {
        world.handles.clock.advance(Duration::from_secs(10));
        history.take(&world.node);
    };
    // Ends of ranges of the histogram are told: 16 to 18 microseconds, 4,096 to 4,608.
    world.took(opcode::GET, 17, 98);
    world.took(opcode::GET, 4_100, 2);
    next();
    world.took(opcode::GET, 17, 1_000);
    world.took(opcode::SET, 4_100, 1);
    next();
    // Nothing was measured: no row has a value.
    next();
    world.took(opcode::GET, 4_100, 1);
    world.handles.clock.advance(Duration::from_secs(1));
    for _ in 0..2 {
        // Asking does not change what the next row is compared with.
        let told = history.tell(&world.node, &[NAME], 0);
        assert_eq!(told.len(), 9);
        assert_eq!(values(&told, "get", "0.5"), [18.0, 18.0, 4_100.0]);
        assert_eq!(values(&told, "get", "0.99"), [4_100.0, 18.0, 4_100.0]);
        assert_eq!(values(&told, "get", "0.999"), [4_100.0, 18.0, 4_100.0]);
        assert_eq!(values(&told, "set", "0.999"), [4_100.0]);
        assert_eq!(values(&told, "durable", "0.5"), [0.0; 0]);
    }
    let times: Vec<u64> = history.tell(&world.node, &[NAME], 0)[0].values.iter().map(|(at, _)| *at).collect();
    assert!(times.is_sorted() && times[1] - times[0] == 10, "{times:?}");
}
